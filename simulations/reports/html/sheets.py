"""Tables of the report: clients, recalls, failures, traffic, costs and settings of a run, and runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rich.filesize import decimal
from rich.table import Table

from hetfl_flwr.config import KEYS, RunConfig, Value, meaning
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.runs.figures.cost_totals import SHOWN, total_costs
from hetfl_flwr.runs.figures.tables import NOTHING, SHORT_HEADINGS, byte_size, percent, thousands
from hetfl_flwr.runs.schema import ClientRecord, name_of
from hetfl_flwr.wire.naming import called
from simulations.reports.html.svg import with_sign
from simulations.reports.runs import POOLED, Group, Run, client_scores, figures, method_of
from simulations.reports.tables import compare_table

if TYPE_CHECKING:
    from simulations.reports.partition import Split

T = TypeVar("T")
MOST_CELLS = 1200
"""Cells up to which classes of clients are a table."""
MOST_FAILURES, LOWEST = 100, 5


class Cell(NamedTuple):
    """A cell of a table, its shade in [0, 1], and a note below it."""

    text: str
    shade: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table: caption, columns (name, whether of numbers), rows, and a note below it."""

    caption: str
    columns: list[tuple[str, bool]]
    rows: list[list[Cell]]
    note: str = ""


def sheet(
    caption: str,
    columns: Mapping[str, Callable[[T], str | Cell]],
    items: Iterable[T],
    *,
    words: Collection[str] = (),
    note: str = "",
) -> Sheet:
    """Return a table of one row an item. Columns of `words` stand at the left, all others at the right."""
    rows = [
        [cell if isinstance(cell := text(item), Cell) else Cell(cell) for text in columns.values()] for item in items
    ]
    return Sheet(caption, [(name, name not in words) for name in columns], rows, note)


def sheet_of(caption: str, table: Table) -> Sheet:
    """Return a table of the terminal as one of the page."""
    columns = [(str(column.header), column.justify == "right") for column in table.columns]
    cells = zip(*(column.cells for column in table.columns), strict=True)
    return Sheet(caption, columns, [[Cell(str(cell)) for cell in row] for row in cells], str(table.caption or ""))


