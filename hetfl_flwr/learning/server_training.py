"""Training on the server: steps of plain SGD over named arrays, with the same bits wherever the server runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from hetfl_flwr.errors import ConfigError
from hetfl_flwr.learning.optimizers import SGD
from hetfl_flwr.learning.training import draw_batches
from hetfl_flwr.wire.spec import Arrays

Tensors = Mapping[str, Tensor]
"""Named tensors, as the arrays that they were made of."""


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Let torch use one thread: how many it uses is part of what makes bits equal, and engines differ in it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_arrays(
    arrays: Arrays,
    points: Tensor,
    labels: Tensor,
    loss: Callable[[Tensors, Tensor, Tensor], Tensor],
    rng: np.random.Generator,
    *,
    epochs: int,
    size: int,
    rate: float,
    key: str,
) -> Arrays:
    """Step arrays down a loss of (point, class) pairs, such as prototypes and their classes.

    Parameters
    ----------
    arrays : mapping of str to array
        What is trained, float32. It stays as it is.
    points, labels : Tensor
        (N, D) float32, and (N,) int64; N may be 0.
    loss : callable
        From the arrays as tensors, some points (B, D) and their labels (B,) to a scalar.
    rng : numpy.random.Generator
        What the order of the pairs is drawn from.
    epochs : int
        Passes over the pairs, 0 or more. With 0, or without pairs, the arrays come back as they are.
    size : int
        Pairs of a mini-batch, 1 or more.
    rate : float
        Learning rate, above 0.
    key : str
        The config key that has the learning rate, for the error.

    Raises
    ------
    ConfigError
        An array is no longer finite.
    """
    with on_one_thread():
        tensors = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
        optimizer = SGD(tensors.values(), lr=rate)
        for rows in draw_batches(rng, len(labels), size, epochs=epochs if len(labels) else 0, batches=0):
            optimizer.zero_grad(set_to_none=True)
            loss(tensors, points[rows], labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    trained = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    if not all(np.isfinite(array).all() for array in trained.values()):
        raise ConfigError(f"{key} = {rate:g}: training on the server has diverged; set a lower one")
    return trained
