"""Columns of a table: what each is, decided once over all its training rows, and how its cells become numbers."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hetfl_flwr.data.roles import in_words, is_text, twins_among
from hetfl_flwr.data.spec import CLOCK, Column

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
TEXT = pa.string()

Wanted = Literal["", "category", "number"]
"""What a column is to be by a key of the run config or by its declared type; empty: nobody says."""

MOST_VALUES, MOST_DECLARED = 64, 1000
"""Different values, a missing one among them, of a category; of one that ``categorical-columns`` names."""

FEWEST_IDS, FEWEST_UNORDERED, ID_LIKE, WORDS_OF_AN_ID = 20, 100, 0.95, 3
"""Filled cells from which on a column may hold ids, and whole numbers need not go up or down; part of the texts that
then differ; words a text, on average."""

MOST_EXCEPTIONS, FEWEST_BESIDE = 0.05, 3
"""Part of the filled cells that may be no numbers in a column of numbers; different numbers beside words for none."""

MISSING = ("", "?", "NA", "NaN", "nan", "null", "<NA>")
"""Words for what is missing in any column, and for a label that is not known."""

NO_NUMBER = (
    *(".", "N/A", "n/a", "na", "#N/A", "#N/A N/A", "#NA", "NULL", "None", "\\N", "-NaN", "-nan"),
    *("#DIV/0!", "#VALUE!", "#REF!", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
"""What programs write in a column of numbers for one that is missing."""

ABSENT = (
    *("-", "--", "..", "*", "na", "n/a", "n.a.", "nd", "n.d."),
    *("none", "nil", "null", "missing", "unknown"),
)
"""What people write for it, in small letters, beside more than `FEWEST_BESIDE` different numbers."""

PLAIN, POINTS, COMMAS = "1234.5", "1,234.5", "1.234,5"
"""Notations of numbers: without thousands separators, with a decimal point, with a decimal comma."""

MARKS = {PLAIN: ("", "."), POINTS: (",", "."), COMMAS: (".", ",")}
"""What stands between thousands, and before decimals, in each notation of numbers."""

_PLAIN = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:[+-]?(?:inf|infinity|nan))"
_COMMAS = r"[+-]?(?:[1-9]\d{0,2}(?:\.\d{3})+|\d+)(?:,\d+)?"  # 0.125 is never 125
PATTERNS = {PLAIN: _PLAIN, POINTS: rf"[+-]?[1-9]\d{{0,2}}(?:,\d{{3}})+(?:\.\d*)?|{_PLAIN}", COMMAS: _COMMAS}
"""What the whole text of a number looks like in each notation; blanks between thousands come on top."""

NUMBER = re.compile("|".join(f"(?:{one})" for one in PATTERNS.values()))
"""A number in any notation."""

ISO, DOTTED, DAY_FIRST, MONTH_FIRST = "year-month-day", "day.month.year", "day/month/year", "month/day/year"
DAY_NAME, NAME_DAY, TYPED = "day month-name year", "month-name day, year", "date"
"""Notations of dates, beside `CLOCK`; `TYPED`: the column has a type of dates."""

FORMATS = {
    **{ISO: "ISO8601", TYPED: "ISO8601", DOTTED: "%d.%m.%Y", DAY_FIRST: "%d/%m/%Y", MONTH_FIRST: "%m/%d/%Y"},
    **{f"{DOTTED[:-4]}yy": "%d.%m.%y", f"{DAY_FIRST[:-4]}yy": "%d/%m/%y", f"{MONTH_FIRST[:-4]}yy": "%m/%d/%y"},
    **{DAY_NAME: "%d%b%Y", f"{DAY_NAME[:-4]}yy": "%d%b%y", NAME_DAY: "%B %d, %Y", CLOCK: "%H:%M:%S"},
}
"""How pandas calls each notation of dates."""

_D, _M, _N = r"(?P<d>\d{1,2})", r"(?P<m>\d{1,2})", r"(?P<n>[A-Za-z]{3,9})\.?"
_CLOCK = r"(?P<h>\d{1,2}):(?P<i>\d{2})(?::(?P<s>\d{2}(?:\.\d+)?))?(?: ?(?P<p>[AaPp])\.?[Mm]\.?)?"
_TIME = rf"(?:(?:T|,? +){_CLOCK} ?(?P<z>Z|UTC|[+-]\d{{2}}:?\d{{2}})?)?"
_LAST = {"year": r"(?P<y>\d{4})", "yy": r"(?P<y>\d{2})"}
DATES: Mapping[str, re.Pattern[str]] = {
    ISO: re.compile(rf"(?P<y>\d{{4}})(?P<k>[-/.]){_M}(?P=k){_D}{_TIME}"),
    TYPED: re.compile(rf"(?P<y>\d{{4}})(?P<k>[-/.]){_M}(?P=k){_D}{_TIME}"),
    **{f"day.month.{end}": re.compile(rf"{_D}\. ?{_M}\. ?{year}{_TIME}") for end, year in _LAST.items()},
    **{f"day/month/{end}": re.compile(rf"{_D}(?P<k>[-/]){_M}(?P=k){year}{_TIME}") for end, year in _LAST.items()},
    **{f"month/day/{end}": re.compile(rf"{_M}(?P<k>[-/]){_D}(?P=k){year}{_TIME}") for end, year in _LAST.items()},
    **{f"day month-name {end}": re.compile(rf"{_D}[-/. ]*{_N}[-/., ]*{year}{_TIME}") for end, year in _LAST.items()},
    NAME_DAY: re.compile(rf"{_N} *{_D},? +(?P<y>\d{{4}}){_TIME}"),
    CLOCK: re.compile(_CLOCK),
}
"""What the whole text of a date looks like in each notation."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_PIVOT = 69  # of years of two digits: 69 is 1969, 68 is 2068, as C and pandas have it
_SECONDS = 24 * 60 * 60

