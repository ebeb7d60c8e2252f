"""Text files of rows: their letters, what separates cells, the header; all cells as they are written."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from charset_normalizer import from_bytes

from hetfl_flwr.data.folders import ending, opened
from hetfl_flwr.data.roles import header_hint
from hetfl_flwr.errors import DataError
from hetfl_flwr.text import printable

TEXT = pa.large_string()

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "blanks"}
"""What may stand between cells."""

USUAL = [
    "cp1252",
    "cp1251",
    "shift_jis",
    "cp932",
    "gb18030",
    "big5",
    "cp949",
    "euc_jp",
    "euc_kr",
    "cp1253",
    "cp1254",
    "cp1255",
    "cp1256",
    "koi8_r",
]
"""Encodings that are not Unicode, the most usual ones first."""

_SAMPLE, _ROWS, _CELLS, _AT_ONCE = 300_000, 500, 20_000, 20_000
_UNCLEAN = re.compile(r"""[;\t|"]|^'.*'$|(?<!\d),(?! )|,(?=[^\d ])""")  # what cells hold by a wrong separator
_SINGLE_QUOTED = re.compile(r"(?:^|[,;\t| ])'(?:[^'\n]|'')*'(?:[,;\t| \r\n]|$)")
_ALONE = re.compile(r"(?<!\\)(?:\\\\)*\\(?!\\)")  # an odd number of backslashes
_COMMENTS = re.compile(r"(?:#[^\r\n]*(?:\r\n?|\n))*")
_LINES = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+\Z")
_NUMBER = re.compile(r"[+-]?(?:\d+[.,]?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[^\s,;|\"']*[^\x00-\x7f][^\s,;|\"']*")
_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")
_GROUPED = re.compile(r"[+-]?\d{1,3}(\.\d{3})?")
_ONE_COLUMN = 0.3  # a file is taken for one column unless a separator scores higher
_NO_HEADER = 0.5  # what blanks count as separators if the first row is no header then
_FIRST_LETTER, _MOSTLY = 0xC0, 0.9  # bytes of cp1252 from which on all but two are letters
_ZEROS = 0.1  # part of zero bytes above which a text is UTF-16

csv.field_size_limit(2**31 - 1)


@dataclass(frozen=True)
class Dialect:
    """How the cells of a file are written."""

    separator: str = ","
    quote: str = '"'
    escape: str | None = None


@dataclass(frozen=True, eq=False)
class TextTable:
    """The rows of a text file.

    Parameters
    ----------
    cells : Table
        Texts without blanks around them, ``""`` where a cell is empty.
    numbers : ndarray
        (N,) int64: the number of each row in the file as a spreadsheet counts, from 1, header and blank rows included.
    notes : tuple of str
        What is not plain about the file, and how it was read.
    """

    cells: pa.Table
    numbers: npt.NDArray[np.int64]
    notes: tuple[str, ...] = ()


def read_text_table(path: Path, encoding: str = "", header_row: int = 0) -> TextTable:
    """Read a file of rows that has its column names above them.

    Encoding, separator, quotes and the place of the header are found from the file itself. Lines that begin with ``#``
    and other lines above the header, blank rows and repeated headers are left out. Row names as R writes them, and
    columns without a name, are called ``Unnamed: 0``, ``Unnamed: 1``, ... by their place.

    Parameters
    ----------
    path : Path
        Where it lies.
    encoding : str
        How its letters are written; empty: told from the file.
    header_row : int
        Which row holds the names; 0: found; -1: none, and columns are called 1, 2, ...

    Raises
    ------
    DataError
        It cannot be decoded, has no header, a name twice, or a row with more cells than the header.
    """
    text, notes = read_letters(path, encoding)
    text, skipped = _without_remarks(re.sub(r"\Asep=.\r?\n", "", text))
    if skipped:
        notes += (f"{skipped} lines that begin with # above the table are left out",)
    usual = "\t" if ending(path) == ".tsv" else ","
    dialect, width = dialect_of(text, usual)
    try:
        found, names = _table(path, _rows(text, dialect), width, skipped, header_row)
    except csv.Error as error:
        raise DataError(f"cannot read '{path}': {error}") from None
    if dialect.separator != usual:
        quotes = ", backslashes before quotes" * bool(dialect.escape)
        called = f"{width} columns, from {names[0]!r} to {names[-1]!r}"
        notes += (f"read as separated by {SEPARATORS[dialect.separator]}{quotes}: {called}",)
    return replace(found, notes=(*notes, *found.notes, *_doubted(found.cells)))


