"""What an attack has found, beside chance and the truth: scores, rates, distances, likeness of pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log10
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from hetfl_flwr.errors import HetflError

Scores = NDArray[np.float64]

LOW_RATE = 0.01
"""The false positive rate at which true positives are counted: few wrong accusations, as Carlini et al. advise."""

LEAST_DEVIATION = 1e-6
"""The smallest standard deviation of the confidences of shadow models."""


class NotFittedError(HetflError):
    """An attack comes to numbers that are not finite, as on an upload of huge values."""


@dataclass(frozen=True)
class Finding:
    """One figure of one attack, over the clients of a run.

    Parameters
    ----------
    attack : str
        Its name, and whose idea it is.
    reads, knows : str
        The payload that it reads, and what the attacker is assumed to know beside it.
    measure : str
        What the figure is.
    figure : float or None
        How far the attack gets. None: the clients do not tell, such as where each has all classes.
    without : float or None
        The same with another client's upload in place of the client's own: what of the figure is not in the upload.
        None: not asked.
    chance : float or None
        What an attacker gets who reads nothing: of membership a coin's, of pictures the mean of the attacker's own
        samples, of a histogram the nearer of that and even shares.
    best : float or None
        What the truth gives or, of membership, the same attack on the client's whole model, which is no bound: an
        upload may say more of single samples than the model does. None: nothing to compare with.
    """

    attack: str
    reads: str
    knows: str
    measure: str
    figure: float | None
    without: float | None
    chance: float | None
    best: float | None


@dataclass(frozen=True)
class Pictures:
    """Pictures of a client and what was made of them, (N, channels, H, W) with values in [0, 1]."""

    attack: str
    originals: Scores
    found: Scores


class Separation(NamedTuple):
    """Scores of what is so, and of what is not: higher for what the attack thinks is so."""

    positive: Scores
    negative: Scores


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def pooled(measure: Callable[[Scores, Scores], float | None], found: Sequence[Separation]) -> float | None:
    """Return a measure of all clients' scores together: the attacker has one threshold for all."""
    return measure(*map(np.concatenate, zip(*found, strict=True))) if found else None


def auc(positive: Scores, negative: Scores) -> float | None:
    """Return the probability that a positive scores higher than a negative, ties half: in [0, 1]; None without both.

    Examples
    --------
    >>> auc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    if not (len(positive) and len(negative)):
        return None
    return float(roc_auc_score(*_marked(positive, negative)))


def true_positive_rate(positive: Scores, negative: Scores, rate: float = LOW_RATE) -> float | None:
    """Return the largest part of the positives that a threshold finds with at most `rate` false positives.

    Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022, section IV.

    Examples
    --------
    >>> true_positive_rate(np.array([5.0, 4.0, 0.0]), np.array([1.0, 2.0]))
    0.6666666666666666
    """
    if not (len(positive) and len(negative)):
        return None
    false, true, _ = roc_curve(*_marked(positive, negative), drop_intermediate=False)
    return float(true[false <= rate].max())


def _marked(positive: Scores, negative: Scores) -> tuple[Scores, Scores]:
    return np.repeat([1.0, 0.0], [len(positive), len(negative)]), np.concatenate([positive, negative])


def chance_rate(others: int, rate: float = LOW_RATE) -> float:
    """Return the mean of `true_positive_rate` where positives and others, so many of them, have one distribution.

    The threshold is the highest score of n others but for the k false positives that are allowed: (k + 1) / (n + 1).

    Examples
    --------
    >>> chance_rate(199)
    0.01
    """
    return (int(others * rate) + 1) / (others + 1)


def total_variation(one: Scores, other: Scores) -> float:
    """Return half the sum of absolute differences of two distributions (C,): in [0, 1].

    Examples
    --------
    >>> total_variation(np.array([0.5, 0.5]), np.array([1.0, 0.0]))
    0.5
    """
    return float(np.abs(one - other).sum() / 2)


def psnr(picture: Scores, original: Scores) -> float:
    """Return the peak signal-to-noise ratio of a picture with values in [0, 1], in decibels; infinite where equal.

    Examples
    --------
    >>> round(psnr(np.full((4, 4), 0.6), np.full((4, 4), 0.5)), 6)
    20.0
    """
    error = float(np.square(picture - original).mean())
    return inf if error == 0 else -10 * log10(error)


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
