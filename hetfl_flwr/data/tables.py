"""Tables: slices of their columns, and columns brought to one scale."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch

from hetfl_flwr.data.samples import Arrays, DataSpec
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator


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

    Parameters
    ----------
    columns : int
        Columns of the table, 1 or more.
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
    """Return some columns of a table whose columns are not scaled yet; equal arguments return one copy."""
    kept = list(columns)
    spec = DataSpec((len(kept),), table.spec.classes)
    return replace(table, spec=spec, inputs=table.inputs[:, kept], centre=table.centre[kept])


@cache
def standardised(table: Arrays, rows: tuple[int, ...]) -> Arrays:
    """Return a table, its values not copied, whose columns have mean 0 and standard deviation 1 over some rows.

    A column that is constant over these rows is 0 throughout. Equal arguments return one object.

    Parameters
    ----------
    table : Arrays
        Its columns are not scaled yet.
    rows : tuple of int
        One or more rows: those that a client trains on.
    """
    values = table.inputs[list(rows)].numpy().astype(np.float64)
    deviation = values.std(axis=0).astype(np.float32)
    deviation[deviation == 0] = np.inf
    return replace(
        table,
        peak=torch.from_numpy(deviation),
        centre=torch.from_numpy((values.mean(axis=0) / deviation).astype(np.float32)),
    )
