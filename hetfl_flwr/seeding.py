"""Random numbers: every draw comes from a generator seeded by ``(seed, *scope)``, never from an unseeded global one.

A scope is a tuple of integers and words, such as ``(client_id, round, "batches")``. Different scopes give independent
streams; equal scopes give the same stream in every process and engine.
"""

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from zlib import crc32

import numpy as np
import torch


def _entropy(seed: int, scope: tuple[int | str, ...]) -> np.random.SeedSequence:
    words = [crc32(part.encode()) if isinstance(part, str) else part for part in scope]
    numbers = [seed, len(words), *words]
    small = max(numbers) < 2**32 and min(numbers) >= 0  # an array is faster than a list, and gives the same generator
    return np.random.SeedSequence(np.array(numbers, np.uint32) if small else numbers)


def generator(seed: int, *scope: int | str) -> np.random.Generator:
    """Return the NumPy generator of a scope.

    Parameters
    ----------
    seed : int
        The run's seed, 0 or more.
    *scope : int or str
        The purpose of the random numbers; integers are 0 or more.

    Examples
    --------
    >>> a, b = generator(0, 3, "batches"), generator(0, 3, "batches")
    >>> bool((a.permutation(5) == b.permutation(5)).all())
    True
    """
    return np.random.default_rng(_entropy(seed, scope))


def torch_seed(seed: int, *scope: int | str) -> int:
    """Return a 63-bit seed for ``torch.Generator.manual_seed``."""
    return int(_entropy(seed, scope).generate_state(1, np.uint64)[0]) >> 1


def seeded(seed: int, *scope: int | str) -> AbstractContextManager[None]:
    """Seed the global generators of torch, NumPy and Python inside a ``with`` block, and restore them afterwards.

    Everything that draws from a global generator inside the block, such as weight initialization, dropout or a model's
    ``random.random()``, is reproducible.

    Parameters
    ----------
    seed : int
        The run's seed, 0 or more.
    *scope : int or str
        The purpose of the random numbers; integers are 0 or more.
    """
    number = torch_seed(seed, *scope)
    return _Borrowed(number) if _Lent.free else _seeded(number)


@contextmanager
def _seeded(number: int) -> Iterator[None]:
    with generators_kept():
        _seed(number)
        yield


class _Borrowed(AbstractContextManager[None]):
    """Seeds generators that are lent; inside this context they are not free, so nested calls restore them."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        _Lent.free = False
        try:
            _seed(self._number)
        except BaseException:
            _Lent.free = True
            raise

    def __exit__(self, *error: object) -> None:
        _Lent.free = True


def _seed(number: int) -> None:
    torch.default_generator.manual_seed(number)
    if _devices():
        torch.cuda.manual_seed_all(number)
    np.random.seed(number % 2**32)  # noqa: NPY002
    random.seed(number)


@contextmanager
def generators_lent() -> Iterator[None]:
    """Restore the global generators after a ``with`` block, inside which `seeded` need not restore them each time."""
    with generators_kept():
        _Lent.free = True
        try:
            yield
        finally:
            _Lent.free = False


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the states of the global generators of torch, NumPy and Python after a ``with`` block."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    here, there = torch.default_generator.get_state(), [torch.cuda.get_rng_state(one) for one in range(_devices())]
    try:
        yield
    finally:
        torch.default_generator.set_state(here)
        for device, state in enumerate(there):
            torch.cuda.set_rng_state(state, device)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@cache
def _devices() -> int:
    """Count the CUDA devices."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


class _Lent:
    """Whether the global generators are lent by `generators_lent` and not in use by `seeded`."""

    free = False
