"""Training on the server: steps of plain SGD over named arrays, with the same bits wherever the server runs."""

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
"""Named tensors, as the arrays that they were made of."""


@dataclass(frozen=True)
class ServerTraining:
    """How a server trains arrays on (point, class) pairs, such as the clients' prototypes: by plain SGD.

    Mini-batches are of the run config's ``batch-size``.

    Parameters
    ----------
    algorithm : str
        Whose, for errors.
    epochs : int
        Passes over the pairs, 0 or more. With 0, or without pairs, the arrays come back as they are.
    rate : float
        Learning rate, above 0.
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
        """Return arrays as they are after training.

        Parameters
        ----------
        arrays : mapping of str to array
            What is trained, float32. It stays as it is.
        pairs : tuple of Tensor
            Points (N, D) float32 and labels (N,) int64; N may be 0.
        loss : callable
            From the arrays as tensors, some points (B, D) and their labels (B,) to a scalar.
        config : RunConfig
            The run config.
        scope : iterable of int
            Scope of the random order of the pairs, in addition to the seed: the round, and the clients that have sent
            them.

        Raises
        ------
        ConfigError
            An array is no longer finite.
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
