"""FedH2L as a plain loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from hetfl_flwr.common.seeding import generator
from hetfl_flwr.config import RunConfig
from hetfl_flwr.learning.gradients import flat_gradient, project, set_gradient
from hetfl_flwr.node.node import Node
from simulations.benchmarks.speed.loops import Learner, Rows, ready

Signal = tuple[Tensor, Tensor, Tensor]
"""Numbers (B,) of a teacher's public samples, its posteriors (B, C) on them, and its accuracy."""


@dataclass
class Student(Learner):
    """A client, the public samples of all, and the gradient of its last local step."""

    public: dict[int, Rows]
    local: Tensor


def start(config: RunConfig, nodes: Sequence[Node]) -> Callable[[int], dict[int, Signal]]:
    """Return FedH2L over the engine's clients, with one local step a round, as a function of the number of rounds."""
    return partial(_run, config, _students(config, nodes))


def _students(config: RunConfig, nodes: Sequence[Node]) -> list[Student]:
    """Give each its own rows first, then the public ones of others."""
    public = {node.client_id: ready(node.data.public) for node in nodes}
    made = []
    for node in nodes:
        own = Learner.of(config, node)
        blocks = [own.training, *(rows for owner, rows in public.items() if owner != node.client_id)]
        inputs, labels = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        local = torch.zeros_like(flat_gradient(node.model.parameters()))
        made.append(Student(node.client_id, node.model, own.optimizer, (inputs, labels), public, local))
    return made


def _run(config: RunConfig, clients: Sequence[Student], rounds: int) -> dict[int, Signal]:
    """Return the last signals by client."""
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
    inputs, labels = next(client.batches(config, round))
    client.optimizer.zero_grad()
    functional.cross_entropy(client.model(inputs), labels).backward()  # type: ignore[no-untyped-call]
    client.local = flat_gradient(client.model.parameters())
    client.optimizer.step()


@torch.no_grad()
def _signal(config: RunConfig, client: Student, round: int) -> Signal:
    inputs, labels = client.public[client.client_id]
    draw = generator(config.seed, client.client_id, round, "seeds")
    rows = torch.from_numpy(draw.choice(len(labels), min(config.batch_size, len(labels)), replace=False))
    posteriors = functional.softmax(client.model.eval()(inputs[rows]), 1)
    return rows, posteriors, (posteriors.argmax(1) == labels[rows]).float().mean()
