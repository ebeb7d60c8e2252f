"""Read text files and spreadsheets as tables: detect encoding, dialect and header, and keep cells as text."""

import csv
import re
from array import array
from codecs import lookup
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from charset_normalizer import from_bytes

from hetfl_flwr.data.columns import MIN_NUMBERS, NUMBER, TEXT, marks_missing
from hetfl_flwr.data.folders import ending, opened
from hetfl_flwr.data.frame import Frame
from hetfl_flwr.errors import DataError
from hetfl_flwr.text import printable

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
"""Supported separators and their names."""

USUAL = [
    *("cp1252", "cp1251", "shift_jis", "cp932", "gb18030", "big5", "cp949", "euc_jp", "euc_kr"),
    *("cp1253", "cp1254", "cp1255", "cp1256", "koi8_r"),
]
"""Encodings other than Unicode, the most common first."""

_SAMPLE, _ROWS, _CELLS, _AT_ONCE, _TOGETHER = 300_000, 500, 20_000, 50_000, 10
_UNCLEAN = re.compile(r"""[;\t|"]|^'.*'$|(?<!\d),(?! )|,(?=[^\d ])""")  # in cells if the separator is wrong
_SINGLE_QUOTED = re.compile(r"(?:^|[,;\t| ])'(?:[^'\n]|'')*'(?:[,;\t| \r\n]|$)")
_ALONE = re.compile(r"(?<!\\)(?:\\\\)*\\(?!\\)")  # an odd number of backslashes
_REMARKS = re.compile(r"(?:#(?![,;\t|])[^\r\n]*(?:\r\n?|\n))*")  # a column may be called #
_TRAILING = re.compile(r"[ \t]+(?=[\r\n]*$)")
_LINES = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+\Z")
_WORD = re.compile(r"[^\s,;|\"']*[^\x00-\x7f][^\s,;|\"']*")
_WESTERN = re.compile(  # letters of cp1252: all bytes from c0 on except two
    rb"(?<![\x80-\xff])(?:[\xc0-\xff]|(?<=[a-z])[\xc0-\xff]{2}|[\xc0-\xff]{2}(?=[a-z]))(?![\x80-\xff])"
)
_ONE_COLUMN = 0.3  # a file has one column unless a separator scores higher
_NO_HEADER = 0.5  # the factor for spaces as separators if the first row is then not a header
_MOSTLY = 0.9
_ZEROS = 0.1  # the share of zero bytes above which a text is UTF-16 or UTF-32
_UNICODE = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_MIN_ROWS = 100  # the fewest rows that become columns at a time
_FOOTER = 10  # the most rows of a footer

csv.field_size_limit(2**31 - 1)


@dataclass(frozen=True)
class Dialect:
    """The CSV dialect of a file, its number of columns, and whether most rows start with a quote."""

    separator: str = ","
    quote: str = '"'
    escape: str | None = None
    width: int = 1
    quoted: bool = False

    def reader(self, lines: Iterable[str], *, strict: bool = False) -> Iterator[list[str]]:
        """Parse lines into rows of cells; if strict, an unclosed quote is an error."""
        return csv.reader(
            lines,
            delimiter=self.separator,
            quotechar=self.quote,
            escapechar=self.escape,
            skipinitialspace=True,
            strict=strict,
        )


