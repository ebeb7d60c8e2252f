"""The columns of files of rows, told before a row is learnt from: files that would be misread are refused."""

import json
from collections import Counter
from collections.abc import Collection, Container, Iterable, Sequence
from pathlib import Path

import numpy as np

from hetfl_flwr.data.sources.columns import header_hint
from hetfl_flwr.data.sources.csv.dialects import dialect_of, first_rows
from hetfl_flwr.data.sources.folders import TABLES, ending, opened
from hetfl_flwr.errors import DataError

_BLOCK = 10 * 2**20
"""Bytes of a json file that are read at a time, as the library does that reads the rows: no row is longer."""


def check_headers(files: Iterable[Path], ignored: Container[str]) -> dict[Path, Sequence[str]]:
    """Refuse csv, parquet and json files in which a column stands twice, or that have different columns.

    The library that reads them would rename the one, so that a second label column were an input, and fill up the
    other with missing values. A json file has the columns of all of its rows: a key that some of them lack is a missing
    value there, as an empty cell of a csv file is.

    Parameters
    ----------
    files : iterable of Path
        All that are read together.
    ignored : container of str
        Columns that some may lack.

    Returns
    -------
    dict
        The names of the columns of each such file.

    Raises
    ------
    DataError
        Names file and column.
    """
    first: tuple[Path, set[str]] | None = None
    lines: list[str] = []
    headers: dict[Path, Sequence[str]] = {}
    for path in (path for path in files if TABLES.get(ending(path)) in _HEADED):
        header = headers[path] = _header(path)
        _check_has_header(path, header)
        _check_separated(path, header)
        names = {name for name in header if " ".join(name.split()) not in ignored and name.strip()}
        for name, count in Counter(" ".join(name.split()) for name in header).items():
            if name and count > 1:  # spreadsheets leave columns without a name and without cells
                raise DataError(
                    f"'{path}' has column {name!r} more than once: give each column a name of "
                    f"its own{header_hint(header)}"
                )
        first = first or (path, names)
        for one, other, lacking in ((path, first[0], first[1] - names), (first[0], path, names - first[1])):
            if lacking:
                lines.append(f"'{one}' has no {_listed(lacking)}, which '{other}' has")
    if lines:
        what = "it" if len(lines) == 1 and " no column " in lines[0] else "them"
        raise DataError(f"{'; '.join(lines)}: add {what}, or name {what} in ignore-columns")
    return headers


_SHOWN = 5  # columns that a message names, at most


def _listed(names: Collection[str]) -> str:
    """Return some columns as messages name them."""
    shown = ", ".join(repr(name) for name in sorted(names)[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"column{'s' * (len(names) > 1)} {shown}{more}"


DEEPEST = 100
"""Lists and objects within each other in a line of a json file, at most."""

_HEADED = ("csv", "parquet", "json")


def _check_has_header(path: Path, header: Sequence[str]) -> None:
    """Refuse a csv file without a row, or whose first one holds values; pandas calls a frame's columns 0, 1, ..."""
    if TABLES[ending(path)] != "csv" or (header and [*header] == [*map(str, range(len(header)))]):
        return
    if not header:
        raise DataError(f"'{path}' is empty: put rows into it, or take it away")
    try:
        [float(name) for name in header]
    except ValueError:
        return
    raise DataError(
        f"'{path}' has no header: its first row holds {len(header)} numbers: put the names of the columns there"
    )


def _check_separated(path: Path, header: Sequence[str]) -> None:
    """Refuse a csv file whose rows have more fields than its header, or whose first line is for a spreadsheet alone.

    The library that reads them would take the first field of such rows for a name of the row, and shift the others.
    """
    if TABLES[ending(path)] != "csv" or not header:
        return
    if header[0].lower().startswith("sep="):
        raise DataError(f"the first line of '{path}' is for a spreadsheet: take '{header[0]}' away")
    rows = first_rows(path, dialect_of(path))
    if long := next(((number, row) for number, row in rows if len(row) > len(header)), None):
        number, row = long
        raise DataError(
            f"row {number} of '{path}' has {len(row)} fields, its header {len(header)}: take the separator at "
            "the end of the row away, or give each column a name"
        )


def _header(path: Path) -> Sequence[str]:
    """Return the names of a file's columns."""
    if TABLES[ending(path)] == "json":
        return _keys(path)
    if TABLES[ending(path)] == "parquet":
        from pyarrow.parquet import read_schema

        names: Sequence[str] = read_schema(path).names
        return names
    return next((row for _, row in first_rows(path, dialect_of(path))), [])


def _keys(path: Path) -> Sequence[str]:
    """Return the keys of all rows of a json file: one row a line, or a list of rows."""
    from pyarrow import ArrowInvalid
    from pyarrow.json import ReadOptions, read_json

    _check_depth(path)
    try:
        names: Sequence[str] = read_json(path, ReadOptions(block_size=_BLOCK)).schema.names
    except ArrowInvalid as error:
        try:
            with opened(path) as file:
                rows = json.loads(file.read())
        except ValueError:
            raise error from None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"'{path}' is no list of rows, each an object of columns and values") from None
        return list(dict.fromkeys(key for row in rows for key in row))
    return names


def _check_depth(path: Path) -> None:
    """Refuse lines so deeply nested that the library that reads them would end the process."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            if _brackets(line) > DEEPEST and _depth(line) > DEEPEST:
                raise DataError(f"line {number} of '{path}' is nested more than {DEEPEST} deep")


def _brackets(line: bytes) -> int:
    """Return how many brackets are open at once, those in texts counted as well."""
    letters = np.frombuffer(line, np.uint8)
    opened, closed = np.isin(letters, [*b"[{"]), np.isin(letters, [*b"]}"])
    return int(np.cumsum(opened.astype(np.int64) - closed).max(initial=0))


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
