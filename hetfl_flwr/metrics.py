"""Metrics over clients. Accuracies are fractions in [0, 1]."""

from collections.abc import Iterable, Mapping


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
