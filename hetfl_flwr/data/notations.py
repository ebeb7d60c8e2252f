"""How numbers and dates are written in texts: with points or commas, as year-month-day or day/month/year."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

FloatArray = npt.NDArray[np.float64]

MOST_EXCEPTIONS, FEWEST_BESIDE = 0.05, 3
"""Part of a column's filled cells that may be no numbers, or no dates, in a column of numbers or dates."""

ABSENT = (
    *("-", "--", ".", "..", "*", "?", "na", "n/a", "n.a.", "nd", "n.d."),
    *("none", "nil", "null", "missing", "unknown", "#ref!"),
)
"""Words, in small letters, that stand beside numbers for one that is missing, however many they are."""

PLAIN, POINTS, COMMAS = "1234.5", "1,234.5", "1.234,5"
"""Notations of numbers: without thousands separators, with a decimal point, with a decimal comma."""

ISO, DAY_FIRST, MONTH_FIRST, DOTTED, TYPED = (
    "year-month-day",
    "day/month/year",
    "month/day/year",
    "day.month.year",
    "date",
)
"""Notations of dates; `TYPED`: the column has a type of dates, or of dates and times."""

MARKS = {PLAIN: ("", "."), POINTS: (",", "."), COMMAS: (".", ",")}
"""What stands between thousands, and before decimals, in each notation of numbers."""

FORMATS = {ISO: "ISO8601", TYPED: "ISO8601", DOTTED: "%d.%m.%Y", DAY_FIRST: "%d/%m/%Y", MONTH_FIRST: "%m/%d/%Y"}
"""How pandas calls each notation of dates."""

_PLAIN = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|(?i:[+-]?(inf|infinity|nan))"
_POINTS = rf"[+-]?[1-9]\d{{0,2}}(,\d{{3}})+(\.\d*)?|{_PLAIN}"
_COMMAS = r"[+-]?([1-9]\d{0,2}(\.\d{3})+|\d+)(,\d+)?"  # 0.125 is never 125
_BLANKS = r"[+-]?[1-9]\d{0,2}([ '\x{a0}\x{202f}]\d{3})+([.,]\d+)?"  # 1 234,5 and 1'234.5

PATTERNS = {PLAIN: _PLAIN, POINTS: _POINTS, COMMAS: _COMMAS}
"""What the whole text of a number looks like in each notation; blanks between thousands come on top."""

_NUMBER = r"^[+-]?\d[\d.,]*\s*"
_WITH_UNIT = rf"{_NUMBER}[^\d\s.,][^\d]*$"

_TIME = r"(?:[T ](?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.\d+)?)?(?P<zone>Z|[+-]\d{2}:?\d{2})?)?"
_YEAR_FIRST = re.compile(rf"(?P<year>\d{{4}})(?P<mark>[-/.])(?P<month>\d{{1,2}})(?P=mark)(?P<day>\d{{1,2}}){_TIME}")
_YEAR_LAST = re.compile(rf"(?P<day>\d{{1,2}})(?P<mark>[-/.])(?P<month>\d{{1,2}})(?P=mark)(?P<year>\d{{4}}){_TIME}")
_SECONDS = 24 * 60 * 60


class Undecided(Exception):
    """Texts that can be read in two ways.

    Parameters
    ----------
    text : str
        Which, to follow on the name of the column.
    way_out : str
        What to do.
    """

    def __init__(self, text: str, way_out: str) -> None:
        super().__init__(text)
        self.way_out = way_out


@dataclass(frozen=True)
class Notation:
    """How the texts of a column are read as numbers.

    Parameters
    ----------
    name : str
        One of this module's notations.
    is_date : bool
        Whether they are dates: then the number is that of days since 1970.
    """

    name: str
    is_date: bool = False

    def read(self, texts: pa.ChunkedArray) -> FloatArray:
        """Return the numbers (N,) of texts that `cleaned` has returned, NaN for what is none or missing."""
        return DATES[self.name](texts) if self.is_date else NUMBERS[self.name](texts)


