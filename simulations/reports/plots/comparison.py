"""Accuracy of runs over rounds, and over the bytes and the simulated seconds that it cost, as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.common.text import printable
from hetfl_flwr.runs.figures.tables import percent
from simulations.reports.plots.drawing import (
    COLOURS,
    DPI,
    LONGEST_LABEL,
    MARKERS,
    PAGE_LINE,
    PAGE_SIZE,
    dress,
    end_ticks,
    literal,
    page_figure,
    write_figure,
)
from simulations.reports.plots.run import extremes, global_points, require_points
from simulations.reports.runs import Group, Run, curve, group_runs
from simulations.reports.tables import TERMS, unequal_terms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_IN_TITLE, MOST_AT_ENDS, LONGEST_AT_END = 4, 9, 24
"""Runs that a title names, and names at the ends of lines, at most, and the letters of such a name."""
SHARED = {"dataset": "{}", "clients": "{} clients", "rounds": "{} rounds", "seed": "seed {}"}
"""How a picture says what all runs have in common."""
LETTERS, HANDLE_WIDTH = 14, 10
"""Of a legend: characters on an inch, and those that a line's sample takes."""
NARROW = 100
"""An axis of bytes from 1 up to less than so many has ticks at 2 and 5, too."""
BELOW_LAST, ABOVE_BEST = 0.1, 0.02
"""How far a picture of costs goes below the lowest last and above the highest accuracy: there the differences are."""
LETTER_WIDTH, NAME_HEIGHT = 0.07, 0.18
"""Room of a letter of a name at the end of a line, and of the name, in inches; before it is that of two letters."""


