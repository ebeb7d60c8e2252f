"""Federations as plain PyTorch loops: what the local engine is measured against.

Each does the work of an algorithm and nothing else: no messages, no checks, no state, no bytes counted. Rows are
tensors that are ready for a model; models and optimizers live as long as the run. Batches come from the generators of
the engine's clients, so that a loop ends with what the engine's run ends with, bit for bit, and is known to do the
same work.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import Samples
from hetfl_flwr.gradients import flat_gradient, project, set_gradient
from hetfl_flwr.node import Node
from hetfl_flwr.seeding import generator
from hetfl_flwr.training import draw_batches, make_optimizer

Rows = tuple[Tensor, Tensor]
"""Inputs (N, *shape), as a model takes them, and labels (N,)."""

Signal = tuple[Tensor, Tensor, Tensor]
"""Numbers (B,) of a teacher's public rows, its posteriors (B, C) on them, and its accuracy."""


@dataclass
class Learner:
    """A client of FedH2L."""

    partition: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    training: Rows
    public: dict[int, Rows]
    local: Tensor


def learners(config: RunConfig, nodes: Sequence[Node]) -> list[Learner]:
    """Give the loop the models and rows of the engine's clients: own rows first, then the public ones of others."""
    public = {node.partition: _ready(node.data.public) for node in nodes}
    made = []
    for node in nodes:
        blocks = [_ready(node.data.train), *(rows for owner, rows in public.items() if owner != node.partition)]
        inputs, labels = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        optimizer = make_optimizer(config, node.model.parameters())
        local = torch.zeros_like(flat_gradient(node.model.parameters()))
        made.append(Learner(node.partition, node.model, optimizer, (inputs, labels), public, local))
    return made


def fedh2l(config: RunConfig, clients: Sequence[Learner], rounds: int) -> dict[int, Signal]:
    """Run FedH2L with one local step a round, and return the last signals by client."""
    signals: dict[int, Signal] = {}
    for round in range(1, rounds + 1):
        signals = {client.partition: _turn(config, client, signals, round) for client in clients}
    return signals


def _turn(config: RunConfig, client: Learner, signals: dict[int, Signal], round: int) -> Signal:
    client.model.train()
    teachers = {owner: signal for owner, signal in signals.items() if owner != client.partition}
    if teachers:
        _global_step(client, teachers)
    _local_step(config, client, round)
    return _signal(config, client, round)


def _global_step(client: Learner, teachers: dict[int, Signal]) -> None:
    taught = [
        (client.public[owner][0][rows], client.public[owner][1][rows]) for owner, (rows, _, _) in teachers.items()
    ]
    inputs, labels = (torch.cat(parts) for parts in zip(*taught, strict=True))
    posteriors = torch.cat([posteriors for _, posteriors, _ in teachers.values()])
    share = torch.cat([torch.full((len(rows),), 1 / (len(teachers) * len(rows))) for rows, _, _ in teachers.values()])
    trust = torch.cat([accuracy.expand(len(rows)) for rows, _, accuracy in teachers.values()])
    logs = functional.log_softmax(client.model(inputs), 1)
    divergence = functional.kl_div(logs, posteriors, reduction="none").sum(1)
    truth = functional.nll_loss(logs, labels, reduction="none")
    client.optimizer.zero_grad()
    (share * (trust * divergence + truth)).sum().backward()  # type: ignore[no-untyped-call]
    parameters = list(client.model.parameters())
    set_gradient(parameters, project(flat_gradient(parameters), client.local))
    client.optimizer.step()


def _local_step(config: RunConfig, client: Learner, round: int) -> None:
    inputs, labels = client.training
    order = generator(config.seed, client.partition, round, "batches")
    [rows] = draw_batches(order, len(labels), config.batch_size, epochs=1, batches=1)
    client.optimizer.zero_grad()
    functional.cross_entropy(client.model(inputs[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
    client.local = flat_gradient(client.model.parameters())
    client.optimizer.step()


@torch.no_grad()
def _signal(config: RunConfig, client: Learner, round: int) -> Signal:
    inputs, labels = client.public[client.partition]
    draw = generator(config.seed, client.partition, round, "seeds")
    rows = torch.from_numpy(draw.choice(len(labels), min(config.batch_size, len(labels)), replace=False))
    posteriors = functional.softmax(client.model.eval()(inputs[rows]), 1)
    return rows, posteriors, (posteriors.argmax(1) == labels[rows]).float().mean()


def _ready(samples: Samples) -> Rows:
    return samples.batch(torch.arange(len(samples)))
