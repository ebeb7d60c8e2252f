"""Our figures and the paper's: statistics over seeds, and ranks of rows over columns and seeds.

Ranks, Friedman's and Nemenyi's tests: Demsar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR
2006, Sections 3.2.2 and 3.2.3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import inf, sqrt
from statistics import mean as average
from statistics import stdev
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import friedmanchisquare, studentized_range  # type: ignore[attr-defined]

from simulations.reports.estimates import over_seeds
from simulations.reports.impact import Impact
from simulations.studies.reproduce.keys import GAIN, HARMED, IMPACT, WORST
from simulations.studies.reproduce.recipe import Cell, Recipe, TableMeasure
from simulations.studies.reproduce.records import Record, course_name, last_quarter

CONFIDENCE = 0.95
"""Confidence level of intervals."""

LEAST = 3
"""Minimum number of seeds for an interval, and of rows and columns for Friedman's test.

With two seeds, Student's t would be 12.7 standard errors to either side.
"""

CURVE = 5
"""Minimum number of evaluations of a curve that has a last quarter."""

SCALES = {"%": 100.0, "points": 100.0, "MB": 1e-6, "numbers": 1.0, "": 1.0}


class Difference(NamedTuple):
    """The mean difference of two rows over common seeds, and the paper's.

    p is None if all differences are equal or there is one, the interval also with fewer than `LEAST`.
    """

    mean: float
    p: float | None
    interval: tuple[float, float] | None
    paper: float | None
    seeds: int


@dataclass(frozen=True)
class Entry:
    """One figure of a table: a measure of a cell.

    Parameters
    ----------
    cell : Cell
        Row and column.
    measure : str
        Its name in the paper.
    key : str
        What is measured (`simulations.studies.reproduce.keys`).
    unit : str
        The unit of all figures.
    paper : float or None
        The paper's figure, if any.
    ours : mapping of int to float
        Our figures by seed.
    baseline : mapping of int to float
        Those of the row that this one is compared with, in the same column.
    judged : bool
        Whether it is meaningful that our interval contains the paper's figure: not if its result decided the reading.
    baseline_paper : float or None
        The paper's figure of the row that this one is compared with.
    """

    cell: Cell
    measure: str
    key: str
    unit: str
    paper: float | None
    ours: Mapping[int, float]
    baseline: Mapping[int, float]
    judged: bool = True
    baseline_paper: float | None = None

    @property
    def label(self) -> str:
        """The measure with its unit."""
        return f"{self.measure}, {self.unit}" if self.unit else self.measure

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return average(self.ours.values()) if self.ours else None

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over seeds; None with fewer than two."""
        return stdev(self.ours.values()) if len(self.ours) > 1 else None

    @property
    def difference(self) -> float | None:
        """Our mean minus the paper's figure."""
        return self.mean - self.paper if self.mean is not None and self.paper is not None else None

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval of the mean by Student's t.

        None with fewer than three seeds, and for a share if the interval extends beyond 0 to 100 %: Student's t is not
        appropriate for so few seeds with such a spread, or so close to the bound.
        """
        if self.mean is None or len(self.ours) < LEAST:
            return None
        found = over_seeds(np.array([*self.ours.values()]), inf)
        low, high = (found.low, found.high) if found.source == "seeds" else (self.mean, self.mean)
        return None if self.unit == "%" and not 0 <= low <= high <= SCALES["%"] else (low, high)

    @property
    def within(self) -> bool | None:
        """Whether the interval contains the paper's figure; None if that is not meaningful."""
        if self.interval is None or self.paper is None or not self.judged:
            return None
        return self.interval[0] <= self.paper <= self.interval[1]

    @property
    def away(self) -> float | None:
        """The difference from the paper's figure in standard deviations."""
        return abs(self.difference) / self.deviation if self.difference is not None and self.deviation else None

    @cached_property
    def against(self) -> Difference | None:
        """The difference from the baseline, by a paired t-test over seeds; None without common seeds."""
        seeds = sorted(self.ours.keys() & self.baseline.keys())
        if not seeds:
            return None
        found = over_seeds(np.array([self.ours[seed] - self.baseline[seed] for seed in seeds]), inf)
        known = self.paper is not None and self.baseline_paper is not None
        paper = self.paper - self.baseline_paper if known else None  # type: ignore[operator]
        tested = found.source == "seeds"
        interval = (found.low, found.high) if tested and len(seeds) >= LEAST else None
        return Difference(found.mean, found.p if tested else None, interval, paper, len(seeds))


Gains = Mapping[tuple[str, str], Mapping[int, Mapping[int, float]]]
"""Differences in accuracy (fractions) from the baseline: by row and column, then by seed and client."""


