"""A heat map of the training samples of each client and class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetfl_flwr.text import printable
from simulations.reports.plots.drawing import WIDTH, headed, page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulations.reports.partition import ClientRows


MAX_CELLS, MAX_TICKS = 400, 40
"""Maximum number of cells of a heat map for which numbers are shown, and of clients that each have a tick."""
LONGEST_TICK, LETTERS = 24, 7.5
"""Characters of a name next to a heat map, and of all names below it for each inch of the picture, before they are
rotated."""
DIGIT = 0.06
"""Width of a digit in a cell, in inches."""


def split_figure(split: ClientRows, width: float = WIDTH) -> Figure:
    """Draw the number of training rows of each client and class, with clients from top to bottom, by domain."""
    from matplotlib.ticker import MaxNLocator

    order = split.shares.domain.factorize()[0].argsort(kind="stable")
    shares, classes = split.shares.iloc[order], [*map(str, split.counts)]
    figure = page(min(max(2.8, 1.6 + 0.26 * len(shares)), 8), width)
    axes = figure.add_subplot()
    counts = split.counts.to_numpy(dtype=np.float64)[order]  # NaN: not in its data set
    most = max(1.0, np.nanmax(counts))
    wide = DIGIT * len(f"{most:,.0f}") * len(classes)
    few = counts.size <= MAX_CELLS and wide <= width
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
        axes.set_xticks(range(len(classes)), names, rotation=90 if sum(map(len, names)) > LETTERS * width else 0)
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
