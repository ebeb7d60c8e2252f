"""The page of all results: a section for each recipe with one small table, and beside it a full report of each."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copyfile

from hetfl_flwr.errors import RunFolderError
from simulations.studies.reproduce.outcome import Outcome, figure, ours, pivoted
from simulations.studies.reproduce.recipe import Recipe

RESULTS = "results"
"""Folder beside the page, for full reports, pictures and records."""

MISSING = "Not run"
"""Heading of the section that names what has not been run."""

PAPERS = "What holds, paper by paper"
"""Heading of the text that is written by hand and stands before all sections."""


def collect(titles: Mapping[str, str], made: Mapping[str, tuple[Path, str]], path: Path) -> None:
    """Write the page and its full reports; sections of other recipes stay, and so does the text under `PAPERS`.

    Parameters
    ----------
    titles : mapping of str to str
        The title of each recipe that was asked for, by its name; those without a section are listed as missing.
    made : mapping of str to (Path, str)
        Those with figures, by title: the folder of ``table.md`` and ``figure.png``, and the section.
    path : Path
        The page.

    Raises
    ------
    RunFolderError
        It cannot be written.
    """
    results = path.parent / RESULTS
    try:
        results.mkdir(parents=True, exist_ok=True)
        parts = re.split(r"^(?=## )", path.read_text() if path.exists() else "", flags=re.MULTILINE)[1:]
        sections = {part.partition("\n")[0].removeprefix("## "): part.rstrip("\n") + "\n" for part in parts}
        papers, missing = sections.pop(PAPERS, ""), sections.pop(MISSING, "").split("\n")
        for title, (folder, section) in made.items():
            name, text = folder.name, (folder / "table.md").read_text()
            if (folder / "figure.png").exists():
                copyfile(folder / "figure.png", results / f"{name}.png")
            sections[title] = f"{section}\n[Full report]({RESULTS}/{name}.md)\n"
            if (results / f"{name}.png").exists():
                text += f"\n![{title}]({name}.png)\n"
                if "\n| ---" in section:
                    sections[title] += f"\n![{title}]({RESULTS}/{name}.png)\n"
            (results / f"{name}.md").write_text(text)
        missing += [f"- {title} (`{name}`)" for name, title in titles.items()]
        missing = [line for line in dict.fromkeys(missing) if line[2:].rpartition(" (`")[0] not in {"", *sections}]
        last = "\n".join([f"## {MISSING}\n", *missing, ""]) if missing else ""
        ordered = [sections[title] for title in sorted(sections, key=str.casefold)]
        path.write_text("\n".join(filter(None, ["# Results\n", papers, *ordered, last])))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror}") from None


def summary(recipe: Recipe, found: Sequence[Outcome], made: str, less: str) -> str:
    """Return a section of the page.

    Parameters
    ----------
    recipe : Recipe
        Gives the heading and the first paragraph of what was found. If none of its readings is chosen, there is no
        table.
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

    With columns, it shows the measure that rows are ranked by, or the first; without, all measures. The longer side
    goes down the page.
    """
    drawn = recipe.figure.measures if recipe.figure.kind != "gains" else []
    measures = drawn or list(recipe.measures)
    if recipe.columns:
        measures = [recipe.ranked or measures[0]]
    printed = {one.measure for one in found if one.paper is not None}
    cells, labels = dict[tuple[str, str], str](), dict[str, None]()
    for one in found:
        if one.ours and one.measure in measures and (not recipe.shown or one.cell.row in recipe.shown):
            label = f"{one.label} (paper)" if one.measure in printed else one.label
            paper = "" if one.paper is None else f" ({figure(one.paper, one.unit)})"
            cells[one.cell.row, one.cell.column or label] = ours(one) + paper
            labels[label] = None
    return pivoted(cells, next(iter(labels), "") if recipe.columns else "", turned=True)


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
