"""Pictures of runs: accuracy over rounds, and over the bytes that it cost.

Matplotlib is imported only when something is drawn, and no display is needed. Colours are Okabe and Ito's,
which colour-blind readers can tell apart; lines differ in dashes or markers as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.common.errors import ConfigError, RunFolderError
from hetfl_flwr.common.text import printable
from hetfl_flwr.runs.figures.tables import byte_size
from hetfl_flwr.runs.schema import ClientRecord, name_of
from simulations.reports.impact import Impact, Standing
from simulations.reports.runs import Group, Run, client_scores, curve, figures, group_runs, method_of
from simulations.reports.tables import shared_terms, unequal_terms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from simulations.reports.partition import Share, Split

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
DASHES = ("-", "--", "-.", ":")
MOST_CLIENT_LINES = 12
CLIENT_COLOURS = 6
"""The first so many colours are the clients'; black is the mean's."""
DPI = 150
WIDE, ROW_HEIGHT = 8, 0.3
"""Of a picture of methods by gain, and of each method; inches."""
LETTERS, HANDLE_WIDTH = 14, 10
"""Of a legend: characters on an inch, and those that a line's sample takes."""
LONGEST_LABEL = 200
NARROW = 100
"""An axis of bytes from 1 up to less than so many has ticks at 2 and 5, too."""
PAGE_SIZE, PAGE_LINE, SMALL_SIZE = (5, 2.9), 0.2, (2.2, 1.15)
"""Of a figure in a page, of each line of its legend below that, and of a figure of one client; inches."""
MOST_CELLS = 400
"""Up to so many cells of a heat map each one bears its number."""
MOST_CLIENT_TICKS, MOST_CLASS_TICKS = 40, 20
LONGEST_TICK, MOST_LETTERS = 24, 60
"""Letters of a name beside a heat map, and of all names below it that stand side by side."""
FEW_POINTS = 30
"""Up to so many evaluated rounds each one is marked."""
BELOW_LAST, ABOVE_BEST = 0.1, 0.02
"""How far a picture of costs goes below the lowest last and above the highest accuracy: there the differences are."""
LETTER_WIDTH, NAME_HEIGHT = 0.009, 0.03
"""Room of a name at the end of a line, as parts of the axes; before it is that of two letters."""


@dataclass(frozen=True)
class Course:
    """One line of a comparison: the rounds that all runs of a group have evaluated; arrays of shape (n,).

    Its band goes from `low` to `high`. A course is free if the runs have trained and sent no payload.
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
        )


def plot_run(run: Run, path: Path) -> None:
    """Draw the accuracy of one run's clients over its rounds, and write the picture.

    Parameters
    ----------
    run : Run
    path : Path
        Where to write; the suffix names the format (``.png``, ``.pdf``, ``.svg``), none means PNG. Missing
        folders are made.

    Raises
    ------
    RunFolderError
        If no round of the run was evaluated.
    ConfigError
        If the picture cannot be written there.
    """
    write_figure(run_figure(run), path)


def plot_compare(runs: Sequence[Run], path: Path) -> None:
    """Draw the mean accuracy of several runs over rounds and over payload bytes, and write the picture.

    Runs that differ in their seed alone are one line, their mean, with a band of one standard deviation
    (n - 1) each way within [0, 1], over the rounds that all of them have evaluated. Evaluations before the first
    byte was sent have no place on the logarithmic axis and are left out there.

    Parameters
    ----------
    runs : sequence of Run
        At least one.
    path : Path
        As in `plot_run`.

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


def plot_split(split: Split, path: Path) -> None:
    """Draw which client has which classes, and how many rows of which kind, and write the picture.

    Parameters
    ----------
    split : Split
    path : Path
        As in `plot_run`.

    Raises
    ------
    ConfigError
        If the picture cannot be written there.
    """
    write_figure(split_figure(split), path)


