"""Teachers: what others know, as a term of one client's loss for one round."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr.alignment import linear_cka
from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import Batches
from hetfl_flwr.distillation import cosine_temperature, decoupled_kd
from hetfl_flwr.errors import ModelError
from hetfl_flwr.models import SplitModel
from hetfl_flwr.node import Node
from hetfl_flwr.payloads import Arrays
from hetfl_flwr.training import EVALUATION_BATCH

Head = tuple[Tensor, Tensor]
"""Weight (C, D) and bias (C,)."""

FALL = 5.0
"""Half the height of the temperature's fall: CHFL's beta."""


class HeadTeacher:
    """A head made of others', which teaches the own one on the client's own features: CHFL Eq. (5)-(7).

    Its logits are fixed within a pass over the data: computed once at its start, in evaluation mode.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    head : tuple of Tensor
        The teacher.
    beta : float
        As in `hetfl_flwr.distillation.cosine_temperature`.
    """

    def __init__(self, node: Node, head: Head, beta: float) -> None:
        self._node, self._head, self._beta = node, head, beta
        self._lessons: deque[tuple[Tensor, float]] = deque()
        self._distances: list[Tensor] = []
        self._right: list[Tensor] = []

    @classmethod
    def of(
        cls, node: Node, download: Arrays, reduce: Literal["mean", "sum"], beta: float = FALL
    ) -> "HeadTeacher | None":
        """Return the mean or the sum of heads that came as `hetfl_flwr.payloads.summed_heads`, or None."""
        heads = int(download["heads"])
        if heads == 0:
            return None
        parts = heads if reduce == "mean" else 1
        weight, bias = (torch.from_numpy(download[name]).to(node.device) / parts for name in ("weight", "bias"))
        return cls(node, (weight, bias), beta)

    def batches(self, epochs: Iterable[Sequence[Tensor]], round: int) -> Iterator[Tensor]:
        """Yield the batches of a round, pass by pass; the lessons on a pass are prepared at its start."""
        for number, rows in enumerate(epochs):
            temperature = temperature_of(self._node.config, round, number, self._beta)
            taught = head_logits(self._node.model, self._node.data.train, rows, self._head)
            self._lessons.extend((logits, temperature) for logits in taught)
            yield from rows

    def distance(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the two terms of decoupled distillation on the batch that was yielded last.

        Parameters
        ----------
        logits, labels : Tensor
            The client's own, (B, C), and the true classes, (B,).
        """
        target, temperature = self._lessons.popleft()
        on_target, among_rest = decoupled_kd(logits, target, labels, temperature)
        distance = on_target + among_rest
        self._distances.append(distance.detach() * len(labels))
        self._right.append((target.argmax(1) == labels).sum())
        return distance

    def metrics(self, samples: int) -> dict[str, float]:
        """Return the mean distance over the samples of the round, and the teacher's accuracy on them."""
        return {
            "distillation-loss": float(torch.stack(self._distances).sum()) / samples,
            "teacher-accuracy": int(torch.stack(self._right).sum()) / samples,
        }


class KernelTeacher:
    """A kernel over the samples of an alignment set, which the own representations are to be like: FedHeNN Eq. (5).

    Parameters
    ----------
    body : nn.Module
        The client's own.
    inputs : Tensor
        The alignment set, (R, *shape), R at least 4, ready for the body.
    factor : Tensor
        F, shape (R, r): the kernel is F F^T.
    """

    def __init__(self, body: nn.Module, inputs: Tensor, factor: Tensor) -> None:
        self._body, self._inputs, self._factor = body, inputs, factor
        self._measured: list[Tensor] = []

    def distance(self) -> Tensor:
        """Return 1 - CKA of the representations by the body as it is by now, in evaluation mode."""
        with evaluating(self._body):
            cka = linear_cka(self._body(self._inputs), self._factor)
        self._measured.append(cka.detach())
        return 1 - cka

    def metrics(self) -> dict[str, float]:
        """Return the mean CKA of the round."""
        return {"cka": float(torch.stack(self._measured).mean())}


def check_bias(node: Node, algorithm: str) -> None:
    """Refuse a model whose head has no bias.

    Raises
    ------
    ModelError
        One line that names the client.
    """
    if node.model.head.bias is None:
        raise ModelError(
            f"{node}: its head has no bias, but {algorithm} adds up heads with one: build it with bias=True"
        )


def head_arrays(model: SplitModel) -> Arrays:
    """Return a copy of a model's head, as `hetfl_flwr.payloads.linear_head` declares it."""
    head = model.head.state_dict()
    return {name: head[name].cpu().numpy().copy() for name in ("weight", "bias")}


@torch.no_grad()
def head_logits(model: SplitModel, samples: Batches, batches: Sequence[Tensor], head: Head) -> list[Tensor]:
    """Return what a head makes of a model's features of each batch, (B, C), in evaluation mode; then train on."""
    model, rows = model.eval(), torch.cat(list(batches))
    features = (model.body(samples.batch(some)[0]) for some in torch.split(rows, EVALUATION_BATCH))
    logits = torch.cat([functional.linear(some, *head) for some in features])
    model.train()
    return list(torch.split(logits, [len(batch) for batch in batches]))


def temperature_of(config: RunConfig, round: int, number: int, beta: float) -> float:
    """Return the temperature of a round's pass over the data, counted from 0: CHFL Eq. (7).

    It falls with the epochs of the whole run, counted from 1; with ``local-batches`` above 0, a round counts as one.
    """
    if config.local_batches > 0:
        return cosine_temperature(round, config.rounds, beta)
    epoch = (round - 1) * config.local_epochs + number + 1
    return cosine_temperature(epoch, config.rounds * config.local_epochs, beta)


@torch.no_grad()
def represent(body: nn.Module, inputs: Tensor) -> Tensor:
    """Return what a body makes of samples, (R, D) float32, in evaluation mode; then train on."""
    with evaluating(body):
        return torch.cat([body(some) for some in torch.split(inputs, EVALUATION_BATCH)]).float()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Let a module that is being trained be in evaluation mode for a while."""
    module.eval()
    yield
    module.train()
