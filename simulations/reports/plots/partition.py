"""Which client has which samples, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hetfl_flwr.text import printable
from simulations.reports.plots.drawing import DPI, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from simulations.reports.partition import Share, Split


MOST_CELLS = 400
"""Up to so many cells of a heat map each one bears its number."""
MOST_CLIENT_TICKS, MOST_CLASS_TICKS = 40, 20
LONGEST_TICK, MOST_LETTERS = 24, 60
"""Letters of a name beside a heat map, and of all names below it that stand side by side."""


def split_figure(split: Split) -> Figure:
    """Return which client has which classes, and how many rows of which kind: clients from top to bottom, by domain."""
    from matplotlib.figure import Figure

    shares = sorted(split.shares, key=lambda share: (split.domains.index(share.domain), share.client))
    height = min(max(2.8, 1.6 + 0.26 * len(shares)), 11)
    figure = Figure(figsize=(10, height), dpi=DPI, layout="constrained")
    heat, bars = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _draw_classes(heat, shares, split)
    _draw_parts(bars, shares, split.own_tests)
    _mark_clients(heat, shares)
    _mark_domains(heat, bars, [share.domain for share in shares])
    figure.suptitle(f"{split.title}: {split.rows:,} rows, {split.unused:,} unused", fontsize="medium", wrap=True)
    return literal(figure)


def _draw_classes(axes: Axes, shares: Sequence[Share], split: Split) -> None:
    from matplotlib.ticker import MaxNLocator

    classes = split.classes
    counts = np.array([split.counts(share) for share in shares], dtype=np.float64)  # NaN: not in its data set
    few, most = counts.size <= MOST_CELLS, max(1.0, np.nanmax(counts))
    places = (np.arange(classes), np.arange(len(shares)))
    cells = axes.pcolormesh(
        *places, counts, cmap="Blues", vmin=-0.04 * most, vmax=most, edgecolor="white", lw=0.8 * few
    )
    if few:
        for (row, label), count in np.ndenumerate(counts):
            if count > 0:
                shade = "white" if count > most / 2 else "black"
                axes.text(label, row, f"{count:,.0f}", ha="center", va="center", fontsize="x-small", color=shade)
    else:
        whole = MaxNLocator(8, integer=True)
        bar = axes.figure.colorbar(cells, ax=axes, location="left", shrink=0.4, aspect=30, ticks=whole)
        bar.ax.set_ylim(bottom=0)
        bar.ax.tick_params(labelsize="x-small")
        bar.outline.set_visible(False)
    axes.set_xlabel("training rows of each class")
    if classes > MOST_CLASS_TICKS or split.class_names == tuple(map(str, range(classes))):
        axes.xaxis.set_major_locator(MaxNLocator(MOST_CLASS_TICKS, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    else:
        names = [printable(name, LONGEST_TICK) for name in split.class_names]
        upright = sum(map(len, names)) > MOST_LETTERS
        axes.set_xticks(range(classes), names, rotation=90 if upright else 0)
    axes.tick_params(length=0, labelsize="x-small")
    axes.spines[:].set_visible(False)


def _draw_parts(axes: Axes, shares: Sequence[Share], own_tests: bool) -> None:
    parts = {
        "training": [share.training - share.public for share in shares],
        "training, public": [share.public for share in shares],
        "validation": [share.validation for share in shares],
        "test": [share.test if own_tests else 0 for share in shares],
    }
    start = np.zeros(len(shares))
    for (name, counts), colour in zip(parts.items(), ("#0072B2", "#56B4E9", "#E69F00", "#009E73"), strict=True):
        if any(counts):
            axes.barh(range(len(shares)), counts, left=start, height=0.8, color=colour, label=name)
        start = start + counts
    axes.set_xlabel("rows" if own_tests else "rows (tests: the data set's own split)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False, fontsize="x-small")
    axes.tick_params(labelsize="x-small")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)


def _mark_clients(axes: Axes, shares: Sequence[Share]) -> None:
    step = next(step for step in (1, 2, 5, 10, 20, 50, len(shares)) if len(shares) <= step * MOST_CLIENT_TICKS)
    names = [" ".join(filter(None, (str(share.client), printable(share.name, LONGEST_TICK)))) for share in shares]
    axes.set_yticks(range(0, len(shares), step), names[::step])
    axes.set_ylim(len(shares) - 0.5, -0.5)
    axes.set_ylabel("client")


def _mark_domains(heat: Axes, bars: Axes, domains: Sequence[str]) -> None:
    names = list(dict.fromkeys(domains))
    if len(names) == 1:
        return
    for name in names:
        first, count = domains.index(name), domains.count(name)
        for axes in (heat, bars) if first else ():
            axes.axhline(first - 0.5, color="black", linewidth=0.8)
        at = (1.02, first + (count - 1) / 2)
        bars.annotate(
            name, at, xycoords=("axes fraction", "data"), va="center", fontsize="small", annotation_clip=False
        )
