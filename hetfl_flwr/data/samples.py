"""Samples in memory: one array a data set and process, of which every client holds row numbers only."""

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
"""Classes whose counts are shown, at most."""

MAX_DEVIATIONS = 100.0
"""Standard deviations from the mean within which a public sample of another client is taken as it is."""


@dataclass(frozen=True, eq=False)
class Arrays(Memo):
    """A whole data set: the rows of its training split, then those of its own test split.

    Parameters
    ----------
    spec : DataSpec
        Shape of one input and number of classes.
    inputs : Tensor
        (N, *shape), in the type it is stored in: uint8 for images, int32 for texts, float64 for tables, in which NaN
        stands for a value that is missing, float32 for series, or float64 where that does not tell their numbers apart.
        Inputs of float32 are counted from `origin` already.
    labels : Tensor
        (N,) int64, 0..C-1.
    train_rows : int
        How many of the N rows are the training split, 1 or more.
    peak : float or Tensor
        The stored value that stands for 1.0, above 0; or float32 ones, (features,) of a table, (channels, 1) of
        series, (channels, 1, 1) of images whose colours are scaled apart. A column or channel whose peak is infinite is
        0 throughout.
    centre : Tensor
        (*shape) float32, subtracted from each scaled input.
    origin : Tensor, optional
        (features,) float64 of a table, (channels, 1) of series, subtracted from stored inputs before they become
        float32, which does not tell large numbers apart; None: 0.
    owners : Tensor, optional
        (N,) int64, whose each row is, 0 or more, where the partition goes by owners; else None.
    owner_names : tuple of str
        What the owners are called, by their numbers.
    class_names : tuple of str
        What the C classes are called; empty: their numbers.
    input_names : tuple of str
        What the inputs of a table are called, ``COLUMN`` or ``COLUMN=VALUE``; empty: nothing.
    words : callable, optional
        Returns the words that a text's tokens from 2 on stand for, where these depend on the data set; None: a token is
        the same word for all clients.
    columns : tuple of Column
        The columns of a table; empty: each input is a number.
    brightest : float
        The largest stored value of an image's pixels, whatever they are scaled by.
    notes : tuple of str
        How the data were interpreted, a line each, as far as no key of the config says so.
    overview : Overview, optional
        How the data set was interpreted; None: it is bundled.
    facts : tuple of str
        How the data set was interpreted, in at most five lines; empty: as in the catalogue.
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

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """How many inputs each column of a table became, a category one for each of its values."""
        return tuple(len(column.input_names) for column in self.columns) or (1,) * len(self.centre)

    @cached_property
    def numeric(self) -> Tensor:
        """Which inputs of a table are numbers, not categories: (features,) bool."""
        kinds = [column.kind != "category" for column in self.columns] or [True] * len(self.groups)
        return torch.tensor(kinds).repeat_interleave(torch.tensor(self.groups))

    def __repr__(self) -> str:
        """Return the number and kind of rows, without any values."""
        names = [name if name == str(number) else f"{number} ({name})" for number, name in enumerate(self.class_names)]
        return f"Arrays({len(self.labels)} rows: {inputs_in_words(self.spec)}; classes {', '.join(names)})"


def _placed(arrays: Arrays, device: torch.device) -> Arrays:
    """Return the copy of the arrays on a device, shared by its clients; float64 becomes float32."""
    inputs = arrays.inputs
    if inputs.dtype == torch.float64 and device.type != "cpu":  # some devices have no float64
        inputs = _counted(inputs, arrays.origin)
    return replace(
        arrays,
        inputs=inputs.to(device),
        labels=arrays.labels.to(device),
        peak=arrays.peak.to(device) if isinstance(arrays.peak, Tensor) else arrays.peak,
        centre=arrays.centre.to(device),
    )


def _counted(inputs: Tensor, origin: Tensor | None) -> Tensor:
    """Return stored inputs as float32, counted from their origin."""
    counted = inputs - origin if origin is not None and inputs.dtype == torch.float64 else inputs
    return counted.to(torch.float32)


def prepared(
    inputs: Tensor, spec: DataSpec, peak: float | Tensor, centre: Tensor, origin: Tensor | None = None
) -> Tensor:
    """Return stored inputs (B, *shape) as a model takes them; `Arrays` says what the rest is."""
    if spec.kind == "text":
        return inputs.long()
    scaled = _counted(inputs, origin) / peak - centre
    return scaled.nan_to_num(nan=0.0) if spec.kind == "table" else scaled


MAX_READY_BYTES = 2**28
"""Bytes of prepared samples that a process caches in addition to the stored ones."""


class _Ready:
    """How many bytes of ready samples there are."""

    size = 0

    @classmethod
    def add(cls, size: int) -> None:
        """Count some more, or, of a size below 0, less."""
        cls.size += size


@dataclass(frozen=True, eq=False)
class Samples:
    """Some rows of a data set, without a copy of them.

    Parameters
    ----------
    arrays : Arrays
        The whole data set, shared.
    rows : Tensor
        (N,) int64, the rows of ``arrays`` that these samples are.

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
        """Return the kind and number of samples of each class, without any values."""
        return f"{type(self).__name__}({inputs_in_words(self.arrays.spec)}: {self.counts})"

    def __len__(self) -> int:
        """Return N, the number of samples."""
        return len(self.rows)

    @property
    def labels(self) -> Tensor:
        """The labels of all N samples: (N,) int64."""
        return self.arrays.labels[self.rows]

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return some samples, ready for a model.

        Parameters
        ----------
        rows : Tensor
            (B,) int64, positions 0..N-1 among these samples, on any device.

        Returns
        -------
        inputs : Tensor
            (B, *shape) float32, scaled by the peak, less the centre, a missing value 0; of a text int64, its tokens.
        labels : Tensor
            (B,) int64.

        Raises
        ------
        IndexError
            If a position is outside the samples.
        """
        rows = rows.to(self.rows.device)
        if len(rows) < len(self.rows) and self._ready is not None:
            inputs, labels = self._ready
            return inputs[rows], labels[rows]
        return self._prepared(self.rows[rows])

    def _prepared(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows of the arrays, ready for a model."""
        arrays = self.arrays
        inputs = prepared(arrays.inputs[chosen], arrays.spec, arrays.peak, arrays.centre, arrays.origin)
        return inputs, arrays.labels[chosen]

    @cached_property
    def _ready(self) -> tuple[Tensor, Tensor] | None:
        """All rows, ready for a model, where there is room for them: made when some of them are first asked for."""
        size = (8 if self.arrays.spec.kind == "text" else 4) * len(self) * prod(self.arrays.inputs.shape[1:])
        if _Ready.size + size > MAX_READY_BYTES:
            return None
        _Ready.add(size)
        finalize(self, _Ready.add, -size).atexit = False
        return self._prepared(self.rows)

    def class_counts(self, classes: int) -> Tensor:
        """Return how many samples there are of each class: (C,) int64, C the number of classes."""
        return torch.bincount(self.labels, minlength=classes)

    @property
    def counts(self) -> str:
        """How many samples there are, and of each class, in words."""
        spec, names = self.arrays.spec, self.arrays.class_names
        counts = self.class_counts(spec.classes).tolist()
        shown = [f"{name}: {count}" for name, count in zip(names or range(spec.classes), counts, strict=False)]
        return f"{len(self)} samples ({', '.join(shown[:MAX_SHOWN])}{', ...' if len(counts) > MAX_SHOWN else ''})"

    def first(self, count: int) -> "Samples":
        """Return the first ``count`` of these samples, or all of them where there are fewer."""
        return Samples(self.arrays, self.rows[:count])

    def stored(self) -> tuple[Tensor, Tensor]:
        """Return copies of the rows as they are stored, to show to others: what `like` takes.

        Returns
        -------
        inputs : Tensor
            (N, *shape) on the CPU, uint8 for images, int32 for texts, else float32; neither scaled nor centred.
            A value that is missing is this client's mean of its column; 0 where these rows have none to tell.
        labels : Tensor
            (N,) int64, on the CPU.
        """
        inputs, arrays = self.arrays.inputs[self.rows].cpu(), self.arrays
        origin = torch.zeros(()) if arrays.origin is None else arrays.origin
        if arrays.spec.kind in ("table", "series"):
            inputs = inputs.to(torch.float64) + (0 if arrays.inputs.dtype == torch.float64 else origin)
        if arrays.spec.kind == "table":
            usual = (arrays.centre * arrays.peak).cpu() + origin
            usual = torch.where(usual.isnan(), inputs.nanmean(0), usual)  # 0 x inf: a column of one number only
            inputs = torch.where(inputs.isnan(), usual.nan_to_num(0.0), inputs)
        return inputs.to(torch.float32) if inputs.dtype == torch.float64 else inputs, self.labels.cpu()

    def like(self, inputs: Tensor, labels: Tensor) -> "Samples":
        """Return rows of others as samples, scaled and centred as these are, on the same device.

        Parameters
        ----------
        inputs : Tensor
            (R, *shape), as `stored` returns them, already checked. Their stored values must mean
            what they mean here, which holds among the clients of one data set or one rotated family. Of a standardised
            table or series, values more than `MAX_DEVIATIONS` deviations from this client's mean are cut to that.
        labels : Tensor
            (R,) int64, 0..C-1.
        """
        mine = self.arrays.inputs
        inputs, labels = self._cut(inputs).to(mine.device), labels.to(mine.device)
        theirs = replace(self.arrays, inputs=inputs, labels=labels, train_rows=len(labels), owners=None)
        return Samples(theirs, torch.arange(len(labels), device=mine.device))

    def _cut(self, inputs: Tensor) -> Tensor:
        """Return inputs as `stored` gives them, far values cut, in the type and from the origin of these."""
        arrays, origin = self.arrays, 0 if self.arrays.origin is None else self.arrays.origin
        inputs = inputs - origin
        if isinstance(arrays.peak, Tensor) and arrays.spec.kind in ("table", "series"):
            peak, centre = arrays.peak.cpu(), arrays.centre.cpu()
            low, high = (peak * (centre + end) for end in (-MAX_DEVIATIONS, MAX_DEVIATIONS))
            inputs = inputs.clamp(low.nan_to_num(nan=-inf), high.nan_to_num(nan=inf))  # 0 x inf: of one number only
        return (inputs + origin if arrays.inputs.dtype == torch.float64 else inputs).to(arrays.inputs.dtype)

    @staticmethod
    def joined(parts: "Sequence[Samples]") -> "Samples":
        """Return a copy of several samples as one, one after the other, each scaled and centred as its own part is.

        Parameters
        ----------
        parts : sequence of Samples
            One or more, of one shape and on one device; each may be empty.

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
        else:  # ready for a model
            inputs = torch.cat([part.batch(torch.arange(len(part)))[0] for part in parts])
            centre = torch.zeros_like(arrays.centre)
            arrays = replace(arrays, inputs=inputs, labels=labels, peak=1.0, centre=centre, origin=None)
        return Samples(arrays, torch.arange(len(labels), device=labels.device))

    def to(self, device: torch.device | str) -> "Samples":
        """Return these samples on a device; one copy of the data set is kept there for all clients."""
        return Samples(self.arrays.once(_placed, torch.device(device)), self.rows.to(device))
