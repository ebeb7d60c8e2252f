"""Columns whose values are classes, domains or owners, as numbers 0, 1, ..."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from textwrap import shorten

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from hetfl_flwr.data.columns import ABSENT, MIN_NUMBERS, NO_NUMBER, TEXT, are_missing, as_written
from hetfl_flwr.data.opening import Source
from hetfl_flwr.data.reading import parse_classes
from hetfl_flwr.data.roles import check_spelling, in_words, is_text
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.errors import DataError

IntArray = npt.NDArray[np.int64]
Values = tuple[int | str, ...]

MAX_UNDECLARED = 20
"""Maximum number of different labels that are accepted as classes without a doubt."""

MIN_ROWS = {"numbers": 10, "texts": 2}
"""Rows a label, on average, below which a column with more different ones is taken for a quantity, or for a name of
each row, unless ``classes`` declares it."""

TRUTH = ("False", "True")
"""What classes are called that are truth values, in their order."""

_SEVERAL = re.compile(r"[;,|/+&]")  # what stands between several labels in one cell
_SINGLE = "only single-label classification is supported"


@dataclass(frozen=True)
class Classes:
    """The classes of a data set, and the class of each row.

    Parameters
    ----------
    values : tuple of int or str
        The value that stands for each class, two or more.
    names : tuple of str
        What each class is called: by ``classes``, by a class-label column, else by its value.
    labels : ndarray
        (N,) int64, the class of each row, the training rows first.
    notes : tuple of str
        Doubts of labels that are many whole numbers, several others in one cell, or called like what is missing.
    """

    values: Values
    names: tuple[str, ...]
    labels: IntArray
    notes: tuple[str, ...] = ()


def classes_of(source: Source) -> Classes:
    """Return the classes of a data set; equal arguments return the same object.

    They are those of ``classes``, or the names of a class-label column, or the values that the catalogue declares, or
    else the sorted distinct values of the training split: integers, truth values (false first) or strings. So integers
    0..C-1 stay as they are.
    """
    return source.once(_classes)


def _classes(source: Source) -> Classes:
    written = source.once(_written, source.label, "label-column")
    truth, called = pa.types.is_boolean(written.type), source.frame.classes.get(source.label, ())
    found, wanted = _column(source, source.label, "label-column"), parse_classes(source.reading.classes)
    notes: tuple[str, ...] = ()
    if wanted:
        values = _wanted(source, found, TRUTH if truth else called, [label for _, label in wanted])
    elif source.values or called:
        values = source.values or tuple(range(len(called)))
    else:
        values = _distinct(found.slice(0, source.train_rows))
        notes = _doubts(source, found, values)
    names: dict[int | str, str] = dict(enumerate(TRUTH if truth else called))
    shown = tuple(name for name, _ in wanted) or tuple(names.get(value, str(value)) for value in values)
    return Classes(values, shown, _codes(source, found, values), notes)


def _doubts(source: Source, found: pa.ChunkedArray, values: Values) -> tuple[str, ...]:
    """Refuse undeclared values that cannot be classes; return doubts about others."""
    column = f"label column '{source.label}' of {source.place}"
    if len(values) < 2:
        raise DataError(
            f"{column} has one value only, {_shown(values)}: "
            "set label-column to one that holds two or more classes, or declare them in classes"
        )
    check_spelling(column, values, "write both alike, or name all classes in classes if they are two")
    kind = "texts" if is_text(found.type) else "numbers"
    if len(values) > max(MAX_UNDECLARED, source.train_rows // MIN_ROWS[kind]):
        what = "this looks like regression" if kind == "numbers" else "this looks like a name of each row"
        raise DataError(
            f"{column} has {len(values)} different {kind} in {source.train_rows} rows: {what}, and {_SINGLE}: "
            "name another label-column, or put it into a few classes"
        )
    alone = _alone(source, found, values)
    if kind == "numbers":
        many = f"{column}: {len(values)} different whole numbers are taken as classes; {_SINGLE}"
        return (many,) * (len(values) > MAX_UNDECLARED) + alone
    words = [*map(str, values)]
    for value in words:
        parts = [part.strip() for part in _SEVERAL.split(value)]
        if len(parts) > 1 and {*words}.issuperset(parts):
            return (f"{column}: {value!r} is taken as a class of its own beside {parts[0]!r}; {_SINGLE}", *alone)
    none = ",".join(value for value in words if value in NO_NUMBER or value.lower() in ABSENT)
    said = f"{column}: {none} is taken as a class; missing-values={none} if there is none then"
    return (said,) * bool(none) + alone


def _alone(source: Source, found: pa.ChunkedArray, values: Values) -> tuple[str, ...]:
    """Note classes of one row, such as a total, or the cell of another header, where others have several."""
    codes = pc.index_in(found, value_set=pa.array(values, found.type)).fill_null(-1).to_numpy()
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    rows = [(values[code], source.frame.rows_said(codes == code)) for code in np.flatnonzero(counts == 1)]
    if not rows or counts.max() < MIN_NUMBERS:
        return ()
    (value, where), *others = rows
    more = f" and {len(others)} more classes have" if others else " has"
    return (f"label column '{source.label}' of {source.place}: {value!r}{more} one row alone ({where})",)


def _wanted(source: Source, found: pa.ChunkedArray, called: Sequence[str], labels: Sequence[str]) -> Values:
    """Return the values that ``classes`` names; of a class that a class-label column lacks, one that no row has."""
    if called == TRUTH:
        labels = [label.capitalize() if label.capitalize() in TRUTH else label for label in labels]
    if called and (called != TRUTH or {*labels} <= {*TRUTH}):
        return tuple(called.index(label) if label in called else -1 - number for number, label in enumerate(labels))
    if is_text(found.type):
        return tuple(labels)
    try:
        return tuple(map(int, labels))
    except ValueError:
        raise DataError(
            f"column '{source.label}' of {source.place} holds integers: write classes as integers, or as NAME:INTEGER"
        ) from None


def declared(arrays: Arrays, classes: str, place: str) -> Arrays:
    """Return a data set whose classes have names already, with the classes that a reading declares."""
    wanted = parse_classes(classes)
    if not wanted:
        return arrays
    order = {label: number for number, (_, label) in enumerate(wanted)}
    numbers = torch.tensor([order.get(name, -1) for name in arrays.class_names])
    labels = numbers[arrays.labels]
    if left := sorted({*arrays.labels[labels < 0].tolist()}):
        names = ", ".join(arrays.class_names[number] for number in left)
        raise DataError(f"{place} has labels {names}: labels must be {_shown(list(order))}, as classes says")
    spec = replace(arrays.spec, classes=len(wanted))
    return replace(arrays, spec=spec, labels=labels, class_names=tuple(name for name, _ in wanted))


def read_codes(source: Source, column: str, key: str) -> tuple[Values, IntArray]:
    """Return the sorted distinct values of a column of all splits, and of each row (N,) the number of its value.

    Messages name ``key``, the run config's key for the column.
    """
    found = _column(source, column, key)
    values = _distinct(found)
    called = f"column '{column}' of {source.place}"
    check_spelling(called, values, "write both alike", cased=True)
    whole = {re.sub(r"^(-?(?:0|[1-9]\d*))\.0+$", r"\1", str(value)): value for value in values}
    if len(whole) < len(values):
        one = next(value for value in values if value not in whole.values())
        raise DataError(f"{called} holds {one!r} and {str(one).partition('.')[0]!r}, one number: write both alike")
    return values, pc.index_in(found, value_set=pa.array(values, found.type)).to_numpy().astype(np.int64)


def _distinct(found: pa.ChunkedArray) -> Values:
    return tuple(sorted(found.unique().to_pylist()))


def _codes(source: Source, found: pa.ChunkedArray, values: Values) -> IntArray:
    """Return the class of each label, all of which must have one."""
    called = source.frame.classes.get(source.label, ())
    said = parse_classes(source.reading.classes)
    known = _shown([label for _, label in said] or values) + ", as classes says" * bool(said)
    try:
        codes = pc.index_in(found, value_set=pa.array(values, found.type)).fill_null(-1).to_numpy()
    except pa.ArrowException:
        raise DataError(
            f"column '{source.label}' of {source.place} holds {in_words(found.type)}: labels must be {known}"
        ) from None
    labels: IntArray = codes.astype(np.int64)
    if (labels < 0).any():
        names: dict[int | str, str] = dict(enumerate(called))
        others = [names.get(value, value) for value in _distinct(found.filter(pa.array(labels < 0)))]
        rows = source.frame.rows_said(labels < 0)
        raise DataError(
            f"column '{source.label}' of {source.place} holds {_shown(others)} in {rows}: labels must be {known}"
        )
    return labels


def _column(source: Source, column: str, key: str) -> pa.ChunkedArray:
    """Return a column of all rows, int64 or text, no value missing."""
    found = source.once(_written, column, key)
    return found.cast(pa.int64()) if pa.types.is_boolean(found.type) else found


def _written(source: Source, column: str, key: str) -> pa.ChunkedArray:
    """Return a column of all rows as it is written: int64, truth values or text, no value missing."""
    found, reading, is_label = source.frame[column], source.reading, key == "label-column"
    words = () if is_label else reading.missing  # rows without a label are gone already
    if is_text(found.type):
        found = pc.utf8_trim_whitespace(found.cast(TEXT))
        found = pc.if_else(are_missing(found, ["", *words]), pa.scalar(None, TEXT), found)
        typed = as_written(found)
        decimal = pa.types.is_floating(typed.type) and (reading.classes or not is_label)  # 1.10 is not 1.1 then
        found = found if decimal else typed
    elif words and (pa.types.is_integer(found.type) or pa.types.is_floating(found.type)):
        found = pc.if_else(are_missing(found, words), pa.scalar(None, found.type), found)
    if is_label and is_text(found.type) and not reading.classes and (mixed := source.mixed_types(column)):
        raise DataError(f"column '{column}' of {source.place} holds {mixed}: write all in one type")
    kind = check_filled(source, column, found).type
    if is_text(kind) or pa.types.is_boolean(kind):
        return found
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        with suppress(pa.ArrowInvalid):  # a fraction
            return found.cast(pa.int64())
    looks = ""
    if is_label and pa.types.is_floating(kind):
        looks = f", {len(found.unique())} different ones in {len(found)} rows (this looks like regression; {_SINGLE})"
    elif is_label and pa.types.is_nested(kind):
        looks = f", several labels a row ({_SINGLE})"
    raise DataError(
        f"column '{column}' of {source.place} holds {in_words(kind)}{looks}: set {key} to one that holds whole "
        "numbers, truth values or texts"
    )


def check_filled(source: Source, column: str, cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the cells of a column; DataError if some are missing."""
    missing = cells.is_null(nan_is_null=True).to_numpy()
    if missing.any():
        rows = source.frame.rows_said(missing)
        raise DataError(f"column '{column}' of {source.place} is empty in {rows}: fill it in, or leave the row out")
    return cells


def _shown(values: Sequence[int | str]) -> str:
    """Return some values in the form of messages."""
    if len(values) > 2 and tuple(values) == tuple(range(len(values))):
        return f"0..{len(values) - 1}"
    shown = [shorten(str(value), 30) for value in values[:20]]
    return ", ".join(shown) + (", ..." if len(values) > 20 else "")


def read_owners(source: Source, rows: IntArray) -> tuple[tuple[str, ...], torch.Tensor | None]:
    """Return the names of a data set's owners, by number, and the number (N,) of each row's own; None without owners.

    The owners are the files that it was read from, or the values of its ``id_column``, ascending. ``rows`` (N,) is the
    order of rows that is wanted.
    """
    if source.owners:
        there, codes = np.unique(source.frame.in_file, return_inverse=True)
        return tuple(source.owners[one] for one in there), torch.from_numpy(codes[rows].astype(np.int64))
    if source.reading.id_column:
        names, codes = read_codes(source, source.reading.id_column, "partition")
        return tuple(map(str, names)), torch.from_numpy(codes[rows])
    return (), None
