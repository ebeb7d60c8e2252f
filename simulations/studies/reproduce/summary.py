"""What the page of all results says of a recipe: what was found, one small table, how much was run."""

from collections.abc import Sequence

from simulations.studies.reproduce.outcome import Outcome, as_markdown, figure, ours
from simulations.studies.reproduce.recipe import Recipe


def summary(recipe: Recipe, found: Sequence[Outcome], made: str, less: str) -> str:
    """Return a section of the page.

    Parameters
    ----------
    recipe : Recipe
        Its title is the heading, and the first paragraph of what was found follows. Of readings of which none is chosen
        there is no table.
    found : sequence of Outcome
        All figures.
    made : str
        The command, the commits and the number of runs.
    less : str
        What the runs have less than the paper's.
    """
    paragraphs = [
        f"## {recipe.title}",
        recipe.found.strip().partition("\n\n")[0],
        f"**Less than in the paper:** {less}" if less else "",
        main_table(recipe, found) if recipe.chosen != "none" else "",
        f"{made}. {counted(found)}",
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def main_table(recipe: Recipe, found: Sequence[Outcome]) -> str:
    """Return our means and deviations, rows by columns, with the paper's figures in brackets.

    With columns, of the measure that rows are ranked by or of the first; without, of all measures. The longer side goes
    down the page.
    """
    measures = _measures(recipe)
    printed = {one.measure for one in found if one.paper is not None}
    cells, labels = dict[tuple[str, str], str](), dict[str, None]()
    for one in found:
        if one.ours and one.measure in measures and (not recipe.shown or one.cell.row in recipe.shown):
            label = f"{one.label} (paper)" if one.measure in printed else one.label
            cells[one.cell.row, one.cell.column or label] = _cell(one)
            labels[label] = None
    rows, columns = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    if len(columns) > len(rows):
        rows, columns, cells = columns, rows, {(column, row): text for (row, column), text in cells.items()}
    corner = next(iter(labels), "") if recipe.columns else ""
    return as_markdown([corner, *columns], [[row, *(cells.get((row, one), "-") for one in columns)] for row in rows])


def counted(found: Sequence[Outcome]) -> str:
    """Return the seeds, how many of our intervals have the paper's figure, and how many are over two deviations off."""
    numbers = sorted({len(one.ours) for one in found} - {0})
    seeds = f"Seeds: {' to '.join(map(str, dict.fromkeys([*numbers[:1], *numbers[-1:]])))}."
    judged = [one for one in found if one.within is not None]
    if not judged:
        return seeds
    within = sum(one.within is True for one in judged)
    far = sum(not one.within if one.away is None else one.away > 2 for one in judged)  # None: no deviation at all
    of = f"of {len(judged)}"
    return f"{seeds} Paper within our interval: {within} {of}; over two deviations away: {far} {of}."


def _measures(recipe: Recipe) -> list[str]:
    drawn = recipe.figure.measures if recipe.figure.kind != "gains" else []
    measures = drawn or list(recipe.measures)
    return [recipe.ranked or measures[0]] if recipe.columns else measures


def _cell(outcome: Outcome) -> str:
    paper = "" if outcome.paper is None else f" ({figure(outcome.paper, outcome.unit)})"
    return f"{ours(outcome)}{paper}"
