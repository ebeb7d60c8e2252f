"""Infer the kind of each column from the training rows, and convert its cells to numbers."""

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hetfl_flwr.data.frame import IntArray
from hetfl_flwr.data.roles import in_words, is_text, twins_among
from hetfl_flwr.data.spec import CLOCK, Column

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
TEXT = pa.string()

Wanted = Literal["", "category", "number"]
"""The kind that the run config or the file declares for a column; empty if neither does."""

MAX_VALUES, MAX_DECLARED = 64, 1000
"""The most distinct values of a category, including a missing one; of a category in ``categorical-columns``."""

MIN_IDS, MIN_UNORDERED = 20, 100
"""The fewest filled cells of a column of ids; of a column of ids that are whole numbers in any order."""

ID_LIKE, WORDS_OF_AN_ID = 0.95, 3
"""The least share of distinct values among texts that are ids; the most words of such a text, on average."""

MAX_CODES = 9
"""The maximum number of distinct texts beginning with a digit that count as codes, such as 1a and 2b."""

MAX_EXCEPTIONS, MIN_NUMBERS = 0.05, 3
"""The largest share of the filled cells in a column of numbers that may hold something else; the number of distinct
numbers above which `ABSENT` words mark missing values."""

MISSING = ("", "?", "NA", "NaN", "nan", "null", "<NA>")
"""Words that mark a missing value in any column, and an unknown label."""

NO_NUMBER = (
    *(".", "N/A", "n/a", "na", "#N/A", "#N/A N/A", "#NA", "NULL", "None", "\\N", "-NaN", "-nan"),
    *("#DIV/0!", "#VALUE!", "#REF!", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
"""What programs write for a missing number."""

ABSENT = (
    *("-", "--", "..", "*", "na", "n/a", "n.a.", "nd", "n.d."),
    *("none", "nil", "null", "missing", "unknown"),
)
"""What people write for a missing number, in lower case, in a column with more than `MIN_NUMBERS` distinct numbers."""

PLAIN, POINTS, COMMAS = "1234.5", "1,234.5", "1.234,5"
"""Notations of numbers: without thousands separators, with a decimal point, with a decimal comma."""

MARKS = {PLAIN: ("", "."), POINTS: (",", "."), COMMAS: (".", ",")}
"""The thousands separator and the decimal mark of each notation of numbers."""

_PLAIN = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:[+-]?(?:inf|infinity|nan))"
_COMMAS = r"[+-]?(?:[1-9]\d{0,2}(?:\.\d{3})+|\d+)(?:,\d+)?(?:[eE][+-]?\d+)?"  # 0.125 is never 125
_POINTS = r"[+-]?[1-9]\d{0,2}(?:,\d{2,3})*,\d{3}(?:\.\d*)?"  # 12,34,567 as in India
PATTERNS = {PLAIN: _PLAIN, POINTS: f"{_POINTS}|{_PLAIN}", COMMAS: _COMMAS}
"""The pattern of a whole number text in each notation; spaces may also separate thousands in all of them."""

NUMBER = re.compile("|".join(f"(?:{one})" for one in PATTERNS.values()))
"""A number in any notation."""

_D, _M, _N = r"(?P<d>\d{1,2})", r"(?P<m>\d{1,2})", r"(?P<n>[A-Za-z]{3,9})\.?"
_CLOCK = r"(?P<h>\d{1,2}):(?P<i>\d{2})(?::(?P<s>[0-5]\d(?:\.\d+)?))?(?: ?(?P<p>[AaPp])\.?[Mm]\.?)?"
_TIME = rf"(?:(?:T|,? +){_CLOCK} ?(?P<z>Z|UTC|[+-]\d{{2}}:?\d{{2}})?)?"
_ISO = rf"(?P<y>\d{{4}})(?P<k>[-/.]){_M}(?P=k){_D}"
_BEFORE_YEAR = {
    "day.month.": (rf"{_D}\. ?{_M}\. ?", ("%d.%m.",)),
    "day/month/": (rf"{_D}(?P<k>[-/]){_M}(?P=k)", ("%d/%m/", "%d-%m-")),
    "month/day/": (rf"{_M}(?P<k>[-/]){_D}(?P=k)", ("%m/%d/", "%m-%d-")),
    "day month-name ": (rf"{_D}[-/. ]*{_N}[-/., ]*", ("%d%b", "%d-%b-", "%d %b ", "%d %B ")),
}
_DATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "year-month-day": (_ISO, ()),
    (TYPED := "date"): (_ISO, ()),
    **{
        before + year: (pattern + end, (*(form + end_form for form in forms),))
        for before, (pattern, forms) in _BEFORE_YEAR.items()
        for year, end, end_form in (("year", r"(?P<y>\d{4})", "%Y"), ("yy", r"(?P<y>\d{2})", "%y"))
    },
    "month-name day, year": (rf"{_N} *{_D},? +(?P<y>\d{{4}})", ("%b %d, %Y", "%B %d, %Y")),
}
_TIMES = "%H:%M:%S", "%H:%M", "%I:%M:%S %p", "%I:%M %p"

DATES = {name: re.compile(day + _TIME) for name, (day, _) in _DATES.items()} | {CLOCK: re.compile(_CLOCK)}
"""The pattern of a whole date text in each notation; `TYPED` is for columns of a date type."""

