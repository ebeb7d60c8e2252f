"""From a column of a table to inputs of a model: what its cells are is told from the training split alone."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hetfl_flwr.data.findings import Findings
from hetfl_flwr.data.notations import (
    MOST_EXCEPTIONS,
    PLAIN,
    TYPED,
    FloatArray,
    Notation,
    Undecided,
    days_of,
    not_a_number,
    recognised,
    resembled,
)
from hetfl_flwr.data.roles import in_words, is_text
from hetfl_flwr.data.spec import Column

Inputs = npt.NDArray[np.float32]

Wanted = Literal["", "category", "number"]
"""What a column is to be by a key of the run config or by its declared type; empty: nobody says."""

MOST_VALUES, MOST_DECLARED = 64, 1000
"""Different values, a missing one among them, that a column of texts may have to be a category, and any may have that
``categorical-columns`` names."""

FEWEST_IDS, FEWEST_UNORDERED = 20, 100
"""Filled cells from which on a column whose values are all different is taken for an id; and one of whole numbers that
do not count up or down from row to row, as a measurement of a few people may be all different."""

ID_LIKE = 0.95
"""Part of the filled cells of a column of texts that are different from each other where it is taken for an id."""

WORDS_OF_AN_ID = 3
"""Words a cell, on average, at most, in such a column: longer texts are to be learnt from."""

_MISSING = ["", "?", "NA"]

_MINUS = r"^[\x{2212}\x{2012}\x{2013}\x{ff0d}]([\d.])"  # as typesetters and spreadsheets write it


@dataclass(frozen=True, eq=False)
class Encoded:
    """A column as inputs (N, features)."""

    column: Column
    inputs: Inputs


def encode(name: str, values: pa.ChunkedArray, wanted: Wanted, findings: Findings) -> Encoded | None:
    """Return the inputs that a column becomes; None where it is left out, or cannot be read, as the findings say.

    Parameters
    ----------
    name : str
        What the column is called.
    values : ChunkedArray
        Its N cells, of all splits.
    wanted : {"", "category", "number"}
        What it is to be.
    findings : Findings
        Takes down what is found.
    """
    try:
        values = cleaned(values)
    except pa.ArrowInvalid:
        findings.problem(name, "holds texts that are not UTF-8", "write the file again, or name it in ignore-columns")
        return None
    if not any(holds(values.type) for holds in (is_text, _is_number, is_date, pa.types.is_boolean)):
        findings.problem(
            name,
            f"holds {in_words(values.type)}, not numbers, texts, dates or truth values",
            "name it in ignore-columns to leave it out",
        )
        return None
    if wanted == "category":
        return _one_hot(name, values, MOST_DECLARED, findings)
    if is_date(values.type):
        findings.note(name, "dates, read as days since 1970")
        return _numbers(name, Notation(TYPED, is_date=True), days_of(values), findings)
    if pa.types.is_boolean(values.type):
        return _category(name, values, findings)
    try:
        numbers = values.cast(pa.float64(), safe=False).to_numpy()
    except pa.ArrowInvalid:
        return _texts(name, values, wanted, findings)
    if not wanted and not _is_fraction(values) and _are_ids(name, values, findings, most_alike=1.0):
        return None
    return _numbers(name, Notation(PLAIN), numbers, findings)


def cleaned(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose texts have no blanks around them, and in which null stands for all that is missing."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_floating(values.type):
        return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    if not is_text(values.type):
        return values
    texts = pc.utf8_trim_whitespace(values.cast(pa.large_string()))
    texts = pc.replace_substring_regex(texts, _MINUS, r"-\1")
    missing = pc.is_in(texts, value_set=pa.array(_MISSING, texts.type))
    return pc.if_else(missing, pa.scalar(None, texts.type), texts)


def _texts(name: str, texts: pa.ChunkedArray, wanted: Wanted, findings: Findings) -> Encoded | None:
    """Return the inputs of texts that are not all plain numbers."""
    if findings.source.is_catalogued:
        return _one_hot(name, texts, MOST_VALUES, findings)
    try:
        notation = recognised(findings.source.training(texts)) or (Notation(PLAIN) if wanted else None)
    except Undecided as error:
        findings.problem(name, str(error), f"{error.way_out}, or name it in categorical-columns or ignore-columns")
        return None
    if notation is None:
        return _category(name, texts, findings)
    numbers = notation.read(texts)
    if notation.is_date:
        findings.note(name, f"dates, {notation.name}, read as days since 1970")
    elif notation.name != PLAIN:
        findings.note(name, f"numbers, read as {notation.name} is written")
    filled = are_filled(texts)
    others = np.isnan(numbers) & filled
    if others.any() and not (filled & ~others).any():
        way_out = looks[1] if (looks := _resembled(texts, findings)) else "name it in categorical-columns"
        said = f"is named in numeric-columns, and none of its {others.sum()} values is a number"
        findings.problem(name, said, f"{way_out}, or name it in ignore-columns to leave it out")
        return None
    if others.any():
        count, what = int(others.sum()), "date" if notation.is_date else "number"
        are = f"is no {what}" if count == 1 else f"are no {what}s"
        said = f"{count} of {filled.sum()} values {are} ({findings.rows(others)})"
        findings.note(name, f"{said}: taken as missing")
    return _numbers(name, notation, numbers, findings)


def _numbers(name: str, notation: Notation, numbers: FloatArray, findings: Findings) -> Encoded | None:
    with np.errstate(over="ignore"):
        inputs = numbers.astype(np.float32)[:, None]
    infinite = np.isinf(inputs[:, 0])
    if infinite.any():
        first, more = findings.source.where(int(np.argmax(infinite))), int(infinite.sum()) - 1
        have = f"row {first} and {more} more have" if more else f"row {first} has"
        what = f"{have} an infinite {name}, or one above 3e38"
        findings.problems.add(what, "write a number below that, or nothing where it is missing")
        return None
    train = inputs[: findings.source.train_rows, 0]
    constant = len(np.unique(train[~np.isnan(train)])) < 2
    if constant:
        are = "one number throughout" if len(train[~np.isnan(train)]) else "no number at all"
        findings.note(name, f"{are} in the training rows: it is ignored (0 throughout)")
    column = Column(name, "date" if notation.is_date else "number", notation.name, constant=constant)
    return Encoded(column, inputs)


def _category(name: str, values: pa.ChunkedArray, findings: Findings) -> Encoded | None:
    """Return the inputs of texts or truth values that nobody has declared."""
    if not findings.source.is_catalogued:
        if is_text(values.type) and _are_ids(name, values, findings, most_alike=ID_LIKE):
            return None
        if len(findings.source.training(values).unique()) < 2:
            findings.note(name, "one value only in the training rows: it is ignored; categorical-columns keeps it")
            return None
    encoded = _one_hot(name, values, MOST_VALUES, findings)
    if encoded and (looks := _resembled(values, findings)):
        findings.note(name, f"what looks like {looks[0]} is taken as a category; {looks[1]} if that is meant")
    elif encoded and (words := _words_among_numbers(values, findings)):
        findings.note(
            name,
            f"{words} are no numbers: taken as a category; numeric-columns takes these as missing, and numbers else",
        )
    return encoded


def _words_among_numbers(values: pa.ChunkedArray, findings: Findings) -> str:
    """Return how many filled cells are no numbers, where most are; else nothing."""
    if findings.source.is_catalogued or not is_text(values.type):
        return ""
    filled = are_filled(values)
    others = np.isnan(Notation(PLAIN).read(values.fill_null(""))) & filled
    few = 0 < others.sum() < filled.sum() / 2
    return f"{others.sum()} of {filled.sum()} values ({findings.rows(others)})" if few else ""


def _resembled(values: pa.ChunkedArray, findings: Findings) -> tuple[str, str] | None:
    """Return what words look like that nobody has declared, and how to write it."""
    known = findings.source.is_catalogued or not is_text(values.type)
    return None if known else resembled(findings.source.training(values))


def _one_hot(name: str, values: pa.ChunkedArray, most: int, findings: Findings) -> Encoded | None:
    known = findings.source.training(values).unique().sort()  # null is the last
    if len(known) > most:
        otherwise = (
            f", in categorical-columns to take up to {MOST_DECLARED}, or in text-column to learn from its words alone"
        )
        what, way_out = (
            f"has {len(known)} different values, more than {most}",
            "name it in ignore-columns to leave it out",
        )
        if looks := _resembled(values, findings):
            findings.problem(name, f"{what}, which look like {looks[0]}", f"{looks[1]}, or {way_out}")
        else:
            findings.problem(name, what, way_out + otherwise * (most == MOST_VALUES))
        return None
    codes: npt.NDArray[np.int32] = pc.index_in(values, value_set=known).fill_null(-1).to_numpy()
    shown = tuple(None if value is None else _written(value) for value in known.to_pylist())
    return Encoded(Column(name, "category", values=shown), indicators(codes, len(known)))


def _written(value: object) -> str:
    """Return a value as text, a whole number without the point that it has where others of its column are missing."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def indicators(codes: npt.NDArray[np.int32], count: int) -> Inputs:
    """Return the inputs (N, features) for numbers (N,) of values."""
    inputs: Inputs = (codes[:, None] == np.arange(count)).astype(np.float32)
    return inputs[:, int(count == 2) :]


