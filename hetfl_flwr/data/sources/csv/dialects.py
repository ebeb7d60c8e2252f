"""How csv files are written: what stands between cells, in which encoding. What is not plain is said aloud."""

import codecs
import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hetfl_flwr.data.sources.folders import TABLES, ending, opened
from hetfl_flwr.errors import DataError
from hetfl_flwr.text import printable

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""What may stand between cells."""

UTF8, UTF16, WINDOWS = "utf-8", "utf-16", "cp1252"
"""Encodings that are read; what is neither Unicode is taken for that of Windows in Western Europe."""

LOOKED_AT = 1000
"""Rows of a file that are looked at, its header among them."""

_AT_ONCE = 2**20
_SOME = 0.1  # part of zero bytes above which a text is UTF-16
_WORD = re.compile(r"[^\s,;|\"']*[^\x00-\x7f][^\s,;|\"']*")
_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")
_GROUPED = re.compile(r"[+-]?\d{1,3}(\.\d{3})?")


@dataclass(frozen=True)
class Dialect:
    """How a csv file is written."""

    separator: str = ","
    encoding: str = UTF8

    @property
    def options(self) -> dict[str, str]:
        """What pandas, and the library that reads by it, must be told; of what is plain, nothing."""
        said = {"sep": self.separator, "encoding": self.encoding}
        return {key: value for key, value in said.items() if value not in (",", UTF8)}


def dialect_of(path: Path) -> Dialect:
    """Return how a csv file is written, as its bytes and its first rows tell.

    Commas stand between cells, in a ``.tsv`` file tabs, unless the header is one cell then and several by another
    separator, or all rows have as many cells as the header by another one alone.

    Raises
    ------
    DataError
        Its encoding is none of those that are read, or two separators would do.
    """
    known = path.stat()
    return _dialect(path, known.st_mtime_ns, known.st_size)


def first_rows(path: Path, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Go through the first rows of a csv file that are not blank, the header first, each with its number in the file.

    Ends early where they cannot be read.
    """
    with _text(path, dialect.encoding) as file:
        yield from islice(_filled(file, dialect), LOOKED_AT)


def row_numbers(path: Path) -> npt.NDArray[np.int64]:
    """Return the numbers of the rows of a csv file that are not blank, (N,), without that of the header.

    They are those of a spreadsheet: the first row is 1. Ends early where they cannot be read.
    """
    known = path.stat()
    return _row_numbers(path, known.st_mtime_ns, known.st_size)


@lru_cache(maxsize=64)
def _row_numbers(path: Path, _changed: int, _size: int) -> npt.NDArray[np.int64]:
    dialect = dialect_of(path)
    with _text(path, dialect.encoding) as file:
        return np.fromiter((number for number, _ in _filled(file, dialect)), np.int64)[1:]


