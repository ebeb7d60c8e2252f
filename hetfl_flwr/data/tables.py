"""Tables: columns read as numbers and categories, sliced over the clients, and brought to one scale."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch

from hetfl_flwr.data.columns import Encoded, Wanted, encode
from hetfl_flwr.data.findings import Findings
from hetfl_flwr.data.labels import IntArray, labels_of
from hetfl_flwr.data.roles import learnt_columns
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import DataSpec
from hetfl_flwr.errors import ConfigError, DataError
from hetfl_flwr.seeding import generator

if TYPE_CHECKING:
    from hetfl_flwr.data.hub import Source


FEWEST_COPIES, MOST_COPIES = 20, 3
"""Training rows from which on a column that tells all classes is noted, and the values a class that it may have."""


def read_table(source: "Source", findings: Findings) -> Arrays:
    """Turn each row of a table into numbers, NaN where a number is missing.

    Texts lose blanks around them; what is then empty, ``?`` or ``NA`` is missing. A column of numbers, or of texts that
    are numbers but for a few, is one input, and so is one of dates: the number of days since 1970. A column of truth
    values or other texts, and each of ``categorical-columns``, is a category: an input for each value that the training
    split has, 1 where it is the row's and 0 elsewhere, in sorted order; a missing value is a value like any other, and
    the last. With two values it is one input, 1 for the second. A value that only the test split has is 0 throughout.
    A column of ids is left out, see `hetfl_flwr.data.columns`. Tables of the catalogue are taken as they are:
    there, only texts all of which are numbers are numbers, and no column is left out.

    Parameters
    ----------
    source : Source
        The table.
    findings : Findings
        What has been found of it before, and takes down the rest.

    Returns
    -------
    Arrays
        Inputs (N, features) float32, neither scaled nor centred.

    Raises
    ------
    DataError
        If a key names no column of the table, or none is left; or names all columns that cannot be learnt from: those
        with too many different texts, with neither numbers nor texts, dates or truth values, or an infinite number; and
        what is wrong with the labels, or has been found before.
    """
    columns, wanted = learnt_columns(source.place, source.label, source.inputs, source.reading)
    declared: dict[str, Wanted] = {**dict.fromkeys(source.splits["train"].classes, "category"), **wanted}
    classes, labels = labels_of(source, findings.problems)
    table = _whole(source, columns, findings)
    read = [encode(name, table[name], declared.get(name, ""), findings) for name in columns]
    encoded = [one for one in read if one is not None]
    _check(findings, encoded)
    _note_copies(findings, encoded, labels["train"])
    kept = tuple(one.column for one in encoded)
    groups = tuple(one.inputs.shape[1] for one in encoded)
    return Arrays(
        spec=DataSpec((sum(groups),), classes),
        inputs=torch.from_numpy(np.ascontiguousarray(np.hstack([one.inputs for one in encoded]))),
        labels=torch.from_numpy(np.concatenate(list(labels.values()))),
        train_rows=len(labels["train"]),
        peak=1.0,
        centre=torch.zeros(sum(groups)),
        groups=groups,
        numeric=torch.from_numpy(np.repeat([column.kind != "category" for column in kept], groups)),
        input_names=tuple(name for column in kept for name in column.input_names),
        columns=kept,
        notes=findings.notes,
    )


def _note_copies(findings: Findings, encoded: Sequence[Encoded], labels: IntArray) -> None:
    """Note columns that tell the classes apart by themselves: one value or more for each class, and none for two."""
    if findings.source.is_catalogued or len(labels) < FEWEST_COPIES:
        return
    most = MOST_COPIES * len(np.unique(labels))
    for one in encoded:
        inputs = one.inputs[: len(labels)]
        if len(np.unique(inputs[: 4 * most], axis=0)) > most:  # sorting all of each column takes long
            continue
        values = np.unique(inputs, axis=0, return_inverse=True)[1].ravel()
        pairs = len(np.unique(values * (labels.max() + 1) + labels))
        if pairs == len(np.unique(values)) <= most:
            findings.note(
                one.column.name,
                "its values alone tell the classes of all training rows: if it is the label once more, or known only "
                "after it, name it in ignore-columns",
            )


def _check(findings: Findings, encoded: Sequence[Encoded]) -> None:
    """Refuse a table that cannot be learnt from, with all that is wrong with it."""
    findings.problems.refuse()
    if not encoded:
        raise DataError(f"{findings.source.place} has no column to learn from: {'; '.join(findings.notes)}")


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
        columns=tuple(table.columns[column] for column in columns) if table.columns else (),
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


def _whole(source: "Source", columns: Sequence[str], findings: Findings) -> pa.Table:
    """Return some columns of all splits, one after the other."""
    splits = [data.table.select(list(columns)) for data in source.splits.values()]
    try:
        return pa.concat_tables(splits, promote_options="permissive")
    except pa.ArrowTypeError as error:
        findings.problems.add(f"the splits of {source.place} differ in the type of a column: {error}")
        raise findings.problems.error from error
