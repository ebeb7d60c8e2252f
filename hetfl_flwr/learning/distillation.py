"""Distillation losses between a teacher and a student. All are pure functions, and detach the teacher."""

from math import cos, pi

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def kl_divergence(teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return KL(teacher || student), averaged over the batch.

    Parameters
    ----------
    teacher_logits, student_logits : Tensor
        Logits (B, C), before the softmax. No gradient flows to the teacher.
    temperature : float
        The temperature of both distributions, above 0. The result is not multiplied by its square.

    Returns
    -------
    Tensor
        A scalar, 0 or more.
    """
    teacher = functional.log_softmax(teacher_logits.detach() / temperature, 1)
    student = functional.log_softmax(student_logits / temperature, 1)
    return functional.kl_div(student, teacher, reduction="batchmean", log_target=True)


def decoupled_kd(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the two terms of decoupled distillation: the true class against the others, and among the others.

    Liu et al., "Completely Heterogeneous Federated Learning" (CHFL), Eq. (6)-(7), where the loss is ``alpha`` times
    their sum; after Zhao et al., "Decoupled Knowledge Distillation", CVPR 2022. At temperature 1, for each sample,
    ``KL(teacher || student) = target term + (1 - teacher's probability of the true class) * non-target term``. Here the
    second term does not have that weight, which is small if the teacher is confident.

    Neither term is multiplied by the squared temperature. Both are finite, with finite gradients, however confident
    teacher and student are.

    Parameters
    ----------
    student_logits, teacher_logits : Tensor
        Logits (B, C), before the softmax, with C at least 2 and B at least 1. No gradient flows to the teacher.
    labels : Tensor
        The true classes (B,), integers in [0, C).
    temperature : float
        The temperature of the teacher in the non-target term, above 0. The student and the target term are not
        softened.

    Returns
    -------
    target_term : Tensor
        KL(b_teacher || b_student), averaged over the batch; b is the pair of probabilities (true class, all others).
    non_target_term : Tensor
        KL(p_teacher; T || p_student), averaged over the batch; p is the renormalized distribution over the other
        classes. 0 if C is 2.
    """
    student, student_rest = _decouple(student_logits, labels)
    teacher, teacher_rest = _decouple(teacher_logits, labels)
    target_term = kl_divergence(teacher, student)
    non_target_term = kl_divergence(teacher_rest / temperature, student_rest)
    return target_term.to(student_logits.dtype), non_target_term.to(student_logits.dtype)


def cosine_temperature(epoch: int, max_epochs: int, beta: float) -> float:
    """Return the temperature of an epoch: CHFL Eq. (7), ``beta (1 + cos(pi epoch / max_epochs)) + 1``.

    It falls from ``2 beta + 1`` at epoch 0 to 1 at the last epoch. The paper counts epochs from 1.

    Parameters
    ----------
    epoch : int
        The epoch, in [0, max_epochs].
    max_epochs : int
        The number of epochs of the whole run, 1 or more.
    beta : float
        Half the difference between the first and the last temperature, 0 or more; 5 in the paper. With 0, the
        temperature is always 1.

    Examples
    --------
    >>> cosine_temperature(0, 10, 5.0), cosine_temperature(5, 10, 5.0), cosine_temperature(10, 10, 5.0)
    (11.0, 6.0, 1.0)
    """
    return beta * (1 + cos(pi * epoch / max_epochs)) + 1


def linear_schedule(ends: tuple[float, float], round: int, rounds: int) -> float:
    """Interpolate a number linearly between its values in the first and in the last round of a run.

    Parameters
    ----------
    ends : tuple of float
        The values in the first and in the last round.
    round : int
        The round, from 1.
    rounds : int
        The number of rounds of the run, 1 or more. With 1, the first value is returned.

    Examples
    --------
    >>> linear_schedule((0.5, 0.9), 2, 3), linear_schedule((0.5, 0.9), 1, 1)
    (0.7, 0.5)
    """
    return float(np.interp(round, (1, max(rounds, 2)), ends))


def _decouple(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits of the pair (true class, all others), shape (B, 2), and of the others, shape (B, C - 1).

    They are float32 at least: the sum of divergences over a batch may overflow float16.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    others = torch.arange(logits.shape[1] - 1, device=logits.device)
    others = others + (others >= labels[:, None]).to(others.dtype)
    rest = logits.gather(1, others)
    return torch.cat([logits.gather(1, labels[:, None]), rest.logsumexp(1, keepdim=True)], 1), rest
