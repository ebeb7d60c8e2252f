"""The paper's figures beside ours: statistics over seeds, as a table, Markdown and JSON."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, product
from math import sqrt
from statistics import mean as average
from statistics import stdev

from rich.table import Column, Table
from rich.text import Text
from scipy.special import stdtr, stdtrit

from simulations.reports.impact import Impact
from simulations.studies.jobs import PLACES
from simulations.studies.reproduce.recipe import GAIN, HARMED, IMPACT, WORST, Cell, Recipe
from simulations.studies.reproduce.records import Record

LEVEL = 0.95
"""Of the intervals."""

LEAST = 3
"""Seeds that an interval needs: of two, Student's t is 12.7 standard errors wide on either side."""

CHOSEN = {
    "text": "**Reading:** as the paper's text has it.",
    "authors": "**Reading:** as the authors' own code has it.",
    "result": "**Reading:** chosen among several by its result, so which of the paper's figures lie in our intervals "
    "is not counted.",
    "none": "**Readings:** several, of which none is chosen; which of the paper's figures lie in our intervals is not "
    "counted.",
}
"""What a section says of how its recipe's reading was chosen."""

SCALES = {"%": 100.0, "points": 100.0, "MB": 1e-6, "numbers": 1.0, "": 1.0}


@dataclass(frozen=True)
class Outcome:
    """One figure of the table.

    Parameters
    ----------
    cell : Cell
        Row and column.
    measure : str
        Its name in the paper.
    unit : str
        What the figures are in.
    paper : float or None
        The paper's figure; None where it gives none.
    ours : mapping of int to float
        Ours by seed.
    baseline : mapping of int to float
        Those of the row that this one is compared with, in the same column.
    judged : bool
        Whether the paper's figure in our interval would say anything: not where the reading was chosen by its result.
    """

    cell: Cell
    measure: str
    unit: str
    paper: float | None
    ours: Mapping[int, float]
    baseline: Mapping[int, float]
    judged: bool = True

    @property
    def label(self) -> str:
        """The measure with its unit."""
        return f"{self.measure}, {self.unit}" if self.unit else self.measure

    @property
    def mean(self) -> float | None:
        """The mean over the seeds."""
        return average(self.ours.values()) if self.ours else None

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over the seeds; None with fewer than two."""
        return stdev(self.ours.values()) if len(self.ours) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return self.mean - self.paper if self.mean is not None and self.paper is not None else None

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the mean by Student's t.

        None with fewer than three seeds, and where a share would be below 0 or above 100 %: so few seeds that differ so
        much, or so near to the bound, are not what Student's t is about.
        """
        if self.mean is None or len(self.ours) < LEAST:
            return None
        half = _error(self.ours.values()) * float(stdtrit(len(self.ours) - 1, (1 + LEVEL) / 2))
        low, high = self.mean - half, self.mean + half
        return None if self.unit == "%" and not 0 <= low <= high <= SCALES["%"] else (low, high)

    @property
    def within(self) -> bool | None:
        """Whether the paper's figure lies in the interval; None where that would say nothing."""
        if self.interval is None or self.paper is None or not self.judged:
            return None
        return self.interval[0] <= self.paper <= self.interval[1]

    @property
    def away(self) -> float | None:
        """How many of our deviations the paper's figure is away from our mean."""
        if self.difference is None or not self.deviation:
            return None
        return abs(self.difference) / self.deviation

    @cached_property
    def against(self) -> tuple[float, float] | None:
        """The mean difference from the baseline's row over the seeds, and the p-value of the paired t-test."""
        seeds = sorted(self.ours.keys() & self.baseline.keys())
        differences = [self.ours[seed] - self.baseline[seed] for seed in seeds]
        if len(seeds) < 2 or len(set(differences)) == 1:
            return None
        difference = average(differences)
        return difference, 2 * float(stdtr(len(seeds) - 1, -abs(difference) / _error(differences)))

    def as_json(self) -> dict[str, object]:
        """Return all of it."""
        names = ("mean", "deviation", "interval", "difference", "within")
        return {
            "row": self.cell.row,
            "column": self.cell.column,
            "measure": self.measure,
            "unit": self.unit,
            "paper": self.paper,
            "ours": {str(seed): value for seed, value in self.ours.items()},
            **{name: getattr(self, name) for name in names},
            "deviations_away": self.away,
            "against": self.against,
        }


