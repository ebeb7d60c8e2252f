"""Files of rows read whole: each column of all files together has one type, decided over all of its cells."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hetfl_flwr.data.columns import mostly_numbers
from hetfl_flwr.data.folders import TABLES, check_filled, ending, opened
from hetfl_flwr.data.frame import Frame
from hetfl_flwr.data.npz import npz_table
from hetfl_flwr.data.reading import Reading, parse_classes
from hetfl_flwr.data.roles import column_called, header_hint, in_words, is_nameless, is_text, shape_of
from hetfl_flwr.data.text_tables import TEXT, read_sheets, read_text_table
from hetfl_flwr.errors import DataError, HetflError

DEEPEST = 100
"""Lists and objects within each other in a line of a json file, at most."""

NO_NUMBER = (
    *("", "?", ".", "NA", "N/A", "n/a", "na", "<NA>", "#N/A", "#N/A N/A", "#NA", "NULL", "null", "None", "\\N"),
    *("NaN", "nan", "-NaN", "-nan", "#DIV/0!", "#VALUE!", "#REF!", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
"""What programs write into a column of numbers where one is missing."""

NO_LABEL = ("", "?", "NA", "NaN", "nan", "null", "<NA>")
"""Labels that say that there is none, unless ``classes`` declares them."""

_SHOWN = 5  # columns that a message names, at most
_NOT_WHOLE = r"[^\d-]"
_NO_PLAIN_NUMBER = r"[^\d.-]|^-?0\d"  # 007 is a code


@dataclass(frozen=True, eq=False)
class RowsFile:
    """The rows of one file.

    Parameters
    ----------
    path : Path
        Where it lies.
    table : Table
        Its columns; those of a text file hold texts.
    numbers : ndarray
        (N,) int64: the number of each row in the file, as people count.
    notes : tuple of str
        What is not plain about the file, and how it was read.
    sheet : str
        Which of several sheets it is; empty: the file is one.
    """

    path: Path
    table: pa.Table
    numbers: npt.NDArray[np.int64]
    notes: tuple[str, ...] = ()
    sheet: str = ""

    @property
    def is_text(self) -> bool:
        """Whether it is a text file, whose cells have no types."""
        return TABLES.get(ending(self.path), "csv") in ("csv", "sheets")


def read_file(path: Path, reading: Reading | None = None) -> list[RowsFile]:
    """Read a file of rows: one table, or one a sheet.

    Raises
    ------
    DataError
        It cannot be read, or has no rows.
    """
    check_filled([path])
    kind, own = TABLES.get(ending(path), "csv"), reading or Reading()
    try:
        if kind == "csv":
            found = read_text_table(path, own.encoding, own.header_row)
            files = [RowsFile(path, found.cells, found.numbers, found.notes)]
        elif kind == "sheets":
            sheets = [*read_sheets(path, own.header_row)]
            named = [(title if len(sheets) > 1 else "", table) for title, table in sheets]
            files = [RowsFile(path, table.cells, table.numbers, table.notes, title) for title, table in named]
        else:
            table = _READERS[kind](path)
            files = [RowsFile(path, table, np.arange(1, table.num_rows + 1))]
    except (HetflError, ModuleNotFoundError):
        raise
    except Exception as error:
        raise DataError(f"cannot read '{path}': {reason(error)}") from error
    if not files or not all(file.table.num_rows for file in files):
        raise DataError(f"'{path}' holds no rows: put some into it, or take it away")
    return [replace(file, table=_renamed(file.table)) for file in files]


def _renamed(table: pa.Table) -> pa.Table:
    """Return a table with the names of its columns in one form; what its schema says else stays."""
    names = [*map(column_called, table.column_names)]
    return table.rename_columns(names).replace_schema_metadata(table.schema.metadata)


def read_files(paths: Sequence[Path], reading: Reading) -> tuple[Frame, list[RowsFile]]:
    """Read files whose rows belong together, one after the other, their columns matched by name.

    Raises
    ------
    DataError
        One cannot be read or has no row, or they differ in their columns, or in what a column holds.
    """
    files = [file for path in paths for file in read_file(path, reading)]
    _check_columns(files, reading.ignored)
    tables = _typed_alike(files, reading)
    return _joined(files, tables, reading), files


def notes_on(files: Iterable[RowsFile]) -> tuple[str, ...]:
    """Return what is not plain about files and how they were read, a line for those that are alike in it."""
    found: dict[str, list[Path]] = {}
    for file in files:
        for line in file.notes:
            found.setdefault(line, []).append(file.path)
    more = {line: f" and {len(paths) - 1} more" * (len(paths) > 1) for line, paths in found.items()}
    return tuple(f"'{paths[0]}'{more[line]}: {line}" for line, paths in found.items())


def _parquet(path: Path) -> pa.Table:
    from pyarrow.parquet import read_table

    return read_table(path, partitioning=None)


def _arrow(path: Path) -> pa.Table:
    with path.open("rb") as file:
        try:
            return pa.ipc.open_stream(file).read_all()
        except pa.ArrowInvalid:
            file.seek(0)
            return pa.ipc.open_file(file).read_all()


def _json(path: Path) -> pa.Table:
    """Return the rows of a list of objects, or of one object a line; a key that a row lacks is missing there."""
    _check_depth(path)
    with opened(path) as file:
        text = file.read().decode("utf-8-sig")
    try:
        rows = json.loads(text)
    except ValueError:
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    rows = [rows] if isinstance(rows, dict) else rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"'{path}' is no list of rows, each an object of columns and values")
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _array([row.get(name) for row in rows]) for name in names})


def _array(cells: list[Any]) -> pa.Array:
    try:
        return pa.array(cells)
    except pa.ArrowException:  # numbers and texts in one column
        return pa.array([None if cell is None else str(cell) for cell in cells], TEXT)


_READERS: Mapping[str, Callable[[Path], pa.Table]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "json": _json,
    "npz": npz_table,
}


def _check_depth(path: Path) -> None:
    """Refuse lines so deeply nested that the library that reads them would end the process."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            if _brackets(line) > DEEPEST and _depth(line) > DEEPEST:
                raise DataError(f"line {number} of '{path}' is nested more than {DEEPEST} deep")


