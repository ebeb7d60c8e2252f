"""Random numbers: every draw comes from a generator made by (seed, *scope), never from a global one.

A scope is a tuple of integers and words, such as ``(client_id, round, "batches")``. Two scopes that differ
in any part give independent streams; equal scopes give equal streams in every process and engine.
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
    small = max(numbers) < 2**32 and min(numbers) >= 0  # NumPy takes a word for each, and longer for a list
    return np.random.SeedSequence(np.array(numbers, np.uint32) if small else numbers)


def generator(seed: int, *scope: int | str) -> np.random.Generator:
    """Return the NumPy generator of a scope.

    Parameters
    ----------
    seed : int
        The run's seed, 0 or more.
    *scope : int or str
        What the numbers are for; integers are 0 or more.

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
    """Seed the global generators of torch, NumPy and Python for the body of a ``with``, and put them back afterwards.

    Whatever draws from a global generator (weight initialisation, dropout, a model's own ``random.random()``) is
    reproducible inside it.
    """
    number = torch_seed(seed, *scope)
    return _Borrowed(number) if _Lent.free else _seeded(number)


@contextmanager
def _seeded(number: int) -> Iterator[None]:
    with generators_kept():
        _seed(number)
        yield


class _Borrowed(AbstractContextManager[None]):
    """Seeds generators that are lent; inside it they are not."""

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
    """Put the global generators back after the body of a ``with``, in which `seeded` need not do so each time."""
    with generators_kept():
        _Lent.free = True
        try:
            yield
        finally:
            _Lent.free = False


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put the global generators of torch, NumPy and Python back as they were, after the body of a ``with``."""
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
    """Whether the global generators are lent, and nothing draws from them now."""

    free = False
