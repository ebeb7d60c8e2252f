"""Tables of the report."""

from dataclasses import dataclass


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
