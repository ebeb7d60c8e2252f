"""Training on the server: plain SGD on named arrays, bit-identical on every server."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hetfl_flwr.common.arithmetic import torch_threads
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.learning.optimizers import SGD
from hetfl_flwr.learning.training import descend, draw_batches
from hetfl_flwr.seeding import generator
from hetfl_flwr.wire.spec import Arrays

Tensors = Mapping[str, Tensor]
"""Named tensors, with the names of the arrays that they were made from."""


@dataclass(frozen=True)
class ServerTraining:
    """Training of arrays on the server with plain SGD, on (point, class) pairs such as the clients' prototypes.

    Mini-batches have the run config's ``batch-size``.

    Parameters
    ----------
    algorithm : str
        The name of the algorithm, for error messages.
    epochs : int
        The number of passes over the pairs, 0 or more. With 0, or without pairs, the arrays do not change.
    rate : float
        The learning rate, above 0.
    """

    algorithm: str
    epochs: int
    rate: float

    def train(
        self,
        arrays: Arrays,
        pairs: tuple[Tensor, Tensor],
        loss: Callable[[Tensors, Tensor, Tensor], Tensor],
        config: RunConfig,
        scope: Iterable[int],
    ) -> Arrays:
        """Train copies of arrays and return them.

        Parameters
        ----------
        arrays : mapping of str to array
            The arrays to train, float32. They are not changed.
        pairs : tuple of Tensor
            The points (N, D), float32, and labels (N,), int64. N may be 0.
        loss : callable
            A function from the arrays as tensors, a batch of points (B, D) and their labels (B,) to a scalar.
        config : RunConfig
            The run config.
        scope : iterable of int
            Seeds the order of the pairs in addition to the run's seed: the round, and the clients that have sent them.

        Raises
        ------
        ConfigError
            If an array is no longer finite.
        """
        points, labels = pairs
        order = generator(config.seed, *scope, "server-training")
        epochs = self.epochs if len(labels) else 0
        with torch_threads(1):
            tensors = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
            optimizer = SGD(tensors.values(), lr=self.rate)
            for rows in draw_batches(order, len(labels), config.batch_size, epochs=epochs, batches=0):
                descend(optimizer, loss(tensors, points[rows], labels[rows]))
        trained = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
        if not all(np.isfinite(array).all() for array in trained.values()):
            raise ConfigError(
                f"{self.algorithm}.server-learning-rate = {self.rate:g}: training on the server has diverged; set a "
                "lower one"
            )
        return trained