def _filled(file: TextIOWrapper, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Go through the rows that pandas reads: it leaves out those that hold nothing but blanks."""
    try:
        for number, row in enumerate(csv.reader(file, delimiter=dialect.separator), start=1):
            if len(row) > 1 or (row and (row[0].strip() or not row[0])):
                yield number, row
    except csv.Error:
        return  # what reads the file says what is wrong with it


def notes_on(files: Sequence[Path]) -> tuple[str, ...]:
    """Return what is not plain about csv files and how they are read, a line for those that are alike in it."""
    found: dict[str, list[Path]] = {}
    for path in files:
        if TABLES.get(ending(path)) == "csv":
            for line in _notes(path, dialect_of(path)):
                found.setdefault(line, []).append(path)
    return tuple(f"{_called(paths)} {line}" for line, paths in found.items())


def common_options(files: Sequence[Path]) -> dict[str, str]:
    """Return what must be told of csv files that are read together.

    Raises
    ------
    DataError
        They are not all written alike.
    """
    tables = [path for path in files if TABLES.get(ending(path)) == "csv"]
    dialects = {path: dialect_of(path) for path in tables}
    for path in tables[1:]:
        one, other = (f"{SEPARATORS[dialects[at].separator]}, {dialects[at].encoding}" for at in (tables[0], path))
        if one != other:
            raise DataError(f"'{tables[0]}' is written with {one}, '{path}' with {other}: save both alike")
    return dialects[tables[0]].options if tables else {}


def _called(paths: Sequence[Path]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"'{paths[0]}'{more}:"


def _notes(path: Path, dialect: Dialect) -> Iterator[str]:
    rows = [row for _, row in first_rows(path, dialect)]
    header = rows.pop(0) if rows else []
    if dialect.separator != _usual(path):
        columns = f"{len(header)} columns, from {header[0]!r} to {header[-1]!r}"
        yield f"read as separated by {SEPARATORS[dialect.separator]}: {columns}"
    yield from encoding_notes(path, dialect.encoding)
    yield from _doubted(header, rows)


def encoding_notes(path: Path, encoding: str) -> Iterator[str]:
    """Return how a file that is not in UTF-8 is read, with an example where another encoding is as likely."""
    if encoding == WINDOWS:
        yield f"not UTF-8, read as {WINDOWS}, the encoding of Windows in Western Europe{_example(path, WINDOWS)}"
    elif encoding != UTF8:
        yield f"read as {encoding.upper()}"


def _example(path: Path, encoding: str) -> str:
    """Return where the first letter stands that another encoding would make another one of, and what it is read as."""
    with _text(path, encoding) as file:
        for number, line in enumerate(file, start=1):
            if found := _WORD.search(line):
                return f": line {number} has {printable(found[0], 40)!r}"
    return ""


def _doubted(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Doubt points in numbers beside columns whose numbers have decimal commas: they may stand between thousands."""
    cells = {name: [row[place].strip() for row in rows if len(row) > place] for place, name in enumerate(header)}
    filled = {name: [cell for cell in column if cell] for name, column in cells.items()}
    with_comma = next((name for name, column in filled.items() if _has_decimal_commas(column)), None)
    if with_comma is None:
        return
    for name, column in filled.items():
        pointed = [cell for cell in column if "." in cell]
        if pointed and _mostly(_GROUPED, column) and _mostly(_GROUPED, pointed, 1.0):
            yield (
                f"column {name!r} has {pointed[0]}, read as {f'{float(pointed[0]):g}'}, "
                f"but column {with_comma!r} has decimal commas: write "
                f"{pointed[0].replace('.', '')} if that is meant"
            )


def _has_decimal_commas(column: Sequence[str]) -> bool:
    return _mostly(_COMMA, column) and any("," in cell and not _THOUSANDS.fullmatch(cell) for cell in column)


def _mostly(pattern: re.Pattern[str], cells: Sequence[str], part: float = 0.5) -> bool:
    """Say whether a part of the cells match: the others may be words that stand for missing numbers."""
    return bool(cells) and sum(bool(pattern.fullmatch(cell)) for cell in cells) >= part * len(cells)


@cache
def _dialect(path: Path, _changed: int, _size: int) -> Dialect:
    encoding = encoding_of(path)
    return Dialect(_separator(path, encoding), encoding)


def _separator(path: Path, encoding: str) -> str:
    usual = _usual(path)
    found = {letter: [row for _, row in first_rows(path, Dialect(letter, encoding))] for letter in SEPARATORS}
    several = {letter: rows for letter, rows in found.items() if rows and len(rows[0]) > 1}
    exact = [letter for letter, rows in several.items() if all(len(row) == len(rows[0]) for row in rows)]
    if usual in exact and (usual == "\t" or exact == [usual] or len(several[usual]) == 1):
        return usual
    if len(exact) == 1:
        return exact[0]
    if len(exact) > 1:
        ways = " or ".join(f"{SEPARATORS[letter]} ({len(several[letter][0])} columns)" for letter in exact)
        raise DataError(
            f"the cells of '{path}' may be separated by {ways}: put quotes around names and cells that hold "
            "the wrong one, or save it as .tsv, with tabs"
        )
    return next(iter(several)) if len(several) == 1 else usual


def _usual(path: Path) -> str:
    return "\t" if ending(path) == ".tsv" else ","


def encoding_of(path: Path) -> str:
    """Return the encoding of a file by its first bytes, or else the first one in which all of it can be read.

    Raises
    ------
    DataError
        It can be read in none.
    """
    with opened(path) as file:
        first = file.read(_AT_ONCE)
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        guesses = [UTF16]
    elif first.count(0) > _SOME * len(first):  # each letter of ASCII has one before or after it
        guesses = ["utf-16-le" if b"\0" in first[1::2] else "utf-16-be"]
    else:
        guesses = [UTF8, WINDOWS]
    for guess in guesses:
        if _is_in(path, guess):
            return guess
    raise DataError(f"'{path}' is neither UTF-8 nor UTF-16 nor {WINDOWS}: save it as UTF-8")


def _is_in(path: Path, encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        with opened(path) as file:
            while block := file.read(_AT_ONCE):
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _text(path: Path, encoding: str) -> TextIOWrapper:
    return TextIOWrapper(opened(path), newline="", encoding="utf-8-sig" if encoding == UTF8 else encoding)