_MINUS = r"^(\s*)[\x{2212}\x{2012}\x{2013}\x{ff0d}]([\d.])"  # as typesetters and spreadsheets write it
_BLANKS = r"[ '\x{a0}\x{202f}]"
_GROUPED = rf"[+-]?[1-9]\d{{0,2}}(?:{_BLANKS}\d{{3}})+(?:[.,]\d+)?"  # 1 234,5 and 1'234.5
_MONEY = r"[$€£¥₹₽]|USD|EUR|GBP|CHF"
_WITH_UNIT = re.compile(rf"[+-]?(?:({_MONEY})\s*)?[+-]?\d[\d.,' \xa0\u202f]*?\s*([^\d\s.,'+-][^\d]*)?")
_WHOLE = r"^-?(?:0|[1-9]\d*)(?:\.0*)?$"
_CODE = r"-?(?:0|[1-9]\d*)(?:\.\d*)?"
_COUNTS = re.compile(r"X(?:\.\d+)?|index|level_\d+|Unnamed: \d+(?:\.\d+)?|\.\.\.\d+")  # an index, written as a column
_IDS = r"p?id|ids|u?uid|guid|ind(?:e)?x|rownames?|row|record|patient|subject|sample|person|obs|no|nr|key"
IDS = re.compile(rf"(?i:(?:.*[\W_])?(?:{_IDS})\W*)|.*[a-z](?:ID|Id|No|Nr)")
"""Names of columns of ids."""
_TRUTH = (("f", "t"), ("false", "true"), ("n", "y"), ("no", "yes"), ("nein", "ja"), ("non", "oui"))
_YEARS = 1500, 2100
_SPARSE = 1.06  # whole numbers that count rows leave out fewer than this
_SAMPLE = 1000  # different texts by which it is told whether any could be dates, or have a unit


class _Undecided(Exception):
    """Texts that can be read in two ways: which, and the way out."""


@dataclass(frozen=True)
class Decision:
    """What a column is.

    Parameters
    ----------
    name : str
        As the file has it.
    column : Column or None
        How its cells become inputs; None where it is left out, or refused.
    notes : tuple of str
        What was done that nobody asked for.
    problem, way_out : str
        Why it is refused, and what to do; empty where it is not.
    example : str
        Its first cell that is filled.
    """

    name: str
    column: Column | None = None
    notes: tuple[str, ...] = ()
    problem: str = ""
    way_out: str = ""
    example: str = ""


def cleaned(cells: pa.ChunkedArray, missing: Sequence[str] = ()) -> pa.ChunkedArray:
    """Return a column whose texts have no blanks around them, and in which null stands for all that is missing.

    Parameters
    ----------
    cells : ChunkedArray
        Of any type.
    missing : sequence of str
        Words and numbers for what is missing, `MISSING` aside.
    """
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if is_text(cells.type):
        seen = _in_one_form(cells.cast(TEXT))
        trimmed = pc.utf8_trim_whitespace(seen)
        lengths = (pc.sum(pc.binary_length(one)).as_py() for one in (seen, trimmed))
        texts = seen if len({*lengths}) == 1 else trimmed  # the same cells need no memory twice
        none = stand_for_none(texts, [*MISSING, *missing])
        return pc.if_else(none, pa.scalar(None, TEXT), texts) if pc.any(none).as_py() else texts
    null = pa.scalar(None, cells.type)
    if missing and _is_number(cells.type):
        cells = pc.if_else(stand_for_none(cells, missing), null, cells)
    if not pa.types.is_floating(cells.type):
        return cells
    nan = pc.is_nan(cells)
    return pc.if_else(nan, null, cells) if pc.any(nan).as_py() else cells


