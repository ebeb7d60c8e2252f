"""All data in one place: the data sets of several clients as one, of which each may train on the rows of all."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.errors import ConfigError


@cache
def together(domains: tuple[Arrays, ...]) -> Arrays:
    """Return data sets of one form as one, their rows one after the other; a single one comes back itself.

    It has neither a test split nor a scale of its own: its rows are to be scaled as those of the first are.
    """
    if len(domains) == 1:
        return domains[0]
    owners = [arrays.owners for arrays in domains if arrays.owners is not None]
    return replace(
        domains[0],
        inputs=torch.cat([arrays.inputs for arrays in domains]),
        labels=torch.cat([arrays.labels for arrays in domains]),
        train_rows=sum(len(arrays.labels) for arrays in domains),
        owners=torch.cat(owners) if len(owners) == len(domains) else None,
    )


def check_alike(names: Sequence[str], firsts: Sequence[Arrays]) -> None:
    """Refuse to put rows together whose numbers or labels do not mean the same.

    Parameters
    ----------
    names : sequence of str
        What the data sets are called.
    firsts : sequence of Arrays
        The first domain of each.

    Raises
    ------
    ConfigError
        One line that names two data sets, and in what they differ.
    """
    for name, arrays in zip(names[1:], firsts[1:], strict=True):
        for (what, one), (_, other) in zip(_terms(firsts[0]), _terms(arrays), strict=True):
            if one != other:
                raise ConfigError(
                    f"pooled = true: {names[0]} and {name} differ in {what} ({one} and {other}): "
                    "only rows of the same inputs and classes can be put together"
                )


def _terms(arrays: Arrays) -> Iterable[tuple[str, object]]:
    """Go through what must be the same: what it is called, and what a data set says."""
    yield "the shape of their inputs", arrays.spec.shape
    yield "their classes", _names(arrays.class_names) or arrays.spec.classes
    yield "their columns", arrays.input_names
    yield "what a word's number is", (arrays.spec.vocabulary, arrays.words and arrays.words())
    yield "how inputs are stored", (str(arrays.inputs.dtype), str(arrays.peak))


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.strip().casefold() for name in names)


def pooled(own: Tensor, offered: Tensor, held: Tensor) -> Tensor:
    """Return the rows that a client trains on where all data are in one place: its own first, then the others'.

    Parameters
    ----------
    own : Tensor
        (N,) int64, the client's own training rows, which keep their order.
    offered : Tensor
        Rows that all clients put in; the client's own may be among them.
    held : Tensor
        Rows that any client tests or validates on: none is trained on.

    Examples
    --------
    >>> pooled(torch.tensor([4, 2]), torch.tensor([1, 2, 6, 7]), torch.tensor([0, 7])).tolist()
    [4, 2, 1, 6]
    """
    mine = own[~torch.isin(own, held)]
    others = np.setdiff1d(offered.numpy(), np.concatenate([own.numpy(), held.numpy()]))
    return torch.cat([mine, torch.from_numpy(others)])
