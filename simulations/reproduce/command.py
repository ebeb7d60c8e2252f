"""``hetfl reproduce``: run what a recipe asks for, and put the paper's figures beside ours."""

from collections.abc import Sequence
from pathlib import Path
from shutil import copyfile
from typing import NamedTuple

from rich.console import Console

from hetfl_flwr.config import Value
from hetfl_flwr.errors import ConfigError, RunFolderError
from simulations.many import ELSEWHERE, run_all
from simulations.reproduce.outcome import as_json, lessened, markdown, outcomes, table
from simulations.reproduce.pictures import draw
from simulations.reproduce.recipe import Recipe, Variant, load, names
from simulations.reproduce.running import Job, jobs

PICTURES = "results"
"""Folder beside the file of all tables, for their pictures."""


class Request(NamedTuple):
    """What the command line asks for.

    Parameters
    ----------
    variant : {"full", "short", "quick"}
        How much of it.
    only : list of str
        What the name of a row or column must have one of. Empty: all.
    seeds : int
        How many; 0: as the recipe says.
    workers : int
        Runs at a time.
    out : Path
        Folder with a folder a recipe.
    extra : dict
        Config keys over the recipe's.
    results : Path or None
        A Markdown file to write all tables to.
    report_only : bool
        Run nothing: report what is there.
    """

    out: Path
    variant: Variant = "full"
    only: Sequence[str] = ()
    seeds: int = 0
    workers: int = 1
    extra: dict[str, Value] = {}  # noqa: RUF012
    results: Path | None = None
    report_only: bool = False


class Task(NamedTuple):
    """A recipe as it is asked for.

    Parameters
    ----------
    name : str
        The recipe's.
    recipe : Recipe
        What it says.
    variant : {"full", "short", "quick"}
        "full" where "short" is asked for and the recipe has none.
    jobs : list of Job
        Its runs.
    folder : Path
        Where its table goes.
    command : str
        What makes it again.
    """

    name: str
    recipe: Recipe
    variant: Variant
    jobs: list[Job]
    folder: Path
    command: str


def reproduce(wanted: Sequence[str], request: Request, console: Console) -> bool:
    """Reproduce recipes, one after the other; return whether all that was asked for is there.

    What has been run before is not run again. After each recipe its table, JSON and picture are written, whatever of it
    is there; so a run that fails or is stopped takes nothing with it.
    """
    tasks = [_task(name, request) for name in (names() if list(wanted) == ["all"] else wanted)]  # all are checked first
    if not any(task.jobs for task in tasks):
        raise ConfigError(f"--only {' '.join(request.only)}: no row or column has this in its name")
    whole = True
    for task in tasks:
        failed = {} if request.report_only else run_all(task.jobs, request.workers, console)
        whole &= not failed
        _report(task, console)
        if failed and task.recipe.needs:
            console.print(f"{task.name} needs {task.recipe.needs}", style="yellow", markup=False)
    if request.results is not None:
        _collect(tasks, request.results)
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
    suffix = "" if variant == "full" else f"-{variant}"
    runs = request.out / (Path(recipe.runs or name).stem + suffix) / "runs"
    folder = request.out / (Path(name).stem + suffix)
    return Task(name, recipe, variant, jobs(cells, seeds, runs), folder, _command(name, variant, request))


def _command(name: str, variant: Variant, request: Request) -> str:
    """Return what makes a table again, but for where data are and on what it runs."""
    words = ["hetfl reproduce", name, *([] if variant == "full" else [f"--{variant}"])]
    words += [f"--only '{text}'" for text in request.only]
    words += [f"--seeds {request.seeds}"] if request.seeds else []
    kept = {key: value for key, value in request.extra.items() if key == "rounds" or key not in ELSEWHERE}
    return " ".join([*words, *(f"--set {key}={value}" for key, value in kept.items())])


def _report(task: Task, console: Console) -> None:
    """Write table, figures and picture of what is there."""
    figures = outcomes(task.recipe, task.jobs)
    console.print(table(task.recipe, figures))
    less = lessened(task.recipe, [job.cell for job in task.jobs])
    task.folder.mkdir(parents=True, exist_ok=True)
    (task.folder / "table.md").write_text(markdown(task.recipe, figures, task.jobs, task.command, less))
    (task.folder / "table.json").write_text(as_json(task.recipe, figures, task.jobs, task.command))
    if any(job.finished for job in task.jobs):
        draw(task.recipe, figures, task.jobs, task.folder / "figure.png")
    console.print(f"written: {task.folder}/table.md, table.json, figure.png", markup=False, highlight=False)


def _collect(tasks: Sequence[Task], path: Path) -> None:
    """Write all tables that have figures into one file, their pictures beside it, and what has not been run."""
    run_before = [task for task in tasks if any(job.finished for job in task.jobs)]
    sections = ["# Results\n"]
    try:
        (path.parent / PICTURES).mkdir(parents=True, exist_ok=True)
        for task in run_before:
            picture = f"{PICTURES}/{task.folder.name}.png"
            copyfile(task.folder / "figure.png", path.parent / picture)
            sections += [(task.folder / "table.md").read_text(), f"![{task.recipe.title}]({picture})\n"]
        missing = [f"- {task.recipe.title} (`{task.name}`)" for task in tasks if task not in run_before]
        sections += ["## Not run\n", *missing, ""] if missing else []
        path.write_text("\n".join(sections))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror}") from None
