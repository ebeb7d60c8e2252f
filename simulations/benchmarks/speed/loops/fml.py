"""FML as a plain loop."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr.config import RunConfig
from hetfl_flwr.learning.distillation import kl_divergence
from hetfl_flwr.learning.training import make_optimizer
from hetfl_flwr.models import build_model
from hetfl_flwr.node.node import Node
from simulations.benchmarks.speed.loops import Learner

ALPHA = BETA = 0.5


def start(config: RunConfig, nodes: Sequence[Node]) -> Callable[[int], dict[str, Tensor]]:
    """Return FML over the models and rows of the engine's clients, as a function of the number of rounds."""
    meme = build_model("lenet5", nodes[0].data.spec, seed=config.seed, scope=("global",))
    return partial(_run, config, [Learner.of(config, node) for node in nodes], meme)


def _run(config: RunConfig, clients: Sequence[Learner], meme: nn.Module, rounds: int) -> dict[str, Tensor]:
    """Return the global model's weights; one model is the clients' meme in turn."""
    shared = _copied(meme)
    for round in range(1, rounds + 1):
        memes: list[dict[str, Tensor]] = []
        for client in clients:
            meme.load_state_dict(shared)
            _turn(config, client, meme, round)
            memes.append(_copied(meme))
        shared = {name: _mean([own[name] for own in memes]) for name in shared}
    return shared


def _turn(config: RunConfig, client: Learner, meme: nn.Module, round: int) -> None:
    client.model.train()
    meme_optimizer = make_optimizer(config, meme.parameters())
    for inputs, labels in client.batches(config, round):
        own, forked = client.model(inputs), meme(inputs)
        meme_optimizer.zero_grad()
        _mutual(BETA, labels, student=forked, teacher=own).backward()  # type: ignore[no-untyped-call]
        meme_optimizer.step()
        client.optimizer.zero_grad()
        _mutual(ALPHA, labels, student=own, teacher=forked).backward()  # type: ignore[no-untyped-call]
        client.optimizer.step()


def _mutual(part: float, labels: Tensor, *, student: Tensor, teacher: Tensor) -> Tensor:
    return part * functional.cross_entropy(student, labels) + (1 - part) * kl_divergence(teacher, student)


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).double().mean(0).float()
