"""Membership inference: whether a sample was among those that a client has trained on."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Scores = NDArray[np.float64]

LEAST_DEVIATION = 1e-6
"""Standard deviation that the confidences of shadow models are given at least."""


def threshold_scores(logits: Tensor, labels: Tensor) -> Scores:
    """Return how likely each sample is a member by its loss alone: the higher, the lower the loss.

    Yeom, Giacomelli, Fredrikson and Jha, "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting",
    CSF 2018, adversary 2: a sample whose loss is below a threshold is called a member.

    Parameters
    ----------
    logits, labels : Tensor
        (N, C) and (N,) int64.

    Returns
    -------
    array
        The negative cross-entropy, (N,).

    Examples
    --------
    >>> threshold_scores(torch.tensor([[9.0, 0.0], [0.0, 9.0]]), torch.tensor([0, 0])).round(3).tolist()
    [-0.0, -9.0]
    """
    losses: Scores = -functional.cross_entropy(logits.double(), labels, reduction="none").cpu().numpy()
    return losses


def confidences(logits: Tensor, labels: Tensor) -> Scores:
    """Return log(p / (1 - p)) of the probability p of each sample's class, (N,), which is near to normal.

    Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022, section V: the logit scaling, in the
    form that does not lose digits, z_y - log(sum of exp z over the other classes).
    """
    logits = logits.double()
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    found: Scores = (own - others).cpu().numpy()
    return found


def likelihood_ratios(own: Scores, shadows: Sequence[Scores]) -> Scores:
    """Return how likely each sample is a member, by how models would answer that have not seen it.

    Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022: LiRA, offline. A sample's score is
    1 - Pr[Z > confidence] with Z normal, of the mean of the shadow models' confidences of that sample, and, as is
    advised for few of them, of one variance for all samples.

    Parameters
    ----------
    own : array
        Confidences of the attacked model, (N,).
    shadows : sequence of array
        Those of models that were trained without these samples, at least two.

    Returns
    -------
    array
        z values, (N,), of which the score is a monotone function that does not round to 1.

    Examples
    --------
    >>> likelihood_ratios(np.array([3.0, 1.0]), [np.array([0.0, 0.0]), np.array([2.0, 2.0])]).tolist()
    [2.0, 0.0]
    """
    known = np.stack(shadows)
    deviation = max(float(np.sqrt(known.var(axis=0).mean())), LEAST_DEVIATION)
    return np.asarray((own - known.mean(axis=0)) / deviation)
