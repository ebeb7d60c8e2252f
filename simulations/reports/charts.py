"""Line charts of runs as SVG shapes: accuracy over rounds, over bytes, and of each client.

Accuracies are fractions in [0, 1]. The template of the report lays out what is drawn here, and gives it its colours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from simulations.reports.plots import Course, course_of
from simulations.reports.runs import Group, Run, client_scores, curve
from simulations.reports.tables import NOTHING

Floats = NDArray[np.float64]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 520, 300, 56, 16, 10, 48
FRAME = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
"""Of a chart, and of the margins around its axes; SVG user units."""
SMALL_WIDTH, SMALL_HEIGHT = 160, 84
SMALL = {"width": SMALL_WIDTH, "height": SMALL_HEIGHT}
COLOURS, DASHES = 8, 4
"""Lines take turns with so many colours and dash patterns of the template's style."""
MOST_POINTS, MOST_MARKS, MOST_SMALL_POINTS = 400, 60, 150
"""Of a line, of its points that tell their numbers, and of a client's line; others are left out evenly."""
MOST_SMALL_CHARTS = 60


@dataclass(frozen=True)
class Series:
    """What a line is drawn from; arrays of shape (n,)."""

    label: str
    number: int
    x: Floats
    y: Floats
    low: Floats
    high: Floats
    dashed: bool = False

    def thinned(self, most: int) -> Series:
        """Return at most so many of the points, the first and the last among them."""
        kept = _evenly(self.x.size, most)
        return replace(self, x=self.x[kept], y=self.y[kept], low=self.low[kept], high=self.high[kept])


@dataclass(frozen=True)
class Line:
    """One line of a chart: its points and the outline of its band as SVG has them, and (x, y, what to tell)."""

    label: str
    colour: int
    dash: int
    points: str
    band: str
    marks: list[tuple[str, str, str]]


@dataclass(frozen=True)
class Chart:
    """A picture: ticks are (place, text); `told` says in words what is to be seen."""

    title: str
    x_name: str
    told: str
    x_ticks: list[tuple[str, str]]
    y_ticks: list[tuple[str, str]]
    lines: list[Line]
    note: str = ""


@dataclass(frozen=True)
class SmallChart:
    """One client's accuracy over the rounds, and the mean of all."""

    name: str
    told: str
    points: str
    mean: str


def over_rounds(groups: Sequence[Group]) -> Chart | None:
    """Return accuracy over rounds: of one run, or of each method's runs; None without an evaluation."""
    if len(groups) == 1 and len(groups[0].runs) == 1:
        lines, note = _lines_of(groups[0].runs[0])
    else:
        courses = [course_of(group, number) for number, group in enumerate(groups)]
        lines, note = [_line(each, number, each.rounds) for number, each in enumerate(courses)], _band_note(courses)
    return _chart("Accuracy over rounds", "round", lines, _linear, lambda x: f"round {x:g}", note)


def over_bytes(groups: Sequence[Group]) -> Chart | None:
    """Return accuracy over the payload of all clients, up and down, sent before; None where nothing is."""
    courses = [course_of(group, number) for number, group in enumerate(groups)]
    paid = [np.where(each.payload > 0, each.payload, np.nan) for each in courses]
    sent = np.concatenate(paid)
    ends = np.array([np.nanmin(sent), np.nanmax(sent)]) if np.isfinite(sent).any() else np.array([])
    lines = [
        _level(each, number, ends) if each.free else _line(each, number, payload)
        for number, (each, payload) in enumerate(zip(courses, paid, strict=True))
    ]
    free = [each.label for each in courses if each.free]
    notes = [
        _band_note(courses),
        f"Sends nothing, and has its last accuracy all along: {', '.join(free)}." if free else "",
    ]
    return _chart(
        "Accuracy over payload", "payload sent, up + down", lines, _logarithmic, in_bytes, " ".join(filter(None, notes))
    )


def _band_note(courses: Sequence[Course]) -> str:
    return "Band: one standard deviation over seeds each way." if any(each.deviation.any() for each in courses) else ""