@dataclass(frozen=True)
class Course:
    """One line of a comparison: the rounds that all runs of a group have evaluated; arrays of shape (n,).

    Its band goes from `low` to `high`. A course is free if the runs have trained and sent no payload. `clock` has
    simulated seconds, NaN where a run has no clock.
    """

    label: str
    colour: str
    marker: str
    rounds: NDArray[np.int64]
    accuracy: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    payload: NDArray[np.float64]
    free: bool
    clock: NDArray[np.float64]

    @property
    def banded(self) -> bool:
        """Whether there is a band to be drawn."""
        return bool((self.low < self.high).any())

    def at(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Course:
        """Return the course with some of its points, by number or mask."""
        return replace(
            self,
            rounds=self.rounds[rows],
            accuracy=self.accuracy[rows],
            low=self.low[rows],
            high=self.high[rows],
            payload=self.payload[rows],
            clock=self.clock[rows],
        )


def plot_compare(runs: Sequence[Run], path: Path) -> None:
    """Draw the mean accuracy of several runs over rounds and over payload bytes, and write the picture.

    Where runs have a clock, their accuracy over simulated seconds comes beside. Runs that differ in their seed alone
    are one line, their mean, with a band of one standard deviation (n - 1) each way within [0, 1], over the rounds that
    all of them have evaluated. Evaluations before the first byte was sent have no place on the logarithmic axis and are
    left out there.

    Parameters
    ----------
    runs : sequence of Run
        At least one.
    path : Path
        Where to write; the suffix names the format (``.png``, ``.pdf``, ``.svg``), none means PNG. Missing folders are
        made.

    Raises
    ------
    RunFolderError
        If there is no run, or no round of some run was evaluated.
    ConfigError
        If the picture cannot be written there.
    """
    write_figure(compare_figure(runs), path)


def plot_costs(runs: Sequence[Run], path: Path) -> None:
    """Draw the mean accuracy of several runs over payload bytes, with their names at the lines, and write the picture.

    Lines, bands and parameters are those of `plot_compare`.

    Raises
    ------
    RunFolderError
        If there is no run, or no round of some run was evaluated.
    ConfigError
        If the picture cannot be written there.
    """
    write_figure(costs_figure(runs), path)


def compare_figure(runs: Sequence[Run]) -> Figure:
    """Return the figure that `plot_compare` writes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import AutoLocator

    groups, courses = _courses(runs)
    timed = [course for course in courses if not np.isnan(course.clock).any()]
    figure = Figure(figsize=(15 if timed else 10, 5), dpi=DPI, layout="constrained")
    over_rounds, over_bytes, *over_seconds = figure.subplots(1, 3 if timed else 2, sharey=True)
    _draw_rounds(over_rounds, courses, "mean accuracy over clients")
    _draw_costs(over_bytes, courses)
    for axes in over_seconds:
        for course in timed:
            _draw_course(axes, course, course.clock)
        dress(axes, None)
        axes.set_xlabel("simulated seconds")
        axes.xaxis.set_major_locator(AutoLocator())
    _entitle(figure, groups, courses)
    if _name_at_ends(groups):
        _name_ends(over_rounds, groups, courses, over="rounds")
        _name_ends(over_bytes, groups, courses, over="payload")
    else:
        _name_below(figure, over_rounds)
    return literal(figure)


def costs_figure(runs: Sequence[Run]) -> Figure:
    """Return the figure that `plot_costs` writes."""
    from matplotlib.figure import Figure

    groups, courses = _courses(runs)
    figure = Figure(figsize=(10, 6.5), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    _draw_costs(axes, courses)
    axes.set_ylabel("mean accuracy over clients")
    lowest, highest = min(course.accuracy[-1] for course in courses), max(course.accuracy.max() for course in courses)
    axes.set_ylim(max(0, lowest - BELOW_LAST), highest + ABOVE_BEST)
    _name_ends(axes, groups, courses, over="payload")
    _entitle(figure, groups, courses)
    return literal(figure)


def rounds_figure(courses: Sequence[Course]) -> Figure:
    """Return accuracy over rounds as a figure in a page, which has its title; each course has a point."""
    figure, axes = page_figure()
    _draw_rounds(axes, courses, None)
    figure.set_figheight(PAGE_SIZE[1] + PAGE_LINE * _name_below(figure, axes))
    return literal(figure)


def payload_figure(courses: Sequence[Course]) -> Figure:
    """Return accuracy over payload bytes as a figure in a page, which has its title; each course has a point."""
    figure, axes = page_figure()
    _draw_costs(axes, courses)
    figure.set_figheight(PAGE_SIZE[1] + PAGE_LINE * _name_below(figure, axes))
    return literal(figure)


def course_of(group: Group, number: int) -> Course:
    """Return the line of a group; its number chooses colour and marker."""
    curves = [curve(run) for run in group.runs]
    rounds = reduce(np.intersect1d, [points.rounds for points in curves])
    shared = [np.isin(points.rounds, rounds) for points in curves]
    accuracy = np.array([points.accuracy[keep] for points, keep in zip(curves, shared, strict=True)])
    payload = np.array([points.payload[keep] for points, keep in zip(curves, shared, strict=True)])
    clock = np.array([points.clock[keep] for points, keep in zip(curves, shared, strict=True)])
    several = len(curves) > 1
    mean, deviation = accuracy.mean(axis=0), accuracy.std(axis=0, ddof=1) if several else np.zeros(rounds.size)
    label = printable(group.label, LONGEST_LABEL)
    return Course(
        label=fill(f"{label}, {len(curves)} seeds" if several else label, 40),
        colour=COLOURS[number % len(COLOURS)],
        marker=MARKERS[number % len(MARKERS)],
        rounds=rounds,
        accuracy=mean,
        low=np.maximum(mean - deviation, 0),
        high=np.minimum(mean + deviation, 1),
        payload=payload.mean(axis=0),
        free=bool(rounds.any()) and not any(group.values(lambda run: run["bytes_up"] + run["bytes_down"])),
        clock=clock.mean(axis=0),
    )


def run_courses(run: Run) -> list[Course]:
    """Return the mean over one run's clients, between the lowest and the highest, and the global model."""
    mean, points = course_of(Group("mean over clients", (run,)), 0), global_points(run)
    if np.array_equal(mean.rounds, (band := extremes(run))[0]):
        mean = replace(mean, low=band[1], high=band[2])
    rounds, accuracy = points[:, 0].astype(np.int64), points[:, 1]
    none = np.zeros(rounds.size)
    return [
        mean,
        Course("global model", COLOURS[1], MARKERS[1], rounds, accuracy, accuracy, accuracy, none, False, none),
    ]


def _courses(runs: Sequence[Run]) -> tuple[list[Group], list[Course]]:
    groups = group_runs(runs)
    for run in runs:
        require_points(run)
    return groups, [course_of(group, number) for number, group in enumerate(groups)]


def _entitle(figure: Figure, groups: Sequence[Group], courses: Sequence[Course]) -> None:
    """Say in a sentence how the runs end; below it, smaller, on what terms."""
    common = {name: {term(group) for group in groups} for name, term in TERMS.items()}
    shared = ", ".join(SHARED[name].format(*values) for name, values in common.items() if len(values) == 1)
    terms = "\n".join(filter(None, (shared, unequal_terms(groups))))
    banded = "\nBands: one standard deviation over seeds each way." * any(course.banded for course in courses)
    figure.suptitle(ending(groups, courses), fontsize="large", fontweight="bold", wrap=True)
    figure.supxlabel(f"{terms}{banded}", fontsize="small", color="dimgray", wrap=True)


def ending(groups: Sequence[Group], courses: Sequence[Course]) -> str:
    """Return in a sentence with which accuracy the runs end, the highest first; of many, the best of them."""
    ends = sorted(zip(groups, courses, strict=True), key=lambda pair: -pair[1].accuracy[-1])
    reached = [f"{percent(course.accuracy[-1])} %" for _, course in ends]
    (first, _), *rest = ends
    others = [f"{group.label} {accuracy}" for (group, _), accuracy in zip(rest, reached[1:], strict=True)]
    sentence = f"{first.label} reaches {reached[0]}"
    rounds = {int(course.rounds[-1]) for course in courses}
    after = f" after {rounds.pop():,} rounds" if len(rounds) == 1 else ""
    if len(ends) > MOST_IN_TITLE:
        return f"{sentence}{after}, the most of {len(ends)}"
    return " and ".join(filter(None, (", ".join([sentence, *others[:-1]]), *others[-1:]))) + after


def _name_at_ends(groups: Sequence[Group]) -> bool:
    """Return whether the names are few and short enough to stand where the lines end."""
    return len(groups) <= MOST_AT_ENDS and all(len(group.label) <= LONGEST_AT_END for group in groups)


def _name_ends(
    axes: Axes, groups: Sequence[Group], courses: Sequence[Course], *, over: Literal["rounds", "payload"]
) -> None:
    """Write names to the right of where lines end, from the highest down, none on another."""
    from matplotlib.patheffects import withStroke

    to_axes = axes.transData + axes.transAxes.inverted()
    size = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())
    letter, height = LETTER_WIDTH / size.width, NAME_HEIGHT / size.height
    placed: list[tuple[float, float, float]] = []
    for group, course in sorted(zip(groups, courses, strict=True), key=lambda pair: -pair[1].accuracy[-1]):
        free = course.free and over == "payload"
        name = f"{group.label}: sends nothing" if free else group.label
        x, y = to_axes.transform((getattr(course, over)[-1], course.accuracy[-1]))
        x = 1 if free else x
        right = x + letter * (len(name) + 2)
        for start, end, above in placed:
            if start < right and x < end and above - y < height:
                y = above - height
        placed.append((x, right, y))
        axes.annotate(
            name,
            (x, y),
            (8, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            color=course.colour,
            path_effects=[withStroke(linewidth=3, foreground="white")],
        )


def _draw_rounds(axes: Axes, courses: Sequence[Course], what: str | None) -> None:
    """Draw accuracy over rounds, on an axis that ends with the last one."""
    for course in courses:
        _draw_course(axes, course, course.rounds)
    dress(axes, what)
    end_ticks(axes, max(int(course.rounds[-1]) for course in courses))


def _draw_course(axes: Axes, course: Course, x: NDArray[np.int64] | NDArray[np.float64]) -> None:
    axes.plot(
        x,
        course.accuracy,
        color=course.colour,
        linewidth=1.6,
        marker=course.marker,
        markersize=5,
        markevery=max(1, x.size // 8),
        label=course.label,
    )
    if course.banded:
        axes.fill_between(x, course.low, course.high, color=course.colour, alpha=0.2, linewidth=0)


def _draw_costs(axes: Axes, courses: Sequence[Course]) -> None:
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
            _draw_course(axes, course, np.where(course.payload > 0, course.payload, np.nan))
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < NARROW * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_free(axes: Axes, course: Course) -> None:
    low, high = course.low[-1], course.high[-1]
    if low < high:
        axes.axhspan(low, high, color=course.colour, alpha=0.2, linewidth=0)
    axes.axhline(
        course.accuracy[-1],
        color=course.colour,
        linestyle="--",
        linewidth=1.6,
        marker=course.marker,
        clip_on=False,
        label=fill(f"{course.label}: sends nothing (last accuracy)", 50),
    )


def _name_below(figure: Figure, axes: Axes) -> int:
    """Write what the lines of some axes are below all of them, and return in how many lines of text."""
    handles, labels = axes.get_legend_handles_labels()
    lines = [label.splitlines() for label in labels]
    longest = max(len(line) for each in lines for line in each)
    columns = max(1, min(len(labels), int(LETTERS * figure.get_figwidth()) // (longest + HANDLE_WIDTH)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return ceil(sum(map(len, lines)) / columns)