def read_text_table(path: Path, encoding: str = "", header_row: int = 0) -> Frame:
    """Read a text file with a header row.

    The encoding (if empty), separator, quotes and header row are detected. `header_row` counts from 1; 0 detects the
    row, and -1 means that there is none, so columns are named 1, 2, ... Lines that begin with ``#`` and other lines
    above the header, blank rows, repeated headers and a footer are left out. Columns without a name, such as the row
    names that R writes, are called ``Unnamed: 0``, ``Unnamed: 1``, ... by their position. Rows are numbered from 1 as
    in a spreadsheet, including header and blank rows.
    """
    codec, notes = encoding_of(path, encoding)
    usual = "\t" if ending(path) == ".tsv" else ","
    with TextIOWrapper(opened(path), codec, newline="") as file:
        head = re.sub(r"\Asep=.(?=\r?\n)", "", file.read(_SAMPLE) + file.readline())
        remarks = list[str]()
        while (found := _REMARKS.match(head)) and found[0]:
            remarks += found[0].splitlines()
            head = head[found.end() :] + file.read(_SAMPLE) + file.readline()
        head = head.lstrip(" ")
        dialect = dialect_of(head, usual)
        names = [next(_rows([line.lstrip("# ")], dialect), []) for line in remarks]
        rows = _rows(chain(_LINES.findall(head), file), dialect, len(remarks) + 1)
        try:
            frame = _table(f"'{path}'", rows, dialect, names, header_row)
        except csv.Error as error:
            raise DataError(f"cannot read '{path}': {error}") from None
    if dialect.separator != usual or dialect.escape:
        quotes = ", backslashes before quotes" * bool(dialect.escape)
        called = [name for name in frame.names if not name.startswith("Unnamed: ")] or frame.names
        between = f"{dialect.width} columns, from {called[0]!r} to {called[-1]!r}"
        notes += (f"read as separated by {SEPARATORS[dialect.separator]}{quotes}: {between}",)
    return Frame(frame.table, row=frame.row, notes=(*notes, *frame.notes))


def read_sheets(path: Path, header_row: int = 0) -> Iterator[tuple[str, Frame]]:
    """Yield the name and the rows of each sheet that is neither empty nor hidden.

    Cells that are merged vertically have the same value in all their rows; durations are in days. Hidden rows are read.
    """
    book = _book(path)
    hidden_sheets = ", ".join(repr(sheet.title) for sheet in book.worksheets if sheet.sheet_state != "visible")
    for sheet in book.worksheets:
        rows = [[_as_text(cell) for cell in row] for row in sheet.iter_rows(values_only=True)]
        for block in sheet.merged_cells.ranges:
            for row in range(block.min_row, min(block.max_row, len(rows))):
                rows[row][block.min_col - 1] = rows[block.min_row - 1][block.min_col - 1]
        width = max((column + 1 for row in rows for column, cell in enumerate(row) if cell), default=0)
        if width and sheet.sheet_state == "visible":
            called = f"sheet {sheet.title!r} of '{path}'"
            cells = iter([row[:width] for row in rows])
            frame = _table(called, cells, Dialect(width=width), [], header_row)
            hidden = sum(bool(row.hidden) for row in sheet.row_dimensions.values())
            notes = (f"{hidden} hidden rows are also read",) * bool(hidden)
            notes += (f"hidden sheets are left out: {hidden_sheets}",) * bool(hidden_sheets)
            yield sheet.title, replace(frame, notes=(*notes, *frame.notes))


def _book(path: Path) -> Any:
    """Open a spreadsheet with the stored values of its formulas; raise `DataError` if none is stored."""
    from openpyxl import load_workbook

    book = load_workbook(path)
    cells = (cell for sheet in book.worksheets for row in sheet.iter_rows() for cell in row)
    formulas = [(cell.parent.title, cell.coordinate) for cell in cells if cell.data_type == "f"]
    if not formulas:
        return book
    book = load_workbook(path, data_only=True)
    if all(book[sheet][place].value is None for sheet, place in formulas):
        sheet, place = formulas[0]
        raise DataError(
            f"'{path}' has formulas without stored values, the first in cell {place} of sheet {sheet!r}: open and save "
            "it in a spreadsheet program"
        )
    return book


def _as_text(cell: object) -> str:
    if isinstance(cell, timedelta):
        return repr(cell / timedelta(days=1))
    return "" if cell is None else str(cell).strip().removesuffix(" 00:00:00")


def read_letters(path: Path, encoding: str = "") -> tuple[str, tuple[str, ...]]:
    """Return the text of a file, and a note on its encoding if it is not UTF-8; see `encoding_of`."""
    codec, notes = encoding_of(path, encoding)
    with TextIOWrapper(opened(path), codec, newline="") as file:
        return file.read(), notes


