"""Samples in memory: one array a data set and process, of which every client holds row numbers only."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class DataSpec:
    """What a model must fit.

    Parameters
    ----------
    shape : tuple of int
        One input: (channels, height, width) or (features,).
    classes : int
        C, the number of classes; labels are 0..C-1.
    """

    shape: tuple[int, ...]
    classes: int


@dataclass(frozen=True, eq=False)
class Arrays:
    """A whole data set: the rows of its training split, then those of its own test split.

    Parameters
    ----------
    spec : DataSpec
        Shape of one input and number of classes.
    inputs : Tensor
        (N, *shape), in the type it is stored in, such as uint8.
    labels : Tensor
        (N,) int64, 0..C-1.
    train_rows : int
        How many of the N rows are the training split, 1 or more.
    peak : float
        The stored value that stands for 1.0, above 0.
    centre : Tensor
        (*shape) float32, subtracted from each scaled input.
    """

    spec: DataSpec
    inputs: Tensor
    labels: Tensor
    train_rows: int
    peak: float
    centre: Tensor

    def centred(self) -> "Arrays":
        """Return the same rows, not copied, with the mean training input as centre."""
        mean = self.inputs[: self.train_rows].numpy().mean(axis=0, dtype=np.float64) / self.peak
        return replace(self, centre=torch.from_numpy(mean.astype(np.float32)))


@cache
def _placed(arrays: Arrays, device: torch.device) -> Arrays:
    """Return the one copy of the arrays on a device, which all clients there share."""
    return replace(
        arrays,
        inputs=arrays.inputs.to(device),
        labels=arrays.labels.to(device),
        centre=arrays.centre.to(device),
    )


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
            (B, *shape) float32, scaled to [0, 1], less the centre.
        labels : Tensor
            (B,) int64.

        Raises
        ------
        IndexError
            If a position is outside the samples.
        """
        chosen = self.rows[rows.to(self.rows.device)]
        inputs = self.arrays.inputs[chosen].to(torch.float32) / self.arrays.peak - self.arrays.centre
        return inputs, self.arrays.labels[chosen]

    def class_counts(self, classes: int) -> Tensor:
        """Return how many samples there are of each class: (C,) int64, C the number of classes."""
        return torch.bincount(self.labels, minlength=classes)

    def to(self, device: torch.device | str) -> "Samples":
        """Return these samples on a device; one copy of the data set is kept there for all clients."""
        return Samples(_placed(self.arrays, torch.device(device)), self.rows.to(device))


@dataclass(frozen=True)
class ClientData:
    """What one client holds; no row is in two of its three sets."""

    spec: DataSpec
    train: Samples
    validation: Samples
    test: Samples
