"""Distillation from an ensemble: the logits of several models, and students trained toward their mean."""

from collections.abc import Iterable, Mapping
from math import cos, inf, isfinite, pi
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hetfl_flwr import (
    DivergedError,
    Samples,
    draw_batches,
    generator,
    kl_divergence,
    outputs,
    seeded,
    torch_threads,
    train,
)


class Schedule(NamedTuple):
    """The schedule of a student's training.

    Parameters
    ----------
    steps : int
        The maximum number of steps, 0 or more.
    batch_size : int
        The batch size, 1 or more.
    rate : float
        Adam's initial learning rate, above 0. It follows a cosine to 0 over ``steps``.
    patience : int
        The number of steps without a larger agreement after which training stops, 1 or more.
    """

    steps: int
    batch_size: int
    rate: float
    patience: int

    def rate_of(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return self.rate * (1 + cos(pi * step / self.steps)) / 2


def logits_of_each(models: Iterable[nn.Module], samples: Samples, threads: int) -> list[NDArray[np.float32]]:
    """Return the logits (N, C) of each of several models, computed with this number of threads."""
    with torch_threads(threads):
        return [outputs(model, samples).numpy() for model in models]


def distil_each(
    students: Mapping[str, nn.Module],
    samples: Samples,
    targets: NDArray[np.floating],
    schedule: Schedule,
    scope: tuple[int, int],
    threads: int,
) -> None:
    """Train students toward logits, independently of each other and in the same order of samples.

    Parameters
    ----------
    students : mapping of str to Module
        The students. They are changed as in `distil`.
    samples, schedule
        As in `distil`.
    targets : array
        The logits (N, C), such as the mean of an ensemble.
    scope : tuple of int
        The run's seed and the round, which seed all random numbers.
    threads : int
        The number of PyTorch's threads, on which the lowest bits depend.
    """
    with seeded(*scope, "distillation"), torch_threads(threads):
        for student in students.values():
            distil(student, samples, torch.from_numpy(targets).float(), schedule, generator(*scope, "distillation"))


def distil(student: nn.Module, samples: Samples, targets: Tensor, schedule: Schedule, draw: np.random.Generator) -> int:
    """Train a student toward logits as long as its agreement with them on held-out samples rises.

    A random fifth of the samples is held out; with fewer than 5 samples, all are used for training and for measuring.
    The agreement is the share of the held-out samples for which student and logits predict the same class. A divergence
    would keep falling slightly with every step. The student ends in the state with the largest agreement; if there are
    several, in the one with the smallest divergence. This may be its initial state, for example if the logits or the
    student are not finite.

    Parameters
    ----------
    student : Module
        The student. It is changed, and is in training mode afterwards.
    samples : Samples
        N samples. Their labels are not used.
    targets : Tensor
        The logits (N, C).
    schedule : Schedule
        The schedule of the training.
    draw : numpy.random.Generator
        The generator that draws the held-out samples and the order of the others.

    Returns
    -------
    int
        The number of steps taken.
    """
    order = torch.from_numpy(draw.permutation(len(samples)))
    held, rows = order[: len(order) // 5], order[len(order) // 5 :]
    held = held if len(held) else rows
    optimizer = torch.optim.Adam(student.parameters(), lr=schedule.rate, fused=True)
    batches = draw_batches(draw, len(rows), schedule.batch_size, epochs=0, batches=schedule.steps)
    best, rose, state = _agreement(student, samples, targets, held), 0, _copied(student)
    every, step = max(1, schedule.patience // 10), 0
    student.train()
    for batch in batches:
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate_of(step)
        chosen = rows[batch]

        def loss(inputs: Tensor, labels: Tensor, chosen: Tensor = chosen) -> Tensor:
            return kl_divergence(targets[chosen], student(inputs))

        try:
            train(samples, [chosen], optimizer, loss)
        except DivergedError:
            break
        step += 1
        if step % every == 0 or step == schedule.steps:
            found = _agreement(student, samples, targets, held)
            if found[0] > best[0]:
                rose = step
            if found > best:
                best, state = found, _copied(student)
            if step - rose >= schedule.patience:
                break
    student.load_state_dict(state)
    return step


def _agreement(student: nn.Module, samples: Samples, targets: Tensor, rows: Tensor) -> tuple[float, float]:
    """Return a student's agreement with logits on some rows, and the negative divergence, in evaluation mode."""
    logits = outputs(student, samples, rows)
    divergence = float(kl_divergence(targets[rows].double(), logits.double()))
    if not isfinite(divergence):
        return 0.0, -inf
    return float((logits.argmax(1) == targets[rows].argmax(1)).double().mean()), -divergence


def _copied(student: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in student.state_dict().items()}
