"""Run folders as one HTML file that needs nothing else: no script, no network; to be read, sent on and printed.

Pictures are SVG in the page and follow its colours, light or dark; a point tells its numbers where the pointer rests
on it. All that comes from a run folder is escaped. Accuracies are fractions in [0, 1], bytes in powers of 1000.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from statistics import pstdev
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal
from rich.table import Table

from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.errors import ConfigError, HetflError, RunFolderError
from simulations.plots import Course, course_of
from simulations.report import (
    NOTHING,
    ClientRecord,
    Group,
    Run,
    best_accuracy,
    client_scores,
    compare_table,
    curve,
    figures,
    group_runs,
    load_run,
    shared_terms,
    unequal_terms,
)

if TYPE_CHECKING:
    from simulations.partition import Split

Floats = NDArray[np.float64]

TEMPLATES = Path(__file__).parent / "templates"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 520, 300, 56, 16, 10, 48
"""Of a chart, and of the margins around its axes; SVG user units."""
SMALL_WIDTH, SMALL_HEIGHT = 160, 84
COLOURS, DASHES = 8, 4
"""Lines take turns with so many colours and dash patterns of the template's style."""
MOST_POINTS, MOST_MARKS, MOST_SMALL_POINTS = 400, 60, 150
"""Of a line, of its points that tell their numbers, and of a client's line; others are left out evenly."""
MOST_SMALL_CHARTS = 60
MOST_CELLS = 1200
"""Classes of clients are a table up to so many cells, beyond a picture."""
MOST_FAILURES = 100
MOST_NAMES = 5
"""Of algorithms, in the title."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table, its shade in [0, 1], and what is to be said below it."""

    text: str
    shade: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table: caption, columns (name, whether of numbers), rows, and what is to be said below it."""

    caption: str
    columns: list[tuple[str, bool]]
    rows: list[list[Cell]]
    note: str = ""


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


@dataclass(frozen=True)
class Part:
    """All that is told of one run."""

    name: str
    title: str
    state: str
    tiles: list[tuple[str, str, str]]
    facts: list[tuple[str, str]]
    traffic: Sheet
    clients: Sheet
    small: list[SmallChart]
    failures: Sheet | None
    changed: Sheet
    unchanged: Sheet


@dataclass(frozen=True)
class SplitPart:
    """Who had which rows: a table or, of many clients and classes, a picture as a data URI; or why neither."""

    title: str
    sheet: Sheet | None = None
    picture: str = ""
    why: str = ""


def write_report(folders: Sequence[Path | str], path: Path | str = "report.html") -> Path:
    """Write the report of one run, or of several side by side, and return its path.

    In a notebook: ``IPython.display.IFrame(write_report(["runs/fedhe"]), "100%", 800)``.

    Parameters
    ----------
    folders : sequence of path
        Run folders, at least one; runs that have not ended are reported as far as they got.
    path : path
        The file; missing folders are made.

    Raises
    ------
    RunFolderError
        One line, for a folder that holds no run, a broken file in it, or a report that cannot be written.
    """
    page = report_page([load_run(Path(folder)) for folder in folders])
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror}; name another file") from None
    return path


def report_page(runs: Sequence[Run]) -> str:
    """Return the page that `write_report` writes.

    Raises
    ------
    RunFolderError
        If there is no run.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    groups, several = group_runs(runs), len(runs) > 1
    unequal = unequal_terms(groups) or ""
    splits = [_split(run) for run in runs]
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        title=_title(runs),
        terms=shared_terms(groups) if several else "",
        unequal=unequal,
        comparison=_comparison(runs, unequal) if several else None,
        differing=_differing(groups) if several else None,
        charts=[chart for chart in (_over_rounds(groups), _over_bytes(groups)) if chart is not None],
        parts=[_part(run, split) for run, split in zip(runs, splits, strict=True)],
        splits=[_split_part(split) for split in dict.fromkeys(splits)],
        frame={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
        small={"width": SMALL_WIDTH, "height": SMALL_HEIGHT},
    )


# --- words and figures ---------------------------------------------------------------------------