Gains = Mapping[int, float]
"""By client, the difference of its accuracy from that with the row which a row is compared with; a fraction."""


def gains_of(cells: Sequence[Cell], records: Sequence[Record]) -> dict[tuple[str, str], dict[int, Gains]]:
    """Return the clients' gains by row and column, then by seed, wherever the run of either row is there."""
    known = {(record.cell, record.seed): record.clients for record in records}
    folders = {(cell.row, cell.column): cell.folder for cell in cells}
    found: dict[tuple[str, str], dict[int, Gains]] = {}
    for cell, seed in product(cells, sorted({record.seed for record in records})):
        own = known.get((cell.folder, seed), {})
        alone = known.get((folders.get((cell.against, cell.column), ""), seed), {})
        if gains := {client: own[client] - alone[client] for client in own if client in alone}:
            found.setdefault((cell.row, cell.column), {})[seed] = gains
    return found


def outcomes(recipe: Recipe, cells: Sequence[Cell], records: Sequence[Record]) -> list[Outcome]:
    """Return a figure for each cell and measure, of the runs that there are."""
    values: dict[tuple[str, str, str], dict[int, float]] = {}
    gains = gains_of(cells, records) if recipe.compares_clients else {}
    for cell, (name, measure) in product(cells, recipe.measures.items()):
        by_seed: dict[int, float | None]
        if measure.key in IMPACT:
            impacts = {seed: Impact.of([one]) for seed, one in gains.get((cell.row, cell.column), {}).items()}
            by_seed = {
                seed: {GAIN: impact.gain.mean, HARMED: impact.harmed, WORST: impact.worst}[measure.key]
                for seed, impact in impacts.items()
            }
        else:
            by_seed = {record.seed: record.figures[measure.key] for record in records if record.cell == cell.folder}
        scaled = {seed: SCALES[measure.unit] * value for seed, value in by_seed.items() if value is not None}
        values[cell.row, cell.column, name] = scaled
    return [
        Outcome(
            cell,
            name,
            measure.unit,
            cell.paper.get(name),
            values[cell.row, cell.column, name],
            values.get((cell.against, cell.column, name), {})
            if cell.row != cell.against and measure.key not in IMPACT
            else {},
            recipe.chosen not in ("result", "none"),
        )
        for cell, (name, measure) in product(cells, recipe.measures.items())
    ]


def table(recipe: Recipe, found: Sequence[Outcome], less: str) -> Table:
    """Return the table for a terminal, with what it has otherwise than the paper's below it."""
    columns = _columns(recipe)
    shown = Table(*(Column(name, justify="left" if name == "row" else "right") for name in columns))
    shown.title = Text(f"{recipe.title} ({recipe.source})")
    notes = (recipe.note.strip(), f"Otherwise than in the paper: {less}" if less else "")
    shown.caption = Text("\n".join(filter(None, notes)))
    for _, those in groupby(found, key=lambda one: one.cell.name):
        for one in those:
            shown.add_row(*(write(one) for write in columns.values()))
        shown.add_section()
    return shown


