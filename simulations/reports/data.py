"""The tables of ``hetfl data``: what a data set is taken for."""

from collections.abc import Callable, Mapping

from rich.table import Table

from hetfl_flwr.data.overview import ColumnFacts, Overview
from hetfl_flwr.text import printable
from simulations.reports.terminal import table_of

MOST_SHOWN, LONGEST = 20, 60
"""Classes or owners that are counted one by one, and letters of a name or an example."""


def data_tables(found: Overview) -> list[Table]:
    """Return the columns of a data set as a table, and its rows, classes and owners as another."""
    facts = {"rows": ", ".join(f"{split} {count:,}" for split, count in found.rows.items() if count)}
    for called, counts in (("classes", found.classes), ("owners", found.owners)):
        if counts:
            facts[f"{len(counts):,} {called}"] = _counted(counts)
    if found.standardised:
        facts["standardised by each client"] = f"{len(found.standardised):,} columns or inputs"
    lines: dict[str, Callable[[tuple[str, str]], str]] = {"what": lambda one: one[0], "rows": lambda one: one[1]}
    place = printable(found.place)
    summary = table_of(f"{place}: {found.kind}", lines, facts.items(), words={"rows"}, whole={"what"}, notes=[])
    if not found.columns:
        return [summary]
    columns: dict[str, Callable[[ColumnFacts], str]] = {
        "column": lambda one: printable(one.name, LONGEST),
        "becomes": lambda one: one.becomes,
        "inputs": lambda one: f"{one.inputs:,}",
        "missing": lambda one: f"{one.missing:,}",
        "example": lambda one: printable(one.example, LONGEST),
        "how": lambda one: printable(one.why),
    }
    words = {"column", "example", "how"}
    return [table_of(place, columns, found.columns, words=words, whole={"becomes"}, notes=[]), summary]


def _counted(counts: Mapping[str, int]) -> str:
    shown = [f"{printable(name, LONGEST)}: {count:,}" for name, count in [*counts.items()][:MOST_SHOWN]]
    return ", ".join(shown) + f" and {len(counts) - MOST_SHOWN} more" * (len(counts) > MOST_SHOWN)
