"""Reports of recipes: tables of figures in Markdown, and a JSON file."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from simulations.studies.jobs import PLACES
from simulations.studies.reproduce.entries import Entry, Ranking, Rises
from simulations.studies.reproduce.keys import GAIN
from simulations.studies.reproduce.recipe import TUNED, Cell, Recipe
from simulations.studies.reproduce.records import Record

CHOSEN = {
    "text": "**Reading:** as in the paper's text.",
    "authors": "**Reading:** as in the authors' own code.",
    "result": "**Reading:** chosen among several by its result, so which of the paper's figures lie in our intervals "
    "is not counted.",
    "none": "**Readings:** several, of which none is chosen; which of the paper's figures lie in our intervals is not "
    "counted.",
}
"""What a report says about how the reading of its recipe was chosen."""

NO_PAPER = "No paper's"
"""What a report says in place of a paper."""

FOUND, FOUND_IN_ALL = "**Found:**", "**Found in the kept report:**"

NOT_TUNED = ", not tuned"
"""What the name of a row or measure without tuning ends in, among tuned rows."""


def markdown(recipe: Recipe, found: Sequence[Entry], made: str, less: str, more: Iterable[str] = ()) -> str:
    """Return the full report as a Markdown page with a table for each column; with one measure, one table for all.

    `made` says how the runs were made, `less` how they differ from the paper's; `more` has further paragraphs.
    """
    columns = dict.fromkeys(one.cell.column for one in found if one.ours)
    those = {column: merged([one for one in found if one.cell.column == column]) for column in columns}
    if len(recipe.measures) == 1 and recipe.columns:
        joined = [one for several in those.values() for one in several]
        tables = [_grid(recipe, joined, lambda one: one.cell.column, found[0].label, seeds=False)]
    else:
        tables = [_grid(recipe, several, lambda one: one.label, column) for column, several in those.items()]
    legend = f"Rows have tuned settings; what is '{NOT_TUNED[2:]}' is with the others. " * bool(recipe.tuned)
    legend += "Mean ± deviation over the seeds"
    legend += "; in brackets the paper's figure" * any(one.paper is not None for one in found)
    legend += ", bold where our 95 % interval (Student's t) holds it" * any(one.within is not None for one in found)
    paragraphs = [
        f"# {recipe.title}",
        f"{recipe.paper or NO_PAPER}; {recipe.source}. Made by {made}.",
        f"**Reduced from the {'paper' if recipe.paper else 'full table'}:** {less}" if less else "",
        recipe.note.strip(),
        CHOSEN.get(recipe.chosen, ""),
        f"{FOUND_IN_ALL if less else FOUND} {recipe.found.strip()}"
        if recipe.found and any(one.ours for one in found)
        else "",
        *tables,
        f"{legend}. {counted(found)}",
        *more,
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def merged(found: Sequence[Entry]) -> list[Entry]:
    """Return a column's figures with one row per method: its tuned figures, and its gain without tuning.

    A method that was to be tuned, and has no run with tuned settings, has its other figures in a row that says so.
    """
    tuned = {one.cell.row.removesuffix(TUNED) for one in found if one.cell.factors and one.ours}
    asked = {one.cell.row.removesuffix(TUNED) for one in found if one.cell.factors}
    gains = {one.cell.row: one for one in found if one.key == GAIN}
    left = list[Entry]()
    for one in found:
        row = one.cell.row.removesuffix(TUNED) if one.cell.factors else one.cell.row
        if row in tuned and one.cell.factors:
            named = one.cell.model_copy(update={"row": row})
            if one.key == GAIN and row in gains:
                left.append(replace(gains[row], measure=f"{one.measure}{NOT_TUNED}"))
            left.append(replace(one, cell=named))
        elif row not in tuned and not one.cell.factors:
            said = f"{row}{NOT_TUNED}" if row in asked else row
            left.append(replace(one, cell=one.cell.model_copy(update={"row": said})))
    return left


def differences_as_markdown(recipe: Recipe, found: Sequence[Entry], rises: Rises) -> str:
    """Return the paired differences, and how much curves that are kept still rise; "" if gains are shown instead."""
    if recipe.figure.kind == "gains":
        return ""
    first = next(iter(recipe.measures))
    shown = [first] if recipe.figure.kind != "differences" else recipe.measures
    lines = []
    for one, gap in ((one, one.against) for one in found if one.unit == "%" and one.measure in shown):
        if gap is not None:
            mine, other = (rises.get((row, one.cell.column), {}) for row in (one.cell.row, one.cell.against))
            moved = [100 * (mine[seed] - other[seed]) for seed in mine.keys() & other.keys() if one.measure == first]
            lines.append(
                [
                    *filter(None, [one.cell.row, one.cell.column]),
                    one.cell.against,
                    one.measure,
                    _signed(gap.mean),
                    "-" if gap.interval is None else f"{gap.interval[0]:.2f} to {gap.interval[1]:.2f}",
                    "-" if gap.p is None else f"{gap.p:.2g}",
                    "-" if gap.paper is None else _signed(gap.paper),
                    *[_signed(fmean(moved)) if moved else "-"] * bool(rises),
                    str(gap.seeds),
                ]
            )
    named = ["row", *["column"] * bool(recipe.columns), "compared with", "measure"]
    names = [*named, "points", "95 % interval", "p", "paper", *["in the last quarter"] * bool(rises), "seeds"]
    text = "**Differences**, paired by seed (Student's t)."
    if rises:
        text = f"{text[:-1]}, and by how much they changed in the last quarter of the rounds."
        rise, (row, column) = max((fmean(by_seed.values()), at) for at, by_seed in rises.items())
        curve = ", ".join(filter(None, [row, column]))
        text += f" The curve of {curve} rises most there, by {100 * rise:.2f} points."
    return f"{text}\n\n{as_markdown(names, lines)}" if lines else ""


def _grid(
    recipe: Recipe,
    found: Sequence[Entry],
    across: Callable[[Entry], str],
    corner: str,
    *,
    seeds: bool = True,
) -> str:
    """Return a table of our figures and the paper's: rows, and what goes `across` as columns."""
    cells = {}
    for one in found:
        if one.ours:
            held = "**" if one.within else ""
            paper = "" if one.paper is None else f" ({held}{figure(one.paper, one.unit)}{held})"
            cells[one.cell.row, across(one)] = ours(one) + paper
    if seeds:
        cells |= {(row, "seeds"): _seeds([one for one in found if one.cell.row == row]) for row, _ in [*cells]}
    rows, columns = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    mark = f" (quick, not {recipe.setting})" if recipe.variant == "quick" else ""
    return as_markdown(
        [corner, *columns], [[f"{row}{mark}", *(cells.get((row, one), "-") for one in columns)] for row in rows]
    )


