"""Effect of a method on all clients: the mean gain, the share of harmed clients, and the gain of the worst off.

Gains are differences from the baseline, for the same client and seed, as fractions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from simulations.reports.estimates import ACCURACY, ROUNDING, Estimate, Measure, over_seeds, points, with_interval
from simulations.reports.layout import COSTS, byte_size, percent, table_of
from simulations.reports.pairing import BASELINES, LOCAL, Pairing
from simulations.reports.runs import Group, group_runs, mean_of

if TYPE_CHECKING:
    import pandas as pd

HARM = 0.01
"""A client is harmed if it loses more than this fraction."""

TENTH = 0.1
"""The worst-off clients: this share, at least one, with the lowest gains."""

MEANS = ("accuracy", "balanced_accuracy", "macro_f1")
"""Keys of a summary shown in addition to the impact, as means over runs."""


@dataclass(frozen=True)
class Impact:
    """Effect of a method on the clients; all values are means over seeds.

    `gain` is the mean over clients; its interval is Student's t over seeds, unknown for one seed or equal gains.
    `harmed` is the share of clients that lose more than `HARM`, `worst` the mean gain of the worst-off `TENTH`, and
    `clients` the gain by client id.
    """

    gain: Estimate
    harmed: float
    worst: float
    clients: Mapping[int, float]
    seeds: int

    @classmethod
    def of(cls, gains: Sequence[Mapping[int, float]]) -> "Impact":
        """Return the impact of gains by client id, one non-empty mapping for each seed.

        Examples
        --------
        >>> impact = Impact.of([{0: 0.1, 1: -0.02}, {0: 0.2, 1: 0.0}])
        >>> impact.clients, round(impact.gain.mean, 3), impact.harmed, impact.worst
        ({0: 0.15000000000000002, 1: -0.01}, 0.07, 0.25, -0.01)
        """
        means = np.array([fmean(one.values()) for one in gains])
        worst = [sorted(one.values())[: ceil(TENTH * len(one))] for one in gains]
        return cls(
            gain=over_seeds(means),
            harmed=fmean(value < -HARM - ROUNDING for one in gains for value in one.values()),
            worst=fmean(map(fmean, worst)),
            clients={
                client: fmean(one[client] for one in gains if client in one)
                for client in sorted({client for one in gains for client in one})
            },
            seeds=len(gains),
        )

    @property
    def shown(self) -> bool:
        """Whether the interval of the mean gain excludes 0."""
        return self.gain.low > 0 or self.gain.high < 0


@dataclass(frozen=True)
class MethodImpact(Group):
    """The paired runs of a method, and their impact compared with a baseline, one of `BASELINES`."""

    impact: Impact
    baseline: str

    def to_json(self) -> dict[str, Any]:
        """Return the row of `impact_table` in types that JSON can represent."""
        paid = {name: mean_of(run.summary.get("costs", {}).get(name) for run in self.runs) for name in COSTS}
        return {
            "method": self.label,
            "runs": [run.name for run in self.runs],
            **asdict(self.impact),
            **{key: self.mean(key) for key in MEANS},
            "bytes": self.both_ways("bytes"),
            "costs": {name: cost for name, cost in paid.items() if cost is not None},
            "clock": mean_of(run.rounds[-1].clock for run in self.runs if run.rounds),
        }


def standings(found: Pairing, values: "pd.DataFrame") -> list[MethodImpact]:
    """Return the methods, including the baseline, by mean gain, the largest first.

    `values` are the rows of `Pairing.values` for clients measured in both runs.
    """
    standing = []
    for method, own in values.groupby("method", sort=False):
        gains = [dict(zip(one.client, one.value - one.baseline, strict=True)) for _, one in own.groupby("pair")]
        runs = tuple(run for run, _ in found.pairs[method])
        standing.append(MethodImpact(method, runs, Impact.of(gains), found.baseline))
    return sorted(standing, key=lambda one: -one.impact.gain.mean)


def impact_table(found: Sequence[MethodImpact], measure: Measure = ACCURACY) -> Table:
    """Return a table of the methods, the largest mean gain first."""
    columns: dict[str, Callable[[dict[str, Any]], str | None]] = {
        "method": itemgetter("method"),
        "gain (95 %)": lambda row: with_interval(Estimate(**row["gain"])),
        "harmed %": lambda row: percent(row["harmed"]),
        "worst tenth": lambda row: points(row["worst"], sign=True),
        "accuracy %": lambda row: percent(row["accuracy"]),
        "bal. %": lambda row: percent(row["balanced_accuracy"]),
        "F1 %": lambda row: percent(row["macro_f1"]),
        "payload": lambda row: byte_size(row["bytes"]),
        **{heading: partial(_cost, name) for name, (heading, _) in COSTS.items()},
        "clock": lambda row: None if row["clock"] is None else f"{row['clock']:.1f} s",
    }
    baseline = BASELINES[found[0].baseline if found else LOCAL]
    rows = [one.to_json() for one in found]
    harmed = f"share of pairs (client, seed) that lose over {100 * HARM:g} point"
    notes = [f"Gain: points of {measure.words} over {baseline}; harmed: {harmed}."]
    alone = [one.runs for one in found if one.label == one.baseline]
    notes += ["The row of training alone is the mean over several models or settings."] * any(
        len(group_runs(runs)) > 1 for runs in alone
    )
    notes += ["Costs: totals of a run; memory: the maximum."] * any(row["costs"] for row in rows)
    return table_of("Methods by gain", columns, rows, words={"method"}, notes=notes)


def _cost(name: str, row: Mapping[str, Any]) -> str | None:
    return COSTS[name][1](row["costs"][name]) if name in row["costs"] else None
