"""A picture of the gains of methods, with a dot for each client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from hetfl_flwr.text import printable
from simulations.reports.estimates import ACCURACY, Measure
from simulations.reports.impact import Impact, MethodImpact
from simulations.reports.layout import byte_size
from simulations.reports.pairing import BASELINES
from simulations.reports.plots.drawing import COLOURS, LINE, LONGEST_LABEL, WIDTH, headed, legend_below, page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


ROW_HEIGHT = 0.265
"""Minimum height of the row of a method, in inches."""
NAME = 36
"""Characters per line of a method's name, in a picture that fills a page."""
DOTS_ABREAST = 60
"""The number of dots that fit side by side."""
STEP, FARTHEST, BELOW = 0.1, 0.25, 0.18
"""How far overlapping dots are moved apart, how far at most from their center, and the distance of that center from the
center of the row; in row heights."""


def methods_figure(found: Sequence[MethodImpact], width: float = WIDTH, measure: Measure = ACCURACY) -> Figure:
    """Draw the clients' gains in a measure, one row per method in the given order, with the payload on the right.

    Each dot is a client, a diamond is the mean over clients with its 95 % interval over seeds. The baseline is the line
    at 0; it has a row only if there is no other method.
    """
    found = [one for one in found if one.label != one.baseline] or found
    lines = max(len(_wrapped(one.label, width)) for one in found)
    figure = page(1.46 + max(ROW_HEIGHT, LINE * lines) * len(found), width)
    axes = figure.subplots()
    payload = {one.label: byte_size(one.both_ways("bytes")) for one in found}
    draw_impact(axes, {one.label: one.impact for one in found}, payload, width)
    below = explain(figure, f"Points of {measure.words} over {BASELINES[found[0].baseline]}; right: payload")
    figure.set_figheight(figure.get_figheight() + LINE * below)
    return headed(figure, _ending(found[0], measure))


def _wrapped(name: str, width: float) -> list[str]:
    """Return the lines of a method's name in a picture of a width in inches."""
    return wrap(printable(name, LONGEST_LABEL), int(NAME * width / WIDTH))


def _ending(best: MethodImpact, measure: Measure) -> str:
    """Return a sentence about the method with the largest mean gain in a measure."""
    baseline = BASELINES[best.baseline]
    if best.impact.gain.mean <= 0:
        return f"No method gains over {baseline} on average"
    gain, those = (
        f"{100 * best.impact.gain.mean:.1f} points" + f" of {measure.words}" * (measure != ACCURACY),
        "of them" if len(best.runs) == 1 else "of clients and seeds",
    )
    if not best.impact.shown:
        return f"No method gains significantly over {baseline}; {best.label} is highest, by {gain} on average"
    share = f"{100 * best.impact.harmed:.0f} %" if best.impact.harmed >= 0.005 else "under 1 %"
    losing = f"{share} {those}" if best.impact.harmed else "none"
    return f"With {best.label}, clients gain {gain} over {baseline} on average, and {losing} lose more than a point"


def explain(figure: Figure, what: str) -> float:
    """Draw the legend of a picture of gains below it, and return its lines."""
    from matplotlib.lines import Line2D

    marks = {
        "one client, mean over seeds": Line2D([], [], marker="o", linestyle="", color=COLOURS[5], alpha=0.6),
        "mean over clients, 95 % interval over seeds": Line2D([], [], marker="D", linewidth=2.5, color=COLOURS[0]),
        "mean below 0": Line2D([], [], marker="D", linewidth=2.5, color=COLOURS[1]),
        "interval contains 0, or one seed": Line2D([], [], marker="D", linestyle="", color=COLOURS[0], mfc="none"),
    }
    return legend_below(figure, [*marks.values()], [*marks], what)


def swarm(gains: Sequence[float], width: float) -> list[float]:
    """Return how far to move each dot from the center of its row, so that dots closer than `width` do not overlap.

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


def draw_impact(
    axes: Axes, rows: Mapping[str, Impact | None], beside: Mapping[str, str], page_width: float = WIDTH
) -> None:
    """Draw one row per method, the first on top: its clients' gains, their mean, and the text in `beside`.

    The mean is hollow if its interval is unknown or contains 0. The row of None stays empty. Names are wrapped to the
    width of the page, in inches.
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
    names = ["\n".join(_wrapped(name, page_width)) for name in rows]
    axes.set_yticks(range(len(rows)), names, fontsize="small")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:+g}" if x else "0")
    axes.tick_params(labelsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)
