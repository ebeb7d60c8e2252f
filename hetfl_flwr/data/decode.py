"""Decode the cells of one column to one array of inputs, in batches; `hetfl predict` uses the same forms."""

from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from hetfl_flwr.data.cache import kept
from hetfl_flwr.data.frame import IntArray
from hetfl_flwr.data.labels import classes_of
from hetfl_flwr.data.opening import Source
from hetfl_flwr.data.overview import Overview
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import DataSpec
from hetfl_flwr.errors import DataError


class Form(Protocol):
    """How a cell becomes an input."""

    @property
    def dtype(self) -> type[np.generic]:
        """The type of the inputs."""

    @property
    def batch(self) -> int:
        """The number of cells that are read at a time."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an input."""

    def read(self, cells: pa.Array) -> tuple[npt.NDArray[Any], Mapping[int, str]]:
        """Return the inputs (B, *shape) in cells, and what is wrong with each invalid cell."""


def decode(source: Source, form: Form, rows: IntArray, key: tuple[object, ...], **facts: Any) -> Arrays:
    """Decode all rows of a data set with one input column; `kept` caches a large array.

    `rows` (N,) int64 is the order of the rows, which are numbered through the training split and then the test split.
    `key` is what the inputs depend on in addition to cells and order. `facts` are fields of `Arrays`, and the
    vocabulary of texts.
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
    """Return the cells of the only input column, in all splits."""
    [column] = source.inputs
    return source.frame[column]


def batches(source: Source, form: Form, rows: IntArray) -> Iterator[npt.NDArray[Any]]:
    """Yield all inputs in batches (B, *shape), then refuse invalid cells."""
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
