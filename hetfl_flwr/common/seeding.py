"""Random numbers: every draw comes from a generator made by (seed, *scope), never from a global one.

A scope is a tuple of integers and words, such as ``(client_id, round, "batches")``. Two scopes that differ
in any part give independent streams; equal scopes give equal streams in every process and engine.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from zlib import crc32

import numpy as np
import torch


def _entropy(seed: int, scope: tuple[int | str, ...]) -> np.random.SeedSequence:
    words = [crc32(part.encode()) if isinstance(part, str) else part for part in scope]
    return np.random.SeedSequence([seed, len(words), *words])


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
    return int(_entropy(seed, scope).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def seeded(seed: int, *scope: int | str) -> Iterator[None]:
    """Seed torch's global generator for the body of a ``with``, and put it back as it was afterwards.

    Layers that draw from the global generator (weight initialisation, dropout) are reproducible inside it.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        number = torch_seed(seed, *scope)
        torch.default_generator.manual_seed(number)
        if devices:
            torch.cuda.manual_seed_all(number)
        yield
