"""The number of PyTorch's threads, which affects the lowest bits of sums."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Set the number of PyTorch's threads within a ``with`` block, so that results do not depend on the process.

    Parameters
    ----------
    number : int
        Number of threads, 1 or more. The former number is restored at the end.

    Examples
    --------
    >>> before = torch.get_num_threads()
    >>> with torch_threads(1):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
