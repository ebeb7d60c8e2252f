"""Columns of a table: what each is, decided once over all its training rows, and how its cells become numbers."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hetfl_flwr.data.roles import in_words, is_text
from hetfl_flwr.data.spec import CLOCK, Column

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
TEXT = pa.large_string()

Wanted = Literal["", "category", "number"]
"""What a column is to be by a key of the run config or by its declared type; empty: nobody says."""

MOST_VALUES, MOST_DECLARED = 64, 1000
"""Different values, a missing one among them, of a category; of one that ``categorical-columns`` names."""

FEWEST_IDS, FEWEST_UNORDERED, ID_LIKE, WORDS_OF_AN_ID = 20, 100, 0.95, 3
"""Filled cells from which on a column may hold ids, and whole numbers need not go up or down; part of the texts that
then differ; words a text, on average."""

MOST_EXCEPTIONS, FEWEST_BESIDE = 0.05, 3
"""Part of the filled cells that may be no numbers in a column of numbers; different numbers beside words for none."""

MISSING = ("", "?", "NA")
"""Cells that are missing in any column."""

ABSENT = (
    *("-", "--", ".", "..", "*", "?", "na", "n/a", "n.a.", "nd", "n.d."),
    *("none", "nil", "null", "missing", "unknown", "#ref!"),
)
"""Words, in small letters, that stand beside numbers for one that is missing, however many they are."""

PLAIN, POINTS, COMMAS = "1234.5", "1,234.5", "1.234,5"
"""Notations of numbers: without thousands separators, with a decimal point, with a decimal comma."""

MARKS = {PLAIN: ("", "."), POINTS: (",", "."), COMMAS: (".", ",")}
"""What stands between thousands, and before decimals, in each notation of numbers."""

_PLAIN = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:[+-]?(?:inf|infinity|nan))"
_COMMAS = r"[+-]?(?:[1-9]\d{0,2}(?:\.\d{3})+|\d+)(?:,\d+)?"  # 0.125 is never 125
PATTERNS = {PLAIN: _PLAIN, POINTS: rf"[+-]?[1-9]\d{{0,2}}(?:,\d{{3}})+(?:\.\d*)?|{_PLAIN}", COMMAS: _COMMAS}
"""What the whole text of a number looks like in each notation; blanks between thousands come on top."""

ISO, DOTTED, DAY_FIRST, MONTH_FIRST = "year-month-day", "day.month.year", "day/month/year", "month/day/year"
DAY_NAME, NAME_DAY, TYPED = "day month-name year", "month-name day, year", "date"
"""Notations of dates, beside `CLOCK`; `TYPED`: the column has a type of dates."""

FORMATS = {
    **{ISO: "ISO8601", TYPED: "ISO8601", DOTTED: "%d.%m.%Y", DAY_FIRST: "%d/%m/%Y", MONTH_FIRST: "%m/%d/%Y"},
    **{f"{DOTTED[:-4]}yy": "%d.%m.%y", f"{DAY_FIRST[:-4]}yy": "%d/%m/%y", f"{MONTH_FIRST[:-4]}yy": "%m/%d/%y"},
    **{DAY_NAME: "%d%b%Y", NAME_DAY: "%B %d, %Y", CLOCK: "%H:%M:%S"},
}
"""How pandas calls each notation of dates."""

_D, _M, _N = r"(?P<d>\d{1,2})", r"(?P<m>\d{1,2})", r"(?P<n>[A-Za-z]{3,9})\.?"
_CLOCK = r"(?P<h>\d{1,2}):(?P<i>\d{2})(?::(?P<s>\d{2}(?:\.\d+)?))?(?: ?(?P<p>[AaPp])\.?[Mm]\.?)?"
_TIME = rf"(?:(?:T|,? +){_CLOCK} ?(?P<z>Z|UTC|[+-]\d{{2}}:?\d{{2}})?)?"
_LAST = {"year": r"(?P<y>\d{4})", "yy": r"(?P<y>\d{2})"}
DATES: Mapping[str, re.Pattern[str]] = {
    ISO: re.compile(rf"(?P<y>\d{{4}})(?P<k>[-/.]){_M}(?P=k){_D}{_TIME}"),
    TYPED: re.compile(rf"(?P<y>\d{{4}})(?P<k>[-/.]){_M}(?P=k){_D}{_TIME}"),
    **{f"day.month.{end}": re.compile(rf"{_D}\.{_M}\.{year}{_TIME}") for end, year in _LAST.items()},
    **{f"day/month/{end}": re.compile(rf"{_D}(?P<k>[-/]){_M}(?P=k){year}{_TIME}") for end, year in _LAST.items()},
    **{f"month/day/{end}": re.compile(rf"{_M}(?P<k>[-/]){_D}(?P=k){year}{_TIME}") for end, year in _LAST.items()},
    DAY_NAME: re.compile(rf"{_D}[-/. ]*{_N}[-/., ]*(?P<y>\d{{4}}){_TIME}"),
    NAME_DAY: re.compile(rf"{_N} *{_D},? +(?P<y>\d{{4}}){_TIME}"),
    CLOCK: re.compile(_CLOCK),
}
"""What the whole text of a date looks like in each notation."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_PIVOT = 69  # of years of two digits: 69 is 1969, 68 is 2068, as C and pandas have it
_SECONDS = 24 * 60 * 60