def recognised(texts: pa.ChunkedArray) -> Notation | None:
    """Return how the texts of a column are to be read as numbers or dates; None where they are words.

    At most `MOST_EXCEPTIONS` of those that are filled may be something else, and if some are, the others must be more
    than two different numbers. Beside more than three different texts, those of `ABSENT` do not count.

    Parameters
    ----------
    texts : ChunkedArray
        Cleaned texts, null where missing.

    Raises
    ------
    Undecided
        They are numbers, or dates, that can be read in two ways.
    """
    filled = texts.drop_null().filter(pc.invert(not_a_number(texts.drop_null())))
    known = filled.filter(pc.invert(pc.is_in(pc.utf8_lower(filled), pa.array(ABSENT, filled.type))))
    if len(known) < len(filled) and len(known.unique()) > FEWEST_BESIDE:
        filled = known
    number = _number(filled)
    if number:
        return number
    shaped = _date(filled)
    return shaped if shaped and _holds(shaped.read(filled)) else None


def resembled(texts: pa.ChunkedArray) -> tuple[str, str] | None:
    """Return what words look like that could be written as numbers or dates, and how to do so; None for other words.

    Parameters
    ----------
    texts : ChunkedArray
        Cleaned texts that `recognised` has not recognised, null where missing.
    """
    filled = texts.drop_null()
    least = (1 - MOST_EXCEPTIONS) * len(filled)
    units = pc.replace_substring_regex(filled.filter(pc.match_substring_regex(filled, _WITH_UNIT)), _NUMBER, "")
    if len(units) and pc.max(pc.value_counts(units).field("counts")).as_py() >= least:
        return "numbers with a unit", "write numbers without their unit"
    dates = [np.count_nonzero(~np.isnan(DATES[name](filled))) for name in (ISO, DAY_FIRST)]
    if min(dates) and sum(dates) >= least:
        return "dates in two notations", "write dates as year-month-day, such as 2024-03-31"
    return None


