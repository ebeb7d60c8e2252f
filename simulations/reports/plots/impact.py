"""Methods by what they gain their clients, as a picture with a dot for each client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hetfl_flwr.text import printable
from simulations.reports.impact import Impact, MethodImpact
from simulations.reports.plots.drawing import COLOURS, DPI, LONGEST_LABEL, literal
from simulations.reports.terminal import byte_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDE, ROW_HEIGHT = 8, 0.3
"""Of a picture of methods by gain, and of each method; inches."""
DOTS_ABREAST, STEP, FARTHEST = 60, 0.12, 0.36
"""Dots that fit beside one another, how far those of a place are moved apart, and at most off their row; in rows."""


def methods_figure(found: Sequence[MethodImpact]) -> Figure:
    """Return who gains how much by each method, a row for each, in the order given.

    A dot stands for each client, a diamond for their mean, with its 95 % interval over seeds; the payload is on the
    right. The line at 0 is training alone.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDE, 1.6 + ROW_HEIGHT * len(found)), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    draw_impact(axes, {one.method: one.impact for one in found}, {one.method: byte_size(one.payload) for one in found})
    axes.set_xlabel("points over training alone")
    explain(figure)
    figure.suptitle(_ending(found[0]), fontweight="bold", wrap=True)
    return literal(figure)


def _ending(best: MethodImpact) -> str:
    """Return in a sentence what the method with the largest mean gain brings its clients."""
    if best.impact.gain.mean <= 0:
        return "No method gains over training alone on average"
    gain, harmed = 100 * best.impact.gain.mean, 100 * best.impact.harmed
    return f"With {best.method} clients gain {gain:.1f} points on average, and {harmed:.0f} % of them lose over a point"


def explain(figure: Figure) -> None:
    """Say below a picture of gains what its dots, diamonds and bars are."""
    drawn = [axes.get_legend_handles_labels() for axes in figure.axes]
    shown = {label: handle for handles, labels in drawn for handle, label in zip(handles, labels, strict=True)}
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=2, frameon=False, fontsize="small")


def swarm(gains: Sequence[float], width: float) -> list[float]:
    """Return how far dots are moved off their row, so that those nearer than a width stand beside one another.

    Examples
    --------
    >>> swarm([1.0, 5.0, 1.1, 0.9], 0.5)
    [0.0, 0.0, 0.12, -0.12]
    """
    places = [round(gain / width) for gain in gains] if width else [0] * len(gains)
    step = min(STEP, 2 * FARTHEST / max(Counter(places).values(), default=1))
    met, moved = Counter[int](), list[float]()
    for place in places:
        met[place] += 1
        moved.append(step * (met[place] // 2 * (-1) ** (met[place] % 2)))
    return moved


def draw_impact(axes: Axes, rows: Mapping[str, Impact], beside: Mapping[str, str]) -> None:
    """Draw a row for each method, the first on top: its clients' gains, their mean, and a text.

    Dots that would lie on one another are moved apart.

    The mean is hollow where its interval is not known or has 0 in it.
    """
    axes.axvline(0, color=COLOURS[6], linewidth=0.8)
    every = [100 * value for impact in rows.values() for value in impact.clients.values()]
    width = (max(every, default=0) - min(every, default=0)) / DOTS_ABREAST
    for place, impact in enumerate(rows.values()):
        gains, mean = [100 * value for value in impact.clients.values()], 100 * impact.gain.mean
        heights, label = place + np.array(swarm(gains, width)), "a client, mean over seeds"
        axes.plot(gains, heights, "o", color=COLOURS[5], markersize=4, alpha=0.6, zorder=2, label=label)
        colour = COLOURS[0] if mean >= 0 else COLOURS[1]
        if impact.gain.low is not None and impact.gain.high is not None:
            ends = [100 * impact.gain.low, 100 * impact.gain.high]
            axes.plot(ends, [place] * 2, color=colour, linewidth=2.5, label="its 95 % interval over seeds")
        inside = colour if impact.shown else "none"
        label = "mean over clients" if impact.shown else "mean whose interval is unknown or has 0 in it"
        axes.plot(mean, place, "D", color=colour, markerfacecolor=inside, markersize=5, zorder=3, label=label)
    for place, name in enumerate(rows):
        axes.annotate(
            beside.get(name, ""), (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize="small"
        )
    axes.set_yticks(range(len(rows)), [printable(name, LONGEST_LABEL) for name in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_formatter("{x:+g}")
    axes.grid(axis="x", alpha=0.3)
