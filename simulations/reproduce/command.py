"""``hetfl reproduce``: run what a recipe asks for, and put the paper's figures beside ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from hetfl_flwr.config import Value
from hetfl_flwr.errors import RunFolderError
from simulations.reproduce.outcome import as_json, markdown, outcomes, table
from simulations.reproduce.pictures import draw
from simulations.reproduce.recipe import Recipe, load, names
from simulations.reproduce.running import Job, jobs, run


class Request(NamedTuple):
    """What the command line asks for.

    Parameters
    ----------
    seeds : int
        How many; 0: as the recipe says.
    quick : bool
        The quick variant.
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

    seeds: int
    quick: bool
    workers: int
    out: Path
    extra: dict[str, Value]
    results: Path | None
    report_only: bool


def reproduce(wanted: Sequence[str], request: Request, console: Console) -> bool:
    """Reproduce recipes, one after the other; return whether all that was asked for is there.

    What has been run before is not run again. After each recipe its table, JSON and picture are written, whatever of it
    is there; so a run that fails or is stopped takes nothing with it.
    """
    recipes = {name: load(name) for name in (names() if list(wanted) == ["all"] else wanted)}  # all are checked first
    sections, whole = [], True
    for name, recipe in recipes.items():
        found = _jobs(name, recipe, request)
        failed = {} if request.report_only else run(found, request.workers, console)
        whole &= not failed
        sections.append(_report(name, recipe, found, request, console))
        if failed and recipe.needs:
            console.print(f"{name} needs {recipe.needs}", style="yellow", markup=False)
    if request.results is not None:
        try:
            request.results.write_text("\n".join(["# Results\n", *sections]))
        except OSError as error:
            raise RunFolderError(f"{request.results} cannot be written: {error.strerror}") from None
    return whole


def _jobs(name: str, recipe: Recipe, request: Request) -> list[Job]:
    cells = [
        cell.model_copy(update={"settings": {**cell.settings, **request.extra}})
        for cell in recipe.cells(quick=request.quick)
    ]
    seeds = request.seeds or (1 if request.quick else recipe.seeds)
    return jobs(cells, seeds, _folder(recipe.runs or name, request) / "runs")


def _folder(name: str, request: Request) -> Path:
    return request.out / (f"{Path(name).stem}-quick" if request.quick else Path(name).stem)


def _report(name: str, recipe: Recipe, found: list[Job], request: Request, console: Console) -> str:
    """Write table, figures and picture of what is there, and return the section of Markdown."""
    folder = _folder(name, request)
    command = f"hetfl reproduce {name}" + (" --quick" if request.quick else "")
    command += f" --seeds {request.seeds}" if request.seeds else ""
    figures = outcomes(recipe, found)
    console.print(table(recipe, figures))
    section = markdown(recipe, figures, found, command)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(section)
    (folder / "table.json").write_text(as_json(recipe, figures, found, command))
    if any(job.finished for job in found):
        draw(recipe, figures, found, folder / "figure.png")
    console.print(f"written: {folder}/table.md, table.json, figure.png", markup=False, highlight=False)
    return section
