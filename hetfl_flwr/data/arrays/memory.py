"""What fits into this machine's memory: data that do not are refused before anything is allocated."""

import os
from math import prod

from hetfl_flwr.errors import DataError

SHARE = 0.5
"""Part of the machine's memory that one array may take."""


def check_fits(shape: tuple[int, ...], itemsize: int, remedy: str) -> None:
    """Refuse an array that this machine cannot hold.

    Parameters
    ----------
    shape : tuple of int
        Its shape, samples first.
    itemsize : int
        Bytes of a value.
    remedy : str
        What makes it smaller.

    Raises
    ------
    DataError
        It takes more than `SHARE` of the memory.
    """
    needed, there = prod(shape) * itemsize, memory()
    if needed > SHARE * there:
        raise DataError(
            f"{shape[0]} samples of shape {shape[1:]} need {needed / 1e9:,.1f} GB, and this machine has "
            f"{there / 1e9:,.1f} GB of memory: {remedy}"
        )


def memory() -> int:
    """Return how many bytes of memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
