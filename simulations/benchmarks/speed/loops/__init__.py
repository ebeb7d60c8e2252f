"""Federations as plain PyTorch loops: what the local engine is measured against.

Each does the work of an algorithm and nothing else: no messages, no checks, no state, no bytes counted. Rows are
tensors that are ready for a model; models and optimizers live as long as the run. Batches and dropout come from the
generators of the engine's clients, so that a loop ends with what the engine's run ends with, bit for bit, and is known
to do the same work.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from flwr.app import Context, RecordDict
from torch import Tensor, nn

from hetfl_flwr.common.seeding import generator
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.data import Samples
from hetfl_flwr.learning.training import draw_batches, make_optimizer
from hetfl_flwr.node.node import Node

Rows = tuple[Tensor, Tensor]
"""Inputs (N, *shape), as a model takes them, and labels (N,)."""


@dataclass
class Learner:
    """A client: its model, and the rows that it trains on."""

    client_id: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    training: Rows

    @classmethod
    def of(cls, config: RunConfig, node: Node) -> "Learner":
        """Give the loop the model and the rows of one of the engine's clients."""
        optimizer = make_optimizer(config, node.model.parameters())
        return cls(node.client_id, node.model, optimizer, ready(node.data.train))

    def batches(self, config: RunConfig, round: int) -> Iterator[Rows]:
        """Draw the mini-batches of a round."""
        inputs, labels = self.training
        for rows in draw_batches(
            generator(config.seed, self.client_id, round, "batches"),
            len(labels),
            config.batch_size,
            epochs=config.local_epochs,
            batches=config.local_batches,
        ):
            yield inputs[rows], labels[rows]


def ready(samples: Samples) -> Rows:
    """Return all of some samples, as a model takes them."""
    return samples.batch(torch.arange(len(samples)))


def node_of(config: RunConfig, client_id: int) -> Node:
    """Return the surroundings of one of the engine's clients."""
    own: dict[str, Value] = {"partition-id": client_id, "num-partitions": config.clients}
    return Node.from_context(Context(1, 1, own, RecordDict(), config.to_flat()))
