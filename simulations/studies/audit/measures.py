"""Findings of attacks, and measures of how well scores separate positives from negatives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from hetfl_flwr.errors import HetflError

Scores = NDArray[np.float64]

Split = Sequence[Scores]
"""Scores of positives, and of negatives: higher for more likely positives."""

LOW_RATE = 0.01
"""The false positive rate at which true positives are counted: few wrong accusations, as Carlini et al. advise."""


class NotFittedError(HetflError):
    """An attack gives numbers that are not finite, as for an upload of huge values."""


Figure = tuple[str, float | None, float | None, float | None, float | None]
"""What is measured, and the four figures of a `Finding`."""


class Found(NamedTuple):
    """What one attack on all clients has found: what it reads and knows, its figures, and pictures of a client.

    Pictures are the originals and what was made of them, (N, channels, H, W) each with values in [0, 1].
    """

    reads: str
    knows: str
    figures: Sequence[Figure]
    pictures: tuple[Scores, Scores] | None = None


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


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def pooled(measure: Callable[[Scores, Scores], float | None], found: Sequence[Split]) -> float | None:
    """Return a measure of all clients' scores together: the attacker has one threshold for all."""
    return measure(*map(np.concatenate, zip(*found, strict=True))) if found else None


def auc(positive: Scores, negative: Scores) -> float | None:
    """Return the probability that a positive scores higher than a negative, ties half: in [0, 1]; None without both.

    Examples
    --------
    >>> auc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    both = len(positive) and len(negative)
    return float(roc_auc_score(*_marked(positive, negative))) if both else None


def true_positive_rate(positive: Scores, negative: Scores) -> float | None:
    """Return the largest part of the positives that a threshold finds with at most `LOW_RATE` false positives.

    Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022, section IV.

    Examples
    --------
    >>> true_positive_rate(np.array([5.0, 4.0, 0.0]), np.array([1.0, 2.0]))
    0.6666666666666666
    """
    if not (len(positive) and len(negative)):
        return None
    false, true, _ = roc_curve(*_marked(positive, negative), drop_intermediate=False)
    return float(true[false <= LOW_RATE].max())


def _marked(positive: Scores, negative: Scores) -> Split:
    return np.repeat([1.0, 0.0], [len(positive), len(negative)]), np.concatenate([positive, negative])