def encoding_of(path: Path, encoding: str = "") -> tuple[str, tuple[str, ...]]:
    """Return the encoding of a file, and a note if it is not UTF-8.

    If none is given, a file is UTF-16 or UTF-32 by its byte order mark or zero bytes, else UTF-8, else in the most
    common plausible encoding. A file that is valid UTF-8 is read as UTF-8 even if a single-byte encoding is given,
    because text in a single-byte encoding is almost never valid UTF-8.
    """
    try:
        with opened(path) as file:
            sample = file.read(100_000)
        codec = encoding or _unicode(sample)
        if encoding and _is_code_page(encoding) and _has_utf8(path):
            return "utf-8-sig", (f"read as UTF-8, which it is, instead of encoding = {encoding}",)
        with TextIOWrapper(opened(path), codec, newline="") as text:
            while text.read(_SAMPLE):
                pass
        return codec, () if codec in (encoding, "utf-8-sig") else (f"read as {codec.upper()}",)
    except (UnicodeError, LookupError) as error:
        if codec != "utf-8-sig" or encoding:
            way_out = "leave encoding empty" if encoding else "save it as UTF-8"
            raise DataError(f"'{path}' is not in encoding {codec!r} ({error}): {way_out}") from None
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read '{path}': {error}") from None
    with opened(path) as file:
        data = file.read()
    guess = _guessed(data)
    try:
        lines = enumerate(data.decode(guess).splitlines(), start=1)
    except UnicodeDecodeError:
        raise DataError(f"'{path}' is neither UTF-8 nor {guess}: save it as UTF-8") from None
    number, word = next((number, found[0]) for number, line in lines if (found := _WORD.search(line)))
    doubt = f"if that is wrong, set encoding, such as encoding={'cp1250' if guess == USUAL[0] else USUAL[0]}"
    return guess, (f"not UTF-8, read as {guess}: line {number} has {printable(word, 40)!r}; {doubt}",)


def _is_code_page(encoding: str) -> bool:
    """Return whether an encoding uses one byte per character."""
    every = bytes(range(0x80, 0x100))
    return len(every.decode(encoding, "replace")) == len(every) and not lookup(encoding).name.startswith(("utf", "hz"))


def _has_utf8(path: Path) -> bool:
    """Return whether a file is valid UTF-8 and has non-ASCII characters."""
    try:
        with TextIOWrapper(opened(path), "utf-8", newline="") as text:
            plain = [part.isascii() for part in iter(partial(text.read, _SAMPLE), "")]
        return not all(plain)
    except UnicodeDecodeError:
        return False


def _unicode(sample: bytes) -> str:
    """Detect UTF-16 or UTF-32 by the byte order mark, or by the zero bytes around ASCII letters; else return UTF-8."""
    marked = next((codec for mark, codec in _UNICODE.items() if sample.startswith(mark)), "")
    zeros = sample.count(0) / max(1, len(sample))
    uneven = abs(sample[::2].count(0) - sample[1::2].count(0)) / max(1, len(sample))  # padding has zeros anywhere
    if marked or zeros < _ZEROS or uneven < zeros / 4:
        return marked or "utf-8-sig"
    size = 4 if zeros > 1 / 2 else 2  # of two bytes of a letter at most one is zero
    end = "le" if sample[size - 1 :: size].count(0) > sample[::size].count(0) else "be"
    return f"utf-{8 * size}-{end}"


def _guessed(data: bytes) -> str:
    """Return the most common of the plausible encodings.

    A detector needs more letters than a column of names may have. So non-ASCII letters that stand alone, or in pairs
    within an ASCII word, are assumed to be Western European.
    """
    letters = len(re.findall(rb"[\x80-\xff]+", data))
    if len(_WESTERN.findall(data)) > _MOSTLY * letters:
        return USUAL[0]
    lines = [line for line in data.splitlines() if not line.isascii()][:2000]
    likely = [match.encoding for match in from_bytes(b"\n".join(lines))]
    return next((encoding for encoding in USUAL if encoding in likely), (likely or USUAL)[0])


