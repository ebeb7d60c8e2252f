"""Metrics over clients. Accuracies are fractions in [0, 1]."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hetfl_flwr.common.flower import Scalar

Metrics = dict[str, Scalar]
"""The metrics that a client reports, by name."""


def mean(values: Iterable[float]) -> float | None:
    """Return the unweighted mean, or None if there are no values.

    Examples
    --------
    >>> mean([0.5, 1.0]), mean([])
    (0.75, None)
    """
    kept = list(values)
    return sum(kept) / len(kept) if kept else None


def weighted_mean(values: Mapping[int, float], samples: Mapping[int, int]) -> float | None:
    """Return the mean of the clients' values weighted by their numbers of samples, or None if there are no samples.

    Examples
    --------
    >>> weighted_mean({0: 0.5, 1: 1.0}, {0: 30, 1: 10})
    0.625
    """
    total = sum(samples[client] for client in values)
    return sum(value * samples[client] for client, value in values.items()) / total if total else None


@dataclass(frozen=True, slots=True)
class DomainScores:
    """Accuracies of a client's model on all domains (ACC), its own domain (BWT) and the other domains (FWT).

    Li et al., "FedH2L: Federated Learning with Model and Statistical Heterogeneity", section "Metrics": backward and
    forward transfer. A score is None if its domains have no test samples.
    """

    acc: float | None
    bwt: float
    fwt: float | None


def domain_scores(accuracies: Mapping[int, float], own: int, samples: Mapping[int, int] | None = None) -> DomainScores:
    """Return the scores of a client's model from its accuracy on each domain's test set, including its `own` domain.

    The paper merges the test sets, which weights each domain by its number of test `samples`. Without `samples`, all
    domains have the same weight, as with test sets of equal size.

    Examples
    --------
    >>> domain_scores({0: 1.0, 1: 0.5, 2: 0.0}, own=0)
    DomainScores(acc=0.5, bwt=1.0, fwt=0.25)
    """
    counts = dict.fromkeys(accuracies, 1) if samples is None else samples
    others = {domain: accuracy for domain, accuracy in accuracies.items() if domain != own}
    return DomainScores(weighted_mean(accuracies, counts), accuracies[own], weighted_mean(others, counts))
