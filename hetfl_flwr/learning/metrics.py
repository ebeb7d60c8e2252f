"""Metrics over clients. Accuracies are fractions in [0, 1]."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hetfl_flwr.common.flower import Scalar

Metrics = dict[str, Scalar]
"""Names and values of what a client reports."""


def mean(values: Iterable[float]) -> float | None:
    """Return the plain mean, or None of nothing.

    Examples
    --------
    >>> mean([0.5, 1.0]), mean([])
    (0.75, None)
    """
    kept = list(values)
    return sum(kept) / len(kept) if kept else None


def weighted_mean(values: Mapping[int, float], samples: Mapping[int, int]) -> float | None:
    """Return the mean of the clients' values weighted by their numbers of samples, or None where there are none.

    Examples
    --------
    >>> weighted_mean({0: 0.5, 1: 1.0}, {0: 30, 1: 10})
    0.625
    """
    total = sum(samples[client] for client in values)
    return sum(value * samples[client] for client, value in values.items()) / total if total else None


@dataclass(frozen=True, slots=True)
class DomainScores:
    """How one client's model does on its own domain and on the others. Accuracies, fractions in [0, 1].

    Li et al., "FedH2L: Federated Learning with Model and Statistical Heterogeneity", section "Metrics".

    Attributes
    ----------
    acc : float or None
        On all domains' test sets (ACC). None where they hold no sample.
    bwt : float
        On the client's own domain (backward transfer, BWT).
    fwt : float or None
        On all the others (forward transfer, FWT). None where there are none, or where they hold no sample.
    """

    acc: float | None
    bwt: float
    fwt: float | None


def domain_scores(accuracies: Mapping[int, float], own: int, samples: Mapping[int, int] | None = None) -> DomainScores:
    """Return the scores of one client from its accuracy on each domain's test set.

    The paper puts the test sets together, so a domain counts by its samples; without ``samples`` all count alike,
    which is the same where the test sets are of one size.

    Parameters
    ----------
    accuracies : mapping of int to float
        Of the client's model on each domain, the own one among them; in [0, 1].
    own : int
        The client's own domain.
    samples : mapping of int to int, optional
        How many test samples each domain has, 0 or more.

    Examples
    --------
    >>> domain_scores({0: 1.0, 1: 0.5, 2: 0.0}, own=0)
    DomainScores(acc=0.5, bwt=1.0, fwt=0.25)
    """
    counts = dict.fromkeys(accuracies, 1) if samples is None else samples
    others = {domain: accuracy for domain, accuracy in accuracies.items() if domain != own}
    return DomainScores(weighted_mean(accuracies, counts), accuracies[own], weighted_mean(others, counts))
