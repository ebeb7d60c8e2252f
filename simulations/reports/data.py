"""The table of ``hetfl data``: how each column of a data set is interpreted."""

from collections.abc import Callable

from rich.table import Table

from hetfl_flwr.data.overview import ColumnFacts, Overview
from hetfl_flwr.text import printable
from simulations.reports.terminal import table_of

LONGEST = 60
"""Letters of a name or an example."""


def columns_table(found: Overview) -> Table:
    """Return the columns of a data set as a table."""
    columns: dict[str, Callable[[ColumnFacts], str]] = {
        "column": lambda one: printable(one.name, LONGEST),
        "becomes": lambda one: one.becomes,
        "inputs": lambda one: f"{one.inputs:,}",
        "missing": lambda one: f"{one.missing:,}",
        "example": lambda one: printable(one.example, LONGEST),
        "how": lambda one: printable(one.why),
    }
    words = {"column", "example", "how"}
    return table_of(printable(found.place), columns, found.columns, words=words, whole={"becomes"}, notes=[])
