"""Decode time series: lists of numbers of one shape become channels and points in time."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hetfl_flwr.data.columns import numbers_among
from hetfl_flwr.data.decode import batches, cells_of, decode
from hetfl_flwr.data.frame import IntArray
from hetfl_flwr.data.opening import Source
from hetfl_flwr.data.reading import SeriesLayout
from hetfl_flwr.data.roles import in_words
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.scaling import SHARP
from hetfl_flwr.errors import DataError

FloatArray = npt.NDArray[np.floating]

_DEEPEST = 2  # the deepest nesting of lists in a cell
_AT_ONCE = 2**17  # how many numbers are read at a time


@dataclass(frozen=True)
class Layout:
    """How cells become series.

    `cell` is the shape of a cell: the length of its list, or the lengths of its outer and inner lists. `transposed`
    tells that the outer list is over time. `dtype` is the type of the numbers, and `missing` lists numbers that mark
    missing values.
    """

    cell: tuple[int, ...]
    transposed: bool = False
    dtype: type[np.floating] = np.float32
    missing: tuple[float, ...] = ()

    @classmethod
    def of(cls, cell: pa.Array, wanted: SeriesLayout, called: str) -> "Layout":
        """Return the layout of the first cell, which all other cells must have."""
        lengths, _ = _lists(cell, called)
        shape = tuple(int(level[0]) if len(level) else 0 for level in lengths)
        if min(shape) < 1 or len(set(lengths[-1].tolist())) > 1:
            shown = _shown(cell[0])
            raise DataError(f"{called}: its first row holds {shown}: expected lists of numbers of the same length")
        if wanted == "auto" and len(shape) == _DEEPEST and shape[0] == shape[1] > 1:
            raise DataError(
                f"{called} holds {shape[0]} x {shape[1]} numbers in each row: set series-layout to channels-first or "
                "channels-last"
            )
        outer_is_time = wanted == "channels-last" or (wanted == "auto" and shape[0] > shape[-1])
        return cls(shape, len(shape) == _DEEPEST and outer_is_time)

    @property
    def batch(self) -> int:
        """The number of cells that are read at a time."""
        return max(1, _AT_ONCE // prod(self.shape))

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of a series: (channels, length)."""
        channels, length = self.cell if len(self.cell) > 1 else (1, *self.cell)
        return (length, channels) if self.transposed else (channels, length)

    def read(self, cells: pa.Array) -> tuple[FloatArray, Mapping[int, str]]:
        """Return the series (B, channels, length) in cells, and what is wrong with each invalid cell."""
        lengths, numbers = _lists(cells, "a cell")
        fit = lengths[0] == self.cell[0] if len(lengths) == len(self.cell) else np.zeros(len(cells), np.bool_)
        if len(lengths) > 1 and len(self.cell) > 1:
            owner = np.repeat(np.arange(len(cells)), np.maximum(lengths[0], 0))
            fit &= np.bincount(owner[lengths[1] != self.cell[1]], minlength=len(cells)) == 0
        if not fit.all():
            numbers = _lists(cells.filter(pa.array(fit)), "a cell")[1]
        with np.errstate(over="ignore"):  # numbers that are too large become infinite
            values = numbers.to_numpy(zero_copy_only=False).astype(self.dtype)
        if self.missing:
            values[np.isin(values, np.array(self.missing, self.dtype))] = np.nan
        sound = values.reshape(-1, *(self.shape[::-1] if self.transposed else self.shape))
        series = np.zeros((len(cells), *self.shape), self.dtype)
        series[fit] = sound.swapaxes(1, 2) if self.transposed else sound
        unknown = ~(np.abs(series) <= np.finfo(np.float32).max).all(axis=(1, 2))
        why = "has numbers that are missing or infinite: fill them in, or leave the row out"
        odd = {int(row): why for row in np.flatnonzero(unknown)}
        return series, odd | {int(row): self._differs(cells[row]) for row in np.flatnonzero(~fit)}

    def _differs(self, cell: pa.Scalar) -> str:
        wanted = " x ".join(map(str, self.cell))
        return f"holds {_shown(cell)}, not {wanted} numbers: cut or pad all to one length, or leave it out"


def read_series(source: Source, rows: IntArray) -> Arrays:
    """Decode each cell of a column to a series (channels, length); `decode` describes the arguments.

    A cell is a list of numbers, which is one channel, or a list of lists of the same length. The outer list is over
    channels (``series-layout = "channels-first"``) or over time (``"channels-last"``). With ``"auto"`` the shorter side
    of the first row is the channels, with a note if these are the inner lists; a square shape is refused.
    """
    called = f"column '{source.inputs[0]}' of {source.place}"
    first = cells_of(source).slice(0, 1).combine_chunks()
    layout, kind = Layout.of(first, source.reading.series_layout, called), _lists(first, called)[1].type
    layout = replace(layout, missing=(*numbers_among(source.reading.missing),))
    is_wide = pa.types.is_float64(kind) or (pa.types.is_integer(kind) and kind.bit_width > 16)
    if is_wide and _needs_float64(source, layout):
        layout = replace(layout, dtype=np.float64)
    notes: tuple[str, ...] = ()
    if layout.transposed and source.reading.series_layout == "auto":
        channels, length = layout.shape
        notes = (
            f"{called} holds {length} lists of {channels} numbers in each row: read as {channels} channels of length "
            f"{length}; to change that, set series-layout",
        )
    return decode(source, layout, rows, (layout,), notes=notes, input_names=source.channels, columns=source.columns)


def _needs_float64(source: Source, layout: Layout) -> bool:
    """Return whether float32 changes a number by more than `SHARP` of the variation of its channel within series.

    For a channel that is constant within each series, the variation between series counts.
    """
    lost, within, among = np.zeros((3, layout.shape[0]))
    first: FloatArray | None = None
    for series in batches(source, replace(layout, dtype=np.float64), np.arange(len(source))):
        first = series[:1, :, 0] if first is None else first
        lost = np.maximum(lost, np.abs(series - series.astype(np.float32)).max(axis=(0, 2)))
        within += np.square(series - series[..., :1]).sum(axis=(0, 2))
        among += np.square(series[..., 0] - first).sum(axis=0)
    change = np.sqrt(np.where(within > 0, within / layout.shape[1], among) / len(source))
    return bool(((change > 0) & (lost > SHARP * change)).any())


def _lists(cells: pa.Array, called: str) -> tuple[list[IntArray], pa.Array]:
    """Return the lengths of lists at each level of nesting, -1 for an empty cell, and the flattened numbers."""
    levels: list[IntArray] = []
    while len(levels) <= _DEEPEST and pa.types.is_nested(cells.type) and hasattr(cells.type, "value_type"):
        levels.append(pc.list_value_length(cells).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64))
        cells = pc.list_flatten(cells)
    kinds = pa.types.is_integer, pa.types.is_floating, pa.types.is_null
    if not 0 < len(levels) <= _DEEPEST or not any(is_one(cells.type) for is_one in kinds):
        found = "lists of " * len(levels) + in_words(cells.type)
        raise DataError(
            f"{called} holds {found}: expected lists of numbers (one channel), or lists of such lists (channels x "
            "length)"
        )
    return levels, cells


def _shown(cell: pa.Scalar) -> str:
    """Describe the shape of a cell for messages."""
    values = cell.as_py()
    if values is None:
        return "nothing"
    inner = sorted({len(one or ()) for one in values if one is None or isinstance(one, list)})
    if not inner:
        return f"{len(values)} numbers"
    return f"{len(values)} x {inner[0] if len(inner) == 1 else f'{inner[0]} to {inner[-1]}'}"