def as_markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text and whose other columns are right-aligned."""
    lines = [headings, ["---", *["--:"] * (len(headings) - 1)], *lines]
    return "\n".join(f"| {' | '.join(part.replace('|', chr(92) + '|') for part in line)} |" for line in lines)


def ranks_as_markdown(found: Ranking | None, measure: str) -> str:
    """Return a ranking as a paragraph and a table, or an empty text."""
    if found is None:
        return ""
    left = f" Left out, since they lack some of these: {'; '.join(found.left_out)}." if found.left_out else ""
    return (
        f"**Ranks** by {measure}, mean over seeds, in {len(found.columns)} columns ({'; '.join(found.columns)}): "
        f"two rows less than {found.critical:.2f} apart are not told apart (Nemenyi, 5 %; Friedman's p = "
        f"{found.p:.2g}).{left}\n\n"
        + as_markdown(["row", "mean rank"], [[row, f"{rank:.2f}"] for row, rank in found.ranks.items()])
    )


def as_json(recipe: Recipe, found: Sequence[Entry], records: Sequence[Record], command: str, less: str) -> str:
    """Return all figures, for each seed too, and the versions of their runs."""
    whole = {"title": recipe.title, "paper": recipe.paper, "source": recipe.source, "less": less, "command": command}
    versions = list({str(one): one for record in records for one in record.versions}.values())
    figures = [
        {
            "row": one.cell.row,
            "column": one.cell.column,
            "measure": one.measure,
            "unit": one.unit,
            "paper": one.paper,
            "ours": {str(seed): value for seed, value in one.ours.items()},
            **{name: getattr(one, name) for name in ("mean", "deviation", "interval", "difference", "within")},
            "deviations_away": one.away,
            "against": one.against,
        }
        for one in found
    ]
    return json.dumps({**whole, "versions": versions, "figures": figures}, indent=1, allow_nan=False) + "\n"


def lost_as_markdown(cells: Sequence[Cell], records: Sequence[Record]) -> str:
    """Return which runs had failures, or have results of fewer clients than the others of their column; else ""."""
    by_folder = {cell.folder: cell for cell in cells}
    alike = [(by_folder[one.cell].column, one.settings.get("clients")) for one in records]
    most: dict[object, int] = {}
    for key, one in zip(alike, records, strict=True):
        most[key] = max(most.get(key, 0), len(one.clients))
    lost = []
    for key, one in zip(alike, records, strict=True):
        less = 0 < len(one.clients) < most[key]
        words = [f"{len(one.clients)} of {most[key]} have a result in the last round"] * less
        words += [f"{one.failures} failures"] * bool(one.failures)
        if words:
            lost.append(f"{by_folder[one.cell].name}, seed {one.seed} ({'; '.join(words)})")
    what = "**Clients without a result, and failures** (uploads or evaluations that did not arrive or were refused)"
    return f"{what}: {', '.join(lost)}." if lost else ""


def several_data_as_markdown(cells: Sequence[Cell], records: Sequence[Record]) -> str:
    """Return which columns have runs of several versions of a data set, by their digests, or an empty text."""
    columns = {cell.folder: cell.column for cell in cells}
    counts: dict[tuple[object, str], Counter[str]] = {}
    for one in records:
        said = " ".join(digest[:12] for digest in one.data) or "not recorded"
        counts.setdefault((one.settings.get("dataset"), columns[one.cell]), Counter())[said] += 1
    found = [
        ", ".join(filter(None, [f"{dataset}", column]))
        + " ("
        + ", ".join(f"{said}: {runs} run{'s' * (runs > 1)}" for said, runs in versions.items())
        + ")"
        for (dataset, column), versions in counts.items()
        if len(versions) > 1
    ]
    return f"**Several versions of the data**, by digest: {'; '.join(found)}." if found else ""


def lessened(recipe: Recipe, cells: Sequence[Cell]) -> str:
    """Describe how cells differ from the full table: config keys, missing cells and rows to compare with, and seeds."""
    whole = {cell.folder: cell for cell in recipe.cells()}
    changed: dict[str, dict[str, None]] = {}
    for cell in cells:
        for key, value in cell.settings.items():
            before = whole[cell.folder].settings.get(key)
            if value != before and key not in PLACES:
                said = f"{value}" if before is None else f"{value} instead of {before}"
                changed.setdefault(key, {})[said] = None
    words = [f"{key} = {' or '.join(values)}" for key, values in changed.items()]
    if len(cells) < len(whole):
        words.append(f"{len(cells)} of {len(whole)} cells")
    shown = {(cell.row, cell.column) for cell in cells}
    lacking = dict.fromkeys(cell.against for cell in cells if cell.against and (cell.against, cell.column) not in shown)
    words += [f"without {row}, so there is no difference from it" for row in lacking]
    pairs = dict.fromkeys((cell.seeds, whole[cell.folder].seeds) for cell in cells)
    fewer = [f"{some} of {most}" for some, most in pairs if some < most]
    words += [f"{' or '.join(fewer)} seeds"] if fewer else []
    return "; ".join(words) + "." if words else ""


def ours(entry: Entry) -> str:
    """Return our mean ± standard deviation over seeds, or a dash."""
    both = (entry.mean, entry.deviation)
    return " ± ".join(figure(value, entry.unit) for value in both if value is not None) or "-"


def figure(value: float, unit: str) -> str:
    """Format a number for tables."""
    return f"{value:,.0f}" if unit == "numbers" else f"{round(value, 2) + 0.0:,.2f}"  # not -0.00


def _signed(difference: float) -> str:
    return f"{round(difference, 2) + 0.0:+.2f}"


def counted(found: Sequence[Entry]) -> str:
    """Return the number of seeds, and how many of the paper's figures our intervals hold or are far off."""
    seeds = f"Seeds: {_seeds(found) or 'none'}."
    judged = [one for one in found if one.within is not None]
    if not judged:
        return seeds
    within = sum(one.within is True for one in judged)
    far = sum(not one.within if one.away is None else one.away > 2 for one in judged)  # None: no deviation at all
    of = f"of {len(judged)}"
    return f"{seeds} Paper within our interval: {within} {of}; over two deviations away: {far} {of}."


def _seeds(found: Sequence[Entry]) -> str:
    """Return the number of seeds, or the smallest and the largest one: a gain has only those of its baseline."""
    numbers = sorted({len(one.ours) for one in found} - {0})
    return " to ".join(map(str, dict.fromkeys([*numbers[:1], *numbers[-1:]])))
