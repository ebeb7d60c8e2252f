"""Methods by what they gain their clients, as a picture with a dot for each client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from hetfl_flwr.text import printable
from simulations.reports.impact import Impact, MethodImpact
from simulations.reports.plots.drawing import COLOURS, LONGEST_LABEL, headed, legend_below, page
from simulations.reports.terminal import byte_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


ROW_HEIGHT = 0.265
"""Of each method, in inches."""
NAME = 36
"""Letters of a line of a method's name beside its row."""
DOTS_ABREAST, STEP, FARTHEST, BELOW = 60, 0.1, 0.25, 0.18
"""Dots that fit beside one another, how far those of a place are moved apart, and at most off their row, which lies so
far below that of the means; in rows."""


def methods_figure(found: Sequence[MethodImpact]) -> Figure:
    """Return a picture of the clients' gains, a row for each method, in the given order.

    A dot stands for each client, a diamond for their mean, with its 95 % interval over seeds; the payload is on the
    right. The line at 0 is training alone, which has no row beside others.
    """
    baseline = [
        one for one in found if one.runs[0].summary["algorithm"] == "local" and not any(one.impact.clients.values())
    ]
    found = [one for one in found if one not in baseline] or found
    figure = page(1.8 + ROW_HEIGHT * len(found))
    axes = figure.subplots()
    draw_impact(axes, {one.method: one.impact for one in found}, {one.method: byte_size(one.payload) for one in found})
    explain(figure, "Points over training alone; right: payload")
    return headed(figure, _ending(found[0]))


def _ending(best: MethodImpact) -> str:
    """Return in a sentence what the method with the largest mean gain brings its clients."""
    if best.impact.gain.mean <= 0:
        return "No method gains over training alone on average"
    gain, harmed = f"{100 * best.impact.gain.mean:.1f} points", f"{100 * best.impact.harmed:.0f} % of them"
    if not best.impact.shown:
        return f"No method gains for sure over training alone; {best.method} is highest, by {gain} on average"
    losing = harmed if best.impact.harmed else "none"
    return f"With {best.method} clients gain {gain} on average, and {losing} lose over a point"


def explain(figure: Figure, what: str) -> None:
    """Say below a picture of gains what its axis, dots, diamonds and bars are."""
    from matplotlib.lines import Line2D

    marks = {
        "one client, mean over seeds": Line2D([], [], marker="o", linestyle="", color=COLOURS[5], alpha=0.6),
        "mean over clients, 95 % interval over seeds": Line2D([], [], marker="D", linewidth=2.5, color=COLOURS[0]),
        "the same below 0": Line2D([], [], marker="D", linewidth=2.5, color=COLOURS[1]),
        "mean that may be 0, or of one seed": Line2D([], [], marker="D", linestyle="", color=COLOURS[0], mfc="none"),
    }
    legend_below(figure, [*marks.values()], [*marks], what)


def swarm(gains: Sequence[float], width: float) -> list[float]:
    """Return how far dots are moved off their row, so that those nearer than a width stand beside one another.

    Examples
    --------
    >>> swarm([1.0, 5.0, 1.1, 0.9], 0.5)
    [0.0, 0.0, 0.1, -0.1]
    """
    places = [round(gain / width) for gain in gains] if width else [0] * len(gains)
    step = min(STEP, 2 * FARTHEST / max(Counter(places).values(), default=1))
    met, moved = Counter[int](), list[float]()
    for place in places:
        met[place] += 1
        moved.append(step * (met[place] // 2 * (-1) ** (met[place] % 2)))
    return moved


def draw_impact(axes: Axes, rows: Mapping[str, Impact | None], beside: Mapping[str, str]) -> None:
    """Draw a row for each method, the first on top: its clients' gains, their mean, and a text.

    Dots that would lie on one another are moved apart. The mean is hollow where its interval is not known or has 0 in
    it. A row of None stays empty.
    """
    from matplotlib.ticker import MaxNLocator

    axes.axvline(0, color=COLOURS[6], linewidth=0.8)
    known = {place: impact for place, impact in enumerate(rows.values()) if impact is not None}
    every = [100 * value for impact in known.values() for value in impact.clients.values()]
    width = (max(every, default=0) - min(every, default=0)) / DOTS_ABREAST
    for place, impact in known.items():
        gains, mean = [100 * value for value in impact.clients.values()], 100 * impact.gain.mean
        heights = place + BELOW + np.array(swarm(gains, width))
        axes.plot(gains, heights, "o", color=COLOURS[5], markersize=3.5, markeredgewidth=0, alpha=0.6, zorder=2)
        colour = COLOURS[0] if mean >= 0 else COLOURS[1]
        if not isnan(impact.gain.low):
            axes.plot([100 * impact.gain.low, 100 * impact.gain.high], [place - BELOW] * 2, color=colour, linewidth=2.5)
        inside = colour if impact.shown else "white"
        axes.plot(mean, place - BELOW, "D", color=colour, markerfacecolor=inside, markersize=4.5, zorder=3)
    for place, name in enumerate(rows):
        if text := beside.get(name):
            where = ("axes fraction", "data")
            axes.annotate(text, (1.01, place), xycoords=where, va="center", fontsize="small")
    names = [fill(printable(name, LONGEST_LABEL), NAME) for name in rows]
    axes.set_yticks(range(len(rows)), names, fontsize="small")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:+g}" if x else "0")
    axes.tick_params(labelsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)