def run_figure(run: Run) -> Figure:
    """Return the figure that `plot_run` writes."""
    from matplotlib.figure import Figure

    points = curve(run)
    _require_points(run)
    figure = Figure(figsize=(8, 4.5), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    marker = "o" if points.rounds.size <= FEW_POINTS else ""
    name = "mean"
    if len(run.clients) == 1:
        name = _client_name(run.clients[0])
    elif len(run.clients) <= MOST_CLIENT_LINES:
        _draw_clients(axes, run, marker)
    else:
        _draw_band(axes, run)
    axes.plot(points.rounds, points.accuracy, color="black", linewidth=2.6, marker=marker, label=name)
    _draw_global(axes, run, marker)
    shown = figures(run)
    axes.set_title(f"{method_of(run)} on {shown['dataset']}, seed {shown['seed']}", loc="left")
    _dress(axes, "accuracy")
    axes.set_ylim(0, 1)
    figure.legend(loc="outside right upper", frameon=False)
    return _literal(figure)


def compare_figure(runs: Sequence[Run]) -> Figure:
    """Return the figure that `plot_compare` writes."""
    from matplotlib.figure import Figure

    groups, courses = _courses(runs)
    figure = Figure(figsize=(10, 5), dpi=DPI, layout="constrained")
    over_rounds, over_bytes = figure.subplots(1, 2, sharey=True)
    for course in courses:
        _draw_course(over_rounds, course, course.rounds)
    _dress(over_rounds, "mean accuracy over clients")
    _name_free(over_bytes, _draw_costs(over_bytes, courses))
    _entitle(figure, groups)
    _name_below(figure, over_rounds)
    return _literal(figure)


def costs_figure(runs: Sequence[Run]) -> Figure:
    """Return the figure that `plot_costs` writes."""
    from matplotlib.figure import Figure

    groups, courses = _courses(runs)
    figure = Figure(figsize=(10, 6.5), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    _name_free(axes, _draw_costs(axes, courses))
    axes.set_ylabel("mean accuracy over clients")
    lowest, highest = min(course.accuracy[-1] for course in courses), max(course.accuracy.max() for course in courses)
    axes.set_ylim(max(0, lowest - BELOW_LAST), highest + ABOVE_BEST)
    paid = [(group.label, course) for group, course in zip(groups, courses, strict=True) if not course.free]
    _name_ends(axes, paid)
    _entitle(figure, groups)
    return _literal(figure)


def rounds_figure(courses: Sequence[Course]) -> Figure:
    """Return accuracy over rounds as a figure in a page, which has its title; each course has a point."""
    figure, axes = _page_figure()
    for course in courses:
        _draw_course(axes, course, course.rounds)
    _dress(axes, None)
    figure.set_figheight(PAGE_SIZE[1] + PAGE_LINE * _name_below(figure, axes))
    return _literal(figure)


def payload_figure(courses: Sequence[Course]) -> Figure:
    """Return accuracy over payload bytes as a figure in a page, which has its title; each course has a point."""
    figure, axes = _page_figure()
    _draw_costs(axes, courses)
    figure.set_figheight(PAGE_SIZE[1] + PAGE_LINE * _name_below(figure, axes))
    return _literal(figure)


def plot_impact(found: Sequence[Standing], path: Path) -> None:
    """Draw who gains how much by each method, and write the picture.

    Methods stand in rows, from the largest mean gain to the least: a dot for each client, the mean over clients with
    its 95 % interval over seeds, and the payload on the right. The line at 0 is training alone.

    Parameters
    ----------
    found : sequence of Standing
        In the order of the rows.
    path : Path
        As in `plot_run`.

    Raises
    ------
    ConfigError
        If the picture cannot be written there.
    """
    figure = impact_figure(found)
    figure.set_figwidth(WIDE)
    write_figure(figure, path)


def impact_figure(found: Sequence[Standing]) -> Figure:
    """Return the figure that `plot_impact` writes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE_SIZE[0], 1.1 + ROW_HEIGHT * len(found)), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    draw_impact(axes, {one.method: one.impact for one in found}, {one.method: byte_size(one.payload) for one in found})
    axes.set_xlabel("points over training alone")
    return _literal(figure)


def draw_impact(axes: Axes, rows: Mapping[str, Impact], beside: Mapping[str, str]) -> None:
    """Draw a row for each method, the first on top: its clients' gains, their mean, and a text.

    The mean is hollow where its interval is not known or has 0 in it.
    """
    axes.axvline(0, color=COLOURS[6], linewidth=0.8)
    for place, impact in enumerate(rows.values()):
        gains, mean = [100 * value for value in impact.clients.values()], 100 * impact.gain.mean
        axes.plot(gains, np.full(len(gains), place), "o", color=COLOURS[5], markersize=4, alpha=0.6, zorder=2)
        colour = COLOURS[0] if mean >= 0 else COLOURS[1]
        if impact.gain.low is not None and impact.gain.high is not None:
            axes.plot([100 * impact.gain.low, 100 * impact.gain.high], [place] * 2, color=colour, linewidth=2.5)
        inside = colour if impact.shown else "none"
        axes.plot(mean, place, "D", color=colour, markerfacecolor=inside, markersize=5, zorder=3)
    for place, name in enumerate(rows):
        axes.annotate(
            beside.get(name, ""), (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize="small"
        )
    axes.set_yticks(range(len(rows)), [printable(name, LONGEST_LABEL) for name in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_formatter("{x:+g}")
    axes.grid(axis="x", alpha=0.3)


def client_figure(own: NDArray[np.float64], mean: NDArray[np.float64], scale: NDArray[np.float64]) -> Figure:
    """Return a client's accuracy over the rounds before the mean of all, without axes; rows are (round, accuracy).

    Parameters
    ----------
    own, mean : array of shape (n, 2)
    scale : array of shape (2, 2)
        The lowest and the highest point of all clients.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=SMALL_SIZE)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.plot(*mean.T, color=COLOURS[7], linewidth=1.5, alpha=0.7, clip_on=False)
    axes.plot(*own.T, color=COLOURS[0], linewidth=1.5, clip_on=False)
    axes.dataLim.set_points(scale)
    axes.autoscale_view()
    return figure


def split_figure(split: Split) -> Figure:
    """Return the figure that `plot_split` writes: clients from top to bottom, by domain."""
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
    return _literal(figure)


def _page_figure() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=PAGE_SIZE, layout="constrained")
    return figure, figure.add_subplot()


