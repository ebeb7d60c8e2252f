"""Tables of the report: traffic, clients, failures and settings of a run, and runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rich.filesize import decimal
from rich.table import Table

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config import KEYS, RunConfig, Value, meaning
from hetfl_flwr.runs.figures.tables import NOTHING, thousands
from hetfl_flwr.runs.schema import ClientRecord, name_of
from simulations.reports.html.quality_sheets import HEADINGS, quality
from simulations.reports.html.sheets import Cell, Sheet
from simulations.reports.html.svg import percent
from simulations.reports.runs import POOLED, Group, Run, client_scores, figures, method_of
from simulations.reports.tables import compare_table

if TYPE_CHECKING:
    from simulations.reports.partition import Split


MOST_FAILURES = 100


def traffic_sheet(run: Run) -> Sheet:
    """Return what a run has sent either way."""
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


def client_sheet(run: Run, split: Split | str) -> Sheet:
    """Return a row a client: its first, best and last accuracy are on its own test samples."""
    scores = client_scores(run.rounds)
    failed = [failure.client_id for record in run.rounds for failure in record.failures]
    shares = (
        {} if isinstance(split, str) or method_of(run) == POOLED else {share.client: share for share in split.shares}
    )
    classes = {client: str(share.classes) for client, share in shares.items()}
    own: dict[int, list[float]] = {client["partition"]: [] for client in run.clients}
    for _, client_id, accuracy in scores:
        own.setdefault(client_id, []).append(accuracy)
    columns: list[tuple[str, bool, Callable[[ClientRecord], str]]] = [
        ("client", True, lambda client: str(client["partition"])),
        ("name", False, lambda client: name_of(client) or NOTHING),
        ("model", False, lambda client: client["model"] or NOTHING),
        ("parameters", True, lambda client: thousands(client["parameters"])),
        ("training", True, lambda client: thousands(client["train"])),
        ("validation", True, lambda client: thousands(client["validation"])),
        ("test", True, lambda client: thousands(client["test"])),
        ("classes", True, lambda client: classes.get(client["partition"], NOTHING)),
        ("first", True, lambda client: percent(next(iter(own[client["partition"]]), None))),
        ("best on test", True, lambda client: percent(max(own[client["partition"]], default=None))),
        ("last", True, lambda client: percent([client["accuracy"], *own[client["partition"]]][-1])),
        *(
            (name, True, partial(quality, key))
            for name, key in HEADINGS.items()
            if any(client.get(key) is not None for client in run.clients)
        ),
        ("up", True, lambda client: _in_bytes(client["bytes_up"])),
        ("down", True, lambda client: _in_bytes(client["bytes_down"])),
        ("failures", True, lambda client: str(failed.count(client["partition"]))),
    ]
    if not any(map(name_of, run.clients)):
        columns = [column for column in columns if column[0] != "name"]
    return Sheet(
        "Clients",
        [(name, numeric) for name, numeric, _ in columns],
        [[Cell(text(client)) for _, _, text in columns] for client in run.clients],
        "Samples of training, validation and test; accuracy on the client's own test samples, the first time, at best "
        "(chosen by these samples) and the last time; payload up and down. Balanced: the mean recall of the classes. "
        "F1: the mean over classes. AUC: the mean of one class against the rest. Majority: the accuracy of always "
        "predicting the class that most training samples have.",
    )


def failure_sheet(run: Run) -> Sheet | None:
    """Return the failures and refused uploads, those for one reason in one row; None where there are none."""
    found: dict[tuple[int, str, str], list[int]] = {}
    for record in run.rounds:
        for failure in record.failures:
            reason = " ".join(failure.reason.split())
            found.setdefault((failure.client_id, failure.stage, reason), []).append(record.round)
    if not found:
        return None
    names = {client["partition"]: name_of(client) for client in run.clients}
    rows = [
        [_spans(rounds), NOTHING if client < 0 else numbered(client, names.get(client, "")), stage, reason]
        for (client, stage, reason), rounds in list(found.items())[:MOST_FAILURES]
    ]
    more = len(found) - MOST_FAILURES
    return Sheet(
        "Failures and refused uploads",
        [("rounds", False), ("client", not any(names.values())), ("stage", False), ("reason", False)],
        [list(map(Cell, row)) for row in rows],
        f"And {more:,} more in rounds.jsonl." if more > 0 else "",
    )


def numbered(client: int, name: str) -> str:
    """Return a client's number, with its name if it has one."""
    return f"{client} {name}" if name else str(client)


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


def config_sheets(run: Run) -> tuple[Sheet, Sheet]:
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
    return defaults, {key: meaning(key) for key in KEYS}


def comparison_sheet(runs: Sequence[Run], unequal: str) -> Sheet:
    """Return runs side by side."""
    sheet = sheet_of("Side by side", compare_table(runs))
    return replace(sheet, note=sheet.note.removeprefix(unequal))  # which stands at the top of the page


def differing_sheet(groups: Sequence[Group]) -> Sheet:
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


def sheet_of(caption: str, table: Table) -> Sheet:
    """Return a table of the terminal as one of the page."""
    columns = [(str(column.header), column.justify == "right") for column in table.columns]
    cells = zip(*(column.cells for column in table.columns), strict=True)
    return Sheet(caption, columns, [[Cell(str(cell)) for cell in row] for row in cells], str(table.caption or ""))


def _value(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "(empty)"


def _in_bytes(value: float | None) -> str:
    """Return a number of bytes in words, in powers of 1000."""
    return NOTHING if value is None else decimal(round(value)).replace(".0 ", " ")