def _brackets(line: bytes) -> int:
    """Return how many brackets are open at once, those in texts counted as well."""
    letters = np.frombuffer(line, np.uint8)
    open_, closed = np.isin(letters, [*b"[{"]), np.isin(letters, [*b"]}"])
    return int(np.cumsum(open_.astype(np.int64) - closed).max(initial=0))


def _depth(line: bytes) -> int:
    """Return how many lists and objects stand within each other, at most one more than is allowed."""
    try:
        level, depth = [json.loads(line)], 0
    except (RecursionError, ValueError):  # no JSON either: its brackets alone could end the process
        return DEEPEST + 1
    while (level := [one for one in level if isinstance(one, list | dict)]) and depth <= DEEPEST:
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
        depth += 1
    return depth


def _check_columns(files: Sequence[RowsFile], ignored: Collection[str]) -> None:
    """Refuse files in which a column stands twice, or that have other columns than the first."""
    names = [{name for name in file.table.column_names if _is_needed(name, ignored)} for file in files]
    for file, own in zip(files, names, strict=True):
        for name, count in Counter(" ".join(name.split()) for name in file.table.column_names).items():
            if count > 1:
                raise DataError(
                    f"'{file.path}' has column {name!r} more than once: give each column a name of "
                    f"its own{header_hint(file.table.column_names)}"
                )
        for one, other, lacking in ((file, files[0], names[0] - own), (files[0], file, own - names[0])):
            if lacking:
                raise DataError(
                    f"'{one.path}' has no {_listed(lacking)}, which '{other.path}' has: add what lacks, or name it in "
                    "ignore-columns"
                )


def _is_needed(name: str, ignored: Collection[str]) -> bool:
    return " ".join(name.split()) not in ignored and not is_nameless(name)


