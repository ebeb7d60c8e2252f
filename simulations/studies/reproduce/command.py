"""``hetfl reproduce``: execute a recipe, and compare our figures with the paper's."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markdown import Markdown

from hetfl_flwr.config import Value
from hetfl_flwr.errors import ConfigError
from simulations.studies.jobs import PLACES, Backend, LocalBackend, run_all
from simulations.studies.reproduce.outcome import last_rise, outcomes, ranking
from simulations.studies.reproduce.page import (
    RESULTS,
    as_json,
    collect,
    differences_as_markdown,
    lessened,
    markdown,
    ranks_as_markdown,
    section,
)
from simulations.studies.reproduce.pictures import draw
from simulations.studies.reproduce.recipe import Cell, Recipe, Variant, load, names
from simulations.studies.reproduce.records import Records, environments, jobs
from simulations.studies.reproduce.tuned import tune_cells, tuning_as_markdown


class Request(NamedTuple):
    """A request of the command line.

    Parameters
    ----------
    out : Path
        Folder with a folder for each recipe.
    variant : {"full", "short", "quick"}
        How much of it.
    only : list of str
        What the name of a row or column must contain, one of these. Empty: all.
    seeds : int
        How many; 0: as the recipe says.
    backend : Backend
        Where the runs are executed.
    extra : mapping
        Config keys that override the recipe's.
    results : Path or None
        The Markdown page of all results; full reports and records are kept beside it.
    report_only : bool
        Whether to execute no runs, and report those that exist.
    """

    out: Path
    variant: Variant = "full"
    only: Sequence[str] = ()
    seeds: int = 0
    backend: Backend = LocalBackend()
    extra: Mapping[str, Value] = {}
    results: Path | None = None
    report_only: bool = False

    def recipe(self, name: str) -> Recipe:
        """Return a recipe in the variant that is asked for; one that has no short variant is as in full."""
        recipe = load(name)
        owner = load(recipe.runs) if recipe.runs else recipe
        variant: Variant = "full" if self.variant == "short" and not owner.has_short else self.variant
        own = {"title": f"{recipe.title}: {variant} variant, not the paper's setting"} if variant != "full" else {}
        less = {"found": "", "note": ""} if variant == "quick" else {}  # these are about the other variants
        return recipe.model_copy(update={"variant": variant, **own, **less})

    def cells(self, recipe: Recipe) -> list[Cell]:
        """Return the cells that are asked for."""
        return [
            cell.model_copy(update={"settings": {**cell.settings, **self.extra}})
            for cell in recipe.cells(recipe.variant)
            if cell.matches(self.only)
        ]

    def command(self, name: str, recipe: Recipe) -> str:
        """Return the command that makes a table."""
        words = ["hetfl reproduce", name, *([] if recipe.variant == "full" else [f"--{recipe.variant}"])]
        words += [f"--only '{text}'" for text in self.only]
        words += [f"--seeds {self.seeds}"] if self.seeds else []
        return " ".join(words + [f"--set {key}={value}" for key, value in self.extra.items() if key not in PLACES])


def reproduce(wanted: Sequence[str], request: Request, console: Console) -> bool:
    """Reproduce recipes, one after the other; return whether all runs are complete.

    Runs that have ended are not repeated. The table, JSON and picture of each recipe are written from the runs that
    there are, so that a failure loses nothing.
    """
    recipes = {name: request.recipe(name) for name in (names() if list(wanted) == ["all"] else wanted)}
    cells = {name: request.cells(recipe) for name, recipe in recipes.items()}  # all are checked first
    if not any(cells.values()):
        raise ConfigError(f"--only {' '.join(request.only)}: no row or column has this in its name")
    whole, made = True, dict[str, tuple[Path, str]]()
    for name, recipe in recipes.items():
        complete, there = _reproduce(name, recipe, cells[name], request, console)
        whole &= complete
        made |= there
    if request.results is not None:
        collect({name: recipe.title for name, recipe in recipes.items()}, made, request.results)
    return whole


def _reproduce(
    name: str, recipe: Recipe, asked: Sequence[Cell], request: Request, console: Console
) -> tuple[bool, dict[str, tuple[Path, str]]]:
    """Run and report one recipe; return whether all is there, and its folder and section by its title, if it has any.

    Table, figures and picture are of what is there.
    """
    suffix = "" if recipe.variant == "full" else f"-{recipe.variant}"
    shared, folder = Path(recipe.runs or name).stem + suffix, request.out / (Path(name).stem + suffix)
    place, results = request.out / shared, request.results and request.results.parent / RESULTS
    kept, found = Records(results and results / f"{shared}.jsonl"), results and results / f"{shared}-tuned.jsonl"
    only_known, seeds = request.report_only, request.seeds or (1 if recipe.variant == "quick" else recipe.seeds)

    cells, tuned = tune_cells(asked, found, place / "tuning", request.backend, console, only_known=only_known)
    runs = jobs(cells, seeds, place / "runs")
    take = partial(kept.take, recipe=recipe)
    left = [job for job in runs if kept.get(job, recipe) is None]
    failed = {} if only_known else run_all(left, request.backend, console, take)
    for job in runs:
        if job.finished:
            take(job)
    records = [one for job in runs if (one := kept.get(job, recipe))]

    less, figures = lessened(recipe, asked), outcomes(recipe, asked, records)
    versions = environments(one.versions for one in records)
    commits = sorted({one["commit"] for record in records for one in record.versions if "commit" in one})
    command = request.command(name, recipe)
    by = f"`{command}`, commit {', '.join(commits) or 'none'}; {len(records)} of {len(asked) * seeds} runs"
    folder.mkdir(parents=True, exist_ok=True)
    gaps = differences_as_markdown(recipe, figures, last_rise(recipe, asked, records))
    more = [gaps, tuning_as_markdown(tuned), ranks_as_markdown(ranking(figures, recipe.ranked), recipe.ranked)]
    page = markdown(recipe, figures, "; ".join([by, *versions]), less, more)
    console.print(Markdown(page))
    (folder / "table.md").write_text(page)
    (folder / "table.json").write_text(as_json(recipe, figures, records, command, less))
    if records:
        draw(recipe, figures, runs, records, folder / "figure.png")
    picture = ", figure.png" if (folder / "figure.png").exists() else ""
    console.print(f"written: {folder}/table.md, table.json{picture}", markup=False, highlight=False)
    if failed and recipe.needs:
        console.print(f"{name} needs {recipe.needs}", style="yellow", markup=False)
    complete = not failed and (only_known or len(cells) == len(asked))
    return complete, {recipe.title: (folder, section(recipe, figures, by, less))} if records else {}
