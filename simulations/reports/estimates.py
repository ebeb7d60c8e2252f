"""Measures that runs are compared by, and the uncertainty of a difference: over seeds, or over test rows.

Measures and differences are fractions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan, sqrt
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.errors import ConfigError, unknown
from hetfl_flwr.runs.record import ClientRecord, Summary

ROUNDING = 1e-6
"""Tolerance for rounding errors of fractions: records have six digits of each client's accuracy."""


@dataclass(frozen=True)
class Measure:
    """A measure to compare; higher is better.

    `key` names it in ``clients.json`` and ``summary.json``, `words` in texts. With `of_rows` it is a proportion of test
    rows, so that one run gives an interval. `label` is the class of a measure that has a value for each class, else "".
    """

    key: str
    words: str
    of_rows: bool = False
    label: str = ""

    def of(self, record: ClientRecord | Summary) -> float | None:
        """Return a client's final value or a run's mean over clients; None if there is none."""
        found: object = record.get(self.key)
        value = found.get(self.label) if self.label and isinstance(found, Mapping) else found
        return float(value) if isinstance(value, int | float) else None


ACCURACY = Measure("accuracy", "accuracy", of_rows=True)

MEASURES = {
    "accuracy": ACCURACY,
    "balanced-accuracy": Measure("balanced_accuracy", "balanced accuracy"),
    "macro-f1": Measure("macro_f1", "macro F1"),
    "auc": Measure("auc", "AUC"),
}
"""Measures by the names that users give."""


def measure_named(name: str) -> Measure:
    """Return the measure with a name: one of `MEASURES`, or ``recall:CLASS``; raises ConfigError for any other.

    Examples
    --------
    >>> measure_named("recall:sepsis").words
    'recall of sepsis'
    """
    kind, _, label = name.partition(":")
    if kind.strip().casefold() == "recall" and label.strip():
        return Measure("recall", f"recall of {label.strip()}", label=label.strip())
    measure = MEASURES.get(name.strip().casefold().replace("_", "-").replace(" ", "-"))
    if measure is None:
        raise ConfigError(unknown("measure", name, [*MEASURES, "recall:CLASS"]))
    return measure


def check_measured(clients: Sequence[ClientRecord], measure: Measure) -> None:
    """Raise ConfigError if no client has a measure other than accuracy; for recall it lists the known classes."""
    if measure is ACCURACY or any(measure.of(client) is not None for client in clients):
        return
    labels = {label for client in clients for label in client.get("recall") or ()}
    if measure.label and labels:
        raise ConfigError(unknown("class", measure.label, labels))
    raise ConfigError(f"no client of these runs has a final {measure.words}: compare another measure")


@dataclass(frozen=True)
class Estimate:
    """A mean difference with its 95 % interval, two-sided p value, and the source of both.

    Interval and p value are NaN if they cannot be estimated, as for one seed of a measure that is not a proportion.
    """

    mean: float
    low: float = nan
    high: float = nan
    p: float = nan
    source: Literal["seeds", "rows", "none"] = "none"


def compared(after: Sequence[float], before: Sequence[float], rows: int | None) -> Estimate:
    """Return the mean difference of fractions that were measured with the same seeds.

    The interval is Student's t over the seeds. For one seed or equal differences it is the normal approximation for two
    proportions of `rows` independent rows each, and unknown if `rows` is None.

    Examples
    --------
    >>> estimate = compared([0.8, 0.9, 0.85], [0.7, 0.75, 0.8], 100)
    >>> round(estimate.mean, 3), round(estimate.low, 3), round(estimate.high, 3), estimate.source
    (0.1, -0.024, 0.224, 'seeds')
    """
    estimate = over_seeds(np.subtract(after, before))
    return (
        estimate if estimate.source == "seeds" or rows is None else two_proportions(fmean(after), fmean(before), rows)
    )


def over_seeds(differences: NDArray[np.float64], most: float = 1.0) -> Estimate:
    """Return the mean difference, with interval and p value by Student's t if there are two or more unequal ones.

    The interval is clipped to -`most` and `most`, the largest differences that there can be.
    """
    if len(differences) < 2 or differences.std() <= ROUNDING:
        return Estimate(float(differences.mean()))
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    return _estimate(float(differences.mean()), float(error), len(differences) - 1, "seeds", most)


def two_proportions(after: float, before: float, rows: int) -> Estimate:
    """Return the difference of two proportions of `rows` rows each, by the normal approximation (Wald).

    If both are 0 or 1, the width would be 0: then one success and one failure are added to each to compute it.
    """
    rows = max(rows, 1)
    variance = (after * (1 - after) + before * (1 - before)) / rows
    if variance <= 0:
        added = [(value * rows + 1) / (rows + 2) for value in (after, before)]
        variance = sum(value * (1 - value) for value in added) / (rows + 2)
    return _estimate(after - before, sqrt(variance), inf, "rows")


def _estimate(
    mean: float, error: float, freedom: float, source: Literal["seeds", "rows"], most: float = 1.0
) -> Estimate:
    """Return a mean with interval and p value by Student's t; the interval is clipped to [-most, most]."""
    from scipy.special import stdtr, stdtrit

    half = float(stdtrit(freedom, 0.975)) * error
    low, high = max(mean - half, -most), min(mean + half, most)
    return Estimate(mean, low, high, 2 * float(stdtr(freedom, -abs(mean) / error)), source)


def holm(values: Sequence[float]) -> list[float]:
    """Return p values with Holm's correction (Scand. J. Statist., 1979).

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(values, kind="stable")
    steps = np.asarray(values, dtype=float)[order] * np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1) if len(values) else steps
    return [float(value) for value in corrected]


def points(value: float, *, sign: bool = False) -> str:
    """Return a fraction in percentage points, as in ``4.2`` or ``+4.2``, never ``-0.0``."""
    rounded = round(100 * value, 1) + 0.0
    return f"{rounded:+.1f}" if sign and rounded else f"{rounded:.1f}"


def interval(low: float, high: float) -> str:
    """Return an interval in percentage points, as in ``(2.1 to 6.3)``; "" if unknown."""
    return "" if isnan(low) else f"({points(low)} to {points(high)})"


def with_interval(estimate: Estimate, unit: str = "") -> str:
    """Format a difference in percentage points with its interval, if known: ``+4.2 (2.1 to 6.3)``."""
    return f"{points(estimate.mean, sign=True)}{unit} {interval(estimate.low, estimate.high)}".rstrip()
