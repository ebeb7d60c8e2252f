"""Tables: columns read as numbers and categories, sliced over the clients, and brought to one scale."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from hetfl_flwr.data.columns import learnt_columns
from hetfl_flwr.data.labels import read_labels
from hetfl_flwr.data.samples import Arrays, DataSpec
from hetfl_flwr.errors import ConfigError, DataError, private
from hetfl_flwr.seeding import generator

if TYPE_CHECKING:
    from hetfl_flwr.data.hub import Source

MOST_VALUES, MOST_DECLARED = 64, 1000
"""Different values, a missing one among them, that a column of texts may have to be a category, and any may have that
``categorical-columns`` names."""

_MISSING = ["", "?", "NA"]


def read_table(source: "Source") -> Arrays:
    """Turn each row of a table into numbers, NaN where a number is missing.

    Texts lose blanks around them; what is then empty, ``?`` or ``NA`` is missing. A column of numbers, or of texts all
    of which are numbers, is one input. A column of truth values or other texts, and each of ``categorical-columns``, is
    a category: an input for each value that the training split has, 1 where it is the row's and 0 elsewhere, in sorted
    order; a missing value is a value like any other, and the last. With two values it is one input, 1 for the second.
    A value that only the test split has is 0 throughout.

    Returns
    -------
    Arrays
        Inputs (N, features) float32, neither scaled nor centred.

    Raises
    ------
    DataError
        If a key names no column of the table, or none is left; if a column has too many different texts, or neither
        numbers nor texts nor truth values; if a number is infinite; or the labels are not as they should be.
    """
    columns, categorical = learnt_columns(source.place, source.label, source.inputs, source.reading)
    classes, labels = read_labels(source)
    table, categories = _whole(source, columns), categorical | {*_class_labels(source)}
    encoded = [_encoded(source, name, table[name], name in categories) for name in columns]
    groups = tuple(values.shape[1] for values, _, _ in encoded)
    return Arrays(
        spec=DataSpec((sum(groups),), classes),
        inputs=torch.from_numpy(np.ascontiguousarray(np.hstack([values for values, _, _ in encoded]))),
        labels=torch.from_numpy(np.concatenate(list(labels.values()))),
        train_rows=len(labels["train"]),
        peak=1.0,
        centre=torch.zeros(sum(groups)),
        groups=groups,
        numeric=torch.from_numpy(np.repeat([numeric for _, _, numeric in encoded], groups)),
        input_names=tuple(name for _, names, _ in encoded for name in names),
    )


def parse_features(text: str) -> float | None:
    """Return the overlap of the slices that a text asks for, or None for "all".

    Parameters
    ----------
    text : str
        ``all``: every client has every column; or ``slices:OVERLAP``: each has a slice of its own, OVERLAP at
        least 0 and below 1; see `feature_slice`.

    Raises
    ------
    ConfigError
        If it is neither.

    Examples
    --------
    >>> parse_features("all"), parse_features("slices:0.5")
    (None, 0.5)
    """
    if text == "all":
        return None
    name, _, value = text.partition(":")
    try:
        overlap = float(value)
    except ValueError:
        overlap = -1.0
    if name != "slices" or not 0 <= overlap < 1:
        raise ConfigError(f"features {text!r} is not one of: all, slices:OVERLAP (0 <= OVERLAP < 1)")
    return overlap


def feature_slice(columns: int, clients: int, position: int, overlap: float | None, seed: int) -> tuple[int, ...]:
    """Return the columns of one client: its own part of them, and some of its neighbour's.

    As in SubTab (Ucar et al., NeurIPS 2021, section 3), which CHFL takes its feature slices from. The columns,
    in an order drawn by the seed, are cut into equal parts, one a client (where that leaves a remainder, the first
    parts have one more). Each client has its own part, and before it the last ``overlap`` of the part before, the
    last part coming before the first. So from three clients on, each shares that many columns with either neighbour.
    Departs from the paper: there the first slice is enlarged at its other end instead, and the slices form no ring.

    A column that is a category goes with all its inputs.

    Parameters
    ----------
    columns : int
        Columns of the table, 1 or more; see `groups_of`.
    clients : int
        K, the number of slices, 1 or more.
    position : int
        Which slice, 0..K-1.
    overlap : float
        In [0, 1): which fraction of a part, rounded to whole columns, the next client has, too. 0: no column is
        in two slices.
    seed : int
        The run's seed, 0 or more.

    Returns
    -------
    tuple of int
        Columns, ascending; all slices together cover all columns, and none is empty.

    Raises
    ------
    ConfigError
        If there are more slices than columns.

    Examples
    --------
    >>> [len(feature_slice(30, 3, position, 0.5, seed=0)) for position in range(3)]
    [15, 15, 15]
    """
    if overlap is None:
        return tuple(range(columns))
    if clients > columns:
        raise ConfigError(
            f"{clients} clients cannot share {columns} columns: use {columns} clients or fewer, or features all"
        )
    parts = np.array_split(generator(seed, "features").permutation(columns), clients)
    before = parts[position - 1]
    shared = before[len(before) - round(overlap * len(before)) :]
    return tuple(np.union1d(shared, parts[position]).tolist())


@cache
def sliced(table: Arrays, columns: tuple[int, ...]) -> Arrays:
    """Return some columns of a table that is not scaled yet, each with all the inputs it became.

    Equal arguments return one copy of the values; all columns in their order are the table itself, not copied. So a
    process holds one copy a slice, as many as there are clients in it and less than the columns.
    """
    widths = groups_of(table)
    if columns == tuple(range(len(widths))):
        return table
    ends = np.cumsum(widths)
    kept = np.concatenate([np.arange(ends[column] - widths[column], ends[column]) for column in columns])
    return replace(
        table,
        spec=DataSpec(kept.shape, table.spec.classes),
        inputs=table.inputs[:, kept],
        centre=table.centre[kept],
        groups=tuple(widths[column] for column in columns),
        numeric=None if table.numeric is None else table.numeric[kept],
        input_names=tuple(table.input_names[number] for number in kept) if table.input_names else (),
    )


@cache
def standardised(table: Arrays, rows: tuple[int, ...]) -> Arrays:
    """Return a table, its values not copied, whose numbers have mean 0 and standard deviation 1 over some rows.

    Missing values do not count. A column without two different numbers in these rows is 0 throughout. Categories stay
    as they are. Equal arguments return one object.

    Parameters
    ----------
    table : Arrays
        Not scaled yet.
    rows : tuple of int
        One or more rows: those that a client trains on.
    """
    values = table.inputs[torch.tensor(rows)].numpy().astype(np.float64)
    values[:, np.isnan(values).all(axis=0)] = 0
    deviation = np.nanstd(values, axis=0).astype(np.float32)
    deviation[deviation == 0] = np.inf
    mean = (np.nanmean(values, axis=0) / deviation).astype(np.float32)
    numeric = np.True_ if table.numeric is None else table.numeric.numpy()
    return replace(
        table,
        peak=torch.from_numpy(np.where(numeric, deviation, np.float32(1))),
        centre=torch.from_numpy(np.where(numeric, mean, np.float32(0))),
    )


@cache
def scaled_like(table: Arrays, other: Arrays) -> Arrays:
    """Return a table of the same columns, its values not copied, scaled as another is."""
    return replace(table, peak=other.peak, centre=other.centre)


def groups_of(table: Arrays) -> tuple[int, ...]:
    """Return how many inputs each column of a table became."""
    return table.groups or (1,) * len(table.centre)


def _class_labels(source: "Source") -> list[str]:
    """Return the columns that the data set itself declares as categories."""
    from datasets.features import ClassLabel

    from hetfl_flwr.data.hub import features_of

    return [name for name, feature in features_of(source.splits["train"]).items() if isinstance(feature, ClassLabel)]


def _whole(source: "Source", columns: Sequence[str]) -> pa.Table:
    """Return some columns of all splits, one after the other."""
    splits = [data.with_format("arrow")[:].select(list(columns)) for data in source.splits.values()]
    try:
        return pa.concat_tables(splits, promote_options="permissive")
    except pa.ArrowTypeError as error:
        raise DataError(f"the splits of {source.place} differ in the type of a column: {private(error)}") from error


def _encoded(
    source: "Source", name: str, values: pa.ChunkedArray, is_category: bool
) -> tuple[npt.NDArray[np.float32], list[str], bool]:
    """Return the inputs (N, features) that a column becomes, what they are called, and whether they are numbers."""
    values = _cleaned(values)
    if not any(is_kind(values.type) for is_kind in (_is_text, _is_number, pa.types.is_boolean)):
        raise DataError(
            f"column '{private(name)}' of {source.place} holds {private(values.type)}, not numbers, texts or truth "
            "values: name it in ignore-columns to leave it out"
        )
    if is_category or pa.types.is_boolean(values.type):
        return *_one_hot(source, name, values, MOST_DECLARED), False
    try:
        numbers = values.cast(pa.float64(), safe=False).to_numpy()
    except pa.ArrowInvalid:
        return *_one_hot(source, name, values, MOST_VALUES), False
    with np.errstate(over="ignore"):
        inputs = numbers.astype(np.float32)[:, None]
    _check_finite(source, name, inputs)
    return inputs, [name], True


def _cleaned(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose texts have no blanks around them, and in which null stands for all that is missing."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_floating(values.type):
        return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    if not _is_text(values.type):
        return values
    texts = pc.utf8_trim_whitespace(values.cast(pa.large_string()))
    missing = pc.is_in(texts, value_set=pa.array(_MISSING, texts.type))
    return pc.if_else(missing, pa.scalar(None, texts.type), texts)


def _is_text(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string))


def _is_number(kind: pa.DataType) -> bool:
    numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null
    return any(is_kind(kind) for is_kind in numbers)


def _one_hot(
    source: "Source", name: str, values: pa.ChunkedArray, most: int
) -> tuple[npt.NDArray[np.float32], list[str]]:
    known = values.slice(0, len(source.splits["train"])).unique().sort()  # null is the last
    if len(known) > most:
        otherwise = (
            f", in categorical-columns to take up to {MOST_DECLARED}, or in text-column to learn from its words alone"
        )
        raise DataError(
            f"column '{private(name)}' of {source.place} has {len(known)} different values, more than {most}: name it "
            f"in ignore-columns to leave it out{otherwise if most == MOST_VALUES else ''}"
        )
    codes: npt.NDArray[np.int32] = pc.index_in(values, value_set=known).fill_null(-1).to_numpy()
    inputs: npt.NDArray[np.float32] = (codes[:, None] == np.arange(len(known))).astype(np.float32)
    first = int(len(known) == 2)
    return inputs[:, first:], [f"{name}={value}" for value in known.to_pylist()[first:]]


def _check_finite(source: "Source", name: str, inputs: npt.NDArray[np.float32]) -> None:
    rows = np.flatnonzero(np.isinf(inputs))
    if rows.size:
        raise DataError(
            f"row {source.where(rows[0])} has an infinite {private(name)}, or one above 3e38: write a number below "
            "that, or nothing where it is missing"
        )