def dialect_of(head: str, usual: str = ",") -> Dialect:
    """Detect the dialect of a text from its first lines.

    It is the one in which the most rows have the same width and the fewest cells contain another separator.
    """
    lines = _LINES.findall(head)
    several = any(len(row) > 1 for sep in ",;\t|" for row in islice(_rows(lines, Dialect(sep)), _ROWS))
    best = (0.0 if several else _ONE_COLUMN, Dialect(usual))
    for separator in (usual, *(one for one in SEPARATORS if one != usual)):
        for quote in '"' + "'" * bool(_SINGLE_QUOTED.search(head)):
            escaped = any(f"\\{one}" in head for one in "'\"") or ("\\" in head and not _ALONE.search(head))
            for escape in ("\\", None) if escaped else (None,):
                best = max(best, _scored(lines, Dialect(separator, quote, escape)), key=lambda one: one[0])
    return best[1]


def _scored(lines: Sequence[str], dialect: Dialect) -> tuple[float, Dialect]:
    """Return a score of how regular the lines are in a dialect, and the dialect with their width."""
    try:
        rows = [row for row in islice(_rows(lines, dialect), _ROWS) if any(row)]
    except csv.Error:
        return 0.0, dialect
    [(width, alike)] = Counter(map(len, rows)).most_common(1) or [(1, 0)]
    cells = [cell for cell in islice(chain(*rows), _CELLS) if cell]
    clean = sum(not _UNCLEAN.search(cell) for cell in cells) / max(1, len(cells))
    score = alike / max(1, len(rows)) * clean**2 * (1 - 1 / width)
    filled = [line for line in lines[:_ROWS] if line.strip()]
    if dialect.separator == " " and rows:  # spaces may also separate words within cells, but rarely in the header
        alone = len(rows[0]) == 1 and dialect.quote not in filled[0]  # one word may name the only column
        fits = len(rows[0]) in (width - 1, width) and not alone
        if not fits and any(all(other in line for line in filled) for other in SEPARATORS if other != " "):
            return 0.0, dialect
        header = _NO_HEADER * _have_numbers([row for row in rows if len(row) == width])
        score *= (0.7 if any("\t" in line for line in lines) else 0.95) if fits else header
    quoted = 2 * sum(line.startswith(dialect.quote) for line in filled[1:]) >= len(filled)
    return score, replace(dialect, width=width, quoted=quoted)


