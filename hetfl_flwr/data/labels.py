"""Encode labels, domains and owners as integers 0, 1, ..."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from textwrap import shorten

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from hetfl_flwr.data.columns import MIN_NUMBERS, TEXT, are_missing, as_written, marks_missing
from hetfl_flwr.data.frame import IntArray
from hetfl_flwr.data.opening import Source
from hetfl_flwr.data.reading import parse_classes
from hetfl_flwr.data.roles import check_spelling, in_words, is_text
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.errors import DataError

Values = tuple[int | str, ...]

MAX_UNDECLARED = 20
"""The most distinct labels that are accepted as classes without a warning."""

MIN_ROWS = {"numbers": 10, "texts": 2}
"""The fewest rows for each label, on average, in a column with more labels than that; with fewer it is a quantity, or a
name of each row, unless ``classes`` declares the labels."""

TRUTH = ("False", "True")
"""The names of the two classes of a boolean column, in order."""

_SEVERAL = re.compile(r"[;,|/+&]")  # separators of several labels in one cell
_SINGLE = "only single-label classification is supported"


@dataclass(frozen=True)
class Classes:
    """The classes of a data set, and the class of each row.

    `values` has the value in the label column of each of the C classes, two or more, and `names` its name: from
    ``classes``, from a class-label column, or the value itself. `labels` (N,) int64 are 0..C-1, training rows first.
    `notes` name doubtful labels: many whole numbers, combinations of other labels, or markers of missing values.
    """

    values: Values
    names: tuple[str, ...]
    labels: IntArray
    notes: tuple[str, ...] = ()


def classes_of(source: Source) -> Classes:
    """Return the classes of a data set; the same source returns the same object.

    They are taken from ``classes``, from a class-label column or from the catalogue, else they are the sorted distinct
    values of the training split: integers, booleans (false first) or strings. So integers 0..C-1 do not change.
    """
    return source.once(_classes)


def _classes(source: Source) -> Classes:
    written = source.once(_typed, source.label, "label-column")
    truth, called = pa.types.is_boolean(written.type), source.frame.classes.get(source.label, ())
    found, wanted = _column(source, source.label, "label-column"), parse_classes(source.reading.classes)
    notes: tuple[str, ...] = ()
    if wanted:
        values = _declared_values(source, found, TRUTH if truth else called, [label for _, label in wanted])
    elif source.values or called:
        values = source.values or tuple(range(len(called)))
    else:
        values = _distinct(found.slice(0, source.train_rows))
        notes = _doubts(source, found, values)
    names: dict[int | str, str] = dict(enumerate(TRUTH if truth else called))
    shown = tuple(name for name, _ in wanted) or tuple(names.get(value, str(value)) for value in values)
    return Classes(values, shown, _codes(source, found, values), notes)


def _doubts(source: Source, found: pa.ChunkedArray, values: Values) -> tuple[str, ...]:
    """Refuse undeclared values that cannot be classes; return notes on doubtful ones."""
    column = f"label column '{source.label}' of {source.place}"
    if len(values) < 2:
        raise DataError(
            f"{column} has only one value, {_shown(values)}: "
            "set label-column to a column with two or more classes, or set classes to a list of them"
        )
    check_spelling(column, values, "write both the same way, or set classes to a list of all classes if they differ")
    kind = "texts" if is_text(found.type) else "numbers"
    if len(values) > max(MAX_UNDECLARED, source.train_rows // MIN_ROWS[kind]):
        what = "this looks like regression" if kind == "numbers" else "this looks like a name of each row"
        raise DataError(
            f"{column} has {len(values)} different {kind} in {source.train_rows} rows: {what}, and {_SINGLE}: "
            "set label-column to another column, or group the values into a few classes"
        )
    alone = _alone(source, found, values)
    if kind == "numbers":
        many = f"{column}: {len(values)} different whole numbers are treated as classes; {_SINGLE}"
        return (many,) * (len(values) > MAX_UNDECLARED) + alone
    words = [*map(str, values)]
    for value in words:
        parts = [part.strip() for part in _SEVERAL.split(value)]
        if len(parts) > 1 and {*words}.issuperset(parts):
            return (f"{column}: {value!r} is treated as another class than {parts[0]!r}; {_SINGLE}", *alone)
    none = ",".join(value for value in words if marks_missing(value))
    note = f"{column}: {none} is treated as a class; set missing-values={none} if it means a missing label"
    return (note,) * bool(none) + alone


def _alone(source: Source, found: pa.ChunkedArray, values: Values) -> tuple[str, ...]:
    """Note classes with a single row, such as a total or a repeated header, if other classes have more."""
    codes = pc.index_in(found, value_set=pa.array(values, found.type)).fill_null(-1).to_numpy()
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    rows = [(values[code], source.frame.rows_said(codes == code)) for code in np.flatnonzero(counts == 1)]
    if not rows or counts.max() < MIN_NUMBERS:
        return ()
    (value, where), *others = rows
    more = f" and {len(others)} more classes have" if others else " has"
    return (f"label column '{source.label}' of {source.place}: {value!r}{more} only one row ({where})",)


def _declared_values(source: Source, found: pa.ChunkedArray, called: Sequence[str], labels: Sequence[str]) -> Values:
    """Return the values of the `labels` that ``classes`` lists.

    `called` are the names of a class-label column. A class that is not among them gets a negative value, which no row
    has.
    """
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
    """Return a data set with named classes in the order of ``classes``; unchanged if `classes` is empty."""
    wanted = parse_classes(classes)
    if not wanted:
        return arrays
    order = {label: number for number, (_, label) in enumerate(wanted)}
    numbers = torch.tensor([order.get(name, -1) for name in arrays.class_names])
    labels = numbers[arrays.labels]
    if left := sorted({*arrays.labels[labels < 0].tolist()}):
        names = ", ".join(arrays.class_names[number] for number in left)
        raise DataError(f"{place} has labels {names}: labels must be {_shown(list(order))}, as listed in classes")
    spec = replace(arrays.spec, classes=len(wanted))
    return replace(arrays, spec=spec, labels=labels, class_names=tuple(name for name, _ in wanted))


def read_codes(source: Source, column: str, key: str) -> tuple[Values, IntArray]:
    """Return the sorted distinct values of a column in all splits, and the index of each row's value (N,).

    `key` is the key of the run config that names the column, for messages.
    """
    found = _column(source, column, key)
    values = _distinct(found)
    called = f"column '{column}' of {source.place}"
    check_spelling(called, values, "write both the same way", cased=True)
    return values, pc.index_in(found, value_set=pa.array(values, found.type)).to_numpy().astype(np.int64)


def _distinct(found: pa.ChunkedArray) -> Values:
    return tuple(sorted(found.unique().to_pylist()))


def _codes(source: Source, found: pa.ChunkedArray, values: Values) -> IntArray:
    """Return the class index of each label; refuse labels without a class."""
    called = source.frame.classes.get(source.label, ())
    said = parse_classes(source.reading.classes)
    known = _shown([label for _, label in said] or values) + ", as listed in classes" * bool(said)
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
    """Return a column of all rows as int64 or text; refuse missing values."""
    found = source.once(_typed, column, key)
    return found.cast(pa.int64()) if pa.types.is_boolean(found.type) else found


def _typed(source: Source, column: str, key: str) -> pa.ChunkedArray:
    """Return a column of all rows as int64, booleans or text; refuse missing values."""
    found, reading, is_label = source.frame[column], source.reading, key == "label-column"
    words = () if is_label else reading.missing  # rows without a label were left out
    if is_text(found.type):
        found = pc.utf8_trim_whitespace(found.cast(TEXT))
        found = pc.if_else(are_missing(found, ["", *words]), pa.scalar(None, TEXT), found)
        typed = as_written(found)
        decimal = pa.types.is_floating(typed.type) and (reading.classes or not is_label)  # 1.10 is not 1.1 then
        found = found if decimal else typed
    elif words and (pa.types.is_integer(found.type) or pa.types.is_floating(found.type)):
        found = pc.if_else(are_missing(found, words), pa.scalar(None, found.type), found)
    if is_label and is_text(found.type) and not reading.classes and (mixed := source.mixed_types(column)):
        raise DataError(f"column '{column}' of {source.place} holds {mixed}: use one type in all files")
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
        looks = f", several labels in each row ({_SINGLE})"
    raise DataError(
        f"column '{column}' of {source.place} holds {in_words(kind)}{looks}: set {key} to one that holds whole "
        "numbers, booleans or texts"
    )


def check_filled(source: Source, column: str, cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the cells of a column; refuse missing values."""
    missing = cells.is_null(nan_is_null=True).to_numpy()
    if missing.any():
        rows = source.frame.rows_said(missing)
        raise DataError(f"column '{column}' of {source.place} is empty in {rows}: fill it in, or leave the row out")
    return cells


def _shown(values: Sequence[int | str]) -> str:
    """List values for a message; many are shortened."""
    if len(values) > 2 and tuple(values) == tuple(range(len(values))):
        return f"0..{len(values) - 1}"
    shown = [shorten(str(value), 30) for value in values[:20]]
    return ", ".join(shown) + (", ..." if len(values) > 20 else "")


def read_owners(source: Source, rows: IntArray) -> tuple[tuple[str, ...], torch.Tensor | None]:
    """Return the names of the owners of rows, and the index of each row's owner (N,), in the order `rows`.

    Owners are files, or the sorted values of the reading's ``id_column``. Without owners, return () and None.
    """
    if source.owners:
        there, codes = np.unique(source.frame.in_file, return_inverse=True)
        return tuple(source.owners[one] for one in there), torch.from_numpy(codes[rows].astype(np.int64))
    if source.reading.id_column:
        names, codes = read_codes(source, source.reading.id_column, "partition")
        return tuple(map(str, names)), torch.from_numpy(codes[rows])
    return (), None