def _title(runs: Sequence[Run]) -> str:
    algorithms, datasets = (
        list(dict.fromkeys(str(run.config[key]) for run in runs)) for key in ("algorithm", "dataset")
    )
    told = ", ".join(algorithms) if len(algorithms) <= MOST_NAMES else f"{len(algorithms)} algorithms"
    return f"{told} on {', '.join(datasets)}"


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    """Return the figures to be seen first: name, figure, and what to say of it."""
    shown = figures(run)
    scores = [score for score in shown["accuracy_per_client"] if score is not None]
    spread = f"± {_percent(pstdev(scores))} over clients, " if scores else ""
    each = [
        ("Accuracy", shown["accuracy"], f"{spread}best round {_percent(best_accuracy(run))}"),
        ("Global model", shown["global_accuracy"], "its accuracy"),
        ("ACC", shown["acc"], "accuracy over all domains"),
        ("BWT", shown["bwt"], "on the clients' own domains"),
        ("FWT", shown["fwt"], "on the other domains"),
    ]
    tiles = [(name, _percent(value), note) for name, value, note in each if value is not None or name == "Accuracy"]
    for name, kind in (("Payload", "bytes"), ("On the wire", "wire")):
        up, down = shown[f"{kind}_up"], shown[f"{kind}_down"]  # type: ignore[literal-required]
        tiles.append((name, decimal(up + down), f"{decimal(up)} up, {decimal(down)} down"))
    tiles.append(("Rounds", f"{shown['rounds']:,}", f"of {run.config['rounds']:,}, in {shown['seconds']:,.1f} s"))
    return [*tiles, ("Failures", f"{shown['failures']:,}", "clients left out of a round, or an evaluation")]


def _part(run: Run, split: Split | str) -> Part:
    shown = figures(run)
    state = "" if shown["rounds"] == run.config["rounds"] else f"{shown['rounds']} of {run.config['rounds']} rounds"
    changed, unchanged = _config_sheets(run)
    return Part(
        name=run.name,
        title=f"{shown['algorithm']}, seed {shown['seed']}",
        state=state,
        tiles=_tiles(run),
        facts=_facts(run),
        traffic=_traffic(run),
        clients=_clients(run, split),
        small=_small_charts(run),
        failures=_failures(run),
        changed=changed,
        unchanged=unchanged,
    )


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return what was run."""
    shown, config = figures(run), run.config
    models = Counter(client["model"] for client in run.clients if client["model"] is not None)
    dealt = ", ".join(f"{name} ({count} clients)" if count > 1 else name for name, count in models.items())
    facts = {
        "Algorithm": f"{shown['algorithm']}: {_purpose(shown['algorithm'])}".removesuffix(": "),
        "Data": f"{shown['dataset']}, partition {config.get('partition', NOTHING)}",
        "Models": dealt or config.get("models"),
        "Clients": shown["clients"],
        "Seed": shown["seed"],
        "Engine": shown["engine"],
        "Made with": ", ".join(map(" ".join, shown.get("versions", {}).items())) or None,
        "Run folder": run.name,
    }
    return [(name, str(fact)) for name, fact in facts.items() if fact is not None]


def _purpose(algorithm: str) -> str:
    """Return the first line of an algorithm's docstring; empty where the algorithm is not here."""
    from hetfl_flwr.algorithms import find

    with suppress(ConfigError):
        return (find(algorithm).strategy.__doc__ or "").partition("\n")[0]
    return ""