def stand_for_none(cells: pa.ChunkedArray, words: Sequence[str]) -> pa.ChunkedArray:
    """Return which texts or numbers are among the words and numbers for what is missing.

    A number is one however it is written: -999 is -999.0, too; 007 is a text.
    """
    codes = pa.array(_numbers_among(words), pa.float64())
    if not is_text(cells.type):
        return pc.is_in(cells.cast(pa.float64(), safe=False), codes)
    none = pc.is_in(cells, pa.array(words, TEXT))
    if not len(codes):
        return none
    numbers = pc.if_else(pc.match_substring_regex(cells, f"^{_CODE}$"), cells, pa.scalar(None, cells.type))
    return pc.or_(none, pc.is_in(numbers.cast(pa.float64()), codes))


def _numbers_among(words: Sequence[str]) -> list[float]:
    return [float(word) for word in words if re.fullmatch(_CODE, word)]


def _in_one_form(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts with each letter and minus in one form, and without what nobody sees."""
    if pc.all(pc.string_is_ascii(texts)).as_py() is not False:
        return texts
    seen = pc.replace_substring_regex(pc.utf8_normalize(texts, form="NFC"), r"\p{Cf}", "")
    return pc.replace_substring_regex(seen, _MINUS, r"\1-\2")


def are_filled(cells: pa.ChunkedArray) -> BoolArray:
    """Return which cells (N,) of a cleaned column hold something."""
    filled: BoolArray = cells.is_valid().to_numpy()
    return filled


def as_written(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts of labels, owners or domains as whole numbers or truth values if all are; 007 stays a text."""
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
    """Return texts as truth values; None where they are none, or one is written in two ways."""
    few = cells.unique().drop_null()
    words = {word.lower() for word in few[:3].to_pylist()}
    alike = 0 < len(few) == len(words) and words <= {"true", "false"}
    return pc.equal(pc.utf8_lower(cells), "true") if alike else None


def decide(
    name: str,
    cells: pa.ChunkedArray,
    wanted: Wanted = "",
    called: Callable[[BoolArray], str] = str,
    *,
    missing: Sequence[str] = (),
    plainly: bool = False,
    train_rows: int | None = None,
) -> Decision:
    """Return what a column is, told from the cells of all training rows; those of the test rows must be alike.

    Parameters
    ----------
    name : str
        What it is called.
    cells : ChunkedArray
        (N,) as `cleaned` returns them, the training rows first.
    wanted : {"", "category", "number"}
        What it is to be.
    called : callable
        Returns how messages call some of the rows, (N,) bool.
    missing : sequence of str
        Words and numbers for what is missing; of the numbers those in the column's own notation.
    plainly : bool
        Whether texts are numbers only if all are, and no column is left out: tables of the catalogue.
    train_rows : int, optional
        How many of the rows are for training; None: all.
    """
    own = cells.slice(0, train_rows)
    decision = _decided(name, own, wanted, called, plainly)
    filled = own.slice(0, _SAMPLE).drop_null()
    decision = replace(decision, example=str(filled[0].as_py())[:60] if len(filled) else "")
    if decision.column:
        decision = _settled(decision, replace(decision.column, missing=(*missing,)), own)
    column = decision.column
    if column is None or plainly:
        return decision
    if column.kind == "category":
        return _known(decision, column, cells, len(own), called) if len(own) < len(cells) else decision
    numbers, others = read(column, cells)
    if others[len(own) :].any() and is_text(cells.type) and (other := rival(column, cells.slice(len(own)))):
        what = f"has {column.kind}s written as {column.notation} in the training rows and as {other} in the test rows"
        return replace(decision, column=None, problem=what, way_out="write them alike")
    infinite = np.abs(numbers) > np.finfo(np.float32).max
    if infinite.any():
        what = f"has in {called(infinite)} an infinite {name}, or one above 3e38"
        way_out = "write a number below that, or nothing where it is missing"
        return replace(decision, column=None, problem=what, way_out=way_out)
    return decision


def _known(
    decision: Decision, column: Column, cells: pa.ChunkedArray, first: int, called: Callable[[BoolArray], str]
) -> Decision:
    """Note values of test rows that no training row has."""
    others = read(column, cells)[1]
    if not others[first:].any():
        return decision
    instead = f"taken as {column.values[0]!r}" if len(column.values) == 2 else "0 throughout"
    note = f"{others.sum()} values of test rows ({called(others)}) are in no training row: {instead}"
    return replace(decision, notes=(*decision.notes, note))


def _decided(
    name: str, cells: pa.ChunkedArray, wanted: Wanted, called: Callable[[BoolArray], str], plainly: bool
) -> Decision:
    kind = cells.type
    if not any(holds(kind) for holds in (is_text, _is_number, is_date, pa.types.is_boolean)):
        what = f"holds {in_words(kind)}, not numbers, texts, dates or truth values"
        return Decision(name, problem=what, way_out="name it in ignore-columns to leave it out")
    if wanted == "category":
        return _category(name, cells, MOST_DECLARED)
    if is_date(kind):
        return Decision(name, Column(name, "date", TYPED), ("dates, read as days since 1970",))
    try:
        numbers = None if pa.types.is_boolean(kind) else cells.cast(pa.float64(), safe=False)
    except pa.ArrowInvalid:
        numbers = None
    if numbers is None:
        truth = _as_truth(cells) if is_text(kind) else cells
        if plainly:
            return _category(name, cells if truth is None else truth)
        return _texts(name, cells, wanted, called) if truth is None else _words(name, truth, called)
    if not wanted and not plainly and (why := _why_ids(name, numbers, cells)):
        return Decision(name, notes=(why,))
    notes = () if plainly else (*_code_of_missing(numbers), *_zeros(numbers, cells))
    return Decision(name, Column(name, "number", PLAIN), notes)


def _all_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def _settled(decision: Decision, column: Column, cells: pa.ChunkedArray) -> Decision:
    """Return the decision for a column, with what is said of its numbers or dates."""
    if column.kind == "category":
        return replace(decision, column=column)
    numbers, _ = read(column, cells)
    values, notes = np.unique(numbers[np.isfinite(numbers)]), decision.notes
    if len(values) < 2 and not np.isinf(numbers).any():
        are = "one number throughout" if len(values) else "no number at all"
        notes += (f"{are} in the training rows: it is ignored (0 throughout)",)
        return replace(decision, column=replace(column, constant=True), notes=notes)
    if column.notation.endswith("yy"):
        first, last = (datetime.fromtimestamp(day * _SECONDS, UTC).date() for day in values[[0, -1]])
        notes += (f"years of two digits: these are {first} to {last}; write four digits if that is wrong",)
    return replace(decision, column=column, notes=notes)


def _code_of_missing(numbers: pa.ChunkedArray) -> tuple[str, ...]:
    """Note a number such as -999 that stands in some rows, far below all others."""
    low = pc.min(numbers).as_py()
    if low is None or not re.fullmatch(r"-9{2,6}", f"{low:g}"):
        return ()
    counted = pc.value_counts(numbers.drop_null())
    others = np.sort(counted.field("values").to_numpy(zero_copy_only=False))[1:]
    count = pc.sum(pc.equal(numbers, low)).as_py()
    if count < 2 or len(others) < FEWEST_BESIDE or others[0] < low / 2:
        return ()
    return (f"{low:g} stands in {count} rows, below all others: missing-values={low:g} if it means that none is known",)


def _zeros(numbers: pa.ChunkedArray, cells: pa.ChunkedArray) -> tuple[str, ...]:
    """Doubt whole numbers with a zero in front, as codes have."""
    filled = numbers.drop_null().to_numpy()
    if not is_text(cells.type) or not (filled == np.floor(filled)).all():
        return ()
    codes = cells.filter(pc.match_substring_regex(cells, r"^[+-]?0\d"))
    shown = f"{codes[0].as_py()!r} is read as a number, without its zeros" if len(codes) else ""
    return (f"{shown}: if these are codes, name it in categorical-columns",) * bool(shown)


def _why_ids(name: str, numbers: pa.ChunkedArray, cells: pa.ChunkedArray) -> str:
    """Return a note where whole numbers tell rows apart and nothing else; else nothing."""
    filled = numbers.drop_null().to_numpy()
    count = len(filled)
    if count < FEWEST_IDS or count < (1 - MOST_EXCEPTIONS) * len(cells) or pa.types.is_floating(cells.type):
        return ""
    if not (filled == np.floor(filled)).all() or (is_text(cells.type) and not _all_match(cells, r"^[+-]?\d+$")):
        return ""
    different, named = len(np.unique(filled)), IDS.fullmatch(name) is not None
    low, high, steps = filled.min(), filled.max(), np.diff(filled)
    counting = different == count and high - low < _SPARSE * count and not _YEARS[0] < low < _YEARS[1]
    counting = counting and (count >= FEWEST_UNORDERED or len(np.unique(np.sign(steps))) == 1)
    again = _COUNTS.fullmatch(name) is not None and (steps == 1).mean() > 1 / 2  # from the start in each of some files
    repeated = named and different > max(MOST_VALUES, count / 5)
    if not (counting or again or repeated or (named and different == count)):
        return ""
    return (
        f"{different} different values in {count} training rows, as ids are: it is ignored; numeric-columns or "
        "categorical-columns keeps it"
    )


def _texts(name: str, texts: pa.ChunkedArray, wanted: Wanted, called: Callable[[BoolArray], str]) -> Decision:
    """Return what texts are that are not all plain numbers."""
    try:
        column = recognised(name, texts)
    except _Undecided as error:
        what, way_out = error.args
        way_out = f"{way_out}, or name it in categorical-columns or ignore-columns"
        return Decision(name, problem=what, way_out=way_out)
    if column is None and wanted:
        column = Column(name, "number", PLAIN)
        if np.isnan(read(column, texts)[0]).all():
            what = f"holds no number among its {are_filled(texts).sum()} values"
            way_out = "write numbers, or name it in categorical-columns, or in ignore-columns to leave it out"
            return Decision(name, problem=what, way_out=way_out)
    if column is None:
        return _words(name, texts, called)
    notes: tuple[str, ...] = ()
    if column.kind == "date":
        read_as = "parts of a day" if column.is_clock else "days since 1970"
        notes = (f"dates, {column.notation}, read as {read_as}",)
    elif column.unit:
        notes = (f"numbers with {column.unit!r}, read as {column.notation} without it",)
    elif column.notation != PLAIN:
        notes = (f"numbers, read as {column.notation} is written",)
    return Decision(name, column, notes)


def _words(name: str, cells: pa.ChunkedArray, called: Callable[[BoolArray], str]) -> Decision:
    """Return a category of words or truth values that nobody has declared."""
    words = is_text(cells.type)
    if words and (different := _telling_rows_apart(cells)):
        return _unlike(name, cells.drop_null(), different)
    if len(cells.unique()) < 2:
        why = "one value only in the training rows: it is ignored; categorical-columns keeps it"
        return Decision(name, notes=(why,))
    decision = _category(name, cells)
    if decision.column is None or not words:
        return decision
    if twins := twins_among(value for value in decision.column.values if value is not None):
        way_out = "write both alike, or name it in categorical-columns if they are two"
        return Decision(name, problem=f"holds {twins}", way_out=way_out)
    filled = are_filled(cells)
    others = np.isnan(_numbers(Column("", "number", PLAIN), cells.fill_null(""))) & filled
    if not 0 < others.sum() < filled.sum() / 2:
        return decision
    why = f"{others.sum()} of {filled.sum()} values ({called(others)}) are no numbers: taken as a category; "
    return replace(decision, notes=(f"{why}numeric-columns takes these as missing, and numbers else",))


def _telling_rows_apart(texts: pa.ChunkedArray) -> int:
    """Return how many different texts there are if they tell rows apart and nothing else; else 0."""
    filled = texts.drop_null()
    different = len(filled.unique())
    return 0 if len(filled) < FEWEST_IDS or different < ID_LIKE * len(filled) else different


def _unlike(name: str, texts: pa.ChunkedArray, different: int) -> Decision:
    """Return what texts are that tell rows apart: ids if they are short, and not numbers in several notations."""
    if odd := _odd_numbers(texts.slice(0, _SAMPLE).to_pylist()):
        what = f"holds numbers that are not all written alike, such as {odd[0]!r} and {odd[1]!r}"
        way_out = (
            "write all in one notation and one unit, or name it in numeric-columns, which takes others as missing, or "
            "in ignore-columns"
        )
        return Decision(name, problem=what, way_out=way_out)
    values = f"{different} different values in {len(texts)} training rows"
    if pc.mean(pc.list_value_length(pc.utf8_split_whitespace(texts))).as_py() > WORDS_OF_AN_ID:
        way_out = "name it in ignore-columns to leave it out, or in text-column to learn from its words alone"
        return Decision(name, problem=f"has {values}", way_out=way_out)
    return Decision(name, notes=(f"{values}, as ids are: it is ignored; categorical-columns keeps it",))


def _odd_numbers(texts: Sequence[str]) -> tuple[str, ...]:
    """Return a number and another text if most texts are numbers with decimals or one of few units; else nothing."""
    units = {text: _unit_of(text) for text in texts}
    measured = {text: unit for text, unit in units.items() if unit or (NUMBER.fullmatch(text) and not text.isdecimal())}
    if 2 * len(measured) < len(units) or len({*measured.values()}) > FEWEST_BESIDE:
        return ()
    first, kind = next(iter(measured.items()))
    return first, next((text for text in units if _shape(text) != _shape(first) or units[text] != kind), texts[-1])


def _shape(text: str) -> str:
    return re.sub(r"\d+", "", text)


def _category(name: str, cells: pa.ChunkedArray, most: int = MOST_VALUES) -> Decision:
    found = cells.unique().to_pylist()
    known: list[str | None] = [*sorted({_written(value) for value in found if value is not None}, key=_rank)]
    known += [None] * (None in found)
    if len(known) > most:
        if is_text(cells.type) and _all_match(cells.drop_null(), r"^\[.*\]$"):
            what = "holds lists written as texts"
            return Decision(name, problem=what, way_out="write them as lists, in a parquet or json file, for series")
        way_out = "name it in ignore-columns to leave it out" + (most == MOST_VALUES) * (
            f", in categorical-columns to take up to {MOST_DECLARED}, or in text-column to learn from its words alone"
        )
        return Decision(name, problem=f"has {len(known)} different values, more than {most}", way_out=way_out)
    folded = {value.casefold(): value for value in reversed(known) if value is not None}
    pair = next((pair for pair in _TRUTH if {*pair} == {*folded}), None)
    if pair and len(folded) < len(known) - (None in known):  # yes, YES, no, No
        both = (*(folded[value] for value in pair), *[None] * (None in known))
        note = f"written in several ways, and read as {' and '.join(pair)}"
        return Decision(name, Column(name, "category", values=both), (note,))
    return Decision(name, Column(name, "category", values=(*known,)))


def _written(value: object) -> str:
    """Return a value as text, a whole number without the point that it has where others of its column are missing."""
    return re.sub(r"^(-?(?:0|[1-9]\d*))\.0*$", r"\1", str(value))


def _rank(value: str) -> tuple[float, str]:
    """Return what values are sorted by: numbers first, by their size."""
    return (float(value) if re.fullmatch(_PLAIN, value) and value.lower() != "nan" else np.inf, value)


def read(column: Column, cells: pa.ChunkedArray) -> tuple[FloatArray, BoolArray]:
    """Return cells as the inputs that a column becomes, and which of them are something else.

    Parameters
    ----------
    column : Column
        What it is.
    cells : ChunkedArray
        (N,) as `cleaned` returns them.

    Returns
    -------
    inputs : ndarray
        Numbers (N,), NaN where one is missing, or none; of a category (N, features), 1 where a value is the row's.
    others : ndarray
        (N,) bool, which cells are filled and neither a number nor a value that is known.
    """
    numbers: FloatArray
    if column.kind == "category":
        codes = _codes(column.values, cells)
        return (codes[:, None] == np.arange(len(column.values)))[:, len(column.values) == 2 :].astype(float), codes < 0
    if column.kind == "date" and not is_text(cells.type):
        numbers = _days_of(cells) if is_date(cells.type) else np.full(len(cells), np.nan)
    elif is_date(cells.type):
        numbers = np.full(len(cells), np.nan)
    elif column.kind == "date":
        numbers = _days(column.notation, cells.fill_null(""))
    else:
        numbers = _numbers(column, cells)
    others = np.isnan(numbers) & are_filled(cells)
    if column.kind == "number" and column.missing:
        numbers[np.isin(numbers, _numbers_among(column.missing))] = np.nan
    return numbers, others


def _codes(known: Sequence[str | None], cells: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    """Return the number of each cell's value, -1 for others; 2 and 2.0 are one, of words for truth True and true."""
    coded = cells.dictionary_encode(null_encoding="encode").combine_chunks()
    of_truth = {str(value).casefold() for value in known if value is not None} in map(set, _TRUTH)
    alike = {_alike(value, of_truth): number for number, value in reversed(list(enumerate(known)))}
    exact = {value: number for number, value in enumerate(known)}
    values = coded.dictionary.to_pylist()
    codes = [exact.get(None if one is None else str(one), alike.get(_alike(one, of_truth), -1)) for one in values]
    found: npt.NDArray[np.int32] = np.array(codes, np.int32)[coded.indices.to_numpy(zero_copy_only=False)]
    return found


def _alike(value: object, of_truth: bool) -> object:
    """Return what is equal for values that are one: numbers, but for codes such as 007, and words for truth."""
    text = str(value)
    if value is None or re.match(r"[+-]?0\d", text):
        return value
    try:
        return float(text)
    except ValueError:
        return text.casefold() if of_truth else text


def _numbers(column: Column, cells: pa.ChunkedArray) -> FloatArray:
    """Return the numbers (N,) of cells in a notation, NaN for what is none."""
    numbers: FloatArray
    if not is_text(cells.type) or (column.notation == PLAIN and not column.unit):
        try:
            numbers = cells.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
        except pa.ArrowInvalid:
            pass
        else:
            return numbers
    texts, fits = cells, pa.scalar(True)
    if column.unit:
        unit = re.escape(column.unit)
        texts = pc.replace_substring_regex(texts, rf"^([+-]?)\s*{unit}\s*|\s*{unit}$", r"\1")
        fits = pc.not_equal(texts, cells)
    grouped = pc.match_substring_regex(texts, f"^(?:{_GROUPED})$")
    texts = pc.if_else(grouped, pc.replace_substring_regex(texts, _BLANKS, ""), texts)
    fits = pc.and_(fits, pc.match_substring_regex(texts, f"^(?:{PATTERNS[column.notation]})$"))
    texts = pc.if_else(fits, texts, pa.scalar(None, texts.type))
    thousands, decimal = MARKS[column.notation]
    for mark, instead in ((thousands, ""), (decimal, ".")):
        texts = pc.replace_substring(texts, mark, instead) if mark and mark != instead else texts
    numbers = pc.replace_substring(texts, "+", "").cast(pa.float64()).to_numpy().astype(np.float64)
    return numbers


def _days(notation: str, texts: pa.ChunkedArray) -> FloatArray:
    """Return the days since 1970 (N,) of texts in a notation, NaN for what is none."""
    coded = texts.dictionary_encode().combine_chunks()
    known = [_day(text, DATES[notation]) for text in coded.dictionary.to_pylist()]
    found: FloatArray = np.array(known, np.float64)[coded.indices.to_numpy(zero_copy_only=False)]
    return found


def _day(text: str, pattern: re.Pattern[str]) -> float:
    """Return the days since 1970 that a text stands for, in UTC where it has a time zone; NaN if it is no date."""
    found = pattern.fullmatch(text)
    if not found:
        return np.nan
    part = found.groupdict()
    year, day = int(part.get("y") or 1970), int(part.get("d") or 1)
    year += (year < _PIVOT) * 2000 + (_PIVOT <= year < 100) * 1900
    name = (part.get("n") or "")[:3].lower()
    if name and name not in _MONTHS:
        return np.nan
    month = _MONTHS.index(name) + 1 if name else int(part.get("m") or 1)
    hour = int(part["h"] or 0)
    if part["p"]:
        hour = hour % 12 + 12 * (part["p"] in "pP")
    try:
        moment = datetime(year, month, day, hour, int(part["i"] or 0), tzinfo=UTC).timestamp()
    except ValueError:
        return np.nan
    zone = part.get("z") or "Z"
    offset = 0 if zone[0] in "ZU" else int(f"{zone[0]}1") * (int(zone[1:3]) * 60 + int(zone[-2:]))
    seconds = float(part["s"] or 0)
    return (moment + seconds - 60 * offset) / _SECONDS if seconds < 60 else np.nan


def _days_of(cells: pa.ChunkedArray) -> FloatArray:
    """Return the days since 1970 (N,) of a column that has a type of dates, NaN where one is missing."""
    numbers = cells.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    days: FloatArray = pc.divide(numbers.cast(pa.float64(), safe=False), _SECONDS * 1e6).to_numpy()
    return days.astype(np.float64)


def recognised(name: str, texts: pa.ChunkedArray) -> Column | None:
    """Return how texts are to be read as numbers or dates; None where they are words.

    At most `MOST_EXCEPTIONS` of those that are filled may be something else, and if some are, the others must be more
    than two different numbers. `NO_NUMBER` does not count, and neither does `ABSENT` beside more than three others.

    Raises
    ------
    _Undecided
        They are numbers, or dates, that can be read in two ways.
    """
    filled = texts.drop_null()
    filled = filled.filter(pc.invert(pc.is_in(filled, pa.array(NO_NUMBER, TEXT))))
    known = filled.filter(pc.invert(pc.is_in(pc.utf8_lower(filled), pa.array(ABSENT, TEXT))))
    if len(known) < len(filled) and len(known.unique()) > FEWEST_BESIDE:
        filled = known
    counted = pc.value_counts(filled)
    cells, counts = pa.chunked_array([counted.field("values")]), counted.field("counts").to_numpy(zero_copy_only=False)
    return _number_notation(name, cells, counts) or _date_notation(name, cells, counts)


def rival(column: Column, texts: pa.ChunkedArray) -> str:
    """Return the notation in which more texts are numbers, or dates, than in a column's own; empty if there is none."""
    filled = texts.drop_null()
    if not len(filled):
        return ""
    others = DATES if column.kind == "date" else PATTERNS
    counts = {one: int(np.isfinite(read(replace(column, notation=one), filled)[0]).sum()) for one in others}
    most = max(counts, key=lambda one: (counts[one], one == column.notation))
    return most if counts[most] > counts.get(column.notation, 0) else ""


def doubts(decisions: Sequence[tuple[Decision, pa.ChunkedArray]]) -> list[tuple[str, str]]:
    """Doubt points in numbers beside columns with decimal commas, as (name, note): they may stand between thousands."""
    columns = [(one.column, cells) for one, cells in decisions if one.column and one.column.kind == "number"]
    commas = next((column.name for column, _ in columns if column.notation == COMMAS), None)
    found = []
    for column, cells in columns if commas is not None else ():
        if column.notation != PLAIN or not is_text(cells.type):
            continue
        pointed = cells.filter(pc.match_substring(cells, "."))
        if len(pointed) and _all_match(pointed, r"^[+-]?\d{1,3}\.\d{3}$"):
            one = pointed[0].as_py()
            found.append(
                (
                    column.name,
                    f"{one} is read as {float(one):g}, but column {commas!r} has decimal commas: write "
                    f"{one.replace('.', '')} if that is meant",
                )
            )
    return found


def _holds(numbers: FloatArray, counts: npt.NDArray[np.int64]) -> bool:
    """Say whether enough of the filled cells are numbers."""
    real = ~np.isnan(numbers)
    if real.all():
        return len(real) > 0
    return bool(counts[real].sum() >= (1 - MOST_EXCEPTIONS) * counts.sum() and len(np.unique(numbers[real])) > 2)


def _number_notation(name: str, cells: pa.ChunkedArray, counts: npt.NDArray[np.int64]) -> Column | None:
    unit = _unit(cells.slice(0, _SAMPLE).to_pylist())
    columns = [Column(name, "number", notation, unit=unit) for notation in PATTERNS]
    numbers = {column.notation: _numbers(column, cells) for column in columns}
    fits = {one: int(counts[~np.isnan(found)].sum()) for one, found in numbers.items()}
    best = max(columns, key=lambda one: fits[one.notation])  # of equals the first
    if not _holds(numbers[best.notation], counts):
        return None
    rivals = fits[POINTS] == fits[COMMAS] == fits[best.notation] > fits[PLAIN]
    if rivals and not np.array_equal(numbers[POINTS], numbers[COMMAS], equal_nan=True):
        what = "holds numbers whose comma may be a decimal point or stand between thousands"
        raise _Undecided(what, "write numbers without separators, and with a decimal point")
    return best


def _unit(texts: Sequence[str]) -> str:
    """Return what stands before or after the number in nearly all texts; empty where there is no such unit."""
    units = Counter(map(_unit_of, texts))
    unit, count = units.most_common(1)[0] if units else ("", 0)
    return unit or "" if count >= (1 - MOST_EXCEPTIONS) * len(texts) else ""


def _unit_of(text: str) -> str | None:
    """Return what stands before or after the number in a text, which may be nothing; None if it is no number."""
    found = _WITH_UNIT.fullmatch(text)
    return (found[1] or found[2] or "").strip() if found else None


def _date_notation(name: str, cells: pa.ChunkedArray, counts: npt.NDArray[np.int64]) -> Column | None:
    """Return the notation of which most texts are; where others of another read more, or differ, nobody can tell."""
    first, enough = cells.slice(0, _SAMPLE).to_pylist(), (1 - MOST_EXCEPTIONS) * counts.sum()
    likely = [one for one in DATES if one != TYPED and any(DATES[one].fullmatch(text) for text in first)]
    days = {one: _days(one, cells) for one in likely}
    fits = {one: ~np.isnan(found) for one, found in days.items()}
    best = max(fits, key=lambda one: counts[fits[one]].sum(), default="")
    if not best or counts[np.any([*fits.values()], axis=0)].sum() < enough:
        return None
    for other, there in fits.items():
        differ = (fits[best] & there & (days[best] != days[other])).any()
        either = differ and counts[there].sum() == counts[fits[best]].sum()
        mixed = (there & ~fits[best]).any() and (differ or counts[fits[best]].sum() < enough)
        if either or mixed:
            how = f"are {best} and {other} in turn" if mixed else f"may be {best} or {other}"
            raise _Undecided(f"holds dates that {how}", "write dates as year-month-day, such as 2024-03-31")
    return Column(name, "date", best) if _holds(days[best], counts) else None


def is_date(kind: pa.DataType) -> bool:
    """Say whether a type is one of dates, or of dates and times."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _is_number(kind: pa.DataType) -> bool:
    numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null
    return any(holds(kind) for holds in numbers)
