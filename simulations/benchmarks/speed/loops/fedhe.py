"""FedHe as a plain loop."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from hetfl_flwr.common.seeding import seeded
from hetfl_flwr.config import RunConfig
from hetfl_flwr.node.node import Node
from simulations.benchmarks.speed.loops import Learner

ALPHA = 1.0


def start(config: RunConfig, nodes: Sequence[Node]) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Return FedHe over the models and rows of the engine's clients, as a function of the number of rounds."""
    return partial(_run, config, [Learner.of(config, node) for node in nodes], nodes[0].data.spec.classes)


def _run(config: RunConfig, clients: Sequence[Learner], classes: int, rounds: int) -> tuple[Tensor, Tensor]:
    """Return what the server knows: sums (C, C) of class-average logits, and of how many (C,)."""
    sums, uploads = torch.zeros(classes, classes, dtype=torch.float64), torch.zeros(classes, dtype=torch.int64)
    for round in range(1, rounds + 1):
        mean, known = (sums / uploads.clamp(min=1)[:, None]).float(), uploads > 0
        for logits, seen in [_turn(config, client, mean, known, round) for client in clients]:
            sums[seen] += logits[seen]
            uploads += seen
    return sums, uploads


def _turn(config: RunConfig, client: Learner, mean: Tensor, known: Tensor, round: int) -> tuple[Tensor, Tensor]:
    client.model.train()
    sums, counts = torch.zeros_like(mean), torch.zeros(len(known), dtype=torch.int64)
    with seeded(config.seed, client.client_id, round, "train"):
        for inputs, labels in client.batches(config, round):
            logits = client.model(inputs)
            sums.index_add_(0, labels, logits.detach())
            counts += torch.bincount(labels, minlength=len(counts))
            loss = functional.cross_entropy(logits, labels)
            taught = known[labels]
            if taught.any():
                loss = loss + ALPHA * functional.mse_loss(logits[taught], mean[labels[taught]]) * taught.float().mean()
            client.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            client.optimizer.step()
    return sums / (counts + 1)[:, None], counts > 0