_MINUS = r"^[\x{2212}\x{2012}\x{2013}\x{ff0d}]([\d.])"  # as typesetters and spreadsheets write it
_BLANKS = r"[ '\x{a0}\x{202f}]"
_GROUPED = rf"[+-]?[1-9]\d{{0,2}}(?:{_BLANKS}\d{{3}})+(?:[.,]\d+)?"  # 1 234,5 and 1'234.5
_MONEY = r"[$€£¥₹₽]|USD|EUR|GBP|CHF"
_WITH_UNIT = re.compile(rf"[+-]?(?:({_MONEY})\s*)?[+-]?\d[\d.,' \xa0\u202f]*?\s*([^\d\s.,'+-][^\d]*)?")
_NAN = "^[+-]?(?i:nan)$"
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
    null = pa.scalar(None, TEXT if is_text(cells.type) else cells.type)
    if is_text(cells.type):
        texts = pc.replace_substring_regex(pc.utf8_trim_whitespace(_in_one_form(cells.cast(TEXT))), _MINUS, r"-\1")
        return pc.if_else(pc.is_in(texts, pa.array([*MISSING, *missing], TEXT)), null, texts)
    codes = [float(word) for word in missing if re.fullmatch(_PLAIN, word)]
    if codes and _is_number(cells.type):
        cells = pc.if_else(pc.is_in(cells.cast(pa.float64(), safe=False), pa.array(codes, pa.float64())), null, cells)
    return pc.if_else(pc.is_nan(cells), null, cells) if pa.types.is_floating(cells.type) else cells


