"""A heat map of the training samples of each client and class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetfl_flwr.text import printable
from simulations.reports.plots.drawing import headed, page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulations.reports.partition import ClientRows


MAX_CELLS, MAX_TICKS = 400, 40
"""The most cells of a heat map with their number in them, and the most clients with a tick each."""
LONGEST_TICK, MAX_LETTERS = 24, 60
"""Characters of a name next to a heat map, and of all names below it before they are rotated."""


def split_figure(split: ClientRows) -> Figure:
    """Draw the number of training rows of each client and class, with clients from top to bottom, by domain."""
    from matplotlib.ticker import MaxNLocator

    order = split.shares.domain.factorize()[0].argsort(kind="stable")
    shares, classes = split.shares.iloc[order], [*map(str, split.counts)]
    figure = page(min(max(2.8, 1.6 + 0.26 * len(shares)), 8))
    axes = figure.add_subplot()
    counts = split.counts.to_numpy(dtype=np.float64)[order]  # NaN: not in its data set
    few, most = counts.size <= MAX_CELLS, max(1.0, np.nanmax(counts))
    places = (np.arange(len(classes)), np.arange(len(shares)))
    cells = axes.pcolormesh(
        *places, counts, cmap="Blues", vmin=-0.04 * most, vmax=most, edgecolor="white", lw=0.8 * few
    )
    if few:
        for (row, label), count in np.ndenumerate(counts):
            if count > 0:
                shade = "white" if count > most / 2 else "black"
                axes.text(label, row, f"{count:,.0f}", ha="center", va="center", fontsize="x-small", color=shade)
    else:
        figure.colorbar(cells, ax=axes, shrink=0.5, ticks=MaxNLocator(8, integer=True))
    axes.set_xlabel("class (numbers: training rows)")
    if len(classes) > MAX_TICKS or classes == [*map(str, range(len(classes)))]:
        axes.xaxis.set_major_locator(MaxNLocator(20, integer=True, min_n_ticks=1))
    else:
        names = [printable(name, LONGEST_TICK) for name in classes]
        axes.set_xticks(range(len(classes)), names, rotation=90 if sum(map(len, names)) > MAX_LETTERS else 0)
    step = -(-len(shares) // MAX_TICKS)
    names = shares.name.mask(shares.name == "", shares.domain if shares.domain.nunique() > 1 else "")
    labels = [f"{client} {printable(name, LONGEST_TICK)}".strip() for client, name in names.items()]
    axes.set_yticks(range(0, len(shares), step), labels[::step])
    axes.set_ylim(len(shares) - 0.5, -0.5)
    axes.set_ylabel("client")
    axes.tick_params(length=0, labelsize="x-small")
    axes.spines[:].set_visible(False)
    most, fewest = shares.training.idxmax(), shares.training.idxmin()
    high, low = shares.training[most], shares.training[fewest]
    counted = f"Client {most} has the most training rows ({high:,}), client {fewest} the fewest ({low:,})"
    about = f"{split.title}: {split.rows:,} rows, {split.unused:,} unused"
    return headed(figure, about, counted if high > low else f"Each client has {high:,} training rows")
