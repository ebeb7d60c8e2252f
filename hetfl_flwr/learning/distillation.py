"""Distillation losses between a teacher and a student. Pure functions; teachers are detached."""

from math import cos, pi

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def kl_divergence(teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return KL(teacher || student), mean over the batch.

    Parameters
    ----------
    teacher_logits, student_logits : Tensor
        Shape (B, C), before the softmax. No gradient flows to the teacher.
    temperature : float
        Softens both distributions, above 0; 1 leaves them as they are. The result is not multiplied by its square.

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
    """Return the two terms of decoupled distillation: on the true class against the rest, and among the rest.

    Liu et al., "Completely Heterogeneous Federated Learning" (CHFL), Eq. (6)-(7), where the loss is ``alpha`` times
    their sum; after Zhao et al., "Decoupled Knowledge Distillation", CVPR 2022. At temperature 1, for each sample,
    ``KL(teacher || student) = target term + (1 - teacher's probability of the true class) * non-target term``; here
    the second term stands without that weight, which is small where the teacher is sure.

    Neither term is multiplied by the squared temperature. Finite, with finite gradients, however sure the two are.

    Parameters
    ----------
    student_logits, teacher_logits : Tensor
        Shape (B, C), before the softmax, C at least 2, B at least 1. No gradient flows to the teacher.
    labels : Tensor
        Shape (B,), integers in [0, C): the true classes.
    temperature : float
        Softens the teacher among the classes that are not true, above 0: not the student, and not the target term. 1
        leaves the teacher as it is; the larger, the more uniform.

    Returns
    -------
    target_term : Tensor
        KL(b_teacher || b_student), mean over the batch: b is the pair of probabilities (true class, all the rest).
    non_target_term : Tensor
        KL(p_teacher; T || p_student), mean over the batch: p is the distribution over the classes that are not true,
        renormalised. 0 if C is 2.
    """
    student, student_rest = _decouple(student_logits, labels)
    teacher, teacher_rest = _decouple(teacher_logits, labels)
    target_term = kl_divergence(teacher, student)
    non_target_term = kl_divergence(teacher_rest / temperature, student_rest)
    return target_term.to(student_logits.dtype), non_target_term.to(student_logits.dtype)


def cosine_temperature(epoch: int, max_epochs: int, beta: float) -> float:
    """Return the temperature of an epoch: CHFL Eq. (7), ``beta (1 + cos(pi epoch / max_epochs)) + 1``.

    Falls from ``2 beta + 1`` at epoch 0 to 1 at the last. The paper counts epochs from 1.

    Parameters
    ----------
    epoch : int
        In [0, max_epochs].
    max_epochs : int
        Epochs of the whole run, 1 or more.
    beta : float
        Half the height of the fall, 0 or more; 5 in the paper. 0 is a temperature of 1 throughout.

    Examples
    --------
    >>> cosine_temperature(0, 10, 5.0), cosine_temperature(5, 10, 5.0), cosine_temperature(10, 10, 5.0)
    (11.0, 6.0, 1.0)
    """
    return beta * (1 + cos(pi * epoch / max_epochs)) + 1


def linear_schedule(ends: tuple[float, float], round: int, rounds: int) -> float:
    """Return what a number is in a round, counted from 1: linear from the run's first round to its last.

    Examples
    --------
    >>> linear_schedule((0.5, 0.9), 2, 3), linear_schedule((0.5, 0.9), 1, 1)
    (0.7, 0.5)
    """
    return float(np.interp(round, (1, max(rounds, 2)), ends))


def _decouple(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits of the pair (true class, all the rest), shape (B, 2), and of the rest, shape (B, C - 1).

    In float32 at least: a sum over the batch of divergences of 10,000 is more than float16 can hold.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    others = torch.arange(logits.shape[1] - 1, device=logits.device)
    others = others + (others >= labels[:, None]).to(others.dtype)
    rest = logits.gather(1, others)
    return torch.cat([logits.gather(1, labels[:, None]), rest.logsumexp(1, keepdim=True)], 1), rest
