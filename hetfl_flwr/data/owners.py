"""Whose rows are whose: the owners of a data set's rows by name, and how messages call several of them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hetfl_flwr.common.problems import Problems
from hetfl_flwr.data.labels import IntArray, read_codes
from hetfl_flwr.data.opening import Source
from hetfl_flwr.text import LONGEST_NAME, printable


def read_owners(source: Source, rows: IntArray, problems: Problems) -> tuple[tuple[str, ...], Tensor | None]:
    """Return the names of a data set's owners, and the number of each row's own.

    Parameters
    ----------
    source : Source
        Its owners are the files it was read from, or the values of its ``id_column``, ascending.
    rows : ndarray
        (N,) int64, the rows in the order that is wanted.
    problems : Problems
        Takes down what is wrong with the column; then nobody owns the rows.

    Returns
    -------
    names : tuple of str
        By number; empty where nobody owns the rows.
    owners : Tensor or None
        (N,) int64; None where nobody does.
    """
    names, codes = _owners(source, problems)
    return tuple(map(str, names)), None if codes is None else torch.from_numpy(codes[rows])


def _owners(source: Source, problems: Problems) -> tuple[Sequence[int | str], IntArray | None]:
    if source.files:
        names = [name for name, _ in source.files]
        return names, np.repeat(np.arange(len(names)), [count for _, count in source.files])
    if source.reading.id_column:
        with problems.collecting():
            return read_codes(source, source.reading.id_column, "partition")
    return (), None


def joined(names: Sequence[str]) -> str:
    """Return several names as one of bounded length; what has no room is counted.

    Examples
    --------
    >>> joined(["North", "South"])
    'North + South'
    >>> joined([f"ward {number}" for number in range(100)])
    'ward 0 + ward 1 + ward 2 + ward 3 + ward 4 + ward 5 + ward 6 + ward 7 + ward 8 + ward 9 + 90 more'
    """
    called = [printable(" ".join(name.split()), LONGEST_NAME) for name in names if name.strip()]
    said = " + ".join(called)
    shown = len(called)
    while len(said) > LONGEST_NAME and shown > 1:
        shown -= 1
        said = f"{' + '.join(called[:shown])} + {len(called) - shown} more"
    return printable(said, LONGEST_NAME)