def _in_one_form(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts with each letter in one form, and without what nobody sees."""
    if pc.all(pc.string_is_ascii(texts)).as_py() is not False:
        return texts
    return pc.replace_substring_regex(pc.utf8_normalize(texts, form="NFC"), r"\p{Cf}", "")


def are_filled(cells: pa.ChunkedArray) -> BoolArray:
    """Return which cells (N,) of a cleaned column hold something."""
    filled: BoolArray = cells.is_valid().to_numpy()
    if is_text(cells.type):
        filled = filled & ~pc.match_substring_regex(cells, _NAN).fill_null(False).to_numpy()
    return filled


def decide(
    name: str,
    cells: pa.ChunkedArray,
    wanted: Wanted = "",
    called: Callable[[BoolArray], str] = str,
    *,
    plainly: bool = False,
) -> Decision:
    """Return what a column is, told from the cells of all training rows.

    Parameters
    ----------
    name : str
        What it is called.
    cells : ChunkedArray
        (N,) as `cleaned` returns them.
    wanted : {"", "category", "number"}
        What it is to be.
    called : callable
        Returns how messages call some of the rows, (N,) bool.
    plainly : bool
        Whether texts are numbers only if all are, and no column is left out: tables of the catalogue.
    """
    decision = _decided(name, cells, wanted, called, plainly)
    filled = cells.slice(0, _SAMPLE).drop_null()
    return replace(decision, example=str(filled[0].as_py())[:60] if len(filled) else "")


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
        return _number(Column(name, "date", TYPED), cells, ("dates, read as days since 1970",))
    if pa.types.is_boolean(kind):
        return _category(name, cells) if plainly else _words(name, cells, called)
    try:
        numbers = cells.cast(pa.float64(), safe=False)
    except pa.ArrowInvalid:
        return _category(name, cells) if plainly else _texts(name, cells, wanted, called)
    whole = pa.types.is_integer(kind) or (is_text(kind) and bool(_all_match(cells, r"^[+-]?\d+$")))
    if whole and not wanted and not plainly and (why := _why_ids(name, numbers, cells)):
        return Decision(name, notes=(why,))
    return _number(Column(name, "number", PLAIN), cells, _code_of_missing(numbers) if not plainly else ())


def _all_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def _number(column: Column, cells: pa.ChunkedArray, notes: tuple[str, ...] = ()) -> Decision:
    """Return a column of numbers or dates."""
    numbers, _ = read(column, cells)
    values = np.unique(numbers[np.isfinite(numbers)])
    if len(values) < 2 and not np.isinf(numbers).any():
        are = "one number throughout" if len(values) else "no number at all"
        notes += (f"{are} in the training rows: it is ignored (0 throughout)",)
        return Decision(column.name, replace(column, constant=True), notes)
    return Decision(column.name, column, notes)


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


def _why_ids(name: str, numbers: pa.ChunkedArray, cells: pa.ChunkedArray) -> str:
    """Return a note where whole numbers tell rows apart and nothing else; else nothing."""
    filled = numbers.drop_null()
    count = len(filled)
    if count < FEWEST_IDS or count < (1 - MOST_EXCEPTIONS) * len(cells):
        return ""
    different, named = len(filled.unique()), IDS.fullmatch(name) is not None
    low, high = pc.min(filled).as_py(), pc.max(filled).as_py()
    counting = different == count and high - low < _SPARSE * count and not _YEARS[0] < low < _YEARS[1]
    counting = counting and (count >= FEWEST_UNORDERED or len(np.unique(np.sign(np.diff(filled.to_numpy())))) == 1)
    repeated = named and different > max(MOST_VALUES, count / 5)
    if not (counting or repeated or (named and different == count)):
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
            what = f"is named in numeric-columns, and none of its {are_filled(texts).sum()} values is a number"
            way_out = f"{_two_notations(texts) or 'name it in categorical-columns'}, or name it in ignore-columns"
            return Decision(name, problem=what, way_out=f"{way_out} to leave it out")
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
    return _number(column, texts, notes)


def _words(name: str, cells: pa.ChunkedArray, called: Callable[[BoolArray], str]) -> Decision:
    """Return a category of words or truth values that nobody has declared."""
    words = is_text(cells.type)
    if words and (why := _why_names(cells)):
        return Decision(name, notes=(why,))
    if len(cells.unique()) < 2:
        why = "one value only in the training rows: it is ignored; categorical-columns keeps it"
        return Decision(name, notes=(why,))
    decision = _category(name, cells)
    if decision.column is None or not words:
        return decision
    if way_out := _two_notations(cells):
        looks = f"what looks like dates in two notations is taken as a category; {way_out} if that is meant"
        return replace(decision, notes=(looks,))
    filled = are_filled(cells)
    others = np.isnan(_plain_numbers(cells)) & filled
    if not 0 < others.sum() < filled.sum() / 2:
        return decision
    why = f"{others.sum()} of {filled.sum()} values ({called(others)}) are no numbers: taken as a category; "
    return replace(decision, notes=(f"{why}numeric-columns takes these as missing, and numbers else",))


def _why_names(texts: pa.ChunkedArray) -> str:
    """Return a note where short texts tell rows apart and nothing else; else nothing."""
    filled = texts.drop_null()
    different = len(filled.unique())
    if len(filled) < FEWEST_IDS or different < ID_LIKE * len(filled):
        return ""
    if pc.mean(pc.list_value_length(pc.utf8_split_whitespace(filled))).as_py() > WORDS_OF_AN_ID:
        return ""
    keeps = "categorical-columns keeps it"
    if way_out := _two_notations(texts):
        keeps += f"; {way_out} if it holds dates in two notations"
    return f"{different} different values in {len(filled)} training rows, as ids are: it is ignored; {keeps}"


def _category(name: str, cells: pa.ChunkedArray, most: int = MOST_VALUES) -> Decision:
    known = cells.unique().sort().to_pylist()  # null is the last
    if len(known) > most:
        way_out = "name it in ignore-columns to leave it out" + (most == MOST_VALUES) * (
            f", in categorical-columns to take up to {MOST_DECLARED}, or in text-column to learn from its words alone"
        )
        if is_text(cells.type) and (looks := _two_notations(cells)):
            what = f"has {len(known)} different values, more than {most}, which look like dates in two notations"
            return Decision(name, problem=what, way_out=f"{looks}, or name it in ignore-columns to leave it out")
        if is_text(cells.type) and _all_match(cells.drop_null(), r"^\[.*\]$"):
            what = "holds lists written as texts"
            return Decision(name, problem=what, way_out="write them as lists, in a parquet or json file, for series")
        return Decision(name, problem=f"has {len(known)} different values, more than {most}", way_out=way_out)
    folded = {str(value).casefold(): _written(value) for value in reversed(known) if value is not None}
    pair = next((pair for pair in _TRUTH if {*pair} == {*folded}), None)
    if pair and len(folded) < len(known) - (None in known):  # yes, YES, no, No
        both = (*(folded[value] for value in pair), *[None] * (None in known))
        note = f"written in several ways, and read as {' and '.join(pair)}"
        return Decision(name, Column(name, "category", values=both), (note,))
    values = tuple(None if value is None else _written(value) for value in known)
    return Decision(name, Column(name, "category", values=values))


def _written(value: object) -> str:
    """Return a value as text, a whole number without the point that it has where others of its column are missing."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


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
    if column.kind == "category":
        codes = _codes(column.values, cells)
        return (codes[:, None] == np.arange(len(column.values)))[:, len(column.values) == 2 :].astype(float), codes < 0
    if is_date(cells.type):
        numbers = _days_of(cells) if column.kind == "date" else np.full(len(cells), np.nan)
    elif not is_text(cells.type):
        numbers = cells.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)
        numbers = np.full(len(cells), np.nan) if column.kind == "date" else numbers
    else:
        texts = cells.fill_null("")
        numbers = _days(column.notation, texts) if column.kind == "date" else _numbers(column, texts)
    return numbers, np.isnan(numbers) & are_filled(cells)


