"""Findings of attacks, and how well scores separate positives from negatives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from hetfl_flwr.errors import HetflError

Scores = NDArray[np.float64]

ScorePair = Sequence[Scores]
"""Scores of positives, and of negatives; higher means more likely positive."""

LOW_RATE = 0.01
"""False positive rate at which true positives are counted, as Carlini et al. recommend."""


class NotFittedError(HetflError):
    """The numbers of an attack are not finite, for example because an upload has huge values."""


Figure = tuple[str, float | None, float | None, float | None, float | None]
"""A measure, and the four figures of a `Finding`."""


class AttackResult(NamedTuple):
    """The result of one attack on all clients: what it reads and knows, its figures, and one client's pictures.

    Pictures are originals and reconstructions, (N, channels, H, W) each, in [0, 1].
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
        Its name and authors.
    reads, knows : str
        The payload that it reads, and what else the attacker is assumed to know.
    measure : str
        What the figure is.
    figure : float or None
        The result of the attack. None: undefined, for example because every client has all classes.
    without : float or None
        The same with another client's upload in its place: the part of the figure that does not come from the upload.
        None: not measured.
    chance : float or None
        The result of an attacker who reads nothing: a coin toss for membership, the mean of the attacker's samples for
        pictures; for class histograms, the better of that of the attacker's samples and even shares.
    best : float or None
        That of the ground truth, for class histograms. None: no reference.
    """

    attack: str
    reads: str
    knows: str
    measure: str
    figure: float | None
    without: float | None
    chance: float | None
    best: float | None


def pooled(measure: Callable[[Scores, Scores], float | None], found: Sequence[ScorePair]) -> float | None:
    """Return a measure of the scores of all clients together: the attacker uses one threshold for all."""
    return measure(*map(np.concatenate, zip(*found, strict=True))) if found else None


def auc(positive: Scores, negative: Scores) -> float | None:
    """Return the probability, in [0, 1], that a positive scores above a negative; ties count half, None without both.

    Examples
    --------
    >>> auc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    both = len(positive) and len(negative)
    return float(roc_auc_score(*_marked(positive, negative))) if both else None


def true_positive_rate(positive: Scores, negative: Scores) -> float | None:
    """Return the largest true positive rate at a false positive rate of at most `LOW_RATE`.

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


def _marked(positive: Scores, negative: Scores) -> ScorePair:
    return np.repeat([1.0, 0.0], [len(positive), len(negative)]), np.concatenate([positive, negative])