def markdown(recipe: Recipe, found: Sequence[Outcome], made: str, less: str, more: Iterable[str] = ()) -> str:
    """Return the table as a Markdown page, with what made it, what it has less than the paper's, and more.

    Measures that the picture leaves out are folded away. Where the paper has no figure, and runs differ in rows and
    columns, each measure is a table of its own, rows by columns.
    """
    shown = recipe.figure.measures or list(recipe.measures)
    first, others = ([one for one in found if (one.measure in shown) == first] for first in (True, False))
    seen, folded = _as_markdown(recipe, first), others
    if recipe.columns and all(one.paper is None for one in found):
        seen, folded = "\n\n".join(_grids(found)), list(found)
    paragraphs = [
        f"# {recipe.title}",
        f"{recipe.paper}; {recipe.source}. Made by {made}.",
        f"**Less than in the paper:** {less}" if less else "",
        recipe.note.strip(),
        CHOSEN.get(recipe.chosen, ""),
        f"**Found:** {recipe.found.strip()}" if recipe.found else "",
        seen,
        *more,
        f"<details><summary>All figures</summary>\n\n{_as_markdown(recipe, folded)}\n\n</details>" if folded else "",
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def _grids(found: Iterable[Outcome]) -> Iterator[str]:
    """Go through the measures that there are, each a table of rows by columns."""
    measures: dict[str, dict[tuple[str, str], str]] = {}
    for one in found:
        if one.ours:
            measures.setdefault(one.label, {})[one.cell.row, one.cell.column] = ours(one)
    return (pivoted(cells, label) for label, cells in measures.items())


def pivoted(cells: Mapping[tuple[str, str], str], corner: str, *, turned: bool = False) -> str:
    """Return texts by row and column as a Markdown table; where it may be turned, the longer side goes down."""
    rows, columns = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    if turned and len(columns) > len(rows):
        rows, columns, cells = columns, rows, {(column, row): text for (row, column), text in cells.items()}
    return as_markdown([corner, *columns], [[row, *(cells.get((row, one), "-") for one in columns)] for row in rows])


def as_markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return lines as a Markdown table whose first column is text."""
    lines = [headings, ["---", *["--:"] * (len(headings) - 1)], *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def lessened(recipe: Recipe, cells: Iterable[Cell]) -> str:
    """Return in words what these cells have otherwise than the full table: config keys, and cells left out."""
    whole = {cell.folder: cell for cell in recipe.cells()}
    those = {cell.folder: cell for cell in cells}
    changed: dict[str, dict[str, None]] = {}
    for folder, cell in those.items():
        for key, value in cell.settings.items():
            before = whole[folder].settings.get(key)
            if value != before and key not in PLACES:
                said = f"{value}" if before is None else f"{value} for {before}"
                changed.setdefault(key, {})[said] = None
    words = [f"{key} = {' or '.join(values)}" for key, values in changed.items()]
    if len(those) < len(whole):
        words.append(f"{len(those)} of {len(whole)} cells")
    return "; ".join(words) + "." if words else ""


def as_json(recipe: Recipe, found: Sequence[Outcome], records: Sequence[Record], command: str, less: str) -> str:
    """Return all figures, each seed's among them, and what made their runs."""
    whole = {"title": recipe.title, "paper": recipe.paper, "source": recipe.source, "less": less, "command": command}
    versions = list({str(one): one for record in records for one in record.versions}.values())
    content = {**whole, "versions": versions, "figures": [outcome.as_json() for outcome in found]}
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _error(values: Collection[float]) -> float:
    """Return the standard error of the mean."""
    return stdev(values) / sqrt(len(values))


def _as_markdown(recipe: Recipe, found: Iterable[Outcome]) -> str:
    columns = _columns(recipe)
    return as_markdown(list(columns), ([write(one) for write in columns.values()] for one in found))


def _columns(recipe: Recipe) -> dict[str, Callable[[Outcome], str]]:
    """Return the columns of a table by their headings."""

    def number(one: Outcome, value: float | None, sign: str = "") -> str:
        return "-" if value is None else figure(value, one.unit, sign)

    def compared(one: Outcome) -> str:
        if one.against is None:
            return "-"
        other = f", against {one.cell.against}" if one.cell.against != recipe.against else ""
        return f"{number(one, one.against[0], '+')} (p = {one.against[1]:.2g}){other}"

    columns: dict[str, Callable[[Outcome], str]] = {
        "row": lambda one: one.cell.name,
        "measure": lambda one: one.label,
        "paper": lambda one: number(one, one.paper),
        "ours": ours,
        "seeds": lambda one: str(len(one.ours)),
        "difference": lambda one: number(one, one.difference, "+"),
        "95 % interval": lambda one: " to ".join(number(one, end) for end in one.interval or ()) or "-",
        "paper within": lambda one: {None: "-", True: "yes", False: "no"}[one.within],
        "deviations away": lambda one: "-" if one.away is None else f"{one.away:.1f}",
    }
    if recipe.against or any(row.against for row in recipe.rows):
        columns[f"against {recipe.against}".rstrip()] = compared
    return columns


def ours(outcome: Outcome) -> str:
    """Return our figure, mean ± deviation over the seeds, or a dash."""
    both = (outcome.mean, outcome.deviation)
    return " ± ".join(figure(value, outcome.unit) for value in both if value is not None) or "-"


def figure(value: float, unit: str, sign: str = "") -> str:
    """Return a number as tables have it."""
    return f"{value:{sign},.0f}" if unit == "numbers" else f"{value:{sign},.2f}"