def _listed(names: Collection[str]) -> str:
    """Return some columns as messages name them."""
    shown = ", ".join(repr(name) for name in sorted(names)[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"column{'s' * (len(names) > 1)} {shown}{more}"


def typed(texts: pa.ChunkedArray, missing: Sequence[str] = NO_NUMBER) -> pa.ChunkedArray:
    """Return a column of a text file as whole numbers, numbers or truth values if all cells are; else as it is written.

    Parameters
    ----------
    texts : ChunkedArray
        All cells, ``""`` where one is empty.
    missing : sequence of str
        Words for a number that is missing.
    """
    filled = pc.if_else(pc.equal(texts, ""), pa.scalar(None, TEXT), texts)
    for cells in (filled, None):
        if cells is None:
            cells = pc.if_else(pc.is_in(texts, pa.array(missing, TEXT)), pa.scalar(None, TEXT), texts)
        whole = not pc.any(pc.match_substring_regex(cells, _NOT_WHOLE)).as_py()
        with suppress(pa.ArrowInvalid):
            return cells.cast(pa.int64() if whole else pa.float64())
    words = pc.utf8_lower(filled)
    if pc.all(pc.is_in(words.drop_null(), pa.array(["true", "false"], TEXT))).as_py():
        return pc.equal(words, "true")
    return filled


def as_written(texts: pa.ChunkedArray, missing: Sequence[str] = ("",)) -> pa.ChunkedArray:
    """Return a column of labels, owners or domains: numbers only where all cells are plain ones, so 007 stays 007."""
    filled = pc.if_else(pc.is_in(texts, pa.array(missing, TEXT)), pa.scalar(None, TEXT), texts)
    if pc.any(pc.match_substring_regex(filled, _NO_PLAIN_NUMBER)).as_py():
        found = typed(texts, missing)
        return (
            found if pa.types.is_boolean(found.type) else pc.if_else(pc.equal(texts, ""), pa.scalar(None, TEXT), texts)
        )
    return typed(texts, missing)


def _typed_alike(files: Sequence[RowsFile], reading: Reading) -> list[pa.Table]:
    """Return the tables of files; each column of text files has one type in all of them, where that is possible."""
    having: dict[str, list[int]] = {}
    for number, file in enumerate(files):
        for name in file.table.column_names if file.is_text else ():
            having.setdefault(name, []).append(number)
    columns: list[dict[str, pa.ChunkedArray]] = [{} for _ in files]
    for name, some in having.items():
        for number, column in zip(some, _types(name, [files[one].table[name] for one in some], reading), strict=True):
            columns[number][name] = column
    return [pa.table(own) if file.is_text else file.table for file, own in zip(files, columns, strict=True)]


def _types(name: str, cells: Sequence[pa.ChunkedArray], reading: Reading) -> list[pa.ChunkedArray]:
    """Return a column of several text files with types; as texts in all where few cells of one are no numbers."""
    if name in (reading.label_column, reading.id_column, reading.domain_column):
        declared = {label for _, label in parse_classes(reading.classes)}
        missing = [word for word in NO_LABEL if word not in declared] if name == reading.label_column else [""]
        found = [as_written(one, missing) for one in cells]
        alike = all(map(_has_numbers, cells)) or name != reading.label_column
    else:
        found = [typed(one) for one in cells]
        alike = all(_is_number(one.type) or mostly_numbers(one) for one in found)
    kinds = [one.type for one in found if one.null_count < len(one)]
    if alike and any(map(is_text, kinds)) and not all(map(is_text, kinds)):
        return [pc.if_else(pc.equal(one, ""), pa.scalar(None, TEXT), one) for one in cells]
    return found


def _has_numbers(cells: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.match_substring_regex(cells, r"^\d+$")).as_py())


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _joined(files: Sequence[RowsFile], tables: Sequence[pa.Table], reading: Reading) -> Frame:
    """Return the rows of all tables; whole numbers in one and fractions in another are both fractions."""
    frames = [Frame.of(table) for table in tables]
    if len(frames) == 1:
        return frames[0]
    first: dict[str, tuple[Path, Frame]] = {}
    kinds: dict[str, pa.DataType] = {}
    for file, frame in zip(files, frames, strict=True):
        for name in frame.names:
            before, other = first.setdefault(name, (file.path, frame))
            kind = pa.null() if _is_empty(frame[name]) else frame[name].type
            if frame.classes.get(name) != other.classes.get(name) and kind != pa.null():
                raise DataError(
                    f"column {name!r} of '{file.path}' declares other classes than that of '{before}': declare the same"
                )
            try:
                kinds[name] = _both(kinds.get(name, kind), kind)
            except pa.ArrowTypeError:
                raise DataError(_clash(file.path, before, name, (kind, kinds[name]), reading)) from None
    whole = pa.concat_tables([_cast(frame.table, kinds) for frame in frames], promote_options="permissive")
    classes = {name: frame.classes[name] for name, (_, frame) in first.items() if name in frame.classes}
    return Frame(whole.select(list(kinds)), classes, frozenset().union(*(frame.images for frame in frames)))


def _cast(table: pa.Table, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    columns = {
        name: pa.nulls(len(table), kinds[name]) if _is_empty(table[name]) else table[name].cast(kinds[name])
        for name in table.column_names
    }
    return pa.table(columns)


def _clash(path: Path, before: Path, name: str, kinds: tuple[pa.DataType, pa.DataType], reading: Reading) -> str:
    """Return what is said of a column that holds other things in one file than in another before."""
    kind, other = kinds
    place, there = f"column {name!r} of '{path}'", f"that of '{before}'"
    if pa.types.is_nested(kind) and pa.types.is_nested(other):
        return (
            f"{place} holds lists of {shape_of(kind)} numbers, {there} of {shape_of(other)}: cut or fill all to one "
            "length"
        )
    way_out = "write all in one type"
    if name != reading.label_column:
        listed = ", or list the files with commas between, which reads each by itself"
        way_out += listed * (TABLES.get(ending(path)) == "csv") + ", or name it in ignore-columns"
    return f"{place} holds {in_words(kind)}, {there} {in_words(other)}: {way_out}"


def _is_empty(cells: pa.ChunkedArray) -> bool:
    """Say whether no cell of a column holds anything; then it has any type."""
    if not any(is_one(cells.type) for is_one in (pa.types.is_null, pa.types.is_integer, pa.types.is_floating, is_text)):
        return False
    return bool(pc.all(cells.is_null(nan_is_null=True)).as_py())


def _both(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds what both hold."""
    fields = [pa.schema([("", kind)]) for kind in (one, other)]
    return pa.unify_schemas(fields, promote_options="permissive").field(0).type


def reason(error: BaseException) -> str:
    """Return the first line of what an error is about."""
    while error.__cause__:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@dataclass(frozen=True)
class Part:
    """One of the files that a split was read from.

    Parameters
    ----------
    called : str
        What messages call it; empty where it is the only one.
    rows : int
        How many rows it has.
    number : callable
        Returns the number of a row 0, 1, ..., as people count.
    """

    called: str
    rows: int
    number: Callable[[int], int]


def parts_of(files: Sequence[RowsFile], names: Sequence[str], given: Mapping[str, str]) -> list[Part]:
    """Return the files of a split, in the order of their rows.

    Parameters
    ----------
    files : sequence of RowsFile
        One or more.
    names : sequence of str
        What each is called.
    given : mapping
        What they are called, by the names of their files, where they were given from Python: there, the first row is 0.
    """
    if given:
        return [Part(given.get(file.path.name, ""), file.table.num_rows, int) for file in files]
    return [
        Part(f"file {name!r}" if len(files) > 1 else "", file.table.num_rows, partial(_number, file.numbers))
        for file, name in zip(files, names, strict=True)
    ]


def _number(numbers: npt.NDArray[np.int64], row: int) -> int:
    return int(numbers[row])


def numbered(parts: Sequence[Part], row: int) -> tuple[int, str]:
    """Return which row of its file a row 0, 1, ... of a split is, as people count, and what the file is called.

    Examples
    --------
    >>> parts = [Part("north", 30, lambda row: row + 2), Part("south", 40, lambda row: row + 2)]
    >>> numbered(parts, 0), numbered(parts, 30), numbered([], 0)
    ((2, 'north'), (2, 'south'), (1, ''))
    """
    for part in parts[:-1]:
        if row < part.rows:
            return part.number(row), part.called
        row -= part.rows
    return (parts[-1].number(row), parts[-1].called) if parts else (row + 1, "")


def left(files: Sequence[tuple[str, int]], rows: Mapping[str, npt.NDArray[np.int64]]) -> tuple[tuple[str, int], ...]:
    """Return name and rows of each file after some rows of the training split were left out.

    Examples
    --------
    >>> left([("a", 3), ("b", 2)], {"train": np.array([0, 2, 3])})
    (('a', 2), ('b', 1))
    """
    if "train" not in rows:
        return tuple(files)
    ends = np.searchsorted(rows["train"], np.cumsum([count for _, count in files]))
    return tuple((name, int(count)) for (name, _), count in zip(files, np.diff(ends, prepend=0), strict=True))