def _line(each: Course, number: int, x: NDArray[np.int64] | Floats) -> Series:
    y, some = each.accuracy, np.isfinite(x)
    return Series(
        each.label, number, x[some].astype(np.float64), y[some], (y - each.deviation)[some], (y + each.deviation)[some]
    )


def _level(each: Course, number: int, ends: Floats) -> Series:
    y, deviation = (np.full(ends.size, values[-1]) for values in (each.accuracy, each.deviation))
    return Series(each.label, number, ends, y, y - deviation, y + deviation, dashed=True)


def _lines_of(run: Run) -> tuple[list[Series], str]:
    """Return the mean of one run's clients, between the lowest and the highest, and the global model."""
    scores = np.array(client_scores(run.rounds), dtype=np.float64).reshape(-1, 3)
    rounds, starts = np.unique(scores[:, 0], return_index=True)
    points = curve(run)
    x, y = points.rounds.astype(np.float64), points.accuracy
    low, high = y, y
    if np.array_equal(rounds, x):
        low, high = np.minimum.reduceat(scores[:, 2], starts), np.maximum.reduceat(scores[:, 2], starts)
    shared = [(record.round, record.global_accuracy) for record in run.rounds]
    known = np.array([point for point in shared if point[1] is not None], dtype=np.float64).reshape(-1, 2)
    lines = [Series("mean over clients", 0, x, y, low, high)]
    if known.size:
        lines.append(Series("global model", 1, known[:, 0], known[:, 1], known[:, 1], known[:, 1]))
    return lines, "Band: from the lowest client to the highest." if (low < high).any() else ""


@dataclass(frozen=True)
class _Scale:
    """An axis from `low` to `high`, and what stands at its ticks."""

    low: float
    high: float
    ticks: Sequence[float]
    text: Callable[[float], str]
    logarithmic: bool = False

    def __call__(self, values: Floats) -> Floats:
        """Return where values lie, 0 at the low end and 1 at the high one."""
        ends = np.array([self.low, self.high])
        if self.logarithmic:
            values, ends = np.log(values), np.log(ends)
        places: Floats = (values - ends[0]) / (ends[1] - ends[0])
        return places

    def placed(self, start: float, end: float) -> list[tuple[str, str]]:
        """Return the ticks on an axis between two places."""
        places = start + (end - start) * self(np.array(self.ticks, dtype=np.float64))
        return [(_number(place), self.text(tick)) for place, tick in zip(places, self.ticks, strict=True)]


def _linear(values: Floats) -> _Scale:
    """Return the axis of whole numbers, rounds, that holds all values."""
    from matplotlib.ticker import MaxNLocator

    low, high = values.min(), max(values.max(), values.min() + 1)
    ticks = np.asarray(MaxNLocator(6, integer=True).tick_values(low, high), dtype=np.float64)
    return _Scale(low, high, ticks[(ticks >= low) & (ticks <= high)].tolist(), "{:g}".format)


def _logarithmic(values: Floats) -> _Scale:
    """Return the logarithmic axis of bytes that holds all values, above 0."""
    from matplotlib.ticker import LogLocator

    low, high = values.min(), max(values.max(), 2 * values.min())
    for locator in (LogLocator(numticks=6), LogLocator(subs=(1, 2, 5))):
        ticks = np.asarray(locator.tick_values(low, high), dtype=np.float64)
        ticks = ticks[(ticks >= low) & (ticks <= high)]
        if ticks.size > 2:
            break
    return _Scale(low, high, ticks.tolist(), in_bytes, logarithmic=True)


def _fractions(values: Floats) -> _Scale:
    """Return the axis of accuracies that holds all values and begins and ends at a tick, within [0, 1]."""
    from matplotlib.ticker import MaxNLocator

    locator = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
    ticks = np.asarray(locator.tick_values(max(0.0, values.min()), min(1.0, values.max())), dtype=np.float64)
    ticks = ticks[(ticks > -1e-9) & (ticks < 1 + 1e-9)]
    return _Scale(ticks[0], ticks[-1], ticks.tolist(), lambda value: f"{100 * value:g} %")


