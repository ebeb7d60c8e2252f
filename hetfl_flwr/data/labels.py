"""Columns whose values are classes, domains or owners, as numbers 0, 1, ..."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from textwrap import shorten

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from hetfl_flwr.data.columns import ABSENT, NO_NUMBER
from hetfl_flwr.data.opening import Source
from hetfl_flwr.data.reading import parse_classes
from hetfl_flwr.data.roles import check_spelling, in_words, is_text
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.errors import DataError

IntArray = npt.NDArray[np.int64]

MOST_UNDECLARED = 20
"""Different labels up to which nobody asks whether a column is to be classified."""

FEWEST_ROWS = {"numbers": 10, "texts": 2}
"""Rows a label, on average, below which a column with more different ones is taken for a quantity, or for a name of
each row, unless ``classes`` declares it."""

_SEVERAL = re.compile(r"[;,|/+&]")  # what stands between several labels in one cell
_SINGLE = "only single-label classification is learnt here"


def read_labels(source: Source) -> tuple[int, dict[str, IntArray]]:
    """Return the number of classes and the labels of each split.

    The classes are those of ``classes``, or the names of a class-label column, or the values that the catalogue
    declares, or else the sorted distinct values of the training split: integers, truth values (false first) or strings.
    So integers 0..C-1 stay as they are.

    Returns
    -------
    classes : int
        C, 2 or more.
    labels : dict
        Of each split (N,) int64, 0..C-1.

    Raises
    ------
    DataError
        If a label is missing, is none of the classes or of another type, there are fewer than two classes, or so many
        that the column is a quantity to be estimated.
    """
    values, columns = _values(source), _columns(source, source.label, "label-column")
    codes = {split: _codes(source, found, values) for split, found in columns.items()}
    _check_known(source, columns, codes, values)
    return len(values), codes


TRUTH = ("False", "True")
"""What classes are called that are truth values, in their order."""


def _is_truth(source: Source) -> bool:
    """Say whether labels are truth values."""
    return bool(pa.types.is_boolean(source.splits["train"][source.label].type))


def class_names(source: Source) -> tuple[str, ...]:
    """Return what the classes are called: by ``classes``, by a class-label column, else by their values.

    Truth values are called ``False`` and ``True``.
    """
    if source.reading.classes:
        return tuple(name for name, _ in parse_classes(source.reading.classes))
    called: dict[int | str, str] = dict(enumerate(TRUTH if _is_truth(source) else _feature_names(source)))
    return tuple(called.get(value, str(value)) for value in _values(source))


def label_notes(source: Source) -> tuple[str, ...]:
    """Doubt labels that are many whole numbers, as quantities are, or some of which are several others in one cell."""
    if source.values or source.reading.classes or _feature_names(source):
        return ()
    values, called = _values(source), f"label column '{source.label}' of {source.place}"
    if not isinstance(values[0], str):
        many = f"{called}: {len(values)} different whole numbers are taken as classes; {_SINGLE}"
        return (many,) * (len(values) > MOST_UNDECLARED)
    known = {*values}
    for value in map(str, values):
        parts = [part.strip() for part in _SEVERAL.split(value)]
        if len(parts) > 1 and known.issuperset(parts):
            return (f"{called}: {value!r} is taken as a class of its own beside {parts[0]!r}; {_SINGLE}",)
    none = ", ".join(str(value) for value in values if value in NO_NUMBER or str(value).lower() in ABSENT)
    return (f"{called}: {none} is taken as a class; missing-values={none} if there is none then",) * bool(none)


def declared(arrays: Arrays, classes: str, place: str) -> Arrays:
    """Return a data set whose classes have names already, with the classes that a reading declares.

    Raises
    ------
    DataError
        If a label is none of them.
    """
    wanted = parse_classes(classes)
    if not wanted:
        return arrays
    order = {label: number for number, (_, label) in enumerate(wanted)}
    numbers = torch.tensor([order.get(name, -1) for name in arrays.class_names])
    left = set(arrays.labels[numbers[arrays.labels] < 0].tolist())
    if left:
        names = ", ".join(arrays.class_names[number] for number in sorted(left))
        raise DataError(f"{place} has labels {names}: labels must be {_shown(list(order))}, as classes says")
    spec = replace(arrays.spec, classes=len(wanted))
    return replace(arrays, spec=spec, labels=numbers[arrays.labels], class_names=tuple(name for name, _ in wanted))


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
    check_spelling(f"column '{column}' of {source.place}", values, "write both alike", cased=True)
    return values, np.concatenate([_codes(source, found, values) for found in columns.values()])


def _feature_names(source: Source) -> Sequence[str]:
    """Return the names of a class-label column; of any other none."""
    return source.splits["train"].classes.get(source.label, ())


@cache
def _values(source: Source) -> tuple[int | str, ...]:
    """Return the value that stands for each class."""
    found = _columns(source, source.label, "label-column")["train"]
    if source.reading.classes:
        return _wanted(source, found)
    values = source.values or tuple(range(len(_feature_names(source))))
    if values:
        return values
    values = _distinct([found])
    if len(values) < 2:
        raise DataError(
            f"column '{source.label}' of {source.place} has one value only, {_shown(values)}: "
            "set label-column to one that holds two or more classes, or declare them in classes"
        )
    called = f"label column '{source.label}' of {source.place}"
    check_spelling(called, values, "write both alike, or name all classes in classes if they are two")
    kind = "texts" if is_text(found.type) else "numbers"
    if len(values) > max(MOST_UNDECLARED, len(found) // FEWEST_ROWS[kind]):
        what = "this looks like regression" if kind == "numbers" else "this looks like a name of each row"
        raise DataError(
            f"label column '{source.label}' of {source.place} has {len(values)} different {kind} in {len(found)} rows: "
            f"{what}, and {_SINGLE}: name another label-column, or put it into a few classes"
        )
    return values


def _wanted(source: Source, found: pa.ChunkedArray) -> tuple[int | str, ...]:
    """Return the values that ``classes`` names; of a class that a class-label column lacks, one that no row has."""
    labels = [label for _, label in parse_classes(source.reading.classes)]
    if names := _feature_names(source):
        numbers = {name: number for number, name in enumerate(names)}
        return tuple(numbers.get(label, -1 - number) for number, label in enumerate(labels))
    if is_text(found.type):
        return tuple(labels)
    if _is_truth(source) and all(label.capitalize() in TRUTH for label in labels):
        return tuple(TRUTH.index(label.capitalize()) for label in labels)
    try:
        return tuple(map(int, labels))
    except ValueError:
        raise DataError(
            f"column '{source.label}' of {source.place} holds integers: write classes as integers, or as NAME:INTEGER"
        ) from None


def _distinct(columns: Iterable[pa.ChunkedArray]) -> tuple[int | str, ...]:
    return tuple(sorted({value for found in columns for value in found.unique().to_pylist()}))


def _codes(source: Source, found: pa.ChunkedArray, values: tuple[int | str, ...]) -> IntArray:
    """Return the number of each cell's value, -1 where it is none of them."""
    try:
        codes = pc.index_in(found, value_set=pa.array(values, found.type))
    except pa.ArrowException:
        raise DataError(
            f"column '{source.label}' of {source.place} holds {in_words(found.type)}: labels must be {_shown(values)}"
        ) from None
    labels: IntArray = codes.fill_null(-1).to_numpy().astype(np.int64)
    return labels


