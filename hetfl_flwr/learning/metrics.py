"""Metrics over clients. Accuracies are fractions in [0, 1]."""

from collections.abc import Iterable, Mapping

from hetfl_flwr.common.flower import Scalar

Metrics = dict[str, Scalar]
"""The metrics that a client reports, by name."""

FRACTIONS = {
    *("accuracy", "global-accuracy", "validation-accuracy", "acc", "fwt"),
    *("balanced-accuracy", "macro-f1", "auc", "majority"),
}
"""Metrics that are fractions in [0, 1]."""


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