def _chart(
    title: str,
    x_name: str,
    lines: Iterable[Series],
    scale: Callable[[Floats], _Scale],
    x_text: Callable[[float], str],
    note: str,
) -> Chart | None:
    """Return the picture of some lines; None where none of them has a point."""
    lines = [line for line in lines if line.x.size]
    if not lines:
        return None
    x_axis = scale(np.concatenate([line.x for line in lines]))
    y_axis = _fractions(np.concatenate([bound for line in lines for bound in (line.low, line.high)]))
    told = [f"{line.label}: from {percent(line.y[0])} to {percent(line.y[-1])}" for line in lines]
    return Chart(
        title=title,
        x_name=x_name,
        told=f"{title}. {'; '.join(told)}.",
        x_ticks=x_axis.placed(LEFT, WIDTH - RIGHT),
        y_ticks=y_axis.placed(HEIGHT - BOTTOM, TOP),
        lines=[_drawn(line, x_axis, y_axis, x_text) for line in lines],
        note=note,
    )


def _drawn(line: Series, x_axis: _Scale, y_axis: _Scale, x_text: Callable[[float], str]) -> Line:
    line = line.thinned(MOST_POINTS)
    x = LEFT + (WIDTH - RIGHT - LEFT) * x_axis(line.x)
    y, low, high = (
        HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * np.clip(y_axis(values), 0, 1)
        for values in (line.y, line.low, line.high)
    )
    wide = (line.low < line.high).any()
    told = [f"{line.label}, {x_text(at)}: {percent(value)}" for at, value in zip(line.x, line.y, strict=True)]
    return Line(
        label=line.label,
        colour=line.number % COLOURS,
        dash=(line.number // COLOURS + line.dashed) % DASHES,
        points=_points(x, y),
        band=_points(np.append(x, x[::-1]), np.append(low, high[::-1])) if wide else "",
        marks=[(_number(x[row]), _number(y[row]), told[row]) for row in _evenly(x.size, MOST_MARKS)],
    )


def small_charts(run: Run) -> list[SmallChart]:
    """Return a picture of each client's accuracy, on one scale, before that of the mean."""
    mean, scores = curve(run), client_scores(run.rounds)
    if not mean.rounds.size or len(run.clients) > MOST_SMALL_CHARTS:
        return []
    x_axis = _linear(mean.rounds.astype(np.float64))
    y_axis = _fractions(np.array([accuracy for _, _, accuracy in scores] or mean.accuracy))

    def drawn(rounds: Sequence[float] | NDArray[np.int64], accuracy: Sequence[float] | Floats) -> str:
        x, y = SMALL_WIDTH * x_axis(np.asarray(rounds)), SMALL_HEIGHT * (1 - y_axis(np.asarray(accuracy)))
        kept = _evenly(x.size, MOST_SMALL_POINTS)
        return _points(x[kept], y[kept])

    charts = []
    for client in run.clients:
        own = [(at, accuracy) for at, client_id, accuracy in scores if client_id == client["partition"]]
        if own:
            name = " ".join(filter(None, (f"client {client['partition']}", client["model"])))
            told = f"{percent(own[0][1])} to {percent(own[-1][1])}"
            charts.append(SmallChart(name, told, drawn(*zip(*own, strict=True)), drawn(mean.rounds, mean.accuracy)))
    return charts


def _evenly(size: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` of the numbers 0..size-1, the first and the last among them."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.int64))


def _points(x: Floats, y: Floats) -> str:
    return " ".join(f"{_number(a)},{_number(b)}" for a, b in zip(x, y, strict=True))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def percent(value: float | None) -> str:
    """Return a fraction in words."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def in_bytes(value: float | None) -> str:
    """Return a number of bytes in words, in powers of 1000."""
    return NOTHING if value is None else decimal(round(value)).replace(".0 ", " ")
