"""A client's data: its training, validation and test samples, and digests of them."""

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hetfl_flwr.data.samples import Arrays, Samples
from hetfl_flwr.data.spec import DataSpec, inputs_in_words

ROWS_AT_ONCE = 4096
"""The number of rows that are hashed at a time."""


def digested(*parts: object) -> str:
    """Return a digest of tensors and other values."""
    digest = blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(np.ascontiguousarray(part.cpu().numpy()).data)
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()


def _inputs_digest(arrays: Arrays, rows: Tensor) -> str:
    """Return a digest of some rows of inputs as stored."""
    starts = range(0, len(rows), ROWS_AT_ONCE)
    return digested(*(digested(arrays.inputs[rows[first : first + ROWS_AT_ONCE]]) for first in starts))


def unlike(before: str, now: str) -> str:
    """Return how two digests of a client's data differ, in words; empty if they are equal."""
    trained, _, measured = before.partition("-")
    trained_now, _, measured_now = now.partition("-")
    if trained != trained_now:
        return "training samples, labels or names"
    return "validation or test samples" if measured != measured_now else ""


@dataclass(frozen=True)
class ClientData:
    """A client's data: three disjoint sets of samples.

    Parameters
    ----------
    spec : DataSpec
        What the client's model must fit.
    train, validation, test : Samples
        The training, validation and test samples.
    public_rows : int
        How many of the training samples the algorithm may show to others, from 0 to all.
    domain : int
        The index of the client's own domain, 0 or more.
    others : tuple of Samples
        The test samples of each other domain that has a client, by domain index, for a rotated family; empty for
        other data sets. They are scaled and centered like the client's own samples.
    others_validation : tuple of Samples
        The validation samples of the same domains.
    name : str
        The owners of the rows if the partition is by owners, else the domain if there are several, else empty.
    """

    spec: DataSpec
    train: Samples
    validation: Samples
    test: Samples
    public_rows: int = 0
    domain: int = 0
    others: tuple[Samples, ...] = ()
    others_validation: tuple[Samples, ...] = ()
    name: str = ""

    def __repr__(self) -> str:
        """Describe shapes, classes and counts, without any values."""
        parts = f"  train: {self.train.counts}, {self.public_rows} of them public\n"
        parts += f"  validation: {self.validation.counts}\n  test: {self.test.counts}"
        return f"ClientData: {inputs_in_words(self.spec)}\n{parts}"

    @property
    def owners(self) -> int:
        """The number of owners of the training rows if the partition is by owners, else 0."""
        owners = self.train.arrays.owners
        return 0 if owners is None else len({*owners[self.train.rows.cpu()].tolist()})

    @cached_property
    def class_counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The number of training samples, and of test samples, of each class: (C,) each."""
        trained, tested = (one.class_counts(self.spec.classes).cpu().numpy() for one in (self.train, self.test))
        return trained, tested

    @cached_property
    def digest(self) -> str:
        """A digest of the data as stored and scaled.

        It changes with any row, label, cell, class name or column name, and with their order. The part before the dash
        covers training inputs, all labels and all names; the part after it covers validation and test inputs.
        """
        arrays, train = self.train.arrays, self.train
        labels = (samples.labels for samples in (train, self.validation, self.test))
        names = arrays.class_names, arrays.input_names, arrays.words and [*arrays.words()]
        trained = digested(arrays.centre, arrays.peak, *labels, names, _inputs_digest(arrays, train.rows))
        measured = (samples.arrays.once(_inputs_digest, samples.rows) for samples in (self.validation, self.test))
        return f"{trained}-{digested(*measured)}"

    @cached_property
    def public(self) -> Samples:
        """The training samples that may be shown to others: the first ``public_rows`` of ``train``."""
        return self.train.first(self.public_rows)

    @property
    def private(self) -> Samples:
        """The training samples that are never shown to others: all but the public ones."""
        return Samples(self.train.arrays, self.train.rows[self.public_rows :])

    def to(self, device: torch.device) -> "ClientData":
        """Return the same data with all samples on a device."""
        moved: dict[str, Any] = {name: getattr(self, name).to(device) for name in ("train", "validation", "test")}
        for name in ("others", "others_validation"):
            moved[name] = tuple(samples.to(device) for samples in getattr(self, name))
        there = replace(self, **moved)
        if device.type != "cpu":  # other devices have tables in float32
            there.__dict__["digest"] = self.digest
        return there
