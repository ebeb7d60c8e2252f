"""The layout of tables and the format of numbers, in a terminal and as plain text."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from io import StringIO
from operator import itemgetter
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.filesize import decimal
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from hetfl_flwr.wire.cost_metrics import CPU_SECONDS, DEVICE_MEMORY, FLOPS, JOULES, MEMORY, WALL_SECONDS

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
NOTHING = "-"
LINE_WIDTH = 160
"""Maximum line length of a table in a file or pipe."""
WIDEST = 10_000
"""Line length that no table reaches."""
FOLDED = 16
"""A cell of words may be wrapped at this width or more."""


def lines(table: Table) -> list[str]:
    """Render a table as lines of plain text."""
    file = StringIO()
    plain = Console(
        file=file,
        width=LINE_WIDTH,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        markup=False,
        emoji=False,
    )
    for part in fitted(table, plain):
        plain.print(part)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def fitted(table: Table, console: Console) -> list[RenderableType]:
    """Return a table, split into parts below each other if it is too wide for the console.

    So no number is wrapped. Each part repeats the first column, and a column of names after it.
    """
    numbers = any(column.no_wrap and column.justify == "right" for column in table.columns)
    if not numbers or _width(table, console).maximum <= console.width:
        return [table]
    columns = list(map(_narrowed, table.columns))
    keys = 1 + (len(columns) > 1 and str(table.columns[1].header) == "name")
    parts = [columns[:keys]]
    for column in columns[keys:]:
        if len(parts[-1]) > keys and _width(_part(table, [*parts[-1], column]), console).minimum > console.width:
            parts.append(columns[:keys])
        parts[-1].append(column)
    title, caption = Text(str(table.title), "table.title"), Text(str(table.caption), "table.caption")
    return [title, *(line for part in parts for line in (_part(table, part), "")), caption]


def _width(table: Table, console: Console) -> Measurement:
    """Return the minimum and maximum width of a table, regardless of the console's."""
    return console.measure(table, options=console.options.update(max_width=WIDEST))


def _narrowed(column: Column) -> Column:
    """Return a column as narrow as its unwrapped cells and the words of its heading allow."""
    header, cells = str(column.header), [cell_len(str(cell)) for cell in column.cells]
    widest = max(*cells, *map(cell_len, header.split()), 1)
    if not column.no_wrap:
        return replace(column, min_width=min(widest, FOLDED))
    return replace(column, header="\n".join(wrap(header, widest, break_long_words=False)), min_width=widest)


def _part(table: Table, columns: Sequence[Column]) -> Table:
    """Return some columns of a table, without title and notes."""
    part = copy(table)
    part.title = part.caption = None
    part.columns = [replace(column, _index=place) for place, column in enumerate(columns)]
    return part


def table_of(
    title: str,
    columns: Mapping[str, Callable[[T], str | None]],
    items: Iterable[T],
    *,
    words: Container[str],
    whole: Container[str] = (),
    notes: Iterable[str | None],
) -> Table:
    """Return a table with a row for each item; None is shown as a dash, and a column of None alone is left out.

    Columns in `words` and `whole` are left-aligned, others right-aligned; only cells of `words` may be wrapped.
    """
    rows = [{name: cell(item) for name, cell in columns.items()} for item in items]
    table = Table(
        title=Text(title),
        caption=Text("\n".join(note for note in notes if note is not None)),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    shown = [name for name in columns if not rows or any(row[name] is not None for row in rows)]
    for name in shown:
        left = name in words or name in whole
        table.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=name not in words)
    for row in rows:
        cells = (row[name] for name in shown)
        table.add_row(*(Text(NOTHING if cell is None else cell) for cell in cells))  # Text does not parse markup
    return table


def cells_table(
    title: str,
    cells: "pd.DataFrame",
    *,
    words: Container[str],
    whole: Container[str] = (),
    notes: Iterable[str | None],
) -> Table:
    """Return a table of a frame of texts; see `table_of`."""
    columns: dict[str, Callable[[Any], str]] = {str(name): itemgetter(name) for name in cells}
    return table_of(title, columns, cells.to_dict("records"), words=words, whole=whole, notes=notes)


def first(lines: Sequence[str], most: int, more: str = "and {:,} more") -> list[str]:
    """Return the first `most` lines, and a line with the number of remaining lines.

    Examples
    --------
    >>> first(["a", "b", "c"], 1)
    ['a', 'and 2 more']
    """
    return [*lines[:most], *([more.format(len(lines) - most)] if len(lines) > most else [])]


def percent(value: float | None) -> str:
    """Format a fraction in %: ``93.1``."""
    return NOTHING if value is None else f"{100 * value:.1f}"


def byte_size(value: float | None) -> str:
    """Format a number of bytes: ``96.0 kB``."""
    return NOTHING if value is None else decimal(round(value))


def thousands(value: int | None) -> str:
    """Format an integer: ``55,210``."""
    return NOTHING if value is None else f"{value:,}"


COSTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    CPU_SECONDS: ("CPU s", "{:,.2f}".format),
    WALL_SECONDS: ("seconds", "{:,.2f}".format),
    FLOPS: ("FLOPs", "{:.3g}".format),
    JOULES: ("joules", "{:,.1f}".format),
    MEMORY: ("peak memory", byte_size),
    DEVICE_MEMORY: ("device memory", byte_size),
}
"""Heading and format of each cost, by name."""


def cost_line(costs: Mapping[str, float]) -> str:
    """Format costs on one line.

    Examples
    --------
    >>> cost_line({"flops": 2592727200.0, "cpu-seconds": 1.0389, "peak-memory": 946708480.0})
    'CPU s 1.04, FLOPs 2.59e+09, peak memory 946.7 MB'
    """
    return ", ".join(f"{heading} {write(costs[name])}" for name, (heading, write) in COSTS.items() if name in costs)