def read_sheets(path: Path, header_row: int = 0) -> Iterator[tuple[str, TextTable]]:
    """Return the name and the rows of each sheet of a spreadsheet that is neither empty nor hidden."""
    from openpyxl import load_workbook

    book = load_workbook(path, read_only=True, data_only=True)
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # programs write them too small
        rows = [[_as_text(cell) for cell in row] for row in sheet.iter_rows(values_only=True)]
        width = max((column + 1 for row in rows for column, cell in enumerate(row) if cell), default=0)
        if width and sheet.sheet_state == "visible":
            yield sheet.title, _table(path, iter([row[:width] for row in rows]), width, 0, header_row)[0]
    book.close()


def _as_text(cell: object) -> str:
    return "" if cell is None else str(cell).strip().removesuffix(" 00:00:00")


def _table(
    path: Path, reader: Iterator[list[str]], width: int, skipped: int, header_row: int
) -> tuple[TextTable, list[str]]:
    """Return the rows of a file, and the names that its columns have there."""
    first = list(islice(reader, max(_ROWS, header_row)))
    above, names = _header(path, first, width, header_row - skipped if header_row > 0 else header_row)
    header = first[above] if above >= 0 else []
    cells, kept, notes = _cells(path, chain(first[above + 1 :], reader), header, width, skipped + above + 2)
    if before := [cell for row in first[: max(0, above)] for cell in row if cell.strip()]:
        notes.insert(0, f"lines above row {above + 1} are left out, such as {printable(before[0], 40)!r}")
    named = [name or f"Unnamed: {place}" for place, name in enumerate(names)]
    return TextTable(pa.table(dict(zip(named, cells, strict=True))), kept, (*notes,)), [name for name in names if name]


def read_letters(path: Path, encoding: str = "") -> tuple[str, tuple[str, ...]]:
    """Return the text of a file, and how it was decoded where it is not UTF-8.

    It is decoded as told, else by its byte order mark, else as UTF-8, else by the most usual plausible encoding.

    Raises
    ------
    DataError
        It can be decoded by none.
    """
    try:
        with opened(path) as file:
            data = file.read()
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read '{path}': {error}") from None
    if encoding:
        try:
            return data.decode(encoding), ()
        except (UnicodeDecodeError, LookupError) as error:
            raise DataError(f"'{path}' is not in encoding {encoding!r} ({error}): leave encoding empty") from None
    sample = data[:100_000]
    encoding = "utf-8-sig"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
    elif sample.count(0) > _ZEROS * len(sample):  # each letter of ASCII has one before or after it
        encoding = f"utf-16-{'le' if 0 in sample[1::2] else 'be'}"
    try:
        text = data.decode(encoding)
        return text, () if encoding == "utf-8-sig" else (f"read as {encoding.upper()}",)
    except UnicodeDecodeError:
        guess = _guessed(data)
    try:
        text = data.decode(guess)
    except UnicodeDecodeError:
        raise DataError(f"'{path}' is neither UTF-8 nor {guess}: save it as UTF-8") from None
    lines = enumerate(text.splitlines(), start=1)
    number, word = next((number, found[0]) for number, line in lines if (found := _WORD.search(line)))
    return text, (f"not UTF-8, read as {guess}: line {number} has {printable(word, 40)!r}; encoding says otherwise",)


def _guessed(data: bytes) -> str:
    """Return the most usual of the plausible encodings.

    A detector needs more letters than a column of names may have: letters that stand alone among those of ASCII are
    taken for those of Western Europe.
    """
    letters = re.findall(rb"[\x80-\xff]+", data)
    if sum(len(found) == 1 and found[0] >= _FIRST_LETTER for found in letters) > _MOSTLY * len(letters):
        return USUAL[0]
    lines = [line for line in data.splitlines() if not line.isascii()][:2000]
    likely = [match.encoding for match in from_bytes(b"\n".join(lines))]
    return next((encoding for encoding in USUAL if encoding in likely), (likely or USUAL)[0])


def dialect_of(text: str, usual: str = ",") -> tuple[Dialect, int]:
    """Return how the cells of a text are written, and how many a row has.

    The dialect is the one by which most rows have the same width and fewest cells hold another separator.
    """
    head = text[:_SAMPLE]
    if len(head) < len(text):
        head = head[: max(head.rfind("\n"), head.rfind("\r")) + 1] or head
    separators = [usual, *(one for one in SEPARATORS if one != usual)]
    best = (_ONE_COLUMN if _is_one_column(head) else 0.0, Dialect(usual), 1)
    for separator in separators:
        for quote in '"' + "'" * bool(_SINGLE_QUOTED.search(head)):
            escaped = any(f"\\{one}" in head for one in "'\"") or ("\\" in head and not _ALONE.search(head))
            for escape in ("\\", None) if escaped else (None,):
                dialect = Dialect(separator, quote, escape)
                score, width = _score(head, dialect)
                best = max(best, (score, dialect, width), key=lambda one: one[0])
    return best[1:]