def _traffic(run: Run) -> Sheet:
    shown, rounds = figures(run), max(1, figures(run)["rounds"])
    counts = {
        "payload": (shown["bytes_up"], shown["bytes_down"]),
        "on the wire": (shown["wire_up"], shown["wire_down"]),
    }
    rows = [
        [name, decimal(up), decimal(down), decimal(up + down), decimal((up + down) // rounds)]
        for name, (up, down) in counts.items()
    ]
    return Sheet(
        "Bytes",
        [("", False), ("up", True), ("down", True), ("both", True), ("both, a round", True)],
        [list(map(Cell, row)) for row in rows],
    )


def _clients(run: Run, split: Split | str) -> Sheet:
    """Return a row a client: its first, best and last accuracy are on its own test samples."""
    scores = client_scores(run.rounds)
    failed = [failure["partition"] for record in run.rounds for failure in record["failures"]]
    shares = {} if isinstance(split, str) else {share.client: share for share in split.shares}
    classes = {client: str(share.classes) for client, share in shares.items()}
    own: dict[int, list[float]] = {client["partition"]: [] for client in run.clients}
    for _, partition, accuracy in scores:
        own.setdefault(partition, []).append(accuracy)
    columns: list[tuple[str, bool, Callable[[ClientRecord], str]]] = [
        ("client", True, lambda client: str(client["partition"])),
        ("model", False, lambda client: client["model"] or NOTHING),
        ("parameters", True, lambda client: _count(client["parameters"])),
        ("training", True, lambda client: _count(client["train"])),
        ("validation", True, lambda client: _count(client["validation"])),
        ("test", True, lambda client: _count(client["test"])),
        ("classes", True, lambda client: classes.get(client["partition"], NOTHING)),
        ("first", True, lambda client: _percent(next(iter(own[client["partition"]]), None))),
        ("best", True, lambda client: _percent(max(own[client["partition"]], default=None))),
        ("last", True, lambda client: _percent([client["accuracy"], *own[client["partition"]]][-1])),
        ("up", True, lambda client: _bytes(client["bytes_up"])),
        ("down", True, lambda client: _bytes(client["bytes_down"])),
        ("failures", True, lambda client: str(failed.count(client["partition"]))),
    ]
    return Sheet(
        "Clients",
        [(name, numeric) for name, numeric, _ in columns],
        [[Cell(text(client)) for _, _, text in columns] for client in run.clients],
        "Samples of training, validation and test; accuracy on the client's own test samples, the first time, at best "
        "and the last time; payload up and down.",
    )


def _failures(run: Run) -> Sheet | None:
    """Return the failures and refused uploads, those for one reason in one row; None where there are none."""
    found: dict[tuple[int, str, str], list[int]] = {}
    for record in run.rounds:
        for failure in record["failures"]:
            reason = " ".join(failure["reason"].split())
            found.setdefault((failure["partition"], failure["stage"], reason), []).append(record["round"])
    if not found:
        return None
    rows = [
        [_spans(rounds), NOTHING if client < 0 else str(client), stage, reason]
        for (client, stage, reason), rounds in list(found.items())[:MOST_FAILURES]
    ]
    more = len(found) - MOST_FAILURES
    return Sheet(
        "Failures and refused uploads",
        [("rounds", False), ("client", True), ("stage", False), ("reason", False)],
        [list(map(Cell, row)) for row in rows],
        f"And {more:,} more in rounds.jsonl." if more > 0 else "",
    )


def _spans(rounds: Sequence[int]) -> str:
    """Write ascending numbers with those that follow one another as spans.

    Examples
    --------
    >>> _spans([1, 2, 3, 7, 9, 10])
    '1\u20133, 7, 9\u201310'
    """
    spans: list[list[int]] = []
    for number in rounds:
        if spans and number <= spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}\u2013{last}" for first, last in spans)


def _config_sheets(run: Run) -> tuple[Sheet, Sheet]:
    """Return the keys of a run that have another value than by default, and those that have not."""
    defaults, meanings = _defaults(str(run.config["algorithm"]))
    changed: list[list[Cell]] = []
    unchanged: list[list[Cell]] = []
    for key, value in run.config.items():
        row = [Cell(key, note=meanings.get(key, "")), Cell(_value(value))]
        if defaults.get(key) == value:
            unchanged.append(row)
        else:
            changed.append([*row, Cell(_value(defaults[key]) if key in defaults else NOTHING)])
    columns = [("key", False), ("value", False)]
    return (
        Sheet("Settings that differ from the defaults", [*columns, ("default", False)], changed),
        Sheet("Settings as by default", columns, unchanged),
    )


def _defaults(algorithm: str) -> tuple[dict[str, Value], dict[str, str]]:
    """Return the default of each config key, and what the key means."""
    from hetfl_flwr.algorithms import find

    defaults = RunConfig().to_flat()
    with suppress(ConfigError):  # a package that is not here
        defaults |= {f"{algorithm}.{key}": value for key, value in find(algorithm).defaults.items()}
    fields = RunConfig.model_fields.items()
    return defaults, {name.replace("_", "-"): field.description or "" for name, field in fields}


def _comparison(runs: Sequence[Run], unequal: str) -> Sheet:
    sheet = _sheet("Side by side", compare_table(runs))
    return replace(sheet, note=sheet.note.removeprefix(unequal))  # which stands at the top of the page


def _differing(groups: Sequence[Group]) -> Sheet:
    """Return the keys in which groups differ, a column a group."""
    keys = dict.fromkeys(key for group in groups for run in group.runs for key in run.config)
    values = {key: [_values(group, key) for group in groups] for key in keys}
    return Sheet(
        "What differs",
        [("key", False), *((group.label, False) for group in groups)],
        [[Cell(key), *map(Cell, own)] for key, own in values.items() if len(set(own)) > 1],
        f"{NOTHING}: a run of another algorithm, or of another version, has no such key.",
    )


def _values(group: Group, key: str) -> str:
    found = (_value(run.config[key]) if key in run.config else NOTHING for run in group.runs)
    return ", ".join(dict.fromkeys(found))


def _sheet(caption: str, table: Table) -> Sheet:
    """Return a table of the terminal as one of the page."""
    columns = [(str(column.header), column.justify == "right") for column in table.columns]
    cells = zip(*(column.cells for column in table.columns), strict=True)
    return Sheet(caption, columns, [[Cell(str(cell)) for cell in row] for row in cells], str(table.caption or ""))


def _split(run: Run) -> Split | str:
    """Return who had which rows, or why that is not known any more."""
    from hetfl_flwr.algorithms import resolve
    from simulations.partition import load_split

    clients = figures(run)["clients"]
    if not clients:
        return f"{run.name}: no client is known yet"
    try:
        split = load_split(resolve(RunConfig.from_flat({**run.config, "clients": clients})))
    except HetflError as error:
        return f"{run.name}: {error}"
    trained = {client["partition"]: client["train"] for client in run.clients if client["train"] is not None}
    if any(share.training != trained.get(share.client, share.training) for share in split.shares):
        return f"{run.name}: its clients had other rows than its config gives them here: data of their own, it may be."
    return split


def _split_part(split: Split | str) -> SplitPart:
    if isinstance(split, str):
        return SplitPart("", why=split)
    if len(split.shares) * split.classes > MOST_CELLS:
        return SplitPart(split.title, picture=_picture(split))
    most = max(max(share.histogram, default=0) for share in split.shares) or 1
    columns = [("client", True), *((str(label), True) for label in range(split.classes))]
    rows = [
        [Cell(str(share.client)), *(Cell(f"{n:,}" if n else "\u00b7", n / most) for n in share.histogram)]
        for share in split.shares
    ]
    return SplitPart(split.title, Sheet(f"Training rows of each class: {split.title}", columns, rows))


def _picture(split: Split) -> str:
    from simulations.plots import split_figure

    file = BytesIO()
    split_figure(split).savefig(file, format="png", dpi=110)
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"


def _value(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "(empty)"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"


def _bytes(value: float | None) -> str:
    return NOTHING if value is None else decimal(round(value)).replace(".0 ", " ")


def _count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


# --- pictures ------------------------------------------------------------------------------------


def _over_rounds(groups: Sequence[Group]) -> Chart | None:
    if len(groups) == 1 and len(groups[0].runs) == 1:
        lines, note = _lines_of(groups[0].runs[0])
    else:
        courses = [course_of(group, number) for number, group in enumerate(groups)]
        lines, note = [_line(each, number, each.rounds) for number, each in enumerate(courses)], _band_note(courses)
    return _chart("Accuracy over rounds", "round", lines, _linear, lambda x: f"round {x:g}", note)


def _over_bytes(groups: Sequence[Group]) -> Chart | None:
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
        "Accuracy over payload", "payload sent, up + down", lines, _logarithmic, _bytes, " ".join(filter(None, notes))
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
    shared = [(record["round"], record["global_accuracy"]) for record in run.rounds]
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
    return _Scale(low, high, ticks.tolist(), _bytes, logarithmic=True)


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
    told = [f"{line.label}: from {_percent(line.y[0])} to {_percent(line.y[-1])}" for line in lines]
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
    told = [f"{line.label}, {x_text(at)}: {_percent(value)}" for at, value in zip(line.x, line.y, strict=True)]
    return Line(
        label=line.label,
        colour=line.number % COLOURS,
        dash=(line.number // COLOURS + line.dashed) % DASHES,
        points=_points(x, y),
        band=_points(np.append(x, x[::-1]), np.append(low, high[::-1])) if wide else "",
        marks=[(_number(x[row]), _number(y[row]), told[row]) for row in _evenly(x.size, MOST_MARKS)],
    )


def _small_charts(run: Run) -> list[SmallChart]:
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
        own = [(at, accuracy) for at, partition, accuracy in scores if partition == client["partition"]]
        if own:
            name = " ".join(filter(None, (f"client {client['partition']}", client["model"])))
            told = f"{_percent(own[0][1])} to {_percent(own[-1][1])}"
            charts.append(SmallChart(name, told, drawn(*zip(*own, strict=True)), drawn(mean.rounds, mean.accuracy)))
    return charts


def _evenly(size: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` of the numbers 0..size-1, the first and the last among them."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.int64))


def _points(x: Floats, y: Floats) -> str:
    return " ".join(f"{_number(a)},{_number(b)}" for a, b in zip(x, y, strict=True))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
