"""Accuracy of runs over rounds, and over the bytes and the simulated seconds that it cost, as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from textwrap import fill
from typing import TYPE_CHECKING

import pandas as pd

from hetfl_flwr.errors import RunFolderError
from hetfl_flwr.text import printable
from simulations.reports.plots.drawing import (
    COLOURS,
    DPI,
    LONGEST_LABEL,
    MARKERS,
    dress,
    literal,
)
from simulations.reports.runs import Group, Run, curve, group_runs
from simulations.reports.tables import shared_terms, unequal_terms
from simulations.reports.terminal import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_IN_TITLE = 4
"""Runs that a title names."""
LETTERS, HANDLE_WIDTH = 14, 10
"""Of a legend: characters on an inch, and those that a line's sample takes."""
LINE, FEW = 0.2, 4
"""Inches by which a picture grows for each line of its legend beyond a few."""
NARROW = 100
"""An axis of bytes from 1 up to less than so many has ticks at 2 and 5, too."""


@dataclass(frozen=True)
class Course:
    """One line of a comparison.

    Parameters
    ----------
    label : str
        Its name.
    look : int
        Chooses colour and marker.
    points : DataFrame
        A row a ``round`` that all runs of a group have evaluated: ``accuracy``, its band from ``low`` to ``high``, and
        as far as they are known ``payload`` and ``clock``, as `curve` has them.
    """

    label: str
    look: int
    points: pd.DataFrame

    @classmethod
    def line(cls, label: str, look: int, accuracy: Mapping[int, float] | pd.Series[float]) -> Course:
        """Return a line without band and costs through accuracies by round."""
        points = pd.DataFrame({"round": accuracy.keys(), "accuracy": accuracy.values()}, dtype=float)
        return cls(label, look, points.assign(low=points.accuracy, high=points.accuracy))

    @property
    def colour(self) -> str:
        """Return the colour of its look."""
        return COLOURS[self.look % len(COLOURS)]

    @property
    def marker(self) -> str:
        """Return the marker of its look."""
        return MARKERS[self.look % len(MARKERS)]

    @property
    def free(self) -> bool:
        """Whether the runs have trained and sent no payload."""
        return bool(self.points["round"].any()) and not self.points.payload.any()

    @property
    def banded(self) -> bool:
        """Whether there is a band to be drawn."""
        return bool((self.points.low < self.points.high).any())

    @property
    def plain(self) -> Course:
        """The same without its band."""
        return replace(self, points=self.points.assign(low=self.points.accuracy, high=self.points.accuracy))


