"""Training as an attacker does it: models that imitate a client, students of what it has sent, and heads."""

from collections.abc import Callable
from copy import deepcopy
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr.learning.training import draw_batches, make_optimizer
from hetfl_flwr.models import SplitModel
from simulations.studies.audit.measures import NotFittedError
from simulations.studies.audit.subject import Rows, Subject

M = TypeVar("M", bound=nn.Module)

Predictor = Callable[[Tensor], Tensor]
"""From inputs (B, *shape) to logits (B, C), with a gradient by the inputs."""

DISTILLING = 300
"""Steps in which an attacker's model learns what clients answer on public samples."""

MOST_STEPS = 2_000
"""Steps of local training that an attacker imitates, at most."""


def embedded(model: SplitModel, inputs: Tensor) -> Tensor:
    """Return embeddings (N, D) in evaluation mode."""
    features: Tensor = model.eval().body(inputs)
    return features


def predicting(model: nn.Module, forward: Predictor | None = None) -> Predictor:
    """Return a model, or what is computed with its weights, as a predictor in evaluation mode."""

    def predict(inputs: Tensor) -> Tensor:
        model.eval()
        logits: Tensor = (forward or model)(inputs)
        return logits

    return predict


def forward_of(model: SplitModel, subject: Subject) -> Predictor:
    """Return what a model computes with weights as they travel, by the client's method."""
    return subject.client.forward_of(model, subject.last.download)


def trained(
    model: SplitModel, rows: Rows, subject: Subject, rng: np.random.Generator, *, rounds: int = 0
) -> SplitModel:
    """Train a model as the run config says, for some rounds; 0: as many as the client has by its last upload.

    Its weights are as they travel.
    """
    config = subject.config
    steps = min(subject.client.local_steps(len(rows)) * (rounds or len(subject.kept)), MOST_STEPS)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, forward = make_optimizer(config, parameters), forward_of(model, subject)
    model.train()
    for batch in draw_batches(rng, len(rows), config.batch_size, epochs=1, batches=steps):
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(forward(rows.inputs[batch]), rows.labels[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def distilled(model: M, loss: Callable[[], Tensor], *, steps: int = 0, rate: float = 2e-3) -> M:
    """Train a model, which is changed and returned, by Adam on a loss over all samples; 0 steps: `DISTILLING`."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for _ in range(steps or DISTILLING):
        optimizer.zero_grad(set_to_none=True)
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


@torch.no_grad()
def logits_of(predictor: Predictor, rows: Rows) -> Tensor:
    """Return what is predicted of some samples: logits (N, C).

    Raises
    ------
    NotFittedError
        They are not finite.
    """
    logits = predictor(rows.inputs)
    if not logits.isfinite().all():
        raise NotFittedError("its predictions are not finite")
    return logits


def fitted_head(features: Tensor, labels: Tensor, classes: int) -> Predictor:
    """Return a linear classifier of standardised features (N, D), fitted by Adam with the same weight on each class."""
    features = features.detach()
    mean, deviation = features.mean(0), features.std(0).clamp(min=1e-3)
    head = nn.Linear(features.shape[1], classes).to(features.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    scaled, counts = (features - mean) / deviation, torch.bincount(labels, minlength=classes)
    weight = len(labels) / (counts.clamp(min=1) * (counts > 0).sum())
    distilled(head, lambda: functional.cross_entropy(head(scaled), labels, weight), steps=100, rate=0.05)
    return lambda some: predicting(head)((some - mean) / deviation)


def fresh(subject: Subject, rng: np.random.Generator) -> SplitModel:
    """Return a model of the client's architecture with weights of its own, as its layers draw them."""
    model = deepcopy(subject.model)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**62)))
        for layer in model.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model
