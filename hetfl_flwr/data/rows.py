"""Read files of rows and concatenate them: columns are matched by name, and text stays text."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from hetfl_flwr.data.arrays import npz_table
from hetfl_flwr.data.columns import TEXT
from hetfl_flwr.data.folders import TABLES, check_file, ending
from hetfl_flwr.data.frame import Frame
from hetfl_flwr.data.reading import Reading
from hetfl_flwr.data.roles import column_called, header_hint, in_words, is_text, shape_of
from hetfl_flwr.data.text_tables import read_letters, read_sheets, read_text_table
from hetfl_flwr.errors import DataError, HetflError
from hetfl_flwr.text import some

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_BUFFER, _AT_ONCE = 2**14, 2**20  # bytes of a parquet file, and of its cells, that are read at a time


def read_file(path: Path, reading: Reading, called: str = "") -> list[tuple[str, Frame]]:
    """Read a file of rows as pairs of title and table: one for each sheet if there are several, else one without title.

    `called` is the name of the file in messages, by default its path.
    """
    check_file(path)
    kind, called = TABLES.get(ending(path), "csv"), called or f"'{path}'"
    try:
        if kind == "csv":
            found = [("", read_text_table(path, reading.encoding, reading.header_row))]
        elif kind == "sheets":
            found = [*read_sheets(path, reading.header_row)]
        else:
            read = partial(_json, encoding=reading.encoding) if kind == "json" else _READERS[kind]
            found = [("", Frame.of(read(path)))]
    except (HetflError, ModuleNotFoundError):
        raise
    except Exception as error:
        raise DataError(f"cannot read {called}: {reason(error)}") from error
    several = len(found) > 1
    named = [_named(f"sheet {title!r} of {called}" if several else called, frame) for title, frame in found]
    for place in [frame.files[0] for frame in named if not len(frame)] if named else [called]:
        raise DataError(f"{place} holds no rows: add some, or remove it")
    return [(title if several else "", frame) for (title, _), frame in zip(found, named, strict=True)]


def _named(called: str, frame: Frame) -> Frame:
    """Return the rows of a file with normalized column names; refuse duplicate names."""
    names = [*map(column_called, frame.names)]
    for name, count in Counter(" ".join(name.split()) for name in names).items():
        if count > 1:
            raise DataError(
                f"{called} has column {name!r} more than once: give each column a different name{header_hint(names)}"
            )
    own = {column_called(name): classes for name, classes in frame.classes.items()}
    images = frozenset(map(column_called, frame.images))
    return Frame(frame.table.rename_columns(names), own, images, (called,), row=frame.numbers, notes=frame.notes)


def with_folders(frame: Frame, path: Path, root: Path | None) -> Frame:
    """Add a column for each folder ``NAME=VALUE`` between the root and a file, as in Hive partitioning."""
    folders = path.parent.relative_to(root).parts if root else ()
    table = frame.table
    for name, equal, value in (one.partition("=") for one in folders):
        if equal and name not in frame:
            cell = pa.scalar(None if value == _HIVE_NULL else unquote(value), TEXT)
            table = table.append_column(name, pa.chunked_array([pa.repeat(cell, len(frame))]))
    return replace(frame, table=table)


def notes_on(frames: Iterable[Frame]) -> tuple[str, ...]:
    """Return the notes on files; files with the same note share a line."""
    found: dict[str, list[str]] = {}
    for frame in frames:
        for line in frame.notes:
            found.setdefault(line, []).append(frame.files[0])
    return tuple(f"{some(paths, 1)}: {line}" for line, paths in found.items())


def _parquet(path: Path) -> pa.Table:
    """Read a parquet file in batches of a few columns, so that the compressed data are never in memory as a whole."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
        fields, facts = [*file.schema_arrow], file.metadata
        nbytes = 1 + sum(facts.row_group(number).total_byte_size for number in range(facts.num_row_groups))
        rows, width = (max(1, count * _AT_ONCE // nbytes) for count in (facts.num_rows, len(fields)))
        columns: list[pa.ChunkedArray] = []
        for first in range(0, len(fields), width):
            some = fields[first : first + width]
            read = file.iter_batches(rows, columns=[field.name for field in some])
            batches = [dict(zip(one.schema.names, one.columns, strict=True)) for one in read]
            columns += [pa.chunked_array([one[field.name] for one in batches], field.type) for field in some]
        return pa.table(columns, file.schema_arrow)


def _arrow(path: Path) -> pa.Table:
    with path.open("rb") as file:
        try:
            return pa.ipc.open_stream(file).read_all()
        except pa.ArrowInvalid:
            file.seek(0)
            return pa.ipc.open_file(file).read_all()


def _json(path: Path, encoding: str = "") -> pa.Table:
    """Read a list of objects, one object for each line, or an object of columns as pandas writes a data frame.

    Keys that a row lacks are missing values.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise DataError(f"'{path}' holds an object with the key {name!r} twice: keep one of them")
        return found

    text, _ = read_letters(path, encoding)
    try:
        try:
            rows = json.loads(text, object_pairs_hook=unique)
        except ValueError:
            rows = [json.loads(line, object_pairs_hook=unique) for line in text.split("\n") if line.strip()]
    except RecursionError:
        raise DataError(f"'{path}' holds lists or objects that are nested too deeply: flatten them") from None
    if isinstance(rows, dict) and all(isinstance(cells, dict) for cells in rows.values()):
        keys = dict.fromkeys(key for cells in rows.values() for key in cells)
        rows = [{name: cells.get(key) for name, cells in rows.items()} for key in keys]
    rows = [rows] if isinstance(rows, dict) else rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"'{path}' is not a list of rows, each an object of columns and values")
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _array([row.get(name) for row in rows]) for name in names})


def _array(cells: list[Any]) -> pa.Array:
    """Return cells as an array; mixed numbers and texts become texts, where 1 and 1.0 are equal."""
    try:
        return pa.array(cells)
    except (pa.ArrowException, OverflowError):
        whole = [int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in cells]
        return pa.array([None if cell is None else str(cell) for cell in whole], TEXT)


_READERS: Mapping[str, Callable[[Path], pa.Table]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "npz": npz_table,
}


def joined(files: Sequence[tuple[str, Frame]], reading: Reading) -> tuple[Frame, dict[str, tuple[str, str]]]:
    """Concatenate the rows of files, each with its name in messages; also return which columns some files lack.

    Numbers in one file and texts in another become texts, whole numbers and fractions become fractions. A column is
    empty in the rows of files that lack it, and in all rows if it is ignored and no type fits its cells. The returned
    mapping has, for each column that a file lacks, the names of the first such file and of one that has it.
    """
    first: dict[str, Frame] = {}
    kinds: dict[str, pa.DataType] = {}
    clashing: dict[str, pa.DataType] = {}
    for _, frame in files:
        for name in frame.names:
            other = first.setdefault(name, frame)
            kind = frame[name].type if frame[name].null_count < len(frame) else pa.null()
            if frame.classes.get(name) != other.classes.get(name) and kind != pa.null():
                raise DataError(
                    f"column {name!r} of {frame.files[0]} declares other classes than in {other.files[0]}: declare the "
                    "same classes in both"
                )
            try:
                kinds[name] = _both(kinds.get(name, kind), kind)
            except pa.ArrowTypeError:
                if not reading.ignores(name):
                    raise DataError(_clash(name, frame, other)) from None
                clashing[name] = pa.null()
    kinds |= clashing
    frames = [frame for _, frame in files]
    whole = pa.concat_tables([_cast(frame.table, kinds) for frame in frames], promote_options="permissive")
    file = np.repeat(np.arange(len(frames)), [*map(len, frames)])
    row = np.concatenate([frame.numbers for frame in frames])
    classes = {name: frame.classes[name] for name, frame in first.items() if name in frame.classes}
    images = frozenset().union(*(frame.images for frame in frames))
    lacks = {name: next((one.files[0] for one in frames if name not in one), "") for name in kinds}
    lacking = {name: (file, first[name].files[0]) for name, file in lacks.items() if file}
    return Frame(whole.select(list(kinds)), classes, images, tuple(name for name, _ in files), file, row), lacking


def _cast(table: pa.Table, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    cells = {
        name: column
        if column.type == kinds[name]
        else pa.nulls(len(column), kinds[name])
        if column.null_count == len(column) or pa.types.is_null(kinds[name])
        else column.cast(kinds[name])
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return pa.table(cells)


def _both(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds the cells of both types."""
    if one == other:
        return one
    if any(map(is_text, (one, other))) and not any(map(pa.types.is_nested, (one, other))):
        return TEXT
    fields = [pa.schema([("", kind)]) for kind in (one, other)]
    return pa.unify_schemas(fields, promote_options="permissive").field(0).type


def _clash(name: str, frame: Frame, other: Frame) -> str:
    """Return the message on a column whose types in two files do not fit."""
    kind, before = frame[name].type, other[name].type
    place, there = f"column {name!r} of {frame.files[0]}", f"but in {other.files[0]}"
    if pa.types.is_nested(kind) and pa.types.is_nested(before):
        return (
            f"{place} holds lists of {shape_of(kind)} numbers, {there} of {shape_of(before)}: cut or pad all to the "
            "same length"
        )
    return (
        f"{place} holds {in_words(kind)}, {there} {in_words(before)}: use one type in all files, or name it in "
        "ignore-columns"
    )


def reason(error: BaseException) -> str:
    """Return the first line of the message of an error's root cause."""
    while error.__cause__:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