def _is_one_column(head: str) -> bool:
    return not any(len(row) > 1 for sep in ",;\t|" for row in islice(_rows(head, Dialect(sep)), _ROWS))


def _score(head: str, dialect: Dialect) -> tuple[float, int]:
    try:
        rows = [row for row in islice(_rows(head, dialect), _ROWS) if any(row)]
    except csv.Error:
        return 0.0, 1
    [(width, alike)] = Counter(map(len, rows)).most_common(1) or [(1, 0)]
    cells = [cell for cell in islice(chain(*rows), _CELLS) if cell]
    clean = sum(not _UNCLEAN.search(cell) for cell in cells) / max(1, len(cells))
    score = alike / max(1, len(rows)) * clean**2 * (1 - 1 / width)
    if dialect.separator == " ":  # may be between the words of cells, other than between names of columns
        fits = bool(rows) and len(rows[0]) in (width - 1, width)
        score *= (0.7 if "\t" in head else 0.95) if fits else _NO_HEADER
    return score, width


def _rows(text: str, dialect: Dialect) -> Iterator[list[str]]:
    if dialect.separator == " ":
        text = re.sub(r"[ \t]+(?=[\r\n]|$)", "", text).replace("\t", " ")
    return csv.reader(
        (line[0] for line in _LINES.finditer(text)),  # a `StringIO` would hold the text once more, four bytes a letter
        delimiter=dialect.separator,
        quotechar=dialect.quote,
        escapechar=dialect.escape,
        skipinitialspace=True,
    )


def _without_remarks(text: str) -> tuple[str, int]:
    """Leave out the lines above a table that begin with ``#``; one above rows of numbers is the header, as in NumPy."""
    found = _COMMENTS.match(text)
    remarks = found[0] if found else ""
    if remarks and not re.match(r"[^\r\n]*[^\W\d_]", text[len(remarks) :]):
        last = remarks.rstrip().rfind("\n#") + 1
        return remarks[:last] + text[last:].lstrip("# "), 0 if not last else len(remarks[:last].splitlines())
    return text[len(remarks) :].lstrip(" "), len(remarks.splitlines())


def _header(path: Path, rows: Sequence[Sequence[str]], width: int, told: int) -> tuple[int, list[str]]:
    """Return the place of the header and its names, one a column.

    It is the first row as wide as the table that names each column but the first. One name less than columns: rows
    have names, where the first cells all differ, or end in a separator, where the last are empty.
    """
    if not any(any(row) for row in rows):
        raise DataError(f"'{path}' is empty: put rows into it, or take it away")
    if told < 0:
        return -1, [str(number) for number in range(1, width + 1)]
    if told:
        names = [" ".join(cell.split()) for cell in rows[told - 1]] if told <= len(rows) else []
        if len(names) != width:
            raise DataError(f"'{path}': its row {told} has {len(names)} cells, not {width}: set header-row to another")
        _check_names(path, names)
        return told - 1, names
    for place, row in enumerate(rows):
        after = [cells for cells in rows[place + 1 :] if any(cells)]
        names = [" ".join(cell.split()) for cell in row]
        used = {column for cells in after for column, cell in enumerate(cells[:width]) if cell.strip()}
        one_short = len(row) == width - 1 and all(names) and after and {len(cells) for cells in after} == {width}
        if one_short and not _names_numbers(after):
            if width - 1 not in used:
                names.append("")
            elif len({cells[0] for cells in after}) == len(after):
                names.insert(0, "")
        if len(names) == width and any(names) and all(names[column] for column in used - {0}):
            _check_names(path, names)
            return place, names
    raise DataError(
        f"no row at the top of '{path}' names its {width} columns, cells separated by commas or tabs: write a name for "
        "each column in the first row"
    )


def _names_numbers(rows: Sequence[Sequence[str]]) -> bool:
    """Say whether the first row is a header: it has words alone, and below some of them are mostly numbers."""
    first, *others = rows
    if not others or not all(cell.strip() and not _NUMBER.fullmatch(cell.strip()) for cell in first):
        return False
    columns = zip(*others, strict=True)
    return any(2 * sum(bool(_NUMBER.fullmatch(cell.strip())) for cell in column) > len(others) for column in columns)


