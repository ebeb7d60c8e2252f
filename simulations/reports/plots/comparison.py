"""Pictures of accuracy over rounds: one run with its clients, or several runs with their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import TYPE_CHECKING, Any

import pandas as pd

from hetfl_flwr.errors import RunFolderError
from hetfl_flwr.runs.record import name_of
from hetfl_flwr.text import printable
from simulations.reports.layout import percent
from simulations.reports.plots.drawing import (
    COLOURS,
    LETTER,
    LINE,
    LONGEST_LABEL,
    MARKERS,
    WIDTH,
    dress,
    headed,
    legend_below,
    name_ends,
    page,
)
from simulations.reports.runs import Group, Run, client_scores, curve, group_runs, method_of
from simulations.reports.tables import shared_terms, unequal_terms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_IN_TITLE = 4
"""Maximum number of runs that a title names."""
NARROW = 100
"""A logarithmic axis with a smaller ratio of its ends also has ticks at 2 and 5."""
MAX_CLIENT_LINES = 12
SHARED_LOOK = 6
"""The look of the mean (black), followed by that of the global model (gray); earlier ones are for clients."""


@dataclass(frozen=True)
class Course:
    """A line in a picture; `look` selects its color and marker.

    `points` has one row per ``round`` with ``value``, the ends ``low`` and ``high`` of a band if there is one, and
    ``payload`` and ``clock`` (see `curve`) if they are known.
    """

    label: str
    look: int
    points: pd.DataFrame

    @classmethod
    def line(cls, label: str, look: int, values: Mapping[int, float]) -> Course:
        """Return a line without band and costs from values by round."""
        return cls(label, look, pd.DataFrame({"round": values.keys(), "value": values.values()}, dtype=float))

    @property
    def colour(self) -> str:
        """The color of its look."""
        return COLOURS[self.look % len(COLOURS)]

    @property
    def marker(self) -> str:
        """The marker of its look."""
        return [*MARKERS][self.look % len(MARKERS)]

    @property
    def free(self) -> bool:
        """Whether the runs have trained and sent no payload."""
        return bool(self.points["round"].any()) and not self.points.payload.any()

    def draw(self, axes: Axes, x: pd.Series[float]) -> None:
        """Draw the line over its rounds or costs."""
        every = max(1, x.size // 8)
        marks: Any = {"marker": self.marker, "markersize": 5, "markevery": (self.look % every, every)}
        axes.plot(x, self.points.value, label=self.label, color=self.colour, linewidth=1.6, **marks)
        if "low" in self.points:
            axes.fill_between(x, self.points.low, self.points.high, color=self.colour, alpha=0.12, linewidth=0)


def run_figure(run: Run, width: float = WIDTH) -> Figure:
    """Draw the accuracy of each client (a band if there are many), their mean, and the global model over rounds.

    Raises `RunFolderError` if no round of the run was evaluated.
    """
    require_points(run)
    mean = replace(course_of(Group("mean over clients", (run,)), 0), look=SHARED_LOOK)
    scores = pd.DataFrame(client_scores(run.rounds), columns=["round", "client", "accuracy"])
    courses = []
    if len(run.clients) <= MAX_CLIENT_LINES:
        for number, client in enumerate(run.clients):
            own = scores[scores.client == client["partition"]]
            name = name_of(client) or f"client {client['partition']}"
            label = name if client["model"] is None else f"{name}: {client['model']}"
            if len(own):
                look = number + 2 * (number // SHARED_LOOK)
                courses.append(Course.line(label, look, dict(zip(own["round"], own.accuracy, strict=True))))
    else:
        among = scores.groupby("round").accuracy.agg(low="min", high="max")
        mean = replace(mean, label="mean and range of clients", points=mean.points.join(among, on="round"))
    known = {one.round: one.global_accuracy for one in run.rounds if one.global_accuracy is not None}
    shared = [mean, *([Course.line("global model", SHARED_LOOK + 1, known)] if known else [])]
    figure = page(4.2, width)
    axes = figure.add_subplot()
    draw_rounds(axes, [*courses, *shared], "accuracy")
    name_lines(figure, [axes], [*courses, *shared])
    first, last = mean.points.iloc[0], mean.points.iloc[-1]
    went = f"from {percent(first.value)} to {percent(last.value)} % in {last['round'] - first['round']:,.0f} rounds"
    of = f"{method_of(run)} on {run.summary['dataset']}, seed {run.summary['seed']}"
    return headed(figure, f"{of}: the clients' mean accuracy goes {went}")


def compare_figure(runs: Sequence[Run], width: float = 0) -> Figure:
    """Draw the mean accuracy of runs over rounds, payload bytes and, if they have a clock, simulated seconds.

    Runs that differ only in their seed share one line: their mean over the rounds that all of them evaluated, with a
    band of one standard deviation (n - 1) each way, clipped to [0, 1]. The logarithmic axis of bytes leaves out
    evaluations before the first byte was sent. Panels are side by side, or below each other in a
    picture of the given width in inches. Raises `RunFolderError` if there are no runs, or one without an evaluated
    round.
    """
    from matplotlib.ticker import AutoLocator

    groups = group_runs(runs)
    for run in runs:
        require_points(run)
    courses = [course_of(group, number) for number, group in enumerate(groups)]
    timed = [course for course in courses if course.points.clock.notna().all()]
    panels = 3 if timed else 2
    figure = page(3 * panels + 0.8, width) if width else page(4.2, 4 * panels)
    over_rounds, over_bytes, *over_seconds = figure.subplots(*((panels, 1) if width else (1, panels)), sharey=True)
    draw_rounds(over_rounds, courses, "mean accuracy over clients")
    draw_costs(over_bytes, courses)
    for axes in over_seconds:
        for course in timed:
            course.draw(axes, course.points.clock)
        dress(axes, None, [], share=False)
        axes.set_xlabel("simulated seconds")
        axes.xaxis.set_major_locator(AutoLocator())
    banded = "Bands: one standard deviation over seeds each way." * any("low" in course.points for course in courses)
    terms = filter(None, (shared_terms(groups), unequal_terms(groups), banded))
    letters = int(figure.get_figwidth() / LETTER)
    name_lines(
        figure, figure.axes if width else figure.axes[-1:], courses, "\n".join(fill(line, letters) for line in terms)
    )
    return headed(figure, ending(groups, courses))


def course_of(group: Group, number: int) -> Course:
    """Return the line of a group; `number` selects its color and marker."""
    by_round = pd.concat([curve(run) for run in group.runs]).groupby("round")
    shared, several = by_round.size() == len(group.runs), len(group.runs) > 1
    points = by_round.mean()[shared].rename(columns={"accuracy": "value"})
    if several:
        deviation = by_round.accuracy.std()[shared].fillna(0)
        points["low"] = (points.value - deviation).clip(lower=0)
        points["high"] = (points.value + deviation).clip(upper=1)
    label = printable(group.label, LONGEST_LABEL)
    if points.empty:
        raise RunFolderError(f"{label}: no round was evaluated under all of its seeds: nothing to draw")
    return Course(f"{label}, {len(group.runs)} seeds" if several else label, number, points.reset_index())


def require_points(run: Run) -> None:
    """Raise `RunFolderError` for a run without an evaluated round."""
    if curve(run).empty:
        if run.damage:
            raise RunFolderError(f"{run.damage}; no other round was evaluated: nothing to draw")
        raise RunFolderError(f"{run.folder}: no round was evaluated yet: nothing to draw; let the run continue")


def ending(groups: Sequence[Group], courses: Sequence[Course]) -> str:
    """Return a sentence with the final accuracies, the highest first; only the highest if there are many groups."""
    last = [course.points.iloc[-1] for course in courses]
    ends = sorted(zip(groups, last, strict=True), key=lambda pair: -pair[1].value)
    (first, best), *rest = ends
    others = [f"{printable(group.label, LONGEST_LABEL)} {percent(end.value)} %" for group, end in rest]
    sentence = f"{printable(first.label, LONGEST_LABEL)} reaches {percent(best.value)} %"
    rounds = {int(end["round"]) for end in last}
    after = f" after {rounds.pop():,} rounds" if len(rounds) == 1 else ""
    if len(ends) > MAX_IN_TITLE:
        return f"{sentence}{after}, the most of {len(ends)}"
    return " and ".join(filter(None, (", ".join([sentence, *others[:-1]]), *others[-1:]))) + after


def draw_rounds(axes: Axes, courses: Sequence[Course], y: str | None = None, *, share: bool = True) -> None:
    """Draw values over rounds; `share` says that they are fractions."""
    for course in courses:
        course.draw(axes, course.points["round"])
    every = pd.concat([course.points.filter(["value", "low", "high"]).stack() for course in courses])
    dress(axes, y, every, share=share)


def draw_costs(axes: Axes, courses: Sequence[Course]) -> None:
    """Draw accuracy over payload; runs that send nothing get a dashed line at their last accuracy."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    free = [course for course in courses if course.free]
    for course in free:
        end = course.points.iloc[-1]
        if "low" in end:
            axes.axhspan(end.low, end.high, color=course.colour, alpha=0.2, linewidth=0)
        axes.axhline(end.value, color=course.colour, linestyle="--", linewidth=1.6, label=course.label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if len(free) == len(courses):
        axes.set_xlabel("no payload sent")
        axes.set_xticks([])
        return
    for course in courses:
        if not course.free:
            course.draw(axes, course.points.payload.where(lambda sent: sent > 0))
    axes.set_xlabel("payload sent, up + down (log scale)" + "\ndashed: sends nothing, last accuracy" * bool(free))
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < NARROW * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def name_lines(figure: Figure, places: Sequence[Axes], courses: Sequence[Course], terms: str = "") -> None:
    """Write the names of lines at their ends in the given axes if there is room, else in a legend below the figure."""
    names = [f"{MARKERS[course.marker]} {course.label}" for course in courses]
    ends, colours = [course.points.value.iloc[-1] for course in courses], [course.colour for course in courses]
    grid = places[0].get_gridspec()
    height = 0.7 * figure.get_figheight() / (grid.nrows if grid else 1)
    if min([name_ends(axes, names, ends, colours, height) for axes in places]):
        figure.supxlabel(terms, fontsize="small", color="dimgray")
        return
    handles, labels = places[0].get_legend_handles_labels()
    labels = [fill(label, 40) for label in labels]
    lines = legend_below(figure, handles, labels, terms, most=len(labels))
    figure.set_figheight(figure.get_figheight() + LINE * lines)
