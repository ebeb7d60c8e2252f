"""``hetfl reproduce``: run recipes, and compare our figures with the paper's."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markdown import Markdown

from hetfl_flwr.common.files import replace_file
from hetfl_flwr.config import Value
from hetfl_flwr.errors import ConfigError
from simulations.studies.backends import LocalBackend
from simulations.studies.jobs import PLACES, Backend, run_all
from simulations.studies.reproduce.entries import entries, last_rise, ranking
from simulations.studies.reproduce.page import (
    as_json,
    differences_as_markdown,
    lessened,
    markdown,
    publish,
    ranks_as_markdown,
)
from simulations.studies.reproduce.pictures import draw
from simulations.studies.reproduce.recipe import Cell, Recipe, Variant, load, names
from simulations.studies.reproduce.records import Records, environments, jobs
from simulations.studies.reproduce.tuned import tune_cells, tuning_as_markdown


class Options(NamedTuple):
    """Options of ``hetfl reproduce``.

    Parameters
    ----------
    out : Path
        Folder with a subfolder for each recipe.
    variant : {"full", "short", "quick"}
        The variant of the recipes.
    only : list of str
        Run only rows and columns whose names contain one of these. Empty: all.
    seeds : int
        Number of seeds; 0: as the recipe says.
    backend : Backend
        Where the runs are executed.
    extra : mapping
        Config keys that override the recipe's.
    results : Path or None
        Folder that keeps reports, pictures and records.
    report_only : bool
        Whether to report only existing runs.
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
        """Load a recipe in the requested variant; without a short variant, the full one."""
        recipe = load(name)
        owner = load(recipe.runs) if recipe.runs else recipe
        variant: Variant = "full" if self.variant == "short" and not owner.has_short else self.variant
        own = {"title": f"{recipe.title}: {variant} variant, not the paper's setting"} if variant != "full" else {}
        less = {"found": "", "note": ""} if variant == "quick" else {}  # they describe the other variants
        return recipe.model_copy(update={"variant": variant, **own, **less})

    def cells(self, recipe: Recipe) -> list[Cell]:
        """Return the requested cells."""
        return [
            cell.model_copy(update={"settings": {**cell.settings, **self.extra}})
            for cell in recipe.cells(recipe.variant)
            if cell.matches(self.only)
        ]

    def command(self, name: str, recipe: Recipe) -> str:
        """Return the command that reproduces a recipe."""
        words = ["hetfl reproduce", name, *([] if recipe.variant == "full" else [f"--{recipe.variant}"])]
        words += [f"--only '{text}'" for text in self.only]
        words += [f"--seeds {self.seeds}"] if self.seeds else []
        return " ".join(words + [f"--set {key}={value}" for key, value in self.extra.items() if key not in PLACES])


def reproduce(wanted: Sequence[str], options: Options, console: Console) -> bool:
    """Reproduce recipes one after the other; return whether all runs are complete.

    Finished runs are not repeated. The report of each recipe covers the runs that exist, so a failure loses nothing.
    """
    recipes = {name: options.recipe(name) for name in (names() if list(wanted) == ["all"] else wanted)}
    stems = [Path(name).stem for name in recipes]
    if len(set(stems)) < len(stems):
        raise ConfigError(f"two recipes share a name and a folder: {', '.join(recipes)}: reproduce one at a time")
    cells = {name: options.cells(recipe) for name, recipe in recipes.items()}  # checks all before the first run
    if not any(cells.values()):
        raise ConfigError(f"--only {' '.join(options.only)}: no row or column has this in its name")
    whole = True
    for name, recipe in recipes.items():
        whole &= _reproduce(name, recipe, cells[name], options, console)
    return whole


def _reproduce(name: str, recipe: Recipe, asked: Sequence[Cell], options: Options, console: Console) -> bool:
    """Run and report one recipe; return whether it is complete."""
    suffix = "" if recipe.variant == "full" else f"-{recipe.variant}"
    shared, folder = Path(recipe.runs or name).stem + suffix, options.out / (Path(name).stem + suffix)
    place, results = options.out / shared, options.results
    kept, found = Records(results and results / f"{shared}.jsonl"), results and results / f"{shared}-tuned.jsonl"
    only_known, seeds = options.report_only, options.seeds or (1 if recipe.variant == "quick" else recipe.seeds)

    cells, tuned = tune_cells(asked, found, place / "tuning", options.backend, console, only_known=only_known)
    runs = jobs(cells, seeds, place / "runs")
    take = partial(kept.take, recipe=recipe)
    left = [job for job in runs if kept.get(job, recipe) is None]
    failed = {} if only_known else run_all(left, options.backend, console, take)
    for job in runs:
        if job.finished:
            take(job)
    records = [one for job in runs if (one := kept.get(job, recipe))]

    less, figures = lessened(recipe, asked), entries(recipe, asked, records)
    versions = environments(one.versions for one in records)
    commits = sorted({one["commit"] for record in records for one in record.versions if "commit" in one})
    command = options.command(name, recipe)
    by = f"`{command}`, commit {', '.join(commits) or 'none'}; {len(records)} of {len(asked) * seeds} runs"
    if only_known and not records:
        console.print(f"{name}: no run of it is recorded, so nothing is written", style="yellow", markup=False)
        return False
    folder.mkdir(parents=True, exist_ok=True)
    gaps = differences_as_markdown(recipe, figures, last_rise(recipe, asked, records))
    more = [gaps, tuning_as_markdown(tuned), ranks_as_markdown(ranking(figures, recipe.ranked), recipe.ranked)]
    page = markdown(recipe, figures, "; ".join([by, *versions]), less, more)
    console.print(Markdown(page))
    replace_file(folder / "table.md", page.encode())
    replace_file(folder / "table.json", as_json(recipe, figures, records, command, less).encode())
    if records:
        draw(recipe, figures, runs, records, folder / "figure.png")
    picture = ", figure.png" if (folder / "figure.png").exists() else ""
    console.print(f"written: {folder}/table.md, table.json{picture}", markup=False, highlight=False)
    if failed and recipe.needs:
        console.print(f"{name} needs {recipe.needs}", style="yellow", markup=False)
    if records and results is not None:
        publish(folder, recipe.title, results)
    return not failed and (only_known or len(cells) == len(asked))