def compare_figure(runs: Sequence[Run], *, upright: bool = False) -> Figure:
    """Return the mean accuracy of several runs over rounds, payload bytes and, if they have a clock, simulated seconds.

    Runs that differ in their seed alone are one line, their mean over the rounds that all of them have evaluated, with
    a band of one standard deviation (n - 1) each way within [0, 1]. Evaluations before the first byte was sent have no
    place on the logarithmic axis and are left out there. Panels stand beside each other, or below if `upright`.

    Raises
    ------
    RunFolderError
        If there is no run, or no round of some run was evaluated.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import AutoLocator

    groups = group_runs(runs)
    for run in runs:
        require_points(run)
    courses = [course_of(group, number) for number, group in enumerate(groups)]
    timed = [course for course in courses if course.points.clock.notna().all()]
    panels = 3 if timed else 2
    figure = Figure(figsize=(6.5, 3.6 * panels) if upright else (5 * panels, 5), dpi=DPI, layout="constrained")
    over_rounds, over_bytes, *over_seconds = figure.subplots(*((panels, 1) if upright else (1, panels)), sharey=True)
    draw_rounds(over_rounds, courses, "mean accuracy over clients")
    draw_costs(over_bytes, courses)
    for axes in over_seconds:
        for course in timed:
            _draw_course(axes, course, course.points.clock)
        dress(axes, None)
        axes.set_xlabel("simulated seconds")
        axes.xaxis.set_major_locator(AutoLocator())
    figure.suptitle(ending(groups, courses), fontsize="large", fontweight="bold", wrap=True)
    banded = "Bands: one standard deviation over seeds each way." * any(course.banded for course in courses)
    terms = filter(None, (shared_terms(groups), unequal_terms(groups), banded))
    lines = _name_below(figure, over_bytes, "\n".join(fill(line, 80 if upright else 160) for line in terms))
    figure.set_figheight(figure.get_figheight() + LINE * max(0, lines - FEW))
    return literal(figure)


def course_of(group: Group, number: int) -> Course:
    """Return the line of a group; its number chooses colour and marker."""
    by_round = pd.concat([curve(run) for run in group.runs]).groupby("round")
    shared, several = by_round.size() == len(group.runs), len(group.runs) > 1
    mean, deviation = by_round.mean()[shared], by_round.accuracy.std()[shared].fillna(0)
    low, high = (mean.accuracy - deviation).clip(lower=0), (mean.accuracy + deviation).clip(upper=1)
    points = mean.assign(low=low, high=high).reset_index()
    label = printable(group.label, LONGEST_LABEL)
    return Course(
        label=fill(f"{label}, {len(group.runs)} seeds" if several else label, 40),
        look=number,
        points=points,
    )


def require_points(run: Run) -> None:
    """Refuse a run of which nothing can be drawn."""
    if curve(run).empty:
        if run.damage:
            raise RunFolderError(f"{run.damage}; no other round was evaluated: nothing to draw")
        raise RunFolderError(f"{run.folder}: no round was evaluated yet: nothing to draw; let it run on")


def ending(groups: Sequence[Group], courses: Sequence[Course]) -> str:
    """Return in a sentence with which accuracy the runs end, the highest first; of many, the best of them."""
    last = [course.points.iloc[-1] for course in courses]
    ends = sorted(zip(groups, last, strict=True), key=lambda pair: -pair[1].accuracy)
    (first, best), *rest = ends
    others = [f"{group.label} {percent(end.accuracy)} %" for group, end in rest]
    sentence = f"{first.label} reaches {percent(best.accuracy)} %"
    rounds = {int(end["round"]) for end in last}
    after = f" after {rounds.pop():,} rounds" if len(rounds) == 1 else ""
    if len(ends) > MOST_IN_TITLE:
        return f"{sentence}{after}, the most of {len(ends)}"
    return " and ".join(filter(None, (", ".join([sentence, *others[:-1]]), *others[-1:]))) + after


def draw_rounds(axes: Axes, courses: Sequence[Course], what: str | None = None) -> None:
    """Draw accuracy over rounds."""
    for course in courses:
        _draw_course(axes, course, course.points["round"])
    dress(axes, what)


def _draw_course(axes: Axes, course: Course, x: pd.Series[float]) -> None:
    points = course.points
    axes.plot(
        x,
        points.accuracy,
        color=course.colour,
        linewidth=1.6,
        marker=course.marker,
        markersize=5,
        markevery=max(1, x.size // 8),
        label=course.label,
    )
    if course.banded:
        axes.fill_between(x, points.low, points.high, color=course.colour, alpha=0.2, linewidth=0)


def draw_costs(axes: Axes, courses: Sequence[Course]) -> None:
    """Draw accuracy over payload; of those that send nothing, the last accuracy."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    free = [course for course in courses if course.free]
    for course in free:
        _draw_free(axes, course)
    dress(axes, None)
    axes.set_xlabel("payload sent, up + down (bytes, log scale)")
    if len(free) == len(courses):
        axes.set_xlabel("no payload sent")
        axes.set_xticks([])
        return
    for course in courses:
        if not course.free:
            _draw_course(axes, course, course.points.payload.where(lambda sent: sent > 0))
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < NARROW * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_free(axes: Axes, course: Course) -> None:
    end = course.points.iloc[-1]
    if end.low < end.high:
        axes.axhspan(end.low, end.high, color=course.colour, alpha=0.2, linewidth=0)
    axes.axhline(
        end.accuracy,
        color=course.colour,
        linestyle="--",
        linewidth=1.6,
        marker=course.marker,
        clip_on=False,
        label=fill(f"{course.label}: sends nothing (last accuracy)", 50),
    )


def _name_below(figure: Figure, axes: Axes, terms: str) -> int:
    """Write terms and the names of lines below some axes; return how many lines of text the names take."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(len(line) for label in labels for line in label.splitlines())
    columns = max(1, min(len(labels), int(LETTERS * figure.get_figwidth()) // (longest + HANDLE_WIDTH)))
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    legend.set_title(terms)
    legend.get_title().set(size="small", color="dimgray", multialignment="center")
    return ceil(sum(len(label.splitlines()) for label in map(str, labels)) / columns)