def _check_names(path: Path, names: Sequence[str]) -> None:
    said = [name for name in names if name]
    if all(_NUMBER.fullmatch(name) for name in said) and [*names] != [*map(str, range(len(names)))]:
        raise DataError(
            f"'{path}' has no header: its first row holds {len(said)} numbers: put the names of the columns there, or "
            "set header-row to -1 if it has none"
        )
    for name, count in Counter(said).items():
        if count > 1:
            raise DataError(
                f"'{path}' has column {name!r} more than once: give each column a name of its own{header_hint(said)}"
            )


def _cells(
    path: Path, rows: Iterator[list[str]], header: Sequence[str], width: int, first: int
) -> tuple[list[pa.ChunkedArray], npt.NDArray[np.int64], list[str]]:
    """Return the columns of all rows below the header, the number of each row, and what was left out or filled up."""
    chunks: list[list[pa.Array]] = []
    kept, numbers, repeated, short = list[list[str]](), list[int](), list[int](), list[int]()
    again = _alike(header)
    for number, row in enumerate(rows, start=first):
        if not any(cell.strip() for cell in row) and len(row) < 2:
            continue
        if header and _alike(row) == again:
            repeated.append(number)
            continue
        if len(row) != width:
            if len(row) > width:
                raise DataError(
                    f"row {number} of '{path}' has {len(row)} fields, its header {width}: put quotes around cells that "
                    "hold a separator, or give each column a name"
                )
            short.append(number)
            row = row + [""] * (width - len(row))
        kept.append(row)
        numbers.append(number)
        if len(kept) == _AT_ONCE:
            chunks.append(_texts(kept))
            kept = []
    if kept and any("\n" in cell for cell in kept[-1]):
        _check_closed(path, numbers[-1])
    chunks.append(_texts(kept) if kept else [pa.array([], TEXT)] * width)
    columns = [pa.chunked_array(parts, TEXT) for parts in zip(*chunks, strict=True)]
    lines = [
        f"{len(where)} rows {what} (row {where[0]})"
        for what, where in (
            ("repeat the header: left out", repeated),
            ("have too few cells: the last are empty", short),
        )
        if where
    ]
    return columns, np.array(numbers, np.int64), lines


def _alike(row: Sequence[str]) -> list[str]:
    """Return cells as they are compared with the header: another program may have written it once more."""
    return [cell.strip("\ufeff \t").casefold() for cell in row]


def _check_closed(path: Path, number: int) -> None:
    """Refuse a file whose last row swallowed the lines below it, as no quote ends it."""
    try:
        for _ in csv.reader((line[0] for line in _LINES.finditer(read_letters(path)[0])), strict=True):
            pass
    except csv.Error as error:
        if "unexpected end" in str(error):
            raise DataError(f"cannot read '{path}': the quote that row {number} opens is never closed") from None


def _texts(rows: Sequence[Sequence[str]]) -> list[pa.Array]:
    return [pc.utf8_trim_whitespace(pa.array(column, TEXT)) for column in zip(*rows, strict=True)]


def _doubted(table: pa.Table) -> Iterator[str]:
    """Doubt points in numbers beside columns whose numbers have decimal commas: they may stand between thousands."""
    head = {name: [cell for cell in table[name][:_ROWS].to_pylist() if cell] for name in table.column_names}
    with_comma = next((name for name, cells in head.items() if _has_decimal_commas(cells)), None)
    if with_comma is None:
        return
    for name, cells in head.items():
        pointed = [cell for cell in cells if "." in cell]
        if pointed and _mostly(_GROUPED, cells) and _mostly(_GROUPED, pointed, 1.0):
            yield (
                f"column {name!r} has {pointed[0]}, read as {f'{float(pointed[0]):g}'}, but column {with_comma!r} has "
                f"decimal commas: write {pointed[0].replace('.', '')} if that is meant"
            )


def _has_decimal_commas(cells: Sequence[str]) -> bool:
    return _mostly(_COMMA, cells) and any("," in cell and not _THOUSANDS.fullmatch(cell) for cell in cells)


def _mostly(pattern: re.Pattern[str], cells: Sequence[str], part: float = 0.5) -> bool:
    """Say whether a part of the cells match: the others may be words that stand for missing numbers."""
    return bool(cells) and sum(bool(pattern.fullmatch(cell)) for cell in cells) >= part * len(cells)
