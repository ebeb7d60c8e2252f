"""FedH2L as a plain PyTorch loop: what `simulations.benchmarks.speed` measures the local engine against.

It does the algorithm's work and nothing else: no messages, no checks, no state, no bytes counted. Rows are tensors that
are ready for a model; models and optimizers live as long as the run. Batches come from the generators of the engine's
clients, so that the loop ends with the bits of the engine's run, and is known to do the same work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from flwr.app import Context, RecordDict
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.data import Samples
from hetfl_flwr.learning.gradients import flat_gradient, project, set_gradient
from hetfl_flwr.learning.training import draw_batches, make_optimizer
from hetfl_flwr.node.node import Node
from hetfl_flwr.seeding import generator

Rows = tuple[Tensor, Tensor]
"""Inputs (N, *shape), as a model takes them, and labels (N,)."""

Signal = tuple[Tensor, Tensor, Tensor]
"""Numbers (B,) of a teacher's public samples, its posteriors (B, C) on them, and its accuracy."""


@dataclass
class Student:
    """A client: its model, the rows that it trains on, all public samples, and the gradient of its last local step."""

    client_id: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    training: Rows
    public: dict[int, Rows]
    local: Tensor


def start(config: RunConfig) -> Callable[[int], dict[int, Signal]]:
    """Return FedH2L with one local step a round, as a function of the number of rounds, with the last signals."""
    nodes = [_node(config, client_id) for client_id in range(config.clients)]
    return partial(_run, config, _students(config, nodes))


def _node(config: RunConfig, client_id: int) -> Node:
    own: dict[str, Value] = {"partition-id": client_id, "num-partitions": config.clients}
    return Node.from_context(Context(1, 1, own, RecordDict(), config.to_flat()))


def _ready(samples: Samples) -> Rows:
    return samples.batch(torch.arange(len(samples)))


def _students(config: RunConfig, nodes: Sequence[Node]) -> list[Student]:
    """Give each its own rows first, then the public ones of others."""
    public = {node.client_id: _ready(node.data.public) for node in nodes}
    made = []
    for node in nodes:
        blocks = [_ready(node.data.train), *(rows for owner, rows in public.items() if owner != node.client_id)]
        inputs, labels = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        optimizer = make_optimizer(config, node.model.parameters())
        local = torch.zeros_like(flat_gradient(node.model.parameters()))
        made.append(Student(node.client_id, node.model, optimizer, (inputs, labels), public, local))
    return made


def _run(config: RunConfig, clients: Sequence[Student], rounds: int) -> dict[int, Signal]:
    signals: dict[int, Signal] = {}
    for round in range(1, rounds + 1):
        signals = {client.client_id: _turn(config, client, signals, round) for client in clients}
    return signals


def _turn(config: RunConfig, client: Student, signals: dict[int, Signal], round: int) -> Signal:
    client.model.train()
    teachers = {owner: signal for owner, signal in signals.items() if owner != client.client_id}
    if teachers:
        _global_step(client, teachers)
    _local_step(config, client, round)
    return _signal(config, client, round)


def _global_step(client: Student, teachers: dict[int, Signal]) -> None:
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


def _local_step(config: RunConfig, client: Student, round: int) -> None:
    inputs, labels = client.training
    draw = generator(config.seed, client.client_id, round, "batches")
    rows = next(iter(draw_batches(draw, len(labels), config.batch_size, epochs=1, batches=1)))
    client.optimizer.zero_grad()
    functional.cross_entropy(client.model(inputs[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
    client.local = flat_gradient(client.model.parameters())
    client.optimizer.step()


@torch.no_grad()
def _signal(config: RunConfig, client: Student, round: int) -> Signal:
    inputs, labels = client.public[client.client_id]
    draw = generator(config.seed, client.client_id, round, "seeds")
    rows = torch.from_numpy(draw.choice(len(labels), min(config.batch_size, len(labels)), replace=False))
    posteriors = functional.softmax(client.model.eval()(inputs[rows]), 1)
    return rows, posteriors, (posteriors.argmax(1) == labels[rows]).float().mean()
