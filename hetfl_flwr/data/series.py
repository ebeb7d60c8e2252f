"""Time series: lists of numbers of one shape, as channels and points in time, brought to one scale by channel."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from hetfl_flwr.data.cache import kept
from hetfl_flwr.data.labels import IntArray, read_labels
from hetfl_flwr.data.reading import SeriesLayout
from hetfl_flwr.data.roles import in_words
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import DataSpec
from hetfl_flwr.errors import DataError

if TYPE_CHECKING:
    from hetfl_flwr.data.opening import Source

FloatArray = npt.NDArray[np.float32]

_DEEPEST = 2  # lists within each other in a cell
_BATCH = 5000  # series that are read at a time
_SHOWN = 5  # names in a note, at most


class Layout(NamedTuple):
    """How cells become series.

    Parameters
    ----------
    cell : tuple of int
        Lengths of the lists of a cell: (length,) of one list, else of the outer list and of each inner one.
    transposed : bool
        Whether the outer list is of points in time.
    """

    cell: tuple[int, ...]
    transposed: bool

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of a series: channels and length."""
        channels, length = self.cell if len(self.cell) > 1 else (1, *self.cell)
        return (length, channels) if self.transposed else (channels, length)

    def series(self, values: FloatArray) -> FloatArray:
        """Return the numbers of B cells, one after the other, as series (B, channels, length)."""
        lists = values.reshape(-1, *(self.shape[::-1] if self.transposed else self.shape))
        return lists.swapaxes(1, 2) if self.transposed else lists