FORMATS = {
    name: [day + time for day in days for time in ("", *(f" {time}" for time in _TIMES))] or ["ISO8601"]
    for name, (_, days) in _DATES.items()
} | {CLOCK: [*_TIMES]}
"""The pandas formats of each notation of dates: those of the usual texts that its pattern matches."""

SWAPPED = {
    f"{one}/{other}/{year}": f"{other}/{one}/{year}"
    for one, other in (("day", "month"), ("month", "day"))
    for year in ("year", "yy")
}
"""The notation of dates that each notation becomes when day and month are swapped."""

_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november"),
    "december",
)
_PIVOT = 69  # two-digit years: 69 is 1969 and 68 is 2068, as in C and pandas
_SECONDS = 24 * 60 * 60

_EMPTY = r"[\x{115f}\x{1160}\x{2800}\x{3164}\x{ffa0}]"  # letters and symbols that look blank
_MINUS = r"^(\s*)[\x{2212}\x{2012}\x{2013}\x{ff0d}]([\d.])"  # as typesetters and spreadsheets write a minus sign
_BLANKS = r"[ '\x{2019}\x{a0}\x{202f}]"
_GROUPED = rf"[+-]?[1-9]\d{{0,2}}(?:{_BLANKS}\d{{3}})+(?:[.,]\d+)?"  # 1 234,5 and 1'234.5
_MONEY = r"[$€£¥₹₽]|USD|EUR|GBP|CHF"
_WITH_UNIT = re.compile(rf"[+-]?(?:({_MONEY})\s*)?[+-]?\d[\d.,' \xa0\u202f]*?\s*([^\d\s.,'+-][^\d]*)?")
_WHOLE = r"^-?(?:0|[1-9]\d*)(?:\.0*)?$"
_CODE = r"-?(?:0|[1-9]\d*)(?:\.\d*)?"
_DAY = r"\d{4}-\d{2}-\d{2}"
_CODES = re.compile(r"-?([789])\1{1,5}(?:\.9)?|-2147483648|2147483647")  # 999 and the like, for a missing value
_COUNTS = re.compile(r"X(?:\.\d+)?|index|level_\d+|Unnamed: \d+(?:\.\d+)?|\.\.\.\d+")  # a saved index
_IDS = r"p?id|ids|u?uid|guid|ind(?:e)?x|rownames?|row|record|patient|subject|sample|person|obs|no|nr|key"
IDS = re.compile(rf"(?i:(?:.*[\W_])?(?:{_IDS})\W*)|.*[a-z](?:ID|Id|No|Nr)")
"""The names that columns of ids usually have."""
_TRUTH = (("f", "t"), ("false", "true"), ("n", "y"), ("no", "yes"), ("nein", "ja"), ("non", "oui"))
_YEARS = 1500, 2100
_SPARSE = 1.06  # row numbers span less than this times their count
_SHOWN = 5  # how many values of a category a note names
_OR_LEAVE = ", or name it in categorical-columns or ignore-columns"
_SAMPLE = 1000  # how many distinct texts are checked for dates and units


class _Refused(Exception):
    """Raised for a column that cannot be used as it is; the arguments are the reason and the way out."""


@dataclass(frozen=True)
class Decision:
    """How a column is used.

    `name` is as in the file. `column` tells how cells become inputs; None if the column is left out or refused. `notes`
    tell how it was interpreted, except for what the run config sets. `problem` and `way_out` tell why it is refused and
    how to fix that; they are empty if it is not. `example` is the first filled cell.
    """

    name: str
    column: Column | None = None
    notes: tuple[str, ...] = ()
    problem: str = ""
    way_out: str = ""
    example: str = ""


_Found = tuple[Column | None, tuple[str, ...]]


def cleaned(cells: pa.ChunkedArray, missing: Sequence[str] = (), values: Container[str | None] = ()) -> pa.ChunkedArray:
    """Return a column with texts trimmed and missing values as null.

    `missing` lists words, numbers and dates that mark missing values, in addition to `MISSING`, unless they are among
    the `values` of a category.
    """
    if is_text(cells.type):
        seen = _normalised(cells.cast(TEXT))
        trimmed = pc.utf8_trim_whitespace(seen)
        lengths = (pc.sum(pc.binary_length(one)).as_py() for one in (seen, trimmed))
        texts = seen if len({*lengths}) == 1 else trimmed  # saves a copy where nothing was trimmed
        none = are_missing(texts, [word for word in (*MISSING, *missing) if word not in values])
        return pc.if_else(none, pa.scalar(None, TEXT), texts) if pc.any(none).as_py() else texts
    null = pa.scalar(None, cells.type)
    if missing and (_is_number(cells.type) or is_date(cells.type)):
        cells = pc.if_else(are_missing(cells, missing), null, cells)
    if not pa.types.is_floating(cells.type):
        return cells
    nan = pc.is_nan(cells)
    return pc.if_else(nan, null, cells) if pc.any(nan).as_py() else cells


