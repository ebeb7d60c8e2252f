"""Step three: cells of one column become one array of inputs, batch by batch, by a form that `predict` reads by too."""

from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from hetfl_flwr.data.cache import kept
from hetfl_flwr.data.labels import IntArray, classes_of
from hetfl_flwr.data.opening import Source
from hetfl_flwr.data.overview import Overview
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import DataSpec
from hetfl_flwr.errors import DataError


class Form(Protocol):
    """How a cell becomes an input."""

    @property
    def dtype(self) -> type[np.generic]:
        """The type of its numbers."""

    @property
    def batch(self) -> int:
        """How many cells are read at a time."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an input."""

    def read(self, cells: pa.Array) -> tuple[npt.NDArray[Any], Mapping[int, str]]:
        """Return the inputs (B, *shape) of cells, and of those that are none what is wrong with them."""


def decode(source: Source, form: Form, rows: IntArray, key: tuple[object, ...], **facts: Any) -> Arrays:
    """Return all rows of a data set with one column of inputs; a large array is made once a machine, see `kept`.

    Parameters
    ----------
    source : Source
        The data set.
    form : Form
        How its cells are read.
    rows : ndarray
        (N,) int64, all its rows, in the order that they are wanted in: counted through the training split and then
        the test split.
    key : tuple
        What the inputs depend on beside the cells and their order.
    **facts
        Of `Arrays`, and the vocabulary of texts.
    """
    classes = classes_of(source)
    order = sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()
    inputs = kept(
        (source.digest, order, *key), (len(rows), *form.shape), form.dtype, partial(batches, source, form, rows)
    )
    return Arrays(
        spec=DataSpec(form.shape, len(classes.values), facts.pop("vocabulary", 0)),
        inputs=torch.from_numpy(inputs),
        labels=torch.from_numpy(classes.labels[rows]),
        train_rows=source.train_rows,
        peak=facts.pop("peak", 1.0),
        centre=torch.zeros(form.shape),
        overview=Overview.of(source),
        **facts,
    )


def cells_of(source: Source) -> pa.ChunkedArray:
    """Return the cells of the only column of inputs, of all splits."""
    [column] = source.inputs
    return source.frame[column]


def batches(source: Source, form: Form, rows: IntArray) -> Iterator[npt.NDArray[Any]]:
    """Read all cells, batch by batch: each (B, *shape); afterwards refuse them if some are no inputs."""
    cells, wrong = cells_of(source), dict[int, str]()
    for first in range(0, len(rows), form.batch):
        some = rows[first : first + form.batch]
        follow = some[-1] - some[0] == len(some) - 1 and bool((np.diff(some) == 1).all())
        chunk = cells.slice(some[0], len(some)) if follow else cells.take(pa.array(some))
        inputs, odd = form.read(chunk.combine_chunks())
        wrong |= {int(some[row]): why for row, why in odd.items()}
        yield inputs
    pa.default_memory_pool().release_unused()
    if wrong:
        said = source.frame.rows_said(np.isin(np.arange(len(rows)), [*wrong]))
        raise DataError(f"column '{source.inputs[0]}' of {source.place}, {said}: {wrong[min(wrong)]}")
