"""Columns whose values are classes, domains or owners, as numbers 0, 1, ..."""

from collections.abc import Iterable
from textwrap import shorten

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hetfl_flwr.data.hub import Source, cells
from hetfl_flwr.errors import DataError

IntArray = npt.NDArray[np.int64]


def read_labels(source: Source) -> tuple[int, dict[str, IntArray]]:
    """Return the number of classes and the labels of each split.

    The classes are the names of a class-label column, or the values that the catalogue declares, or else the sorted
    distinct values of the training split: integers, truth values (false first) or strings. So integers 0..C-1
    stay as they are.

    Returns
    -------
    classes : int
        C, 2 or more.
    labels : dict
        Of each split (N,) int64, 0..C-1.

    Raises
    ------
    DataError
        If a label is missing, is none of the classes or of another type, or there are fewer than two classes.
    """
    columns = _columns(source, source.label, "label-column")
    values = _declared(source) or _distinct([columns["train"]])
    if len(values) < 2:
        raise DataError(
            f"column '{source.label}' of {source.place} has one value only, {_shown(values)}: "
            "set label-column to one that holds two or more classes"
        )
    return len(values), {split: _codes(source, split, found, values) for split, found in columns.items()}


def class_names(source: Source) -> tuple[str, ...]:
    """Return what the classes are called: by a class-label column, else by the values that stand for them."""
    values = _declared(source) or _distinct([_columns(source, source.label, "label-column")["train"]])
    names = getattr(source.splits["train"].features[source.label], "names", None) or ()
    called: dict[int | str, str] = dict(enumerate(names))
    return tuple(called.get(value, str(value)) for value in values)


def read_codes(source: Source, column: str, key: str) -> tuple[tuple[int | str, ...], IntArray]:
    """Return the sorted distinct values of a column, and of each row the number of its value.

    Parameters
    ----------
    source : Source
        It has the column in each of its splits.
    column : str
        Which one.
    key : str
        The config key that names it, for messages.

    Returns
    -------
    values : tuple of int or str
        Ascending, those of all splits.
    codes : ndarray
        (N,) int64, of the training rows first, then of the test rows.

    Raises
    ------
    DataError
        If a value is missing, or is no integer, truth value or string.
    """
    columns = _columns(source, column, key)
    values = _distinct(columns.values())
    return values, np.concatenate([_codes(source, split, found, values) for split, found in columns.items()])


def _declared(source: Source) -> tuple[int | str, ...]:
    classes = getattr(source.splits["train"].features[source.label], "num_classes", None)
    return source.values or tuple(range(classes or 0))


def _distinct(columns: Iterable[pa.ChunkedArray]) -> tuple[int | str, ...]:
    return tuple(sorted({value for found in columns for value in found.unique().to_pylist()}))


def _codes(source: Source, split: str, found: pa.ChunkedArray, values: tuple[int | str, ...]) -> IntArray:
    try:
        codes = pc.index_in(found, value_set=pa.array(values, found.type))
    except pa.ArrowException:
        raise DataError(
            f"column '{source.label}' of {source.place} holds {found.type}: labels must be {_shown(values)}"
        ) from None
    if codes.null_count:
        row = _first_null(codes)
        raise DataError(
            f"row {row} of split '{split}' of {source.place} has {source.label} {found[row].as_py()}: "
            f"labels must be {_shown(values)}"
        )
    labels: IntArray = codes.to_numpy().astype(np.int64)
    return labels


def _columns(source: Source, column: str, key: str) -> dict[str, pa.ChunkedArray]:
    """Return a column of each split, all int64 or all string, no value missing."""
    columns = {split: _plain(source, split, column, key) for split in source.splits}
    kinds = {str(found.type) for found in columns.values()}
    if len(kinds) > 1:
        raise DataError(
            f"column '{column}' of {source.place} holds {' and '.join(sorted(kinds))}: write all in one type"
        )
    return columns


def _plain(source: Source, split: str, column: str, key: str) -> pa.ChunkedArray:
    found = cells(source.splits[split], column)
    if found.null_count:
        raise DataError(
            f"row {_first_null(found)} of split '{split}' of {source.place} has no {column}: fill it in, or leave the "
            "row out"
        )
    try:
        if pa.types.is_string(found.type) or pa.types.is_large_string(found.type):
            return pc.utf8_trim_whitespace(found.cast(pa.large_string()))
        if pa.types.is_integer(found.type) or pa.types.is_floating(found.type) or pa.types.is_boolean(found.type):
            return found.cast(pa.int64())
    except pa.ArrowInvalid:  # a float that is no integer
        pass
    raise DataError(
        f"column '{column}' of {source.place} holds {found.type} in split '{split}': "
        f"set {key} to one that holds integers, truth values or strings"
    )


def _first_null(found: pa.ChunkedArray) -> int:
    return int(np.argmax(found.is_null().to_numpy()))


def _shown(values: tuple[int | str, ...]) -> str:
    """Return how messages call some values."""
    if len(values) > 2 and values == tuple(range(len(values))):
        return f"0..{len(values) - 1}"
    shown = [shorten(str(value), 30) for value in values[:20]]
    return ", ".join(shown) + (", ..." if len(values) > 20 else "")