def _check_known(
    source: Source, columns: Mapping[str, pa.ChunkedArray], codes: Mapping[str, IntArray], values: Sequence[int | str]
) -> None:
    """Refuse labels that are none of the classes: how many rows have one, of all splits, and which labels they are."""
    rows = np.concatenate(list(codes.values())) < 0
    if not rows.any():
        return
    said = bool(source.reading.classes)
    others, known = _distinct(found.filter(pa.array(codes[split] < 0)) for split, found in columns.items()), values
    if said and (names := _feature_names(source)):
        others = tuple(sorted(names[int(value)] for value in others))
        known = tuple(label for _, label in parse_classes(source.reading.classes))
    raise DataError(
        f"{_which(source, rows, 'has', 'have')} {source.label} {_shown(others)}: "
        f"labels must be {_shown(known)}" + ", as classes says" * said
    )


@cache
def _columns(source: Source, column: str, key: str) -> dict[str, pa.ChunkedArray]:
    """Return a column of each split, all int64 or all string, no value missing."""
    there = filled(source, column, blank=key != "label-column")
    columns = {split: _plain(source, split, found, column, key) for split, found in there.items()}
    kinds = {in_words(found.type) for found in columns.values()}
    if len(kinds) > 1:
        raise DataError(
            f"column '{column}' of {source.place} holds {' and '.join(sorted(kinds))}: write all in one type"
        )
    return columns


