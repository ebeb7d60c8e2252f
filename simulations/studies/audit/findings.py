"""What an attack has found, beside what chance and whole knowledge would give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.common.errors import HetflError
from simulations.studies.audit.measures import LOW_RATE, auc, chance_rate, true_positive_rate

Scores = NDArray[np.float64]


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


@dataclass(frozen=True)
class Separation:
    """Scores of what is so, and of what is not: higher for what the attack thinks is so."""

    positive: Scores
    negative: Scores


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def mean_auc(found: Sequence[Separation]) -> float | None:
    """Return the mean over clients of the areas under their curves."""
    return mean([auc(one.positive, one.negative) for one in found])


def pooled(measure: Callable[[Scores, Scores], float | None], found: Sequence[Separation]) -> float | None:
    """Return a measure of all clients' scores together: the attacker has one threshold for all."""
    if not found:
        return None
    return measure(np.concatenate([one.positive for one in found]), np.concatenate([one.negative for one in found]))


def of_membership(
    attack: str,
    reads: str,
    knows: str,
    own: Sequence[Separation],
    without: Sequence[Separation],
    best: Sequence[Separation],
) -> list[Finding]:
    """Return the two figures of membership inference.

    Of fewer samples that are not members than have one in 1 %, the second is the rate without false positives.
    """
    others = sum(len(one.negative) for one in own)
    rate = "TPR at 1 % FPR" if others * LOW_RATE >= 1 else f"TPR at 0 FPR ({others} others)"
    areas = [mean_auc(one) for one in (own, without, best)]
    rates = [pooled(true_positive_rate, one) for one in (own, without, best)]
    return [
        Finding(attack, reads, knows, "AUC", areas[0], areas[1], 0.5, areas[2]),
        Finding(attack, reads, knows, rate, rates[0], rates[1], chance_rate(others), rates[2]),
    ]