def not_a_number(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return which texts say that a number is missing as programs write it."""
    return pc.match_substring_regex(texts, "^[+-]?(?i:nan)$")


def _number(filled: pa.ChunkedArray) -> Notation | None:
    read = {name: reader(filled) for name, reader in NUMBERS.items()}
    counts = {name: np.count_nonzero(~np.isnan(numbers)) for name, numbers in read.items()}
    name = max(counts, key=lambda one: counts[one])  # of equals the first, as NUMBERS has them
    if not _holds(read[name]):
        return None
    rivals = [other for other in (POINTS, COMMAS) if counts[other] == counts[name] > counts[PLAIN]]
    if len(rivals) == 2 and not np.array_equal(read[POINTS], read[COMMAS], equal_nan=True):
        raise Undecided(
            "holds numbers whose comma may be a decimal point or stand between thousands",
            "write numbers without separators, and with a decimal point",
        )
    return Notation(name)


def _date(filled: pa.ChunkedArray) -> Notation | None:
    """Return the notation of which most texts have the shape."""
    counts = pc.value_counts(filled)
    texts, numbers = counts.field("values").to_pylist(), counts.field("counts").to_numpy(zero_copy_only=False)
    last = np.array([bool(_YEAR_LAST.fullmatch(text)) for text in texts], bool)
    if numbers[last].sum() < (1 - MOST_EXCEPTIONS) * len(filled) or not last.any():
        return Notation(ISO, is_date=True)
    shaped = [text for text, one in zip(texts, last, strict=True) if one]
    if all("." in text.split(" ")[0] for text in shaped):
        return Notation(DOTTED, is_date=True)
    first, second = ([_days(text, _YEAR_LAST, swapped=swapped) for text in shaped] for swapped in (False, True))
    fits = None not in first, None not in second
    if fits[0] != fits[1]:
        return Notation(DAY_FIRST if fits[0] else MONTH_FIRST, is_date=True)
    if first == second:
        return Notation(DAY_FIRST, is_date=True)
    how = "may be day/month/year or month/day/year" if fits[0] else "are day/month/year and month/day/year in turn"
    raise Undecided(f"holds dates that {how}", "write dates as year-month-day, such as 2024-03-31")


def _holds(numbers: FloatArray) -> bool:
    """Say whether enough of the filled cells are numbers."""
    real = numbers[~np.isnan(numbers)]
    if len(real) == len(numbers):
        return len(real) > 0
    return len(real) >= (1 - MOST_EXCEPTIONS) * len(numbers) and len(np.unique(real)) > 2


def _numbers(pattern: str, *marks: tuple[str, str]) -> Callable[[pa.ChunkedArray], FloatArray]:
    """Return what reads texts that match a pattern, in which some marks are replaced before."""

    def read(texts: pa.ChunkedArray) -> FloatArray:
        blanks = pc.match_substring_regex(texts, f"^(?:{_BLANKS})$")
        texts = pc.if_else(blanks, pc.replace_substring_regex(texts, r"[ '\x{a0}\x{202f}]", ""), texts)
        fitting = pc.if_else(pc.match_substring_regex(texts, f"^(?:{pattern})$"), texts, pa.scalar(None, texts.type))
        for mark, instead in marks:
            fitting = pc.replace_substring(fitting, mark, instead)
        fitting = pc.replace_substring_regex(fitting, r"^\+", "")
        numbers: FloatArray = fitting.cast(pa.float64()).to_numpy().astype(np.float64)
        return numbers

    return read


def _dates(pattern: re.Pattern[str], *, swapped: bool = False) -> Callable[[pa.ChunkedArray], FloatArray]:
    def read(texts: pa.ChunkedArray) -> FloatArray:
        coded = texts.unify_dictionaries() if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
        days: FloatArray = np.full(len(texts), np.nan)
        first = 0
        for chunk in coded.chunks:
            known = [_days(text, pattern, swapped=swapped) for text in chunk.dictionary.to_pylist()]
            table = np.array([*(np.nan if one is None else one for one in known), np.nan])
            days[first : first + len(chunk)] = table[chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
            first += len(chunk)
        return days

    return read


def _days(text: str | None, pattern: re.Pattern[str], *, swapped: bool) -> float | None:
    """Return the days since 1970 that a text stands for, in UTC where it has a time zone; None if it is no date."""
    found = pattern.fullmatch(text or "")
    if not found:
        return None
    day, month = (found["month"], found["day"]) if swapped else (found["day"], found["month"])
    date = f"{found['year']}-{month:0>2}-{day:0>2}"
    if found["hour"]:
        zone = "+00:00" if found["zone"] in (None, "Z") else found["zone"]
        date += f"T{found['hour']:0>2}:{found['minute']}:{found['second'] or '00'}{zone}"
    try:
        moment = datetime.fromisoformat(date)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / _SECONDS


def days_of(values: pa.ChunkedArray) -> FloatArray:
    """Return the days since 1970 (N,) of a column that has a type of dates, NaN where one is missing."""
    numbers = values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    days: FloatArray = pc.divide(numbers.cast(pa.float64(), safe=False), _SECONDS * 1e6).to_numpy()
    return days.astype(np.float64)


NUMBERS: Mapping[str, Callable[[pa.ChunkedArray], FloatArray]] = {
    PLAIN: _numbers(PATTERNS[PLAIN]),
    POINTS: _numbers(PATTERNS[POINTS], (",", "")),
    COMMAS: _numbers(PATTERNS[COMMAS], (".", ""), (",", ".")),
}

DATES: Mapping[str, Callable[[pa.ChunkedArray], FloatArray]] = {
    ISO: _dates(_YEAR_FIRST),
    TYPED: _dates(_YEAR_FIRST),
    DOTTED: _dates(_YEAR_LAST),
    DAY_FIRST: _dates(_YEAR_LAST),
    MONTH_FIRST: _dates(_YEAR_LAST, swapped=True),
}