@dataclass
class Cells:
    """Some cells of a column: the lengths of their lists, and the numbers of those that have the wanted ones.

    Parameters
    ----------
    values : ndarray
        Numbers of the cells that are as wanted, one after the other; NaN where one is missing.
    odd : ndarray
        (B,) bool, which cells have another shape, or none.
    outer : ndarray
        (B,) int64, the lengths of their outer lists; -1 where a cell is empty.
    inner : list of ndarray
        One of int64, the lengths of all inner lists; nothing where the outer ones hold numbers.
    """

    values: FloatArray
    odd: npt.NDArray[np.bool_]
    outer: IntArray
    inner: list[IntArray]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the lists of the first cell, as in `Layout`."""
        return (int(self.outer[0]), *(int(lengths[0]) for lengths in self.inner if len(lengths)))

    def shape(self, row: int) -> str:
        """Return what messages call the shape of a cell."""
        if self.outer[row] < 0:
            return "nothing"
        if not self.inner:
            return f"{self.outer[row]} numbers"
        starts = np.concatenate([[0], np.cumsum(np.maximum(self.outer, 0))])
        lengths = sorted(set(np.maximum(self.inner[0][starts[row] : starts[row + 1]], 0).tolist()))
        if not lengths:
            return "0 lists"
        return f"{self.outer[row]} x {lengths[0] if len(lengths) == 1 else f'{lengths[0]} to {lengths[-1]}'}"


@dataclass
class _Wrong:
    """Rows that cannot be learnt from: how many, and the first."""

    count: int = 0
    first: str = ""

    def add(self, rows: npt.NDArray[np.bool_], where: str) -> None:
        self.first = self.first or where
        self.count += int(rows.sum())


def read_series(source: "Source") -> Arrays:
    """Turn each cell of a column into a series (channels, length); a large set is turned once a machine, see `kept`.

    A cell is a list of numbers, which is one channel, or a list of such lists, all of one length. The outer list is the
    channels (``series-layout = "channels-first"``) or the points in time (``"channels-last"``). With ``"auto"`` the
    channels are whichever are fewer in the first row, and a note says so where they are the inner lists; as many of one
    as of the other are refused.

    Parameters
    ----------
    source : Source
        It has one column of series.

    Returns
    -------
    Arrays
        Inputs (N, channels, length) float32, not scaled.

    Raises
    ------
    DataError
        If the column holds no such lists, they differ in shape, or a number is missing or infinite; or the labels are
        not as they should be.
    """
    classes, labels = read_labels(source)
    layout = layout_of(source)
    shape = len(source), *layout.shape
    inputs = kept((source.digest, layout), shape, np.float32, partial(_batches, source, layout))
    return Arrays(
        spec=DataSpec(layout.shape, classes),
        inputs=torch.from_numpy(inputs),
        labels=torch.from_numpy(np.concatenate(list(labels.values()))),
        train_rows=len(labels["train"]),
        peak=1.0,
        centre=torch.zeros(layout.shape),
        notes=_notes(source, layout),
    )


def layout_of(source: "Source") -> Layout:
    """Return how the cells of a data set become series, by its first row."""
    [column] = source.inputs
    first = source.splits["train"][column].slice(0, 1).combine_chunks()
    called = f"column '{column}' of {source.place}"
    return layout_by(cells_of(first, called), source.reading.series_layout, called)


def layout_by(first: Cells, wanted: SeriesLayout, called: str) -> Layout:
    """Return how cells become series, by the first of them, which are all as this one is."""
    cell = first.lengths
    if first.odd[0] or min(cell) < 1:
        raise DataError(f"{called}: its first row holds {first.shape(0)}: expected lists of numbers of one length")
    if len(cell) == 1:
        return Layout(cell, transposed=False)
    if wanted == "auto" and cell[0] == cell[1] > 1:
        raise DataError(
            f"{called} holds {cell[0]} x {cell[1]} numbers a row: set series-layout to channels-first or channels-last"
        )
    return Layout(cell, wanted == "channels-last" or (wanted == "auto" and cell[0] > cell[1]))


def cells_of(column: pa.Array, called: str, wanted: tuple[int, ...] = ()) -> Cells:
    """Return what the cells of a column hold.

    Parameters
    ----------
    column : Array
        B cells: lists of numbers, or lists of these.
    called : str
        What messages call it.
    wanted : tuple of int
        The lengths that the lists are to have, as in `Layout`. Empty: those of the first row.

    Raises
    ------
    DataError
        They are no such lists.
    """
    lists = column
    levels: list[IntArray] = []
    while _is_list(lists.type) and len(levels) <= _DEEPEST:
        levels.append(pc.list_value_length(lists).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64))
        lists = pc.list_flatten(lists)
    if not levels or len(levels) > _DEEPEST or not _is_number(lists.type):
        found = "lists of " * len(levels) + in_words(lists.type)
        raise DataError(
            f"{called} holds {found}: expected lists of numbers (one channel), or lists of these (channels x length)"
        )
    outer, inner = levels[0], levels[1:]
    wanted = wanted or (int(outer[0]), *(int(lengths[0]) for lengths in inner if len(lengths)))
    odd = outer != wanted[0] if len(wanted) == len(levels) else np.ones(len(outer), np.bool_)
    if inner and len(wanted) > 1:
        owner = np.repeat(np.arange(len(outer)), np.maximum(outer, 0))
        odd = odd | (np.bincount(owner[inner[0] != wanted[1]], minlength=len(outer)) > 0)
    if odd.any():
        column = column.filter(pa.array(~odd))
        return Cells(cells_of(column, called, wanted).values, odd, outer, inner)
    with np.errstate(over="ignore"):  # what is too large is told with what is infinite
        values = lists.to_numpy(zero_copy_only=False).astype(np.float32)
    return Cells(values, odd, outer, inner)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))


def _batches(source: "Source", layout: Layout) -> Iterator[FloatArray]:
    """Turn all cells into series, batch by batch, and refuse them afterwards if some cannot be learnt from."""
    [column] = source.inputs
    shape, lack, called = _Wrong(), _Wrong(), f"column '{column}' of {source.place}"
    for split, data in source.splits.items():
        first_row = 0 if split == "train" else source.train_rows
        row = 0
        for start in range(0, len(data), _BATCH):
            cells = cells_of(data[column].slice(start, _BATCH).combine_chunks(), called, layout.cell)
            series = layout.series(cells.values)
            if cells.odd.any():
                first = int(np.argmax(cells.odd))
                shape.add(cells.odd, f"row {source.where(first_row + row + first)}: {cells.shape(first)}")
            bad = missing(series)
            if bad.any():
                first = row + int(np.flatnonzero(~cells.odd)[np.argmax(bad)])
                lack.add(bad, f"row {source.where(first_row + first)}")
            yield np.zeros((len(cells.odd), *layout.shape), np.float32) if cells.odd.any() else series
            row += len(cells.odd)
    if shape.count:
        raise DataError(
            f"{called}: {shape.count} of {len(source)} rows have another shape than the first, "
            f"{' x '.join(map(str, layout.cell))} ({shape.first}): cut or fill them to one length, or leave them out"
        )
    if lack.count:
        raise DataError(
            f"{called}: {lack.count} of {len(source)} rows have numbers that are missing or infinite ({lack.first}): "
            "fill them in, or leave these rows out"
        )


def missing(series: FloatArray) -> npt.NDArray[np.bool_]:
    """Say of each of some series (B, channels, length) whether a number of it is missing or infinite: (B,)."""
    return np.asarray(~np.isfinite(series).all(axis=(1, 2)))


def _notes(source: "Source", layout: Layout) -> tuple[str, ...]:
    """Return what was done with the data that nobody has asked for."""
    [column] = source.inputs
    reading, notes = source.reading, []
    if layout.transposed and reading.series_layout == "auto":
        channels, length = layout.shape
        notes.append(
            f"column {column!r} of {source.place} holds {length} lists of {channels} numbers a row: read "
            f"as {channels} channels of length {length}; series-layout says otherwise"
        )
    known = (column, source.label, reading.domain_column, reading.id_column)
    others = [name for name in source.splits["train"].names if name not in known]
    if others and not (source.is_catalogued or reading.series_column):
        named = ", ".join(others[:_SHOWN]) + (f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else "")
        notes.append(f"column {column!r} of {source.place} holds time series, which are learnt from; left out: {named}")
    return tuple(notes)
