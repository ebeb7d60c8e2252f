"""``hetfl reproduce``: run what a recipe asks for, and put the paper's figures beside ours."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from hetfl_flwr.config import Value
from hetfl_flwr.errors import ConfigError
from simulations.studies.backends import LocalBackend
from simulations.studies.jobs import PLACES, Backend, Job, run_all
from simulations.studies.reproduce.outcome import outcomes, ranking
from simulations.studies.reproduce.page import (
    RESULTS,
    as_json,
    collect,
    lessened,
    markdown,
    ranks_as_markdown,
    summary,
    table,
)
from simulations.studies.reproduce.pictures import draw
from simulations.studies.reproduce.recipe import Cell, Recipe, Variant, load, names
from simulations.studies.reproduce.records import Record, Records, environments, jobs
from simulations.studies.reproduce.tuned import tune_cells, tuning_as_markdown


class Request(NamedTuple):
    """What the command line asks for.

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
        Where the runs happen.
    extra : dict
        Config keys over the recipe's.
    results : Path or None
        The Markdown page of all results; full reports and records are kept beside it.
    report_only : bool
        Run nothing: report what is there.
    """

    out: Path
    variant: Variant = "full"
    only: Sequence[str] = ()
    seeds: int = 0
    backend: Backend = LocalBackend()
    extra: dict[str, Value] = {}  # noqa: RUF012
    results: Path | None = None
    report_only: bool = False


class Task(NamedTuple):
    """A recipe as it is asked for: its cells and seeds, what its runs, its table and the command are called."""

    name: str
    recipe: Recipe
    cells: list[Cell]
    seeds: int
    shared: str
    called: str
    command: str


def reproduce(wanted: Sequence[str], request: Request, console: Console) -> bool:
    """Reproduce recipes, one after the other; return whether all that was asked for is there.

    Runs that have ended are not repeated. The table, JSON and picture of each recipe are written from the runs that
    there are, so that a failure loses nothing.
    """
    tasks = [_task(name, request) for name in (names() if list(wanted) == ["all"] else wanted)]  # all are checked first
    if not any(task.cells for task in tasks):
        raise ConfigError(f"--only {' '.join(request.only)}: no row or column has this in its name")
    whole, made = True, dict[str, tuple[Path, str]]()
    for task in tasks:
        place, results = request.out / task.shared, request.results and request.results.parent / RESULTS
        kept = Records(results and results / f"{task.shared}.jsonl")
        found = results and results / f"{task.shared}-tuned.jsonl"
        only_known = request.report_only
        cells, tuned = tune_cells(task.cells, found, place / "tuning", request.backend, console, only_known=only_known)
        runs = jobs(cells, task.seeds, place / "runs")
        left = [job for job in runs if kept.get(job, task.recipe) is None]
        take = partial(kept.take, recipe=task.recipe)
        failed = {} if only_known else run_all(left, request.backend, console, take)
        whole &= not failed and (only_known or len(cells) == len(task.cells))
        for job in runs:
            if job.finished:
                take(job)
        records = [one for job in runs if (one := kept.get(job, task.recipe))]
        folder = request.out / task.called
        section = _report(task, folder, runs, tuning_as_markdown(task.cells, tuned), records, console)
        if failed and task.recipe.needs:
            console.print(f"{task.name} needs {task.recipe.needs}", style="yellow", markup=False)
        if records:
            made[task.recipe.title] = folder, section
    if request.results is not None:
        collect({task.name: task.recipe.title for task in tasks}, made, request.results)
    return whole


def _task(name: str, request: Request) -> Task:
    recipe = load(name)
    owner = load(recipe.runs) if recipe.runs else recipe
    variant: Variant = "full" if request.variant == "short" and not owner.has_short else request.variant
    cells = [
        cell.model_copy(update={"settings": {**cell.settings, **request.extra}})
        for cell in recipe.cells(variant)
        if cell.matches(request.only)
    ]
    seeds = request.seeds or (1 if variant == "quick" else recipe.seeds)
    if variant == "quick":
        recipe = recipe.model_copy(update={"title": f"{recipe.title}: quick variant, not the paper's setting"})
    suffix = "" if variant == "full" else f"-{variant}"
    words = ["hetfl reproduce", name, *([] if variant == "full" else [f"--{variant}"])]
    words += [f"--only '{text}'" for text in request.only]
    words += [f"--seeds {request.seeds}"] if request.seeds else []
    words += [f"--set {key}={value}" for key, value in request.extra.items() if key not in PLACES]
    shared = Path(recipe.runs or name).stem + suffix
    return Task(name, recipe, cells, seeds, shared, Path(name).stem + suffix, " ".join(words))


def _report(
    task: Task, folder: Path, runs: Sequence[Job], tuning: str, records: Sequence[Record], console: Console
) -> str:
    """Write table, figures and picture of what is there, and return the section of the page of results."""
    recipe, less = task.recipe, lessened(task.recipe, task.cells)
    figures = outcomes(recipe, task.cells, records)
    console.print(table(recipe, figures, less))
    made = [one.versions for one in records]
    commits = sorted({one["commit"] for versions in made for one in versions if "commit" in one})
    versions = environments(made)
    if len(versions) > 1:
        said = f"{task.name}: runs made with several versions: {'; '.join(versions)}"
        console.print(said, style="yellow", markup=False)
    count = f"{len(records)} of {len(task.cells) * task.seeds} runs"
    by = f"`{task.command}`, commit {', '.join(commits) or 'none'}; {count}"
    folder.mkdir(parents=True, exist_ok=True)
    more = [tuning, ranks_as_markdown(ranking(figures, recipe.ranked), recipe.ranked)]
    (folder / "table.md").write_text(markdown(recipe, figures, "; ".join([by, *versions]), less, more))
    (folder / "table.json").write_text(as_json(recipe, figures, records, task.command, less))
    if records:
        draw(recipe, figures, runs, records, folder / "figure.png")
    picture = ", figure.png" if (folder / "figure.png").exists() else ""
    console.print(f"written: {folder}/table.md, table.json{picture}", markup=False, highlight=False)
    return summary(recipe, figures, by, less)
