"""Samples in memory: each process keeps one array for a data set, and clients hold only row indices into it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod
from typing import TYPE_CHECKING
from weakref import finalize

import torch
from torch import Tensor

from hetfl_flwr.data.memo import Memo
from hetfl_flwr.data.spec import Column, DataSpec, inputs_in_words

if TYPE_CHECKING:
    from hetfl_flwr.data.overview import Overview

MAX_SHOWN = 20
"""The most classes whose counts are shown."""

MAX_DEVIATIONS = 100.0
"""The number of standard deviations from the mean to which values of other clients' public samples are clipped."""


@dataclass(frozen=True, eq=False)
class Arrays(Memo):
    """A whole data set: the rows of its training split, then the rows of its test split.

    Parameters
    ----------
    spec : DataSpec
        Shape of one input and number of classes.
    inputs : Tensor
        (N, *shape) as stored: uint8 for images, int32 for texts, float64 for tables, with NaN for missing values,
        float32 for series, or float64 if float32 is not exact enough. `origin` is already subtracted from float32
        series.
    labels : Tensor
        (N,) int64, 0..C-1.
    train_rows : int
        The number of rows of the training split, 1 or more.
    peak : float or Tensor
        The stored value that becomes 1.0, above 0; or float32 (features,) of a table, (channels, 1) of series,
        (channels, 1, 1) of images whose colors are scaled separately. A column or channel with an infinite peak is
        always 0.
    centre : Tensor
        (*shape) float32, subtracted from each scaled input.
    origin : Tensor, optional
        float64 (features,) of a table, (channels, 1) of series, subtracted from stored inputs before they become
        float32, which is not exact for large numbers; None: 0.
    owners : Tensor, optional
        (N,) int64, the index of each row's owner if the partition is by owners, else None.
    owner_names : tuple of str
        The names of the owners, by index.
    class_names : tuple of str
        The names of the C classes; empty: their indices.
    input_names : tuple of str
        The names of the inputs of a table, ``COLUMN`` or ``COLUMN=VALUE``; empty if they have none.
    words : callable, optional
        Returns the words of a text's tokens from 2 on, if these depend on the data set; None: a token is the same word
        for all clients.
    columns : tuple of Column
        The columns of a table; empty: each input is a number. Of series from a long table, its columns of time and
        value.
    brightest : float
        The largest stored pixel value of an image, whatever the scaling.
    notes : tuple of str
        How the data were interpreted, except for what the run config sets, one line each.
    overview : Overview, optional
        How the data set was interpreted; None if it is bundled.
    facts : tuple of str
        How the data set was interpreted, in at most five lines; empty for the catalogue's data sets.
    read_as : torch.dtype, optional
        The dtype of the inputs on the CPU; None: that of `inputs`.
    """

    spec: DataSpec
    inputs: Tensor
    labels: Tensor
    train_rows: int
    peak: float | Tensor
    centre: Tensor
    origin: Tensor | None = None
    owners: Tensor | None = None
    owner_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ()
    words: Callable[[], Sequence[str]] | None = None
    columns: tuple[Column, ...] = ()
    brightest: float = 255.0
    notes: tuple[str, ...] = ()
    overview: "Overview | None" = None
    facts: tuple[str, ...] = ()
    read_as: torch.dtype | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the inputs as they are read, whatever the device stores."""
        return self.read_as or self.inputs.dtype

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """The number of inputs of each column of a table; a category has one for each value."""
        return tuple(len(column.input_names) for column in self.columns) or (1,) * len(self.centre)

    @cached_property
    def numeric(self) -> Tensor:
        """A mask (features,) of the inputs of a table that are numbers, not categories."""
        kinds = [column.kind != "category" for column in self.columns] or [True] * len(self.groups)
        return torch.tensor(kinds).repeat_interleave(torch.tensor(self.groups))

    def __repr__(self) -> str:
        """Describe the number and kind of rows, without any values."""
        names = [name if name == str(number) else f"{number} ({name})" for number, name in enumerate(self.class_names)]
        return f"Arrays({len(self.labels)} rows: {inputs_in_words(self.spec)}; classes {', '.join(names)})"


def _placed(arrays: Arrays, device: torch.device) -> Arrays:
    """Copy the arrays to a device, for all clients; float64 becomes float32 except on the CPU."""
    inputs = arrays.inputs
    if inputs.dtype == torch.float64 and device.type != "cpu":  # some devices have no float64
        inputs = _shifted(inputs, arrays.origin)
    return replace(
        arrays,
        inputs=inputs.to(device),
        read_as=arrays.dtype,
        labels=arrays.labels.to(device),
        peak=arrays.peak.to(device) if isinstance(arrays.peak, Tensor) else arrays.peak,
        centre=arrays.centre.to(device),
    )


def _shifted(inputs: Tensor, origin: Tensor | None) -> Tensor:
    """Subtract the origin from stored inputs, unless already done, and convert them to float32."""
    shifted = inputs - origin if origin is not None and inputs.dtype == torch.float64 else inputs
    return shifted.to(torch.float32)


def prepared(
    inputs: Tensor, spec: DataSpec, peak: float | Tensor, centre: Tensor, origin: Tensor | None = None
) -> Tensor:
    """Scale and center stored inputs (B, *shape) for a model; `Arrays` describes the arguments."""
    if spec.kind == "text":
        return inputs.long()
    scaled = _shifted(inputs, origin) / peak - centre
    return scaled.nan_to_num(nan=0.0) if spec.kind == "table" else scaled


MAX_READY_BYTES = 2**28
"""The most bytes of prepared samples that a process caches in addition to the stored ones."""


class _Ready:
    """The number of bytes of prepared samples in this process."""

    size = 0

    @classmethod
    def add(cls, size: int) -> None:
        """Add a number of bytes, negative when samples are freed."""
        cls.size += size


@dataclass(frozen=True, eq=False)
class Samples:
    """Some rows of a data set, not copied.

    Parameters
    ----------
    arrays : Arrays
        The whole data set, which all samples share.
    rows : Tensor
        (N,) int64, the indices of these samples in ``arrays``.

    Examples
    --------
    >>> arrays = Arrays(DataSpec((2,), 3), torch.tensor([[0, 4], [8, 2]]), torch.tensor([2, 0]), 2, 8.0,
    ...                 torch.zeros(2))
    >>> samples = Samples(arrays, torch.tensor([1]))
    >>> len(samples), samples.class_counts(3)
    (1, tensor([1, 0, 0]))
    >>> samples.batch(torch.tensor([0]))
    (tensor([[1.0000, 0.2500]]), tensor([0]))
    """

    arrays: Arrays
    rows: Tensor

    def __repr__(self) -> str:
        """Describe the kind of the samples and their number in each class, without any values."""
        return f"{type(self).__name__}({inputs_in_words(self.arrays.spec)}: {self.counts})"

    def __len__(self) -> int:
        """Return N, the number of samples."""
        return len(self.rows)

    @property
    def labels(self) -> Tensor:
        """The labels of all N samples: (N,) int64."""
        return self.arrays.labels[self.rows]

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch of samples, ready for a model.

        Parameters
        ----------
        rows : Tensor
            (B,) int64, indices 0..N-1 into these samples, on any device.

        Returns
        -------
        inputs : Tensor
            (B, *shape) float32, divided by the peak, minus the center, with 0 for missing values; for texts the tokens,
            int64.
        labels : Tensor
            (B,) int64.

        Raises
        ------
        IndexError
            If an index is out of range.
        """
        rows = rows.to(self.rows.device)
        if len(rows) < len(self.rows) and self._ready is not None:
            inputs, labels = self._ready
            return inputs[rows], labels[rows]
        return self._prepared(self.rows[rows])

    def _prepared(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows of the arrays as a batch for a model."""
        arrays = self.arrays
        inputs = prepared(arrays.inputs[chosen], arrays.spec, arrays.peak, arrays.centre, arrays.origin)
        return inputs, arrays.labels[chosen]

    @cached_property
    def _ready(self) -> tuple[Tensor, Tensor] | None:
        """All samples as one batch, made when a batch is first drawn; None if the cache has no room for it."""
        size = (8 if self.arrays.spec.kind == "text" else 4) * len(self) * prod(self.arrays.inputs.shape[1:])
        if _Ready.size + size > MAX_READY_BYTES:
            return None
        _Ready.add(size)
        finalize(self, _Ready.add, -size).atexit = False
        return self._prepared(self.rows)

    def class_counts(self, classes: int) -> Tensor:
        """Return the number of samples of each class: (C,) int64, where C is the number of classes."""
        return torch.bincount(self.labels, minlength=classes)

    @property
    def counts(self) -> str:
        """The number of samples, in total and of each class, in words."""
        spec, names = self.arrays.spec, self.arrays.class_names
        counts = self.class_counts(spec.classes).tolist()
        shown = [f"{name}: {count}" for name, count in zip(names or range(spec.classes), counts, strict=False)]
        return f"{len(self)} samples ({', '.join(shown[:MAX_SHOWN])}{', ...' if len(counts) > MAX_SHOWN else ''})"

    def first(self, count: int) -> "Samples":
        """Return the first ``count`` samples, or all if there are fewer."""
        return Samples(self.arrays, self.rows[:count])

    def stored(self) -> tuple[Tensor, Tensor]:
        """Return copies of the samples as stored, to send to other clients; `like` takes them.

        Returns
        -------
        inputs : Tensor
            (N, *shape) on the CPU, uint8 for images, int32 for texts, else float32; neither scaled nor centered.
            A missing value is replaced by this client's mean of the column, or by 0 if it has no mean.
        labels : Tensor
            (N,) int64, on the CPU.
        """
        inputs, arrays = self.arrays.inputs[self.rows].cpu(), self.arrays
        origin = torch.zeros(()) if arrays.origin is None else arrays.origin
        if arrays.spec.kind in ("table", "series"):
            inputs = inputs.to(torch.float64) + (0 if arrays.inputs.dtype == torch.float64 else origin)
        if arrays.spec.kind == "table":
            usual = (arrays.centre * arrays.peak).cpu() + origin
            usual = torch.where(usual.isnan(), inputs.nanmean(0), usual)  # a constant column has 0 x inf
            inputs = torch.where(inputs.isnan(), usual.nan_to_num(0.0), inputs)
        return inputs.to(torch.float32) if inputs.dtype == torch.float64 else inputs, self.labels.cpu()

    def like(self, inputs: Tensor, labels: Tensor) -> "Samples":
        """Return another client's samples, scaled and centered like these, on the same device.

        Parameters
        ----------
        inputs : Tensor
            (R, *shape), as `stored` returns them, already checked. Stored values must have the same meaning for both
            clients, as they do within one data set or one rotated family. Values of a standardized table or series are
            clipped to `MAX_DEVIATIONS` standard deviations from this client's mean.
        labels : Tensor
            (R,) int64, 0..C-1.
        """
        mine = self.arrays.inputs
        inputs, labels = self._clipped(inputs).to(mine.device), labels.to(mine.device)
        theirs = replace(self.arrays, inputs=inputs, labels=labels, train_rows=len(labels), owners=None)
        return Samples(theirs, torch.arange(len(labels), device=mine.device))

    def _clipped(self, inputs: Tensor) -> Tensor:
        """Clip inputs that `stored` returned, and convert them to the dtype and origin of these samples."""
        arrays, origin = self.arrays, 0 if self.arrays.origin is None else self.arrays.origin
        inputs = inputs - origin
        if isinstance(arrays.peak, Tensor) and arrays.spec.kind in ("table", "series"):
            peak, centre = arrays.peak.cpu(), arrays.centre.cpu()
            low, high = (peak * (centre + end) for end in (-MAX_DEVIATIONS, MAX_DEVIATIONS))
            inputs = inputs.clamp(low.nan_to_num(nan=-inf), high.nan_to_num(nan=inf))  # 0 x inf if constant
        return (inputs + origin if arrays.inputs.dtype == torch.float64 else inputs).to(arrays.inputs.dtype)

    @staticmethod
    def joined(parts: "Sequence[Samples]") -> "Samples":
        """Concatenate copies of samples; each part keeps its own scaling and centering.

        Parameters
        ----------
        parts : sequence of Samples
            One or more parts of the same shape and on the same device; each may be empty.

        Examples
        --------
        >>> arrays = Arrays(DataSpec((1,), 2), torch.tensor([[0], [1], [2]]), torch.tensor([0, 1, 1]), 3, 1.0,
        ...                 torch.zeros(1))
        >>> joined = Samples.joined([Samples(arrays, torch.tensor([2])), Samples(arrays, torch.tensor([0, 1]))])
        >>> joined.batch(torch.tensor([1, 0, 2]))
        (tensor([[0.],
                [2.],
                [1.]]), tensor([0, 1, 1]))
        """
        arrays, labels = parts[0].arrays, torch.cat([part.labels for part in parts])
        scales = {(one.spec, id(one.peak), id(one.centre), id(one.origin)) for one in (part.arrays for part in parts)}
        if len(scales) == 1:
            arrays = replace(arrays, inputs=torch.cat([part.arrays.inputs[part.rows] for part in parts]), labels=labels)
        else:  # store them as prepared
            inputs = torch.cat([part.batch(torch.arange(len(part)))[0] for part in parts])
            centre = torch.zeros_like(arrays.centre)
            arrays = replace(arrays, inputs=inputs, labels=labels, peak=1.0, centre=centre, origin=None)
        return Samples(arrays, torch.arange(len(labels), device=labels.device))

    def to(self, device: torch.device | str) -> "Samples":
        """Return these samples on a device, where all clients share one copy of the data set."""
        return Samples(self.arrays.once(_placed, torch.device(device)), self.rows.to(device))
