"""Ranks of methods over several scenarios and seeds, and how far apart two have to be: Friedman's and Nemenyi's tests.

Demsar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 2006, Sections 3.2.2 and 3.2.3.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from scipy.stats import friedmanchisquare, rankdata, studentized_range  # type: ignore[attr-defined]

from simulations.studies.reproduce.outcome import LEVEL, Outcome, as_markdown

FEWEST = 3
"""Rows that Friedman's test compares, and blocks, at least."""


@dataclass(frozen=True)
class Ranking:
    """Rows by their mean rank in blocks, each a column with a seed: 1 is best, equal figures share a rank.

    Parameters
    ----------
    ranks : dict of str to float
        By row, the best first.
    columns : list of str
        Those whose seeds are the blocks.
    blocks : int
        How many there are.
    critical : float
        Two rows whose mean ranks are less apart than this are not told apart at the 5 % level (Nemenyi).
    p : float
        Of Friedman's test that all rows are alike.
    left_out : list of str
        Rows that lack one of these columns or seeds.
    """

    ranks: dict[str, float]
    columns: list[str]
    blocks: int
    critical: float
    p: float
    left_out: list[str]

    def as_markdown(self, measure: str) -> str:
        """Return it as a paragraph and a table."""
        left = f" Left out, since they lack some of these: {'; '.join(self.left_out)}." if self.left_out else ""
        return (
            f"**Ranks** by {measure} in {self.blocks} blocks, each a column ({'; '.join(self.columns)}) with a seed: "
            f"two rows less than {self.critical:.2f} apart are not told apart (Nemenyi, 5 %; Friedman's p = "
            f"{self.p:.2g}). They speak of other seeds of these columns, not of other data.{left}\n\n"
            + as_markdown(["row", "mean rank"], [[row, f"{rank:.2f}"] for row, rank in self.ranks.items()])
        )


def ranking(found: Sequence[Outcome], measure: str) -> Ranking | None:
    """Rank rows by a measure, more being better; None where too few rows or blocks are there.

    A block is a column with a seed that at least half of the rows have.

    Parameters
    ----------
    found : sequence of Outcome
        All figures of a table.
    measure : str
        One of its measures.
    """
    cells = {(one.cell.row, one.cell.column): one.ours for one in found if one.measure == measure and one.ours}
    rows, columns = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    having = Counter((columns.index(column), seed) for (_, column), ours in cells.items() for seed in ours)
    blocks = [(columns[place], seed) for place, seed in sorted(having) if 2 * having[place, seed] >= len(rows)]
    whole = [row for row in rows if all(seed in cells.get((row, column), {}) for column, seed in blocks)]
    if len(whole) < FEWEST or len(blocks) < FEWEST:
        return None
    values = np.array([[cells[row, column][seed] for row in whole] for column, seed in blocks])
    means = rankdata(-values, axis=1).mean(axis=0)
    spread = studentized_range.ppf(LEVEL, len(whole), inf) / sqrt(2)
    return Ranking(
        ranks={whole[at]: float(means[at]) for at in np.argsort(means, kind="stable")},
        columns=list(dict.fromkeys(column for column, _ in blocks)),
        blocks=len(blocks),
        critical=float(spread * sqrt(len(whole) * (len(whole) + 1) / (6 * len(blocks)))),
        p=float(friedmanchisquare(*values.T).pvalue),
        left_out=[row for row in rows if row not in whole],
    )
