"""From cells of a table that a model has not seen to its inputs: they are read as the column was in training."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hetfl_flwr.data.columns import Inputs, are_filled, cleaned, indicators, is_date
from hetfl_flwr.data.notations import DATES, ISO, NUMBERS, TYPED, FloatArray, Notation, days_of
from hetfl_flwr.data.roles import is_text
from hetfl_flwr.data.spec import Column


def encode_like(column: Column, values: pa.ChunkedArray) -> tuple[Inputs, npt.NDArray[np.bool_]]:
    """Return cells as the inputs (N, features) that a column became in training, and which of them are something else.

    What is neither a number, where numbers were, nor a known value of a category is missing: it has no influence.
    """
    values = cleaned(values)
    if column.kind == "category":
        return _like_category(column, values)
    numbers = _like_numbers(column, values)
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)[:, None], np.isnan(numbers) & are_filled(values)


def notation_of(column: Column) -> Notation:
    """Return how a column's texts are written."""
    return Notation(ISO if column.notation == TYPED else column.notation, column.kind == "date")


def _like_numbers(column: Column, values: pa.ChunkedArray) -> FloatArray:
    dated = column.kind == "date"
    if is_date(values.type):
        return days_of(values) if dated else np.full(len(values), np.nan)
    if not is_text(values.type):
        values = values.cast(pa.float64(), safe=False)
        return np.full(len(values), np.nan) if dated else values.to_numpy().astype(np.float64)
    numbers = notation_of(column).read(values.fill_null(""))
    return np.where(are_filled(values), numbers, np.nan)


def _like_category(column: Column, values: pa.ChunkedArray) -> tuple[Inputs, npt.NDArray[np.bool_]]:
    coded = pa.chunked_array([values.combine_chunks()]) if values.num_chunks != 1 else values
    coded = coded.dictionary_encode(null_encoding="encode").chunk(0)
    codes = _codes(column.values, coded.dictionary.to_pylist())[coded.indices.to_numpy(zero_copy_only=False)]
    return indicators(codes, len(column.values)), codes < 0


def _codes(known: Sequence[str | None], values: Sequence[object]) -> npt.NDArray[np.int32]:
    """Return the number of each value among the known ones, -1 for others; 2 and 2.0 are one, as True and true are."""
    numbers = {_plain(value): number for number, value in reversed(list(enumerate(known)))}
    exact = {value: number for number, value in enumerate(known)}
    codes = [exact.get(None if one is None else str(one), numbers.get(_plain(one), -1)) for one in values]
    return np.array(codes, np.int32)


def _plain(value: object) -> object:
    text = str(value)
    if value is None or text.lower() in ("true", "false"):
        return None if value is None else text.lower()
    try:
        return float(text)
    except ValueError:
        return text


def rival(notation: Notation, texts: pa.ChunkedArray) -> Notation | None:
    """Return the notation in which more texts are numbers, or dates, than in a given one; None if there is none.

    Parameters
    ----------
    notation : Notation
        How the texts are to be read.
    texts : ChunkedArray
        Cleaned texts, null where missing.
    """
    readers = DATES if notation.is_date else NUMBERS
    filled = texts.drop_null()
    counts = {name: np.count_nonzero(~np.isnan(reader(filled))) for name, reader in readers.items()}
    most = max(counts, key=lambda one: (counts[one], one == notation.name))
    return Notation(most, notation.is_date) if counts[most] > counts[notation.name] else None
