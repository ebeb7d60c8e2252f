"""Distillation from an ensemble: the logits of several models, and students that are trained towards their mean."""

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
    """How long a student is trained, and in what steps.

    Parameters
    ----------
    steps : int
        At most, 0 or more.
    batch_size : int
        Samples of a step, 1 or more.
    rate : float
        Adam's first rate, above 0; it falls to 0 over ``steps``, as a cosine.
    patience : int
        Steps without a larger agreement after which no more are taken, 1 or more.
    """

    steps: int
    batch_size: int
    rate: float
    patience: int

    def rate_of(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        return self.rate * (1 + cos(pi * step / self.steps)) / 2


def logits_of_each(models: Iterable[nn.Module], samples: Samples, threads: int) -> list[NDArray[np.float32]]:
    """Return several models' logits of samples, (N, C) each; ``threads`` is how many torch is to use."""
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
    """Train students, each by itself and in the same order of samples, towards logits.

    Parameters
    ----------
    students : mapping of str to Module
        They are changed, as by `distil`.
    samples, schedule
        As in `distil`.
    targets : array
        (N, C), the logits, as an ensemble's mean.
    scope : tuple of int
        The run's seed and the round, by which everything is drawn.
    threads : int
        As many as torch is to use: the bits depend on it.
    """
    with seeded(*scope, "distillation"), torch_threads(threads):
        for student in students.values():
            distil(student, samples, torch.from_numpy(targets).float(), schedule, generator(*scope, "distillation"))


def distil(student: nn.Module, samples: Samples, targets: Tensor, schedule: Schedule, draw: np.random.Generator) -> int:
    """Train a student towards logits for as long as it comes to agree with them on more of some held-out samples.

    A fifth of the samples, drawn by chance, is held out; of fewer than 5 all are trained on and measured. The agreement
    is the share of the held-out samples for which student and logits say the same class: a divergence would go on
    falling a little for as long as there are steps. The student ends as it was when it agreed with most; of several
    such states, when the divergence was smallest. That may be as it began: so also where the logits or the student are
    not finite.

    Parameters
    ----------
    student : Module
        It is changed, and is in training mode afterwards.
    samples : Samples
        N samples; their labels are not looked at.
    targets : Tensor
        (N, C), the logits.
    schedule : Schedule
        How long, and in what steps.
    draw : numpy.random.Generator
        Source of what is held out, and of the order of the rest.

    Returns
    -------
    int
        Steps that were taken.
    """
    order = torch.from_numpy(draw.permutation(len(samples)))
    held, rows = order[: len(order) // 5], order[len(order) // 5 :]
    held = held if len(held) else rows
    optimizer = torch.optim.Adam(student.parameters(), lr=schedule.rate, fused=True)
    batches = draw_batches(draw, len(rows), schedule.batch_size, epochs=0, batches=schedule.steps)
    best, rose, state = _nearness(student, samples, targets, held), 0, _copied(student)
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
            found = _nearness(student, samples, targets, held)
            if found[0] > best[0]:
                rose = step
            if found > best:
                best, state = found, _copied(student)
            if step - rose >= schedule.patience:
                break
    student.load_state_dict(state)
    return step


def _nearness(student: nn.Module, samples: Samples, targets: Tensor, rows: Tensor) -> tuple[float, float]:
    """Return how near a student, in evaluation mode, is to logits on some rows: its agreement, and -divergence."""
    logits = outputs(student, samples, rows)
    divergence = float(kl_divergence(targets[rows].double(), logits.double()))
    if not isfinite(divergence):
        return 0.0, -inf
    return float((logits.argmax(1) == targets[rows].argmax(1)).double().mean()), -divergence


def _copied(student: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in student.state_dict().items()}