def _have_numbers(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether most cells of some column are numbers, such as all cells except its name."""
    return any(2 * sum(column) > len(column) for column in zip(*map(_numbers, rows), strict=True))


def _rows(text: Iterable[str], dialect: Dialect, first: int = 0) -> Iterator[list[str]]:
    """Yield the cells of each row; if `first`, the number of the first row, is given, refuse unclosed quotes."""
    lines = list[str]()
    literal = re.compile(rf"""\\([\\"'\r\n{dialect.separator}])|\\""")  # other backslashes are part of a cell

    def read() -> Iterator[str]:
        for line in text:
            if dialect.separator == " ":
                line = _TRAILING.sub("", line).replace("\t", " ")
            if dialect.escape and "\\" in line:
                line = literal.sub(lambda found: found[0] if found[1] else r"\\", line)
            lines.append(line)
            yield line

    for number, row in enumerate(dialect.reader(read()), start=first):
        if first and (len(lines) > 1 or lines[0].count(dialect.quote) % 2) and _swallows(lines, dialect):
            raise csv.Error(
                f"row {number}, {printable(lines[0].strip(), 60)!r}, opens a quote that is not closed within "
                f"{len(lines)} lines: close it, and double the quotes within cells"
            )
        lines.clear()
        yield row


def _swallows(lines: Sequence[str], dialect: Dialect) -> bool:
    """Return whether an unclosed quote has merged several rows into one.

    Lines are separate rows if they are as wide as the table and similar: each column has digits in all of its filled
    cells or in none. Two lines may also be a cell with a line break, so one of their columns must also hold numbers,
    dates or the like.
    """
    try:
        [*dialect.reader(lines, strict=True)]
    except csv.Error:
        return True
    rows = [*csv.reader(lines, delimiter=dialect.separator, quoting=csv.QUOTE_NONE, skipinitialspace=True)]
    if len(lines) < 2 or {*map(len, rows)} != {dialect.width}:
        return False
    columns = [[cell.strip() for cell in column if dialect.quote not in cell] for column in zip(*rows, strict=True)]
    shapes = [
        {re.sub(r"[+-]?\d+(?:[.,]\d+)?", "0", cell) for cell in column if not marks_missing(cell)} for column in columns
    ]
    alike = all(len({"0" in shape for shape in column}) < 2 for column in shapes)
    return alike and (len(lines) > 2 or any(len(column) == 1 and "0" in min(column) for column in shapes))


def _table(
    called: str, reader: Iterator[list[str]], dialect: Dialect, remarks: Sequence[list[str]], header_row: int
) -> Frame:
    """Return the table of a file, given the cells of the comment lines at its top and of all rows below."""
    first = [*remarks, *islice(reader, max(_ROWS, header_row))]
    above, names = _header(called, first, dialect, len(remarks), header_row)
    header = first[above] if above >= 0 else []
    units = _units(first[above + 1 :], dialect.width) if above >= 0 else ""
    start = above + 1 + bool(units)
    frame = _cells(called, chain(first[start:], reader), header, dialect, start + 1)
    notes = [f"row {start} holds units, such as {units!r}: it is left out"] * bool(units) + list(frame.notes)
    if before := [cell for row in first[len(remarks) : max(0, above)] for cell in row if cell.strip()]:
        notes.insert(0, f"lines above row {above + 1} are left out, such as {printable(before[0], 40)!r}")
    if skipped := min(len(remarks), max(0, above)):
        notes.insert(0, f"{skipped} lines above the table that begin with # are left out")
    named = [name or f"Unnamed: {place}" for place, name in enumerate(names)]
    return Frame(frame.table.rename_columns(named), row=frame.row, notes=(*notes,))


def _header(
    called: str, rows: Sequence[Sequence[str]], dialect: Dialect, remarks: int, header_row: int
) -> tuple[int, list[str]]:
    """Return the index of the header row and its names, one for each column.

    The header is the first row as wide as the table that names each column except, possibly, the first. If it has one
    name too few, rows have names, or end in a separator if the last cells are empty. The last comment line is the
    header, as NumPy writes it, if the row below it has a number and no word above numbers.
    """
    if not any(any(row) for row in rows):
        raise DataError(f"{called} is empty: add rows, or remove it")
    if header_row < 0:
        return remarks - 1, [str(number) for number in range(1, dialect.width + 1)]
    if header_row:
        names = _names_in(rows[header_row - 1]) if header_row <= len(rows) else []
        names += [""] * (dialect.width - len(names)) * bool(names)
        if len(names) != dialect.width:
            cells = f"{len(names)} cells, not {dialect.width}"
            raise DataError(f"row {header_row} of {called} has {cells}: set header-row to another row")
        return header_row - 1, names
    below = [row for row in rows[remarks:] if any(row)]
    if remarks and len(rows[remarks - 1]) == dialect.width and any(_numbers(below[0])) and not _heads_numbers(below):
        return remarks - 1, _names_in(rows[remarks - 1])
    for place, row in enumerate(rows[remarks:], start=remarks):
        if names := _names(called, row, [cells for cells in rows[place + 1 :] if any(cells)], dialect):
            return place, names
    raise DataError(
        f"no row at the top of {called} names all of its {dialect.width} columns: write a name for each column in the "
        "first row, separated by commas or tabs"
    )


def _names(called: str, row: Sequence[str], after: Sequence[Sequence[str]], dialect: Dialect) -> list[str]:
    """Return the names that a row gives to the columns below it; empty if the row is not a header."""
    names, width = _names_in(row), dialect.width
    used = {column for cells in after for column, cell in enumerate(cells[:width]) if cell.strip()}
    short = len(names) < width and all(names) and not any(_numbers(names))
    if short and after and (any(_numbers(after[0])) or not _heads_numbers(after)):
        one_short = len(names) == width - 1 and {*map(len, after)} == {width}
        if one_short and width - 1 not in used:
            names.append("")
        elif one_short and _have_names(after, dialect):
            names.insert(0, "")
        elif len(names) > min(1, width - 2) and len(after[0]) == width and any(_numbers(after[0])):
            raise DataError(
                f"the header of {called} names {len(names)} columns, the first {printable(names[0], 40)!r}, but rows "
                f"have {width} cells: put quotes around cells that contain a separator, such as numbers with a decimal "
                "comma, or give each column a name"
            )
    if len(names) != width or not any(names) or not all(names[column] for column in used - {0}):
        return []
    said = [name for name in names if name]
    if names[0] and all(_numbers(said)) and names != [*map(str, range(width))]:
        raise DataError(
            f"{called} has no header, only a first row with {len(said)} numbers: add a row with the names of the "
            "columns, or set header-row to -1"
        )
    return names


def _have_names(rows: Sequence[Sequence[str]], dialect: Dialect) -> bool:
    """Return whether the first cells are row names, as R writes them, and rows are not shifted by a decimal comma.

    Row names are distinct, and are quoted, or words, or count from 1. Decimal commas turn one column into two columns
    of whole numbers, and then there are no numbers with a decimal point. A comma turns one column of texts into two
    columns without numbers.
    """
    names = [row[0] for row in rows]
    numbers = any(_numbers(names))
    counting = names == [*map(str, range(1, 1 + len(names)))]
    if len({*names}) < len(names) or (numbers and not counting and not dialect.quoted):
        return False
    if dialect.separator != "," or (numbers and dialect.quoted):
        return True
    if len(rows[0]) == 2 and not dialect.quoted and not any(any(_numbers(row)) for row in rows):
        return False
    columns = [*zip(*rows, strict=True)][counting and len(rows[0]) > 2 :]
    whole = [all(re.fullmatch(r"[+-]?\d+", cell) for cell in column) for column in columns]
    halves = any(before and all(map(str.isdecimal, column)) for before, column in zip(whole, columns[1:], strict=False))
    return not halves or any(re.fullmatch(r"[+-]?\d*\.\d+", cell) for row in rows for cell in row)


def _units(rows: Sequence[Sequence[str]], width: int) -> str:
    """Return the first unit in the row below the header; empty if that row does not hold units.

    A row of units has a word or nothing above each column of numbers, and nothing above other columns.
    """
    row, *others = rows or [[]]
    below = [cells for cells in others if len(cells) == width]
    if len(row) != width or len(below) < MIN_NUMBERS:
        return ""
    found = ""
    for unit, column in zip(_names_in(row), zip(*below, strict=True), strict=True):
        none = marks_missing(unit)
        numbers = all(NUMBER.fullmatch(cell.strip()) for cell in column if cell.strip()) and any(column)
        if not none and (not numbers or re.match(r"[-+<>≤≥=~±$€£.,\s]*\d", unit)):
            return ""
        found = found or ("" if none else unit)
    return found


def _names_in(row: Sequence[str]) -> list[str]:
    return [" ".join(cell.split()) for cell in row]


def _heads_numbers(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row has a word above a column of mostly numbers."""
    numbers = [_numbers(row) for row in rows[1:]]
    words = [not (marks_missing(cell.strip()) or NUMBER.fullmatch(cell.strip())) for cell in rows[0]]
    columns = zip(words, *numbers, strict=False)
    return any(word and 2 * sum(below) > len(numbers) for word, *below in columns)


def _numbers(row: Sequence[str]) -> list[bool]:
    return [NUMBER.fullmatch(cell.strip()) is not None for cell in row]


def _cells(called: str, rows: Iterator[list[str]], header: Sequence[str], dialect: Dialect, first: int) -> Frame:
    """Return all rows below the header as unnamed columns, with notes on rows that were left out or filled up.

    `first` is the number of the first row.
    """
    whole, parts, kept = list[list[pa.Array]](), list[list[pa.Array]](), list[list[str]]()
    numbers, repeated, short = array("q"), list[int](), list[int]()
    width = dialect.width
    again, at_once = _normalised(header), max(_MIN_ROWS, _AT_ONCE // width)
    turned, of_header = sorted(again), {*again}
    for number, row in enumerate(rows, start=first):
        if not any(cell.strip() for cell in row) and len(row) < 2:
            continue
        if header and (alike := _normalised(row))[0] in of_header:
            if alike == again:
                repeated.append(number)
                continue
            if sorted(alike) == turned and len(of_header) > 1:
                raise DataError(
                    f"row {number} of {called} repeats the header in another order: another table begins there; "
                    "put it into its own file"
                )
        if len(row) != width:
            if len(row) > width:
                raise DataError(
                    f"row {number} of {called} has {len(row)} cells, but its header has {width}: put quotes around "
                    "cells that contain a separator, or give each column a name"
                )
            short.append(number)
            row = row + [""] * (width - len(row))
        kept.append(row)
        numbers.append(number)
        if len(kept) >= at_once:
            parts.append(_texts(kept))
            kept.clear()
        if len(parts) == _TOGETHER:  # a few large arrays need less memory than many small ones
            whole.append([pa.concat_arrays(column) for column in zip(*parts, strict=True)])
            parts.clear()
    parts.append(_texts(kept) if kept else [pa.array([], TEXT)] * width)
    columns = [pa.chunked_array(column, TEXT) for column in zip(*whole, *parts, strict=True)]
    table = pa.table(columns, names=[*map(str, range(width))])
    footer, last = _footer(table), printable(str(table.column(0)[-1].as_py()), 40) if len(numbers) else ""
    count = len(numbers) - footer
    short = [one for one in short if one not in numbers[count:]]
    _check_full(called, short, dialect.separator)
    said = {
        "repeat the header: left out": repeated,
        "have too few cells: the rest are empty": short,
        f"at the end have only one cell, such as {last!r}: left out": numbers[count:],
    }
    notes = (f"{len(where)} rows {what} (row {where[0]})" for what, where in said.items() if where)
    return Frame(table.slice(0, count), row=np.array(numbers[:count], np.int64), notes=(*notes,))


def _check_full(called: str, short: Sequence[int], separator: str) -> None:
    """Refuse rows with too few cells between spaces: which of their cells are empty is unknown."""
    if short and separator == " ":
        raise DataError(
            f"row {short[0]} of {called} has too few cells, and spaces separate its cells, so it is unknown which are "
            "empty: write NA into empty cells, or separate cells by commas"
        )


def _footer(table: pa.Table) -> int:
    """Return how many rows at the end fill only the first column, such as sources and notes below a table."""
    last = table.slice(max(0, table.num_rows - _FOOTER - 1))
    if table.num_columns <= 2 or table.num_rows <= _FOOTER:
        return 0
    count = int(np.argmax(np.any([column.is_valid().to_numpy() for column in last.columns[1:]], axis=0)[::-1]))
    return count if count <= _FOOTER else 0


def _normalised(row: Sequence[str]) -> list[str]:
    """Normalize cells to compare them with the header, which another program may have repeated."""
    return [cell.strip("\ufeff \t").casefold() for cell in row]


def _texts(rows: Sequence[Sequence[str]]) -> list[pa.Array]:
    """Transpose rows into columns, with null for empty cells."""
    return [pa.array([cell.strip() or None for cell in column], TEXT) for column in zip(*rows, strict=True)]
