"""The local training loop and the evaluation loop."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import ceil, isfinite
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import Samples
from hetfl_flwr.errors import DivergedError
from hetfl_flwr.learning.gradients import flat_gradient, pcgrad, project, set_gradient
from hetfl_flwr.learning.optimizers import SGD, Adam, AdamW, stepped

EVALUATION_BATCH = 1024
"""Batch size of the evaluation loop."""


class Terms(NamedTuple):
    """A loss of two terms with gradients that may conflict.

    Parameters
    ----------
    own : Tensor
        The loss on the client's own labels, a scalar.
    distillation : Tensor
        The distillation term, from other clients' knowledge, a scalar.
    """

    own: Tensor
    distillation: Tensor


Loss = Callable[[Tensor, Tensor], Tensor | Terms]
"""A function from inputs (B, ...) and labels (B,) to a scalar, or to two as `Terms`."""

PROJECTIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "qp": lambda distillation, own: own + project(distillation, own),
    "pcgrad": pcgrad,
}
"""Functions that combine the gradients (P,) of two terms, by the name of the projection."""


def make_optimizer(config: RunConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Build the optimizer that the run config sets, as a fused optimizer: one pass over all parameters per step.

    Parameters
    ----------
    config : RunConfig
        The run config with ``optimizer``, ``learning-rate``, ``weight-decay`` and ``momentum``.
    parameters : iterable of Parameter
        The parameters to optimize.
    """
    rate, decay = config.learning_rate, config.weight_decay
    match config.optimizer:
        case "adam" | "amsgrad":
            return Adam(parameters, lr=rate, weight_decay=decay, amsgrad=config.optimizer == "amsgrad", fused=True)
        case "adamw":
            return AdamW(parameters, lr=rate, weight_decay=decay, fused=True)
        case "sgd":
            return SGD(parameters, lr=rate, momentum=config.momentum, weight_decay=decay, fused=True)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, before_step: Callable[[], None] = lambda: None) -> None:
    """Set gradients to zero, backpropagate a loss, and take one optimizer step.

    Parameters
    ----------
    optimizer : Optimizer
        The optimizer.
    loss : Tensor
        The loss, a scalar.
    before_step : callable
        A function that is called between backward pass and step.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    before_step()
    optimizer.step()


def draw_epochs(
    rng: np.random.Generator, samples: int, size: int, *, epochs: int, batches: int
) -> Iterator[list[Tensor]]:
    """Yield the mini-batches of a round, one list for each pass over the data; see `draw_batches`."""
    left = batches
    passes = 0
    while left > 0 if batches else passes < epochs:
        order = torch.from_numpy(rng.permutation(samples))
        cuts = list(torch.split(order, size))
        if size > 1 and len(cuts) > 1 and len(cuts[-1]) == 1:
            cuts[-2:] = [torch.cat(cuts[-2:])]
        passes += 1
        yield cuts[:left] if batches else cuts
        left -= len(cuts)


def draw_batches(rng: np.random.Generator, samples: int, size: int, *, epochs: int, batches: int) -> Iterator[Tensor]:
    """Yield the mini-batches of a round.

    Parameters
    ----------
    rng : numpy.random.Generator
        The generator that shuffles the samples.
    samples : int
        The number of training samples, 1 or more.
    size : int
        The batch size. If it is above 1, a last batch of one sample is merged into the batch before it, because batch
        norm cannot train on one sample.
    epochs : int
        The number of passes over the data, each in a new order, if `batches` is 0.
    batches : int
        The total number of batches, over as many passes as needed. 0: whole epochs.

    Yields
    ------
    Tensor
        The positions of the samples of a batch, (B,) int64.
    """
    return chain.from_iterable(draw_epochs(rng, samples, size, epochs=epochs, batches=batches))


def batches_a_round(config: RunConfig, samples: int) -> int:
    """Return how many mini-batches `draw_batches` yields in a round with this run config.

    Examples
    --------
    >>> batches_a_round(RunConfig(local_batches=0, local_epochs=2, batch_size=50), 101)
    4
    """
    one_left = config.batch_size > 1 and samples > config.batch_size and samples % config.batch_size == 1
    return config.local_batches or config.local_epochs * (ceil(samples / config.batch_size) - one_left)


def max_drawn(config: RunConfig, samples: int, *, times: int = 1) -> int:
    """Return the largest total size of a round's mini-batches, including repeated samples.

    Parameters
    ----------
    config : RunConfig
        The run config with ``batch-size``, ``local-epochs`` and ``local-batches``.
    samples : int
        The largest number of samples to draw from.
    times : int
        How many times the local work of the run config is done.

    Examples
    --------
    >>> max_drawn(RunConfig(local_batches=3, batch_size=50), 1000)  # the last batch of a pass may have one more
    153
    >>> max_drawn(RunConfig(local_batches=0, local_epochs=2, batch_size=50), 1000)
    2000
    """
    size = config.batch_size
    batch = min(samples, size + 1 if size > 1 else size)
    return times * (config.local_batches * batch if config.local_batches else config.local_epochs * samples)


def train(
    samples: Samples,
    batches: Iterable[Tensor],
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    *,
    before_step: Callable[[], None] = lambda: None,
    projection: str = "none",
) -> tuple[int, float]:
    """Take one optimizer step per mini-batch.

    Parameters
    ----------
    samples : Samples
        The training samples.
    batches : iterable of Tensor
        The positions (B,) of the samples of each mini-batch.
    optimizer : Optimizer
        The optimizer.
    loss : callable
        A function that returns the loss of a batch; see `Loss`.
    before_step : callable, optional
        A function that is called between each backward pass and its step.
    projection : {"none", "qp", "pcgrad"}
        How to combine the gradients of a loss of two terms, as in the run config. "pcgrad" is the method of Yu et al.,
        NeurIPS 2020. All but "none" need a second backward pass.

    Returns
    -------
    tuple of int and float
        The number of samples seen, and their mean loss, computed before each step.

    Raises
    ------
    DivergedError
        If the loss is no longer finite.
    """
    sizes, losses = [], []
    for rows in batches:
        inputs, labels = samples.batch(rows)
        value = loss(inputs, labels)
        if isinstance(value, Terms) and projection != "none":
            value = _descend_apart(optimizer, value, before_step, projection)
        else:
            value = value.own + value.distillation if isinstance(value, Terms) else value
            descend(optimizer, value, before_step)
        sizes.append(len(labels))
        losses.append(value.detach())
    found = torch.cat([loss.reshape(1) for loss in losses]).tolist() if len(losses) > 1 else [x.item() for x in losses]
    seen, total = sum(sizes), 0.0
    for one, size in zip(found, sizes, strict=True):
        total += one * size
    mean = total / seen if seen else 0.0
    if not isfinite(mean):
        raise DivergedError(
            f"training diverged: the loss is {mean}: lower learning-rate, or change the weights of the loss"
        )
    return seen, mean


def _descend_apart(
    optimizer: torch.optim.Optimizer, terms: Terms, before_step: Callable[[], None], projection: str
) -> Tensor:
    """Take one step with the combined gradients of the two terms, and return the loss."""
    parameters, gradients = stepped(optimizer), []
    for term, again in ((terms.own, True), (terms.distillation, False)):
        optimizer.zero_grad(set_to_none=True)
        term.backward(retain_graph=again)  # type: ignore[no-untyped-call]
        gradients.append(flat_gradient(parameters))
    own, distillation = gradients
    set_gradient(parameters, PROJECTIONS[projection](distillation, own))
    before_step()
    optimizer.step()
    return terms.own + terms.distillation


@torch.no_grad()
def take_statistics(
    model: nn.Module, batches: Iterable[Tensor], outputs: Callable[[Tensor], Tensor] | None = None
) -> None:
    """Set the running mean and variance of batch norm to their mean over some batches; restore the model's mode.

    Layers that training does not change, which stay in evaluation mode or have a momentum of 0, keep theirs.

    Parameters
    ----------
    model : Module
        The model with the batch norm layers.
    batches : iterable of Tensor
        The inputs (B, ...) of each batch.
    outputs : callable, optional
        The function that computes the model's outputs. Default: the model itself.
    """
    was_training = model.training
    norms = [
        layer
        for layer in model.train().modules()
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.training and layer.momentum != 0
    ]
    model.eval()
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
    for inputs in batches:
        (outputs or model)(inputs)
    for layer, momentum in zip(norms, momenta, strict=True):
        layer.momentum = momentum
    model.train(was_training)


@torch.no_grad()
def outputs(module: nn.Module, samples: Samples, rows: Tensor | None = None) -> Tensor:
    """Return a module's outputs (N, ...) for samples in evaluation mode; restore the module's mode.

    Parameters
    ----------
    module : Module
        A module that takes inputs, such as a model or its body.
    samples : Samples
        The samples.
    rows : Tensor, optional
        The positions (N,) of the samples to use. Default: all.
    """
    was_training, rows = module.training, torch.arange(len(samples)) if rows is None else rows
    module.eval()
    found = torch.cat([module(samples.batch(some)[0]) for some in torch.split(rows, EVALUATION_BATCH)])
    module.train(was_training)
    return found


@dataclass(frozen=True)
class Evaluation:
    """Loss and accuracy of a model on a number of samples; both are 0 without samples."""

    loss: float
    accuracy: float
    samples: int


@torch.no_grad()
def evaluate(
    model: nn.Module, samples: Samples, *, take: Callable[[Tensor], object] = lambda logits: None
) -> Evaluation:
    """Compute mean cross-entropy and accuracy in evaluation mode; restore the model's mode.

    Parameters
    ----------
    model : Module
        A model from inputs to logits (B, C).
    samples : Samples
        The samples to evaluate on.
    take : callable, optional
        A function that is called with the logits of each batch, in order.

    Returns
    -------
    Evaluation
        `loss`, `accuracy`, in [0, 1], and the number of `samples`. Without samples, loss and accuracy are 0.
    """
    was_training = model.training
    model.eval()
    loss, correct = 0.0, 0
    for rows in torch.split(torch.arange(len(samples)), EVALUATION_BATCH):
        if len(rows) == 0:
            break
        inputs, labels = samples.batch(rows)
        logits = model(inputs)
        loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
        correct += int((logits.argmax(1) == labels).sum())
        take(logits)
    model.train(was_training)
    count = max(len(samples), 1)
    return Evaluation(loss / count, correct / count, len(samples))