def traffic_sheet(run: Run) -> Sheet:
    """Return what a run has sent either way."""
    shown = figures(run)
    rounds = max(1, shown["rounds"])
    counts = [
        ("payload", shown["bytes_up"], shown["bytes_down"]),
        ("on the wire", shown["wire_up"], shown["wire_down"]),
    ]
    columns = [("", False), *((name, True) for name in ("up", "down", "both", "both, a round"))]
    rows = [
        [Cell(name), *(Cell(decimal(sent)) for sent in (up, down, up + down, (up + down) // rounds))]
        for name, up, down in counts
    ]
    return Sheet("Bytes", columns, rows)


def costs_sheet(run: Run) -> Sheet | None:
    """Return a row a client and one for all of them; None if no cost was measured."""
    total = total_costs(run.rounds)
    if not total:
        return None
    rows = [(_called(client), total_costs(run.rounds, client["partition"])) for client in run.clients]
    columns: dict[str, Callable[[tuple[str, dict[str, float]]], str | Cell]] = {"client": lambda row: row[0]}
    columns |= {SHOWN[cost][0]: partial(_cost, cost) for cost in total}
    note = "Of all rounds; of memory the largest."
    return sheet("Costs of training", columns, [*rows, ("all", total)], words={"client"}, note=note)


def _cost(cost: str, row: tuple[str, Mapping[str, float]]) -> str:
    return SHOWN[cost][1](row[1][cost]) if cost in row[1] else NOTHING


def recall_sheet(clients: Sequence[ClientRecord]) -> Sheet | None:
    """Return the recall of each class, a row a client; of many classes the lowest ones. None if there is none."""
    known = [client for client in clients if client.get("recall")]
    if not known:
        return None
    caption = "Recall of each class, in %"
    note = (
        "The part of a client's test samples of a class that its model finds, after the last round. never: the client "
        "predicts the class for no test sample."
    )
    classes = _classes(known)
    if len(known) * len(classes) > MOST_CELLS:
        lowest = f"the {LOWEST} lowest"
        return sheet(caption, {"client": _called, lowest: _lowest}, known, words={lowest}, note=note)
    return Sheet(
        caption,
        [("client", True), *((name, True) for name in classes)],
        [[Cell(_called(client)), *(_recall(name, client) for name in classes)] for client in known],
        f"{note} {NOTHING}: the client has no test sample of the class.",
    )


def _called(client: ClientRecord) -> str:
    return called(client["partition"], name_of(client))


def _classes(clients: Sequence[ClientRecord]) -> list[str]:
    """Return the names of all classes, in the order of the client that has most of them."""
    own = sorted(((client.get("recall") or {}).keys() for client in clients), key=len, reverse=True)
    names = list(dict.fromkeys(name for keys in own for name in keys))
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else names


def _recall(name: str, client: ClientRecord) -> Cell:
    value = (client.get("recall") or {}).get(name)
    never = " never" if name in (client.get("unpredicted") or ()) else ""
    return Cell(NOTHING) if value is None else Cell(f"{percent(value)}{never}", value)


def _lowest(client: ClientRecord) -> str:
    lowest = sorted((client.get("recall") or {}).items(), key=lambda item: item[1])[:LOWEST]
    return ", ".join(f"{name}: {_recall(name, client).text}" for name, _ in lowest)


def client_sheet(run: Run, split: Split | str) -> Sheet:
    """Return a row a client: its first, best and last accuracy are on its own test samples."""
    failed = [failure.client_id for record in run.rounds for failure in record.failures]
    shares = () if isinstance(split, str) or method_of(run) == POOLED else split.shares
    classes = {share.client: str(share.classes) for share in shares}
    own: dict[int, list[float]] = {client["partition"]: [] for client in run.clients}
    for _, client_id, accuracy in client_scores(run.rounds):
        own.setdefault(client_id, []).append(accuracy)
    columns: dict[str, Callable[[ClientRecord], str | Cell]] = {
        "client": lambda client: str(client["partition"]),
        "name": lambda client: name_of(client) or NOTHING,
        "model": lambda client: client["model"] or NOTHING,
        "parameters": lambda client: thousands(client["parameters"]),
        "training": lambda client: thousands(client["train"]),
        "validation": lambda client: thousands(client["validation"]),
        "test": lambda client: thousands(client["test"]),
        "classes": lambda client: classes.get(client["partition"], NOTHING),
        "first": lambda client: with_sign(next(iter(own[client["partition"]]), None)),
        "best on test": lambda client: with_sign(max(own[client["partition"]], default=None)),
        "last": lambda client: with_sign([client["accuracy"], *own[client["partition"]]][-1]),
        **{
            heading: partial(_quality, key)
            for heading, key in SHORT_HEADINGS.items()
            if any(client.get(key) is not None for client in run.clients)
        },
        "up": lambda client: byte_size(client["bytes_up"]),
        "down": lambda client: byte_size(client["bytes_down"]),
        "failures": lambda client: str(failed.count(client["partition"])),
    }
    if not any(map(name_of, run.clients)):
        del columns["name"]
    note = (
        "Samples of training, validation and test; accuracy on the client's own test samples, the first time, at best "
        "(chosen by these samples) and the last time; payload up and down. bal.: the mean recall of the classes. "
        "F1: the mean over classes. AUC: the mean of one class against the rest. maj.: the accuracy of always "
        "predicting the class that most training samples have."
    )
    return sheet("Clients", columns, run.clients, words={"name", "model"}, note=note)


def _quality(key: str, client: ClientRecord) -> str:
    value = client.get(key)
    return with_sign(value if isinstance(value, float) else None)


def failure_sheet(run: Run) -> Sheet | None:
    """Return the failures and refused uploads, those for one reason in one row; None if there are none."""
    found: dict[tuple[int, str, str], list[int]] = {}
    for record in run.rounds:
        for failure in record.failures:
            reason = " ".join(failure.reason.split())
            found.setdefault((failure.client_id, failure.stage, reason), []).append(record.round)
    if not found:
        return None
    names = {client["partition"]: name_of(client) for client in run.clients}
    rows = [
        (spans(rounds), NOTHING if client < 0 else numbered(client, names.get(client, "")), stage, reason)
        for (client, stage, reason), rounds in list(found.items())[:MOST_FAILURES]
    ]
    more = len(found) - MOST_FAILURES
    columns = [("rounds", False), ("client", not any(names.values())), ("stage", False), ("reason", False)]
    note = f"And {more:,} more in rounds.jsonl." if more > 0 else ""
    return Sheet("Failures and refused uploads", columns, [list(map(Cell, row)) for row in rows], note)


def numbered(client: int, name: str) -> str:
    """Return a client's number, with its name if it has one."""
    return f"{client} {name}" if name else str(client)


def spans(rounds: Sequence[int]) -> str:
    """Write ascending numbers with those that follow one another as spans.

    Examples
    --------
    >>> spans([1, 2, 3, 7, 9, 10])
    '1\u20133, 7, 9\u201310'
    """
    found: list[list[int]] = []
    for number in rounds:
        if found and number <= found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}\u2013{last}" for first, last in found)


def config_sheets(run: Run) -> tuple[Sheet, Sheet]:
    """Return the keys of a run that have another value than by default, and those that have not."""
    defaults = _defaults(str(run.config["algorithm"]))
    changed = [key for key, value in run.config.items() if defaults.get(key) != value]
    columns: dict[str, Callable[[str], str | Cell]] = {
        "key": lambda key: Cell(key, note=meaning(key) if key in KEYS else ""),
        "value": lambda key: _value(run.config[key]),
    }
    default: dict[str, Callable[[str], str | Cell]] = {
        "default": lambda key: _value(defaults[key]) if key in defaults else NOTHING
    }
    words = {"key", "value", "default"}
    return (
        sheet("Settings that differ from the defaults", columns | default, changed, words=words),
        sheet("Settings as by default", columns, [key for key in run.config if key not in changed], words=words),
    )


def _defaults(algorithm: str) -> dict[str, Value]:
    """Return the default of each config key."""
    from hetfl_flwr.methods import find

    defaults = RunConfig().to_flat()
    with suppress(ConfigError):  # a package that is not here
        defaults |= {f"{algorithm}.{key}": value for key, value in find(algorithm).defaults.items()}
    return defaults


def comparison_sheet(runs: Sequence[Run], unequal: str) -> Sheet:
    """Return runs side by side."""
    found = sheet_of("Side by side", compare_table(runs))
    return replace(found, note=found.note.removeprefix(unequal))  # which stands at the top of the page


def differing_sheet(groups: Sequence[Group]) -> Sheet:
    """Return the keys in which groups differ, a column a group."""

    def values(group: Group, key: str) -> str:
        found = (_value(run.config[key]) if key in run.config else NOTHING for run in group.runs)
        return ", ".join(dict.fromkeys(found))

    keys = dict.fromkeys(key for group in groups for run in group.runs for key in run.config)
    rows = [[Cell(key), *(Cell(values(group, key)) for group in groups)] for key in keys]
    return Sheet(
        "What differs",
        [("key", False), *((group.label, False) for group in groups)],
        [row for row in rows if len(set(row[1:])) > 1],
        f"{NOTHING}: a run of another algorithm, or of another version, has no such key.",
    )


def split_sheet(split: Split) -> Sheet:
    """Return the training rows of each class of every client."""
    most = max(max(share.histogram, default=0) for share in split.shares) or 1

    def shaded(count: int | None) -> Cell:
        return Cell("") if count is None else Cell(f"{count:,}" if count else "\u00b7", count / most)

    return Sheet(
        f"Training rows of each class: {split.title}",
        [("client", not any(share.name for share in split.shares)), *((name, True) for name in split.class_names)],
        [[Cell(numbered(share.client, share.name)), *map(shaded, split.counts(share))] for share in split.shares],
    )


def _value(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "(empty)"