def filled(source: Source, column: str, *, blank: bool = False) -> dict[str, pa.ChunkedArray]:
    """Return the cells of a column in each split, all of which must be there.

    Parameters
    ----------
    source : Source
        It has the column in each of its splits.
    column : str
        Which one.
    blank : bool
        Whether texts of nothing but white space are missing, too, and the column's name is for nobody else: of owners.

    Raises
    ------
    DataError
        If some are missing: how many, of all splits, and the first row.
    """
    columns = {split: data[column] for split, data in source.splits.items()}
    rows = np.concatenate([_is_missing(found, blank) for found in columns.values()])
    if rows.any():
        raise DataError(f"{_which(source, rows, 'has', 'have')} no {column}: fill it in, or leave the row out")
    return columns


def _is_missing(found: pa.ChunkedArray, blank: bool) -> npt.NDArray[np.bool_]:
    missing = found.is_null(nan_is_null=True)
    if blank and is_text(found.type):
        empty = pc.equal(pc.utf8_trim_whitespace(found.cast(pa.large_string())), "")
        missing = pc.or_(missing, pc.fill_null(empty, False))
    rows: npt.NDArray[np.bool_] = missing.to_numpy()
    return rows


def _which(source: Source, rows: npt.NDArray[np.bool_], one: str, several: str) -> str:
    """Return some of all rows (N,) as the beginning of a sentence: the first, how many more, and a verb."""
    more = int(rows.sum()) - 1
    first = f"row {source.where(int(np.argmax(rows)))}"
    return f"{first} and {more} more {several}" if more else f"{first} {one}"


def _plain(source: Source, split: str, found: pa.ChunkedArray, column: str, key: str) -> pa.ChunkedArray:
    try:
        if is_text(found.type):
            return pc.utf8_trim_whitespace(found.cast(pa.large_string()))
        if pa.types.is_integer(found.type) or pa.types.is_floating(found.type) or pa.types.is_boolean(found.type):
            return found.cast(pa.int64())
    except pa.ArrowInvalid:  # a float that is no integer
        pass
    where = f" in split '{split}'" if len(source.splits) > 1 else ""
    raise DataError(
        f"column '{column}' of {source.place} holds {in_words(found.type)}{where}{_differing_classes(found, key)}: set "
        f"{key} to one that holds whole numbers, truth values or texts"
    )


def _differing_classes(found: pa.ChunkedArray, key: str) -> str:
    """Return what a column of labels looks like that holds no classes."""
    if key != "label-column":
        return ""
    if pa.types.is_floating(found.type):
        return f", {len(found.unique())} different ones in {len(found)} rows (this looks like regression; {_SINGLE})"
    if pa.types.is_nested(found.type):
        return f", several labels a row ({_SINGLE})"
    return ""


def _shown(values: Sequence[int | str]) -> str:
    """Return how messages call some values."""
    if len(values) > 2 and tuple(values) == tuple(range(len(values))):
        return f"0..{len(values) - 1}"
    shown = [shorten(str(value), 30) for value in values[:20]]
    return ", ".join(shown) + (", ..." if len(values) > 20 else "")


def read_owners(source: Source, rows: IntArray) -> tuple[tuple[str, ...], torch.Tensor | None]:
    """Return the names of a data set's owners, and the number of each row's own.

    Parameters
    ----------
    source : Source
        Its owners are the files it was read from, or the values of its ``id_column``, ascending.
    rows : ndarray
        (N,) int64, the rows in the order that is wanted.

    Returns
    -------
    names : tuple of str
        By number; empty where nobody owns the rows.
    owners : Tensor or None
        (N,) int64; None where nobody does.

    Raises
    ------
    DataError
        If a row has no owner.
    """
    if source.files:
        numbers = np.concatenate([data.file for data in source.splits.values() if data.file is not None])
        there, codes = np.unique(numbers, return_inverse=True)
        return tuple(source.files[one] for one in there), torch.from_numpy(codes[rows].astype(np.int64))
    if source.reading.id_column:
        names, codes = read_codes(source, source.reading.id_column, "partition")
        return tuple(map(str, names)), torch.from_numpy(codes[rows])
    return (), None
