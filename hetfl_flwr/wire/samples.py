"""Public samples as payloads, and how they are numbered.

They are sent as stored, and each receiver prepares them in the same way as its own samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.data import DataSpec
from hetfl_flwr.wire.spec import Arrays, ArraySpec, Dim, PayloadSpec

Numbers = NDArray[np.int64]

MAX_SHARED = 2**24
"""Maximum number of public samples that a client shares, and that it receives from each other client."""


@dataclass(frozen=True)
class PublicIndex:
    """Map between the numbers of public samples in the pool and their places: client id, and position at that client.

    Samples are numbered from 0, one client after the other, so that server and clients with the same samples use the
    same numbers. When a client joins, numbers change, and places do not.

    Parameters
    ----------
    sizes : mapping of int to int
        The number of public samples of each client, by client id, in ascending order.

    Examples
    --------
    >>> index = PublicIndex({0: 2, 3: 4})
    >>> places = index.places(np.array([1, 2, 5]))
    >>> places.tolist(), index.numbers(places).tolist()
    ([[0, 1], [3, 0], [3, 3]], [1, 2, 5])
    >>> PublicIndex({0: 2, 1: 7, 3: 4}).numbers(places).tolist()
    [1, 9, 12]
    """

    sizes: Mapping[int, int]

    @classmethod
    def of(cls, shared: Mapping[int, Arrays]) -> "PublicIndex":
        """Return the index of shared samples, given by client id as `public_samples` declares them."""
        return cls({client: len(block["inputs"]) for client, block in shared.items()})

    def __len__(self) -> int:
        """Return the number of samples."""
        return sum(self.sizes.values())

    def places(self, numbers: NDArray[np.integer[Any]]) -> Numbers:
        """Return the places (N, 2) of numbers (N,): client id, and position among that client's samples."""
        block = np.searchsorted(self._starts, numbers, side="right") - 1
        return np.stack([self._clients[block], numbers - self._starts[block]], axis=1)

    def numbers(self, places: NDArray[np.integer[Any]]) -> Numbers:
        """Return the numbers (N,) of places (N, 2), all of which must be `held`."""
        return self._starts[np.searchsorted(self._clients[:-1], places[:, 0])] + places[:, 1]

    def held(self, places: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return whether each of the places (N, 2) has a sample: (N,)."""
        block = np.searchsorted(self._clients[:-1], places[:, 0])
        held: NDArray[np.bool_] = (self._clients[block] == places[:, 0]) & (places[:, 1] < self._counts[block])
        return held

    @cached_property
    def _clients(self) -> Numbers:
        """The client ids, and a last entry, without samples, for unknown ids."""
        return np.array([*self.sizes, -1], np.int64)

    @cached_property
    def _counts(self) -> Numbers:
        return np.array([*self.sizes.values(), 0], np.int64)

    @cached_property
    def _starts(self) -> Numbers:
        """The number of the first sample of each client."""
        return np.cumsum(self._counts) - self._counts


def public_samples(rows: int | Dim, spec: DataSpec, dtype: str, *, labelled: bool) -> PayloadSpec:
    """Declare public samples as stored, (N, *shape), and their labels (N,) if `labelled`."""
    inputs = stored("inputs", rows, spec, dtype)
    labels = ArraySpec("labels", (rows,), "int64", minimum=0, maximum=spec.classes - 1)
    return PayloadSpec((inputs, labels) if labelled else (inputs,))


def stored(name: str, rows: int | Dim, spec: DataSpec, dtype: str) -> ArraySpec:
    """Declare rows as stored, without labels: (R, *shape)."""
    tokens = (0, spec.vocabulary - 1) if spec.kind == "text" else (None, None)
    return ArraySpec(name, (rows, *spec.shape), dtype, minimum=tokens[0], maximum=tokens[1])