def gains_of(cells: Sequence[Cell], records: Sequence[Record]) -> Gains:
    """Return the clients' gains for each cell and seed where both runs exist."""
    known = {(record.cell, record.seed): record.clients for record in records}
    folders = {(cell.row, cell.column): cell.folder for cell in cells}
    found: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
    for cell, seed in product(cells, sorted({record.seed for record in records})):
        own = known.get((cell.folder, seed), {})
        alone = known.get((folders.get((cell.against, cell.column), ""), seed), {})
        if gains := {client: own[client] - alone[client] for client in own if client in alone}:
            found.setdefault((cell.row, cell.column), {})[seed] = gains
    return found


def entries(recipe: Recipe, cells: Sequence[Cell], records: Sequence[Record]) -> list[Entry]:
    """Return an entry for each cell and measure."""
    gains: Gains = gains_of(cells, records) if recipe.compares_clients else {}
    by_name = {(cell.row, cell.column): cell for cell in cells}

    def ours(cell: Cell | None, measure: TableMeasure) -> dict[int, float]:
        by_seed: dict[int, float | None]
        if cell is None:
            by_seed = {}
        elif measure.key in IMPACT:
            impacts = {seed: Impact.of([one]) for seed, one in gains.get((cell.row, cell.column), {}).items()}
            by_seed = {
                seed: {GAIN: impact.gain.mean, HARMED: impact.harmed, WORST: impact.worst}[measure.key]
                for seed, impact in impacts.items()
            }
        else:
            by_seed = {record.seed: record.figures[measure.key] for record in records if record.cell == cell.folder}
        return {seed: SCALES[measure.unit] * value for seed, value in by_seed.items() if value is not None}

    def baseline(cell: Cell, measure: TableMeasure) -> Cell | None:
        apart = cell.row != cell.against and measure.key not in IMPACT
        return by_name.get((cell.against, cell.column)) if apart else None

    judged = recipe.chosen not in ("result", "none")
    found = []
    for cell, (name, one) in product(cells, recipe.measures.items()):
        other = baseline(cell, one)
        paper, theirs = cell.paper.get(name), other.paper.get(name) if other else None
        found.append(Entry(cell, name, one.key, one.unit, paper, ours(cell, one), ours(other, one), judged, theirs))
    return found


Rises = Mapping[tuple[str, str], Mapping[int, float]]
"""Rises of curves over the last quarter of the rounds, as fractions: by row and column, then by seed."""


def last_rises(recipe: Recipe, cells: Sequence[Cell], records: Sequence[Record]) -> Rises:
    """Return the rise of each cell's curves over the last quarter of its rounds.

    The curve is the first that the recipe draws. A cell with fewer than `CURVE` evaluations has none.
    """
    rises = {}
    for cell, y in product(cells, recipe.figure.drawn[:1]):
        known = {one.seed: one.courses[course_name(y)][1] for one in records if one.cell == cell.folder}
        ends = {seed: values[-1] - last_quarter(values)[0] for seed, values in known.items() if len(values) >= CURVE}
        if ends:
            rises[cell.row, cell.column] = ends
    return rises


@dataclass(frozen=True)
class Ranking:
    """Rows by mean rank over columns, the data sets of Friedman's test: 1 is best, equal figures share a rank.

    Parameters
    ----------
    ranks : dict of str to float
        By row, the best first.
    columns : list of str
        The columns that count.
    critical : float
        Mean ranks that differ by less are not significantly different at the 5 % level (Nemenyi).
    p : float
        The p-value of Friedman's test that all rows are equal.
    left_out : list of str
        Rows that lack some of the columns or of their seeds.
    """

    ranks: dict[str, float]
    columns: list[str]
    critical: float
    p: float
    left_out: list[str]


def ranking(found: Sequence[Entry], measure: str) -> Ranking | None:
    """Rank rows by a measure's mean over seeds, higher being better; None with too few rows or columns, or if all tie.

    A column with a seed counts if at least half of the rows have it.
    """
    ours = [one for one in found if one.measure == measure and one.ours]
    columns = list(dict.fromkeys(one.cell.column for one in ours))
    by_row: dict[str, dict[tuple[int, int], float]] = {}
    for one in ours:
        here = {(columns.index(one.cell.column), seed): value for seed, value in one.ours.items()}
        by_row.setdefault(one.cell.row, {}).update(here)
    values = pd.DataFrame(by_row).sort_index()
    whole = values[2 * values.count(axis=1) >= len(by_row)].dropna(axis=1)
    averages = whole.groupby(level=0).mean()
    blocks, rows = averages.shape
    if rows < LEAST or blocks < LEAST or (averages.nunique(axis=1) == 1).all():
        return None
    means = averages.rank(axis=1, ascending=False).mean().sort_values(kind="stable")
    spread = studentized_range.ppf(CONFIDENCE, rows, inf) / sqrt(2)
    return Ranking(
        ranks={row: float(mean) for row, mean in means.items()},
        columns=[columns[at] for at in averages.index],
        critical=float(spread * sqrt(rows * (rows + 1) / (6 * blocks))),
        p=float(friedmanchisquare(*averages.to_numpy().T).pvalue),
        left_out=[row for row in by_row if row not in whole],
    )