def _are_ids(name: str, values: pa.ChunkedArray, findings: Findings, most_alike: float) -> bool:
    """Say whether the values of a column tell its rows apart, and nothing else; if so, it is noted as ignored."""
    filled = findings.source.training(values).drop_null()
    different = len(filled.unique())
    if findings.source.is_catalogued or len(filled) < FEWEST_IDS or different < most_alike * len(filled):
        return False
    if most_alike < 1 and pc.mean(pc.list_value_length(pc.utf8_split_whitespace(filled))).as_py() > WORDS_OF_AN_ID:
        return False
    if most_alike == 1 and len(filled) < (1 - MOST_EXCEPTIONS) * findings.source.train_rows:
        return False  # a measurement may be missing, an id is not
    if most_alike == 1 and len(filled) < FEWEST_UNORDERED and not _count(filled.cast(pa.float64(), safe=False)):
        return False
    keeps = "categorical-columns keeps it" if most_alike < 1 else "numeric-columns or categorical-columns keeps it"
    if looks := _resembled(values, findings):
        keeps += f"; {looks[1]} if it holds {looks[0]}"
    findings.note(
        name, f"{different} different values in {len(filled)} training rows, as ids are: it is ignored; {keeps}"
    )
    return True


def _count(filled: pa.ChunkedArray) -> bool:
    """Say whether numbers go up, or down, from row to row."""
    steps = np.diff(filled.to_numpy().astype(np.float64))
    return bool((steps > 0).all() or (steps < 0).all())


def are_filled(values: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return which cells (N,) hold something."""
    filled: npt.NDArray[np.bool_] = values.is_valid().to_numpy()
    if is_text(values.type):
        filled = filled & ~not_a_number(values).fill_null(False).to_numpy()
    return filled


def _is_fraction(values: pa.ChunkedArray) -> bool:
    """Say whether numbers, or texts of which all are numbers, are written as fractions or are none."""
    if is_text(values.type):
        return not pc.all(pc.match_substring_regex(values, r"^[+-]?\d+$")).as_py()
    return not pa.types.is_integer(values.type)


def is_date(kind: pa.DataType) -> bool:
    """Say whether a type is one of dates, or of dates and times."""
    return any(holds(kind) for holds in (pa.types.is_timestamp, pa.types.is_date))


def _is_number(kind: pa.DataType) -> bool:
    numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null
    return any(holds(kind) for holds in numbers)