def are_missing(cells: pa.ChunkedArray, words: Sequence[str]) -> pa.ChunkedArray:
    """Return a mask of the cells that are one of the given markers of missing values.

    Numbers are compared by value, so -999 also matches -999.0; 007 is text. Dates are compared by day.
    """
    if is_date(cells.type):
        days = pa.array([word for word in words if re.fullmatch(_DAY, word)], TEXT)
        return pc.is_in(pc.strftime(cells, "%Y-%m-%d"), days)
    codes = pa.array(numbers_among(words), pa.float64())
    if not is_text(cells.type):
        return pc.is_in(cells.cast(pa.float64(), safe=False), codes)
    none = pc.is_in(cells, pa.array(words, TEXT))
    if not len(codes):
        return none
    numbers = pc.if_else(pc.match_substring_regex(cells, f"^{_CODE}$"), cells, pa.scalar(None, cells.type))
    return pc.or_(none, pc.is_in(numbers.cast(pa.float64()), codes))


def marks_missing(word: str) -> bool:
    """Return whether a word marks a missing number."""
    return word in MISSING or word in NO_NUMBER or word.lower() in ABSENT


def numbers_among(words: Sequence[str]) -> list[float]:
    """Return the numbers among words."""
    return [float(word) for word in words if re.fullmatch(_CODE, word)]


def days_among(words: Sequence[str]) -> list[float]:
    """Return the days among words, since 1970."""
    return [day for word in words if not np.isnan(day := _day(word, DATES["year-month-day"]))]