def _literal(figure: Figure) -> Figure:
    """Return the figure with each dollar sign as it is: names hold no formulas."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_text(text.get_text().replace("$", r"\$"))
    return figure


def _require_points(run: Run) -> None:
    if not curve(run).rounds.size:
        if run.damage:
            raise RunFolderError(f"{run.damage}; no other round was evaluated: nothing to draw")
        raise RunFolderError(f"{run.folder}: no round was evaluated yet: nothing to draw; let it run on")


def _client_name(client: ClientRecord) -> str:
    name = name_of(client) or f"client {client['partition']}"
    return name if client["model"] is None else f"{name}: {client['model']}"


def _draw_clients(axes: Axes, run: Run, marker: str) -> None:
    scores = client_scores(run.rounds)
    for number, client in enumerate(run.clients):
        points = [(at, accuracy) for at, client_id, accuracy in scores if client_id == client["partition"]]
        axes.plot(
            *np.array(points, dtype=np.float64).reshape(-1, 2).T,
            color=COLOURS[number % CLIENT_COLOURS],
            linestyle=DASHES[number % len(DASHES)],
            linewidth=1.1,
            marker=marker,
            markersize=3,
            label=fill(_client_name(client), 40),
        )


def _draw_band(axes: Axes, run: Run) -> None:
    label = f"lowest to highest\nof {len(run.clients)} clients"
    axes.fill_between(*_extremes(run), color=COLOURS[5], alpha=0.4, linewidth=0, label=label)


def _extremes(run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the rounds that any client evaluated, and the lowest and highest accuracy in each; shapes (n,)."""
    scores = np.array(client_scores(run.rounds), dtype=np.float64).reshape(-1, 3)
    rounds, starts = np.unique(scores[:, 0], return_index=True)
    return rounds, np.minimum.reduceat(scores[:, 2], starts), np.maximum.reduceat(scores[:, 2], starts)


def _draw_global(axes: Axes, run: Run, marker: str) -> None:
    points = _global_points(run)
    if points.size:
        axes.plot(*points.T, color="black", linewidth=1.8, linestyle="--", marker=marker, label="global model")


def _global_points(run: Run) -> NDArray[np.float64]:
    """Return the global model's (round, accuracy); shape (n, 2)."""
    points = [(record.round, record.global_accuracy) for record in run.rounds]
    return np.array([point for point in points if point[1] is not None], dtype=np.float64).reshape(-1, 2)


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


