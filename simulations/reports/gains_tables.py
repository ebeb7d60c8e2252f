"""What runs say of the clients' gains, as a table of the terminal, a section of the report, and files."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from rich.table import Table

from hetfl_flwr.common.errors import RunFolderError
from hetfl_flwr.common.text import as_cell
from hetfl_flwr.runs.figures.tables import NOTHING, table_of
from simulations.reports.estimates import ACCURACY
from simulations.reports.gains import Answer, Gain, interval, points
from simulations.reports.runs import POOLED

MOST_CLIENTS, ENDS = 30, 10
"""Clients that a table has at most; of more, it has so many with the least gains, and as many with the largest."""

MOST_LEFT_OUT = 10
"""Runs and clients in no pair that are named in a table's notes; files name all."""

MOST_WORDS = 12
"""Verdicts that are written out after a table."""


@dataclass(frozen=True)
class _Row:
    """A client, or a gap between clients."""

    name: str
    gains: dict[str, Gain]


def title_of(answer: Answer) -> str:
    """Return what a table of gains is called."""
    measure = "" if answer.measure == ACCURACY.words else f" in {answer.measure}"
    return f"Gains over {answer.baseline}{measure} (95 % interval)"


def gains_table(answer: Answer) -> Table:
    """Return the table client by method, with how it was computed below it."""
    columns: dict[str, Callable[[_Row], str]] = {"client": lambda row: row.name, "test": _rows}
    columns[f"{answer.baseline} %"] = _baseline
    columns |= {method: partial(_cell, method=method) for method in answer.methods}
    rows = _shown(answer)
    return table_of(
        title_of(answer),
        columns,
        rows,
        words={"client"},
        whole=answer.methods,
        notes=[*answer.notes, *left_out(answer)],
    )


def left_out(answer: Answer, most: int = MOST_LEFT_OUT) -> list[str]:
    """Return a line for what is in no pair, with the reason."""
    lines = [f"Not paired: {line}" for line in answer.left_out[:most]]
    more = len(answer.left_out) - most
    return [*lines, f"and {more} more, which `hetfl compare --json` lists"] if more > 0 else lines


def in_words(answer: Answer) -> list[str]:
    """Return a sentence for each method, and below it the clients of which something could be shown."""
    lines = []
    for method, sentence in answer.sentences.items():
        shown = [gain.words for gain in answer.methods[method] if gain.verdict != "unclear"]
        lines += [sentence, *(f"  {words}" for words in shown[:MOST_WORDS])]
        if len(shown) > MOST_WORDS:
            lines.append(f"  and {len(shown) - MOST_WORDS} more")
    return lines


def write_csv(answer: Answer, path: Path) -> Path:
    """Write one row a method and client, and return the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(answer.frame().map(as_cell).to_csv(index=False), encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def _shown(answer: Answer) -> list[_Row]:
    """Return a row a client; of very many, those with the least and the largest mean gain, with a gap between."""
    rows: dict[int, _Row] = {}
    for gain in sorted(answer.gains, key=lambda gain: gain.client):
        rows.setdefault(gain.client, _Row(gain.name, {})).gains[gain.method] = gain
    if len(rows) <= MOST_CLIENTS:
        return list(rows.values())
    ordered = sorted(rows.values(), key=_mean_gain)
    gap = _Row(f"... {len(rows) - 2 * ENDS} between ...", {})
    return [*ordered[:ENDS], gap, *ordered[-ENDS:]]


def _mean_gain(row: _Row) -> float:
    """Return the mean over the methods, all data in one place left out where there is another."""
    federated = [gain.difference for method, gain in row.gains.items() if not method.startswith(POOLED)]
    return fmean(federated or [gain.difference for gain in row.gains.values()])


def _rows(row: _Row) -> str:
    return f"{min(gain.rows for gain in row.gains.values()):,}" if row.gains else ""


def _baseline(row: _Row) -> str:
    """Return the baseline's accuracy, or several where methods are paired with different runs of it."""
    return " / ".join(dict.fromkeys(points(gain.baseline) for gain in row.gains.values()))


def _cell(row: _Row, method: str) -> str:
    gain = row.gains.get(method)
    if gain is None:
        return NOTHING if row.gains else ""
    verdict = "" if gain.verdict == "unclear" else f" {gain.verdict}"
    shown = interval(gain.low, gain.high)
    return f"{points(gain.difference, sign=True)}{f' {shown}' * bool(shown)}{verdict}"