def _normalised(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Normalize letters, minus signs and spaces, and remove invisible characters."""
    if pc.all(pc.string_is_ascii(texts)).as_py() is not False:
        return texts
    seen = pc.utf8_normalize(texts, form="NFC")
    for pattern, instead in ((r"\p{Cf}", ""), (_EMPTY, " "), (_MINUS, r"\1-\2")):
        seen = pc.replace_substring_regex(seen, pattern, instead)
    return seen


def are_filled(cells: pa.ChunkedArray) -> BoolArray:
    """Return a mask (N,) of the cells of a cleaned column that are not missing."""
    filled: BoolArray = cells.is_valid().to_numpy()
    return filled


def as_written(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert texts of labels, owners or domains to numbers or booleans if all of them are; 007 stays a text."""
    if not is_text(cells.type):
        return cells
    if _all_match(cells, _WHOLE):
        with suppress(pa.ArrowInvalid):  # too large a number
            return pc.replace_substring_regex(cells, r"\.0*$", "").cast(pa.int64())
        return cells
    if _all_match(cells, r"^-?(?:0|[1-9]\d*)\.\d+$|" + _WHOLE):
        return cells.cast(pa.float64())
    truth = _as_truth(cells)
    return cells if truth is None else truth


def _as_truth(cells: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Convert texts to booleans; return None if some are not, or if one of the two words is written in two ways."""
    few = cells.unique().drop_null()
    words = {word.lower() for word in few[:3].to_pylist()}
    alike = 0 < len(few) == len(words) and words <= {"true", "false"}
    return pc.equal(pc.utf8_lower(cells), "true") if alike else None


def _all_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def decide(
    name: str,
    cells: pa.ChunkedArray,
    wanted: Wanted = "",
    called: Callable[[BoolArray], str] = str,
    *,
    missing: Sequence[str] = (),
    values: Sequence[str] = (),
    catalogued: bool = False,
    train_rows: int | None = None,
) -> Decision:
    """Decide how a column is used, by the cells of all training rows; the cells of test rows must match.

    `cells` (N,) come from `cleaned`, the first `train_rows` of them from the training split (None: all). `called`
    describes the rows of a mask (N,) in messages. `missing` lists words and numbers that mark missing values, the
    numbers in the column's own notation. `values` lists the values of a category by the run config; others are unknown.
    With `catalogued`, for the tables of the catalogue, texts are numbers only if all are, and no column is left out.
    """
    own = cells.slice(0, train_rows)
    filled = own.slice(0, _SAMPLE).drop_null()
    example = str(filled[0].as_py())[:60] if len(filled) else ""
    column: Column | None = Column(name, "category", values=(*values,))
    try:
        column, notes = (column, ()) if values else _infer_column(name, own, wanted, called, catalogued)
        if column is not None:
            column = replace(column, missing=(*missing,))
            if column.kind != "category":
                column, more = _number_column(column, cells, len(own), called, bool(wanted), catalogued)
            else:
                more = () if catalogued else _note_unknown(column, cells, called)
            notes += more
    except _Refused as error:
        return Decision(name, problem=error.args[0], way_out=error.args[1], example=example)
    return Decision(name, column, notes, example=example)


def _note_unknown(column: Column, cells: pa.ChunkedArray, called: Callable[[BoolArray], str]) -> tuple[str, ...]:
    """Note the values that a category lacks: only test rows have them, or the run config does not list them."""
    others = (_codes(column.values, cells) < 0) & are_filled(cells)
    if not others.any():
        return ()
    known = ", ".join(map(str, column.values[:_SHOWN])) + ", ..." * (len(column.values) > _SHOWN)
    become = "encoded as 0.5" if len(column.values) == 2 else "encoded as zeros"
    return (f"{others.sum()} values ({called(others)}) are not among {known}: treated as unknown, {become}",)


def _number_column(
    column: Column,
    cells: pa.ChunkedArray,
    train_rows: int,
    called: Callable[[BoolArray], str],
    wanted: bool,
    catalogued: bool,
) -> _Found:
    """Return a column of numbers or dates (None if they are ids), and the notes on it.

    The first `train_rows` cells are from the training split.
    """
    inputs, others = read(column, cells)
    numbers, own, notes = inputs[:train_rows], cells.slice(0, train_rows), list[str]()
    if not catalogued:
        if not wanted and (why := _note_ids(column, numbers, own)):
            return None, (why,)
        if others[train_rows:].any() and is_text(cells.type) and (other := rival(column, cells.slice(train_rows))[0]):
            written = f"written as {column.notation} in the training rows and as {other} in the test rows"
            raise _Refused(f"has {column.kind}s {written}", "write both in the same notation")
        infinite = np.abs(inputs) > np.finfo(np.float32).max
        if infinite.any():
            what = f"has an infinite number, or one above 3e38, in {called(infinite)}"
            raise _Refused(what, "write a smaller number, or leave the cell empty")
        notes += _note_codes(column, numbers, own)
        if not wanted and IDS.fullmatch(column.name) and column.kind == "number" and _are_whole(numbers):
            notes.append("its name looks like an id; it is read as numbers: name it in ignore-columns to leave it out")
    values = np.unique(numbers[np.isfinite(numbers)])
    constant = len(values) < 2 and not np.isinf(numbers).any()
    if constant:
        are = "only one number" if len(values) else "no number"
        notes.append(f"{are} in the training rows: standardized, it is always 0")
    elif column.notation.endswith("yy"):
        begin, end = (datetime.fromtimestamp(day * _SECONDS, UTC).date() for day in values[[0, -1]])
        notes.append(f"two-digit years: read as {begin} to {end}; write four digits if that is wrong")
    if others.any():
        count = f"{others.sum()} of {are_filled(cells).sum()} values ({called(others)})"
        odd = cells.filter(pa.array(others))[0].as_py()
        notes.append(f"{count} cannot be read as {column.kind}s, such as {odd!r}: treated as missing")
    return replace(column, constant=constant), (*notes,)


def _infer_column(
    name: str, cells: pa.ChunkedArray, wanted: Wanted, called: Callable[[BoolArray], str], catalogued: bool
) -> _Found:
    """Infer a column from the cells of the training rows; return None if it is left out, and the notes on it."""
    kind = cells.type
    if not any(holds(kind) for holds in (is_text, _is_number, is_date, pa.types.is_boolean)):
        what = f"holds {in_words(kind)}, not numbers, texts, dates or booleans"
        raise _Refused(what, "name it in ignore-columns to leave it out")
    if wanted == "category":
        return _category(name, cells, MAX_DECLARED)
    if is_date(kind):
        return Column(name, "date", TYPED), ("dates, read as days since 1970",)
    if not pa.types.is_boolean(kind):
        with suppress(pa.ArrowInvalid):  # another notation, or words
            cells.cast(pa.float64(), safe=False)
            return Column(name, "number", PLAIN), ()
    truth = _as_truth(cells) if is_text(kind) else cells
    if catalogued:
        return _category(name, cells if truth is None else truth)
    if truth is not None:
        return _word_category(name, truth, called)
    column = _infer_notation(name, cells, wanted)
    if column is None:
        return _word_category(name, cells, called)
    said = f"numbers in the notation {column.notation}"
    if column.kind == "date":
        said = f"dates, {column.notation}, read as {'fractions of a day' if column.is_clock else 'days since 1970'}"
    elif column.unit:
        said = f"numbers with {column.unit!r}, read as {column.notation} without it"
    return column, () if said.endswith(f"notation {PLAIN}") else (said,)


def _are_whole(numbers: FloatArray) -> bool:
    """Return whether there are several numbers, all of them whole."""
    known = numbers[~np.isnan(numbers)]
    return len(np.unique(known)) > 1 and bool((known == np.floor(known)).all())


def _note_codes(column: Column, numbers: FloatArray, cells: pa.ChunkedArray) -> list[str]:
    """Note numbers such as -999 that are far from all others, and whole numbers written as codes are."""
    known, notes = numbers[~np.isnan(numbers)], []
    values = np.unique(known)
    ends = {*values[:3].tolist(), *values[-3:].tolist()}
    like_codes = [value for value in sorted(ends) if _CODES.fullmatch(f"{value:.10g}")]
    others = values[~np.isin(values, like_codes)]
    if column.kind == "number" and like_codes and len(others) >= MIN_NUMBERS:
        low, high = others[[0, -1]]
        codes = [value for value in like_codes if (low >= value / 2 if value < 0 else high <= value / 2)]
        if codes and (count := int(np.isin(known, codes).sum())) > 1:
            said = ",".join(f"{value:.10g}" for value in codes)
            means = f"set missing-values={said} if it means a missing value"
            notes.append(f"{said} is in {count} rows, far from all other values: {means}")
    way_out = "if the values are codes, name the column in categorical-columns"
    whole = is_text(cells.type) and (known == np.floor(known)).all()
    if whole and len(codes := cells.filter(pc.match_substring_regex(cells, r"^[+-]?0\d+$"))):
        notes.append(f"{codes[0].as_py()!r} is read as a number, without its leading zeros: {way_out}")
    if whole and len(codes := cells.filter(pc.match_substring_regex(cells, r"^\d+[eE]\d+$"))):
        notes.append(f"{codes[0].as_py()!r} is read as {float(codes[0].as_py()):g}: {way_out}")
    return notes


def _note_ids(column: Column, numbers: FloatArray, cells: pa.ChunkedArray) -> str:
    """Return a note if whole numbers look like ids, which only tell rows apart; else an empty text."""
    there = ~np.isnan(numbers)
    filled, count, known = numbers[there], int(there.sum()), cells.filter(pa.array(there))
    if count < MIN_IDS or count < (1 - MAX_EXCEPTIONS) * len(cells) or column.kind == "date":
        return ""
    if pa.types.is_floating(cells.type) or (filled != np.floor(filled)).any():
        return ""
    if is_text(cells.type) and not _all_match(known, r"^[+-]?\d+$"):
        return ""
    different, named = len(known.unique()), IDS.fullmatch(column.name) is not None  # as texts: floats round long ids
    low, high, steps = filled.min(), filled.max(), np.diff(filled)
    counting = different == count and high - low < _SPARSE * count and not _YEARS[0] < low < _YEARS[1]
    counting = counting and (count >= MIN_UNORDERED or len(np.unique(np.sign(steps))) == 1)
    again = _COUNTS.fullmatch(column.name) and (steps == 1).mean() > 1 / 2  # each file may start again
    repeated = named and different > max(MAX_VALUES, count / 5)
    if not (counting or again or repeated or (named and different == count)):
        return ""
    several = "; rows of one id may be in both training and test" * bool(repeated and different < count and not again)
    return (
        f"{different} different values in {count} training rows, like ids: it is left out{several}; to keep "
        "it, name it in numeric-columns or categorical-columns"
    )


def _word_category(name: str, cells: pa.ChunkedArray, called: Callable[[BoolArray], str]) -> _Found:
    """Return a category of words or booleans that the run config does not declare, and the notes on it."""
    if len(cells.unique()) < 2:
        return None, (
            "only one value in the training rows: it is left out; to keep it, name it in categorical-columns",
        )
    if not is_text(cells.type):
        return _category(name, cells)
    texts = cells.drop_null()
    different = len(texts.unique())
    if len(texts) >= MIN_IDS and different >= ID_LIKE * len(texts):
        return None, (_note_unique(texts, different),)
    others = read(number_of(name, cells), cells)[1]
    mostly = 0 < others.sum() < len(texts) / 2
    if mostly and different > MAX_VALUES:
        odd = cells.filter(pa.array(others))[0].as_py()
        raise _Refused(
            f"has {others.sum()} of {len(texts)} values ({called(others)}) that are not numbers, such as {odd!r}",
            "list such words in missing-values, or name the column in numeric-columns, which treats all of them as "
            "missing, or in ignore-columns",
        )
    column, notes = _category(name, cells)
    if twins := twins_among(value for value in column.values if value is not None):
        raise _Refused(f"holds {twins}", "write both the same way, or name it in categorical-columns if they differ")
    if mostly:
        notes += (
            f"{others.sum()} of {len(texts)} values ({called(others)}) are not numbers: treated as a category; "
            "to read it as numbers with these values missing, name it in numeric-columns",
        )
    elif different > MAX_CODES and 2 * (measured := sum(map(_is_measured, texts.to_pylist()))) >= len(texts):
        notes += (
            f"{measured} of {len(texts)} values are numbers or dates, in several notations or units: treated as a "
            "category; to read them as numbers, write all in one notation and unit",
        )
    return column, notes


def _is_measured(text: str) -> bool:
    """Return whether a text is a number, with a unit or without, or a date, in any notation."""
    return _unit_of(text) is not None or any(date.fullmatch(text) for date in DATES.values())


def _note_unique(texts: pa.ChunkedArray, different: int) -> str:
    """Return why short texts that are almost all distinct are left out; long ones are refused.

    If most are numbers with decimals, or with one of a few units, they are not ids but numbers in several notations,
    and are refused as well.
    """
    some = texts.slice(0, _SAMPLE).to_pylist()
    decimals = [text for text in some if NUMBER.fullmatch(text) and not text.isdecimal()]
    units = [unit for text in some if (unit := _unit_of(text))]
    if 2 * len(decimals + units) >= len(some) and len({*units}) + bool(decimals) <= MIN_NUMBERS:
        shapes = {re.sub(r"\d+", "", text): text for text in reversed(some)}
        raise _Refused(
            f"holds numbers written in different ways, such as {' and '.join(map(repr, [*shapes.values()][-2:]))}",
            "write all in one notation and one unit, or name it in numeric-columns, which treats others as missing, "
            "or in ignore-columns",
        )
    values = f"{different} different values in {len(texts)} training rows"
    if pc.mean(pc.list_value_length(pc.utf8_split_whitespace(texts))).as_py() > WORDS_OF_AN_ID:
        way_out = "name it in ignore-columns to leave it out, or in text-column to learn only from its words"
        raise _Refused(f"has {values}", way_out)
    return f"{values}, like ids: it is left out; to keep it, name it in categorical-columns"


def _category(name: str, cells: pa.ChunkedArray, most: int = MAX_VALUES) -> tuple[Column, tuple[str, ...]]:
    found = cells.unique().to_pylist()
    missing = (None,) * (None in found)
    known = [text for _, text in sorted({_sort_key(value) for value in found if value is not None})]
    if len(known) + len(missing) > most:
        if is_text(cells.type) and _all_match(cells.drop_null(), r"^\[.*\]$"):
            way_out = "for series, write them as lists in a parquet or json file"
            raise _Refused("holds lists written as texts", way_out)
        way_out = "name it in ignore-columns to leave it out" + (most == MAX_VALUES) * (
            f", in categorical-columns to take up to {MAX_DECLARED}, or in text-column to learn only from its words"
            + f"; if rows with the same value belong together, use partition=natural:{name}" * bool(IDS.fullmatch(name))
        )
        raise _Refused(f"has {len(known) + len(missing)} different values, more than {most}", way_out)
    folded = {value.casefold(): value for value in reversed(known)}
    pair = next((pair for pair in _TRUTH if {*pair} == {*folded}), None)
    if pair and len(folded) < len(known):  # yes, YES, no, No
        both = tuple(folded[value] for value in pair)
        note = f"written in several ways, and read as {' and '.join(pair)}"
        return Column(name, "category", values=both + missing), (note,)
    return Column(name, "category", values=(*known, *missing)), ()


def _sort_key(value: object) -> tuple[float, str]:
    """Return the sort key of a value: its number, if it is one, and its text; 1 and 1.0 have the same key."""
    text = re.sub(r"^(-?(?:0|[1-9]\d*))\.0*$", r"\1", str(value))
    return (float(text) if re.fullmatch(_PLAIN, text) and text.lower() != "nan" else np.inf, text)


def read(column: Column, cells: pa.ChunkedArray) -> tuple[FloatArray, BoolArray]:
    """Convert `cleaned` cells (N,) to inputs, and return a mask (N,) of the cells that are filled but not understood.

    Numbers and dates become (N,), with NaN where a value is missing or not understood. Categories are one-hot encoded,
    (N, features); a category of two values is one feature: 0 for the first, 1 for the second, 0.5 for any other cell.
    """
    if column.kind == "category":
        codes = _codes(column.values, cells)
        inputs = (codes[:, None] == np.arange(len(column.values))).astype(float)
        if len(column.values) == 2:
            inputs = np.where(codes < 0, 0.5, codes)[:, None]
        return inputs, (codes < 0) & are_filled(cells)
    numbers: FloatArray = np.full(len(cells), np.nan)
    if column.kind == "number" and not is_date(cells.type):
        numbers = _numbers(column, cells)
    elif column.kind == "date" and is_text(cells.type):
        numbers = _days(column.notation, cells.fill_null(""))
    elif column.kind == "date" and is_date(cells.type):
        moments = cells.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).cast(pa.float64(), safe=False)
        numbers = moments.to_numpy() / (_SECONDS * 1e6)
    others = np.isnan(numbers) & are_filled(cells)
    if column.missing and column.kind == "number":
        numbers[np.isin(numbers, numbers_among(column.missing))] = np.nan
    elif column.missing and not column.is_clock:
        numbers[np.isin(np.floor(numbers), days_among(column.missing))] = np.nan
    return numbers, others


def _codes(known: Sequence[str | None], cells: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    """Return the index of each cell's value among the known ones, -1 for unknown values.

    2 and 2.0 are the same value, and so are True and true if all values are words for true and false.
    """
    coded = cells.dictionary_encode(null_encoding="encode").combine_chunks()
    words = {str(value).casefold() for value in known if value is not None}
    of_truth = any(words <= {*pair} for pair in _TRUTH)
    alike = {_canonical(value, of_truth): number for number, value in reversed(list(enumerate(known)))}
    exact = {value: number for number, value in enumerate(known)}
    values = coded.dictionary.to_pylist()
    codes = [exact.get(None if one is None else str(one), alike.get(_canonical(one, of_truth), -1)) for one in values]
    found: npt.NDArray[np.int32] = np.array(codes, np.int32)[coded.indices.to_numpy(zero_copy_only=False)]
    return found


def _canonical(value: object, of_truth: bool) -> object:
    """Return a key that is equal for equal values: 2 and 2.0, True and true; codes such as 007 stay texts."""
    text = str(value)
    if value is None or re.match(r"[+-]?0\d", text):
        return value
    try:
        return float(text)
    except ValueError:
        return text.casefold() if of_truth else text


def _numbers(column: Column, cells: pa.ChunkedArray) -> FloatArray:
    """Parse cells into numbers (N,) in the column's notation and unit, NaN where that fails."""
    numbers: FloatArray
    if not column.unit and (not is_text(cells.type) or column.notation == PLAIN):
        with suppress(pa.ArrowInvalid):
            numbers = cells.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
            return numbers
    texts = _without_unit(column, cells.cast(TEXT))
    grouped = pc.match_substring_regex(texts, f"^(?:{_GROUPED})$")
    texts = pc.if_else(grouped, pc.replace_substring_regex(texts, _BLANKS, ""), texts)
    fits = pc.match_substring_regex(texts, f"^(?:{PATTERNS[column.notation]})$")
    texts = pc.if_else(fits, texts, pa.scalar(None, texts.type))
    thousands, decimal = MARKS[column.notation]
    for mark, instead in ((thousands, ""), (decimal, "."), ("+", "")):
        texts = pc.replace_substring(texts, mark, instead) if mark and mark != instead else texts
    numbers = texts.cast(pa.float64()).to_numpy().astype(np.float64)
    return numbers


def _without_unit(column: Column, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Strip the unit of a column from texts; texts without it become null."""
    if not column.unit:
        return texts
    unit = re.escape(column.unit)
    bare = pc.replace_substring_regex(texts, rf"^([+-]?)\s*{unit}\s*|\s*{unit}$", r"\1")
    return pc.if_else(pc.not_equal(bare, texts), bare, pa.scalar(None, TEXT))


def _days(notation: str, texts: pa.ChunkedArray) -> FloatArray:
    """Return days since 1970 (N,), NaN for texts that are not dates in the notation."""
    coded = texts.dictionary_encode().combine_chunks()
    known = [_day(text, DATES[notation]) for text in coded.dictionary.to_pylist()]
    found: FloatArray = np.array(known, np.float64)[coded.indices.to_numpy(zero_copy_only=False)]
    return found


def _day(text: str, pattern: re.Pattern[str]) -> float:
    """Parse a date as days since 1970, in UTC if it has a time zone; return NaN if the text is not a date."""
    if not (found := pattern.fullmatch(text)):
        return np.nan
    part: dict[str, Any] = {"y": "1970", "m": "1", "d": "1", "n": "", "z": None, **found.groupdict()}
    year, name = int(part["y"]), part["n"].lower()
    year += (year < _PIVOT) * 2000 + (_PIVOT <= year < 100) * 1900
    named = [number for number, full in enumerate(_MONTHS, start=1) if name and full.startswith(name)]
    month = int(part["m"]) if not name else named[0] if named else 0
    hour = int(part["h"] or 0)
    hour = hour % 12 + 12 * (part["p"] in "pP") if part["p"] else hour
    clock = f"{hour:02}:{part['i'] or '00'}:{part['s'] or '00'}{(part['z'] or 'Z').replace('UTC', 'Z')}"
    try:
        return datetime.fromisoformat(f"{year:04}-{month:02}-{int(part['d']):02}T{clock}").timestamp() / _SECONDS
    except ValueError:
        return np.nan


def _infer_notation(name: str, texts: pa.ChunkedArray, wanted: Wanted) -> Column | None:
    """Return how to read texts as numbers or dates; None if they are words.

    At most a share of `MAX_EXCEPTIONS` of the filled cells may be something else, and then the others must be more than
    two distinct numbers. Words of `NO_NUMBER` do not count, nor do words of `ABSENT` in a column with more than
    `MIN_NUMBERS` other values. If `wanted` is set, one number is enough.
    """
    filled = texts.drop_null()
    filled = filled.filter(pc.invert(pc.is_in(filled, pa.array(NO_NUMBER, TEXT))))
    known = filled.filter(pc.invert(pc.is_in(pc.utf8_lower(filled), pa.array(ABSENT, TEXT))))
    if len(known) < len(filled) and len(known.unique()) > MIN_NUMBERS:
        filled = known
    cells, counts = _counted(filled)
    best, numbers = _number_of(name, cells, counts)
    of_numbers = _holds(numbers[best.notation], counts)
    if not of_numbers and (date := _date_notation(name, cells, counts)):
        return date
    if not of_numbers and not wanted:
        return None
    if np.isnan(numbers[best.notation]).all():
        way_out = "write numbers, or name it in categorical-columns, or in ignore-columns to leave it out"
        raise _Refused(f"holds no number among its {are_filled(texts).sum()} values", way_out)
    if best.notation == POINTS and not _are_thousands(_without_unit(best, cells)):
        what = "holds numbers whose comma may be a decimal point or a thousands separator"
        raise _Refused(what, f"write numbers without separators, and with a decimal point{_OR_LEAVE}")
    return best


def _are_thousands(texts: pa.ChunkedArray) -> bool:
    """Return whether commas must be thousands separators: a number has two, or a decimal point after one."""
    grouped = pc.match_substring_regex(texts, r"^[+-]?[1-9]\d{0,2}(?:(?:,\d{2,3})*,\d{3}\.\d*|(?:,\d{2,3})+,\d{3})$")
    return bool(pc.any(grouped).as_py())


def _counted(texts: pa.ChunkedArray) -> tuple[pa.ChunkedArray, IntArray]:
    """Return the distinct texts (V,) and their counts (V,)."""
    counted = pc.value_counts(texts)
    return pa.chunked_array([counted.field("values")]), counted.field("counts").to_numpy(zero_copy_only=False)


def _number_of(name: str, cells: pa.ChunkedArray, counts: IntArray) -> tuple[Column, dict[str, FloatArray]]:
    """Return a column with the most common unit and best notation, and the numbers parsed in each notation."""
    units = Counter[str | None]()
    for text, count in zip(cells.slice(0, _SAMPLE).to_pylist(), counts, strict=False):
        units[_unit_of(text)] += int(count)
    del units[None]
    unit = max(units, key=units.__getitem__, default="") or ""
    return _best_notation(Column(name, "number", unit=unit), PATTERNS, cells, counts)


def number_of(name: str, texts: pa.ChunkedArray) -> Column:
    """Return a number column with the unit and notation that parse the most texts."""
    return _number_of(name, *_counted(texts.drop_null()))[0]


def _best_notation(
    column: Column, notations: Iterable[str], cells: pa.ChunkedArray, counts: IntArray
) -> tuple[Column, dict[str, FloatArray]]:
    """Return a column in the notation that parses the most cells, and the numbers parsed in each notation."""
    columns = {one: replace(column, notation=one) for one in notations}
    numbers = {one: read(there, cells)[0] for one, there in columns.items()}
    return columns[max(numbers, key=lambda one: counts[~np.isnan(numbers[one])].sum())], numbers


def _unit_of(text: str) -> str | None:
    """Return the unit before or after the number in a text, possibly empty; None if the text is not a number."""
    found = _WITH_UNIT.fullmatch(text)
    return (found[1] or found[2] or "").strip() if found else None


def _holds(numbers: FloatArray, counts: IntArray) -> bool:
    """Return whether enough of the filled cells are numbers."""
    real = ~np.isnan(numbers)
    if real.all():
        return len(real) > 0
    return bool(counts[real].sum() >= (1 - MAX_EXCEPTIONS) * counts.sum() and len(np.unique(numbers[real])) > 2)


def _date_notation(name: str, cells: pa.ChunkedArray, counts: IntArray) -> Column | None:
    """Return a column of dates in the notation of most texts, None if they are not dates; refuse ambiguous columns."""
    first, enough = cells.slice(0, _SAMPLE).to_pylist(), (1 - MAX_EXCEPTIONS) * counts.sum()
    likely = [one for one in DATES if one != TYPED and any(DATES[one].fullmatch(text) for text in first)]
    if not likely:
        return None
    best, days = _best_notation(Column(name, "date"), likely, cells, counts)
    fits = {one: ~np.isnan(found) for one, found in days.items()}
    own = fits[best.notation]
    if counts[np.any([*fits.values()], axis=0)].sum() < enough:
        return None
    for other, there in fits.items():
        differ = (own & there & (days[best.notation] != days[other])).any()
        either = differ and counts[there].sum() == counts[own].sum()
        mixed = (there & ~own).any() and (differ or counts[own].sum() < enough)
        if either or mixed:
            two = f"alternate between {best.notation} and {other}" if mixed else f"may be {best.notation} or {other}"
            raise _Refused(f"holds dates that {two}", f"write dates as year-month-day, such as 2024-03-31{_OR_LEAVE}")
    return best if _holds(days[best.notation], counts) else None


def rival(column: Column, texts: pa.ChunkedArray) -> tuple[str, bool]:
    """Return the notation that parses more texts than the column's own (empty if none does), and whether it is unique.

    It is not if another notation parses as many texts, but to other values.
    """
    filled = texts.drop_null()
    notations = (column.notation, *(DATES if column.kind == "date" else PATTERNS))
    best, found = _best_notation(column, notations, filled, np.ones(len(filled), np.int64))
    own = found[best.notation]
    there = ~np.isnan(own)
    others = [one for one in found.values() if (~np.isnan(one)).sum() == there.sum()]
    surely = all(np.array_equal(one, own, equal_nan=True) for one in others)
    return ("", True) if best.notation == column.notation else (best.notation, surely)


def doubts(decisions: Sequence[tuple[Decision, pa.ChunkedArray]]) -> list[tuple[str, str]]:
    """Return (name, note) of each column whose decimal points may be thousands separators.

    They may be if exactly three digits follow each point, and another column has decimal commas or other numbers of the
    column are whole. Small whole numbers count only if there are decimals that end in 0, since 3.000 may be written 3.
    """
    columns = [(one.column, cells) for one, cells in decisions if one.column and one.column.kind == "number"]
    commas = next((column.name for column, _ in columns if column.notation == COMMAS), None)
    found = []
    for column, cells in columns:
        if column.notation != PLAIN or not is_text(cells.type):
            continue
        bare = _without_unit(column, cells).drop_null()
        pointed = bare.filter(pc.match_substring(bare, "."))
        if not len(pointed) or not _all_match(pointed, r"^[+-]?[1-9]\d{0,2}\.\d{3}$"):
            continue
        digits = "*" if pc.any(pc.ends_with(pointed, "0")).as_py() else "{2,}"  # no program drops only some zeros
        whole = bare.filter(pc.match_substring_regex(bare, rf"^[+-]?[1-9]\d{digits}$"))
        if commas is None and not len(whole):
            continue
        one = pointed[0].as_py()
        why = f"column {commas!r} has decimal commas" if commas is not None else f"others are like {whole[0].as_py()}"
        note = f"{one} is read as {float(one):g}, but {why}: write {one.replace('.', '')} if you mean that"
        found.append((column.name, note))
    return found


def is_date(kind: pa.DataType) -> bool:
    """Return whether a type is a date or a timestamp."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _is_number(kind: pa.DataType) -> bool:
    numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null
    return any(holds(kind) for holds in numbers)