def course_of(group: Group, number: int) -> Course:
    """Return the line of a group; its number chooses colour and marker."""
    curves = [curve(run) for run in group.runs]
    rounds = reduce(np.intersect1d, [points.rounds for points in curves])
    shared = [np.isin(points.rounds, rounds) for points in curves]
    accuracy = np.array([points.accuracy[keep] for points, keep in zip(curves, shared, strict=True)])
    payload = np.array([points.payload[keep] for points, keep in zip(curves, shared, strict=True)])
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
    )


def run_courses(run: Run) -> list[Course]:
    """Return the mean over one run's clients, between the lowest and the highest, and the global model."""
    mean, points = course_of(Group("mean over clients", (run,)), 0), _global_points(run)
    if np.array_equal(mean.rounds, (extremes := _extremes(run))[0]):
        mean = replace(mean, low=extremes[1], high=extremes[2])
    rounds, accuracy = points[:, 0].astype(np.int64), points[:, 1]
    nothing = np.zeros(rounds.size)
    return [mean, Course("global model", COLOURS[1], MARKERS[1], rounds, accuracy, accuracy, accuracy, nothing, False)]


def _courses(runs: Sequence[Run]) -> tuple[list[Group], list[Course]]:
    groups = group_runs(runs)
    for run in runs:
        _require_points(run)
    return groups, [course_of(group, number) for number, group in enumerate(groups)]


def _entitle(figure: Figure, groups: Sequence[Group]) -> None:
    title = "\n".join(filter(None, (shared_terms(groups), unequal_terms(groups))))
    figure.suptitle(title, fontsize="medium", wrap=True)


def _name_ends(axes: Axes, named: Sequence[tuple[str, Course]]) -> None:
    """Write names to the right of where lines end, from the highest down, none on another."""
    from matplotlib.patheffects import withStroke

    to_axes = axes.transData + axes.transAxes.inverted()
    placed: list[tuple[float, float, float]] = []
    for name, course in sorted(named, key=lambda pair: -pair[1].accuracy[-1]):
        x, y = to_axes.transform((course.payload[-1], course.accuracy[-1]))
        right = x + LETTER_WIDTH * (len(name) + 2)
        for start, end, above in placed:
            if start < right and x < end and above - y < NAME_HEIGHT:
                y = above - NAME_HEIGHT
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


def _draw_costs(axes: Axes, courses: Sequence[Course]) -> list[Line2D]:
    """Draw accuracy over payload, and return the lines of those that send nothing."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    free = [_draw_free(axes, course) for course in courses if course.free]
    _dress(axes, None)
    axes.set_xlabel("payload sent, up + down (bytes, log scale)")
    if len(free) == len(courses):
        axes.set_xlabel("no payload sent")
        axes.set_xticks([])
        return free
    for course in courses:
        if not course.free:
            _draw_course(axes, course, np.where(course.payload > 0, course.payload, np.nan))
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < NARROW * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    return free


def _draw_free(axes: Axes, course: Course) -> Line2D:
    low, high = course.low[-1], course.high[-1]
    if low < high:
        axes.axhspan(low, high, color=course.colour, alpha=0.2, linewidth=0)
    return axes.axhline(
        course.accuracy[-1],
        color=course.colour,
        linestyle="--",
        linewidth=1.6,
        marker=course.marker,
        clip_on=False,
        label=fill(f"{course.label}: sends nothing (last accuracy)", 50),
    )


def _name_free(axes: Axes, free: Sequence[Line2D]) -> None:
    if free:
        axes.legend(handles=free, loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)


def _name_below(figure: Figure, axes: Axes) -> int:
    """Write what the lines of some axes are below all of them, and return in how many lines of text."""
    handles, labels = axes.get_legend_handles_labels()
    lines = [label.splitlines() for label in labels]
    longest = max(len(line) for each in lines for line in each)
    columns = max(1, min(len(labels), int(LETTERS * figure.get_figwidth()) // (longest + HANDLE_WIDTH)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return ceil(sum(map(len, lines)) / columns)


def _dress(axes: Axes, what: str | None) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.set_xlabel("round")
    if what is not None:
        axes.set_ylabel(what)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def write_figure(figure: Figure, path: Path) -> None:
    """Write a picture in the format that its file's name ends with."""
    kind = path.suffix.removeprefix(".") or "png"
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise ConfigError(f"{path}: no such kind of picture as '{kind}'; known: {', '.join(sorted(known))}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format=kind)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}; name another file") from None