def _codes(known: Sequence[str | None], cells: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    """Return the number of each cell's value, -1 for others; 2 and 2.0 are one, of words for truth True and true."""
    coded = pa.chunked_array([cells.combine_chunks()]) if cells.num_chunks != 1 else cells
    coded = coded.dictionary_encode(null_encoding="encode").chunk(0)
    of_truth = {str(value).casefold() for value in known if value is not None} in map(set, _TRUTH)
    alike = {_alike(value, of_truth): number for number, value in reversed(list(enumerate(known)))}
    exact = {value: number for number, value in enumerate(known)}
    values = coded.dictionary.to_pylist()
    codes = [exact.get(None if one is None else str(one), alike.get(_alike(one, of_truth), -1)) for one in values]
    found: npt.NDArray[np.int32] = np.array(codes, np.int32)[coded.indices.to_numpy(zero_copy_only=False)]
    return found


def _alike(value: object, of_truth: bool) -> object:
    try:
        return None if value is None else float(str(value))
    except ValueError:
        return str(value).casefold() if of_truth else str(value)


def _plain_numbers(texts: pa.ChunkedArray) -> FloatArray:
    return _numbers(Column("", "number", PLAIN), texts.fill_null(""))


def _numbers(column: Column, texts: pa.ChunkedArray) -> FloatArray:
    """Return the numbers (N,) of texts in a notation, NaN for what is none."""
    if column.unit:
        unit = re.escape(column.unit)
        texts = pc.replace_substring_regex(texts, rf"^([+-]?)\s*{unit}\s*|\s*{unit}$", r"\1")
    grouped = pc.match_substring_regex(texts, f"^(?:{_GROUPED})$")
    texts = pc.if_else(grouped, pc.replace_substring_regex(texts, _BLANKS, ""), texts)
    fits = pc.match_substring_regex(texts, f"^(?:{PATTERNS[column.notation]})$")
    texts = pc.if_else(fits, texts, pa.scalar(None, texts.type))
    thousands, decimal = MARKS[column.notation]
    for mark, instead in ((thousands, ""), (decimal, ".")):
        texts = pc.replace_substring(texts, mark, instead) if mark and mark != instead else texts
    numbers: FloatArray = pc.replace_substring(texts, "+", "").cast(pa.float64()).to_numpy().astype(np.float64)
    return numbers


def _days(notation: str, texts: pa.ChunkedArray) -> FloatArray:
    """Return the days since 1970 (N,) of texts in a notation, NaN for what is none."""
    coded = texts.combine_chunks().dictionary_encode()
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
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
    than two different numbers. Beside more than three different texts, those of `ABSENT` do not count.

    Raises
    ------
    _Undecided
        They are numbers, or dates, that can be read in two ways.
    """
    filled = texts.filter(pa.array(are_filled(texts)))
    known = filled.filter(pc.invert(pc.is_in(pc.utf8_lower(filled), pa.array(ABSENT, TEXT))))
    if len(known) < len(filled) and len(known.unique()) > FEWEST_BESIDE:
        filled = known
    counted = pc.value_counts(filled.combine_chunks())
    cells, counts = pa.chunked_array([counted.field("values")]), counted.field("counts").to_numpy(zero_copy_only=False)
    return _number_notation(name, cells, counts) or _date_notation(name, cells, counts)


def mostly_numbers(texts: pa.ChunkedArray) -> bool:
    """Say whether texts are plain numbers, but for a few."""
    if not is_text(texts.type):
        return False
    try:
        column = recognised("", texts)
    except _Undecided:
        return False
    return column is not None and (column.notation, column.unit) == (PLAIN, "")


def rival(column: Column, texts: pa.ChunkedArray) -> str:
    """Return the notation in which more texts are numbers, or dates, than in a column's own; empty if there is none."""
    filled = texts.drop_null()
    others = DATES if column.kind == "date" else PATTERNS
    counts = {one: int(np.isfinite(read(replace(column, notation=one), filled)[0]).sum()) for one in others}
    most = max(counts, key=lambda one: (counts[one], one == column.notation))
    return most if counts[most] > counts.get(column.notation, 0) else ""


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
    """Return what stands before or after the number in all texts; empty where it differs or there is none."""
    found = [_WITH_UNIT.fullmatch(text) for text in texts]
    units = {(one[1] or one[2] or "").strip() if one else None for one in found}
    return next(iter(units)) or "" if len(units) == 1 else ""


def _date_notation(name: str, cells: pa.ChunkedArray, counts: npt.NDArray[np.int64]) -> Column | None:
    """Return the notation of which most texts are."""
    first = cells.slice(0, _SAMPLE).to_pylist()
    likely = [one for one in DATES if one != TYPED and any(DATES[one].fullmatch(text) for text in first)]
    days = {one: _days(one, cells) for one in likely}
    fits = {one: int(counts[~np.isnan(found)].sum()) for one, found in days.items()}
    for day, month in ((DAY_FIRST, MONTH_FIRST), (f"{DAY_FIRST[:-4]}yy", f"{MONTH_FIRST[:-4]}yy")):
        if day in days and month in days:
            one, other = ~np.isnan(days[day]), ~np.isnan(days[month])
            mixed = (one & ~other).any() and (other & ~one).any()
            both = (one & other).any() and not np.array_equal(days[day], days[month], equal_nan=True)
            either = one.sum() == other.sum() and both
            if (mixed or either) and counts[one | other].sum() >= (1 - MOST_EXCEPTIONS) * counts.sum():
                how = f"are {day} and {month} in turn" if mixed else f"may be {day} or {month}"
                raise _Undecided(f"holds dates that {how}", "write dates as year-month-day, such as 2024-03-31")
    best = max(fits, key=lambda one: fits[one], default="")
    return Column(name, "date", best) if best and _holds(days[best], counts) else None


def _two_notations(texts: pa.ChunkedArray) -> str:
    """Return the way out where words look like dates in two notations; else nothing."""
    filled = texts.drop_null()
    if not is_text(filled.type) or not any(DATES[ISO].fullmatch(text) for text in filled.slice(0, _SAMPLE).to_pylist()):
        return ""
    fits = [np.count_nonzero(~np.isnan(_days(one, filled))) for one in (ISO, DAY_FIRST, DOTTED)]
    if fits[0] and sum(fits[1:]) and sum(fits) >= (1 - MOST_EXCEPTIONS) * len(filled):
        return "write dates as year-month-day, such as 2024-03-31"
    return ""


def is_date(kind: pa.DataType) -> bool:
    """Say whether a type is one of dates, or of dates and times."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _is_number(kind: pa.DataType) -> bool:
    numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null
    return any(holds(kind) for holds in numbers)
