"""``hetfl reproduce``: run recipes, and compare our figures with the paper's."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markdown import Markdown

from hetfl_flwr.common.files import replace_file, writing
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.data.domains import data_sets
from hetfl_flwr.errors import ConfigError, unknown
from simulations.reports.runs import load_run
from simulations.studies.backends import LocalBackend
from simulations.studies.jobs import PLACES, Backend, Job, run_all
from simulations.studies.reproduce.entries import Entry, entries, last_rises, ranking
from simulations.studies.reproduce.page import (
    as_json,
    differences_as_markdown,
    lessened,
    lost_as_markdown,
    markdown,
    merged,
    ranks_as_markdown,
    several_data_as_markdown,
)
from simulations.studies.reproduce.pictures import draw
from simulations.studies.reproduce.recipe import MAX_SEEDS, Cell, Recipe, Variant, load, names
from simulations.studies.reproduce.records import MOVE, Record, Records, check_reported, environments, jobs
from simulations.studies.reproduce.tuned import Findings, TunedCell, tune_cells, tuning_as_markdown


class Options(NamedTuple):
    """Options of ``hetfl reproduce``.

    Parameters
    ----------
    out : Path
        Folder with a subfolder for each recipe.
    variant : {"full", "short", "quick"}
        The variant of the recipes.
    only : list of str
        Run only rows, columns and cells with one of these names (`Cell.matches`). Empty: all.
    seeds : int
        Number of seeds of all cells; 0: as the recipe says.
    backend : Backend
        Where the runs are executed.
    extra : mapping
        Config keys that override the recipe's.
    results : Path or None
        Folder that keeps records, and of each recipe the report and the picture of all its recorded runs.
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
        own = {"title": f"{recipe.title}: {variant} variant, not {recipe.setting}"} if variant != "full" else {}
        less = {"note": ""} if variant == "quick" else {}  # it describes the other variants
        if variant == "quick" or self.extra.keys() - {*PLACES}:
            less["found"] = ""
        return recipe.model_copy(update={"variant": variant, **own, **less})

    def cells(self, recipe: Recipe) -> list[Cell]:
        """Return the requested cells with the settings in `extra`.

        Raises a `ConfigError` if they cannot have them, or are told apart by them.
        """
        for key in ("seed", "output-dir", "resume"):
            if key in self.extra:
                why = "runs get seeds from 0 and folders in --out, and continue automatically"
                raise ConfigError(f"--set {key}: leave it out, as {why}")
        cells = [
            cell.model_copy(update={"seeds": self.seeds or cell.seeds})
            for cell in recipe.cells(recipe.variant)
            if not self.only or any(map(cell.matches, self.only))
        ]
        for key in self.extra.keys() - {*PLACES}:
            owner = key.rpartition(".")[0]
            own = [cell.settings for cell in cells if owner in ("", cell.settings["algorithm"])]
            if len(values := {str(settings.get(key, "default")) for settings in own}) > 1:
                some = ", ".join(sorted(values)[:3])
                raise ConfigError(f"--set {key}: rows or columns differ in it ({some}): choose equal ones with --only")
        changed = [cell.model_copy(update={"settings": {**cell.settings, **self.extra}}) for cell in cells]
        for cell in changed:
            config = RunConfig.from_flat(cell.settings).with_data()
            data_sets(config.dataset, config.reading)
        return changed

    def kept(self, name: str) -> Path | None:
        """Return the file of records of this name, if records are kept."""
        return None if self.results is None else self.results / f"{name}.jsonl"

    def command(self, name: str, recipe: Recipe) -> str:
        """Return the command that reproduces a recipe."""
        words = ["hetfl reproduce", name, *([] if recipe.variant == "full" else [f"--{recipe.variant}"])]
        quoted = [text.replace("'", "'\\''") for text in self.only]
        words += [f"--only '{text}'" for text in quoted]
        words += [f"--seeds {self.seeds}"] if self.seeds else []
        return " ".join(words + [f"--set {key}={value}" for key, value in self.extra.items() if key not in PLACES])


class Task(NamedTuple):
    """A recipe to reproduce.

    Parameters
    ----------
    name : str
        Its name, or its file.
    recipe : Recipe
        The recipe in the requested variant.
    cells : list of Cell
        The requested cells.
    place : Path
        Folder of its runs, and of tuning.
    folder : Path
        Folder of its report.
    records : Records
        Records of its runs.
    tuned : Findings
        Results of tuning.
    """

    name: str
    recipe: Recipe
    cells: list[Cell]
    place: Path
    folder: Path
    records: Records
    tuned: Findings

    def known(self, runs: Sequence[Job]) -> list[Record]:
        """Return the records of runs that have one, of the data as they are now."""
        return [one for job in runs if (one := self._record(job))]

    def left(self, runs: Sequence[Job]) -> list[Job]:
        """Return the runs that have no such record."""
        return [job for job in runs if self._record(job) is None]

    def _record(self, job: Job) -> Record | None:
        found = self.records.get(job, self.recipe)
        return found if found and job.has_data(found.data) else None

    def recorded(self, cell: Cell) -> int:
        """Return the number of seeds of a cell, or of those recorded if they are more."""
        seeds = cell.seeds
        while seeds < MAX_SEEDS and self.known(jobs([cell.model_copy(update={"seeds": seeds + 1})], self.place)[-1:]):
            seeds += 1
        return seeds

    def take(self, job: Job, runs: Sequence[Job]) -> None:
        """Record a finished run; raises a `ConfigError` if the clients of no row report what the recipe asks for."""
        self.records.take(job, self.recipe)
        known = self.known(runs)
        if {one.cell for one in known} == {cell.folder for cell in self.recipe.cells(self.recipe.variant)}:
            check_reported(self.name, self.recipe, known, load_run(job.folder))


def reproduce(wanted: Sequence[str], options: Options, console: Console) -> bool:
    """Reproduce recipes one after the other; return whether all runs are complete.

    Finished runs are not repeated. The report of each recipe covers the runs that exist, so a failure loses nothing.
    """
    whole = True
    for task in prepare(names() if list(wanted) == ["all"] else wanted, options):  # checks all before the first run
        whole &= _reproduce(task, options, console)
    return whole


def prepare(wanted: Iterable[str], options: Options) -> list[Task]:
    """Return the tasks to reproduce; raises a `HetflError` for what cannot be reproduced."""
    tasks, known = dict[str, Task](), dict[str, tuple[Records, Findings]]()
    for name in dict.fromkeys(wanted):
        recipe = options.recipe(name)
        suffix = "" if recipe.variant == "full" else f"-{recipe.variant}"
        own, shared = (f"{Path(one).stem}{suffix}" for one in (name, recipe.runs or name))
        if own in tasks:
            both = f"{tasks[own].name}, {name}"
            raise ConfigError(f"two recipes share a name and a folder: {both}: reproduce one at a time")
        if shared not in known:
            known[shared] = Records(options.kept(shared)), Findings(options.kept(f"{shared}-tuned"))
        tasks[own] = Task(
            name,
            recipe,
            options.cells(recipe),
            options.out / shared,
            options.out / own,
            *known[shared],
        )
    found = [task for task in tasks.values() if task.cells]
    for name in options.only:
        if not any(cell.matches(name) for task in found for cell in task.cells):
            cells = [cell for task in tasks.values() for cell in task.recipe.cells(task.recipe.variant)]
            parts = {part for cell in cells for part in (cell.row, cell.column) if part}
            raise ConfigError(f"--only: {unknown('row or column', name, parts)} (* is any text)")
    return found


def _reproduce(task: Task, options: Options, console: Console) -> bool:
    """Run and report one recipe; return whether it is complete."""
    known = options.report_only
    tuned = partial(tune_cells, known=task.tuned, folder=task.place / "tuning", backend=options.backend)
    cells, found = tuned(task.cells, console=console, only_known=known)
    runs = jobs(cells, task.place / "runs")
    failed = _run(task, runs, options, console)
    records = _report(task, options, runs, found, console)
    if records and options.results is not None:
        task.records.read()
        places = {key: value for key, value in options.extra.items() if key in PLACES}
        plain = Options(options.out, options.variant, extra=places)
        recipe = plain.recipe(task.name)
        one = task._replace(recipe=recipe, cells=plain.cells(recipe))
        one = one._replace(cells=[cell.model_copy(update={"seeds": one.recorded(cell)}) for cell in one.cells])
        whole, found = tuned(one.cells, console=console, only_known=True)
        _publish(one, plain.command(task.name, recipe), jobs(whole, task.place / "runs"), found, options.results)
    return bool(records) and not failed and (known or len(cells) == len(task.cells))


def _run(task: Task, runs: Sequence[Job], options: Options, console: Console) -> bool:
    """Record what has finished, execute the runs that have no record, and record them; return whether one has failed.

    What is recorded already stays as it is.
    """
    task.records.read()
    for job in task.left(runs):
        if job.finished:
            task.take(job, runs)
    if options.report_only:
        return False
    return bool(run_all(task.left(runs), options.backend, console, partial(task.take, runs=runs)))


def _report(
    task: Task, options: Options, runs: Sequence[Job], found: Sequence[TunedCell], console: Console
) -> list[Record]:
    """Show the figures of the requested runs, write them with a picture, and return their records."""
    if not (records := task.known(runs)):
        console.print(f"{task.name}: no run of it is recorded, so nothing is written", style="yellow", markup=False)
        return []
    command, folder = options.command(task.name, task.recipe), task.folder
    page, figures = _page(task, runs, records, found, command)
    console.print(Markdown(page))
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "table.md", page.encode())
    less = lessened(task.recipe, task.cells)
    replace_file(folder / "table.json", as_json(task.recipe, figures, records, command, less).encode())
    draw(task.recipe, figures, runs, records, folder / "figure.png")
    picture = ", figure.png" if (folder / "figure.png").exists() else ""
    console.print(f"written: {folder}/table.md, table.json{picture}", markup=False, highlight=False)
    return records


def _publish(task: Task, command: str, runs: Sequence[Job], found: Sequence[TunedCell], results: Path) -> None:
    """Write the report and the picture of all recorded runs of a recipe.

    Raises a `RunFolderError` if they cannot be written. Without a new picture of features, the page has the earlier
    one.
    """
    picture = results / f"{task.folder.name}.png"
    if not (records := task.known(runs)):
        return
    page, figures = _page(task, runs, records, found, command)
    with writing(picture.with_suffix(".md"), way_out=MOVE):
        results.mkdir(parents=True, exist_ok=True)
        draw(task.recipe, figures, runs, records, picture)
        shown = f"\n![{task.recipe.title}]({picture.name})\n" if picture.exists() else ""
        replace_file(picture.with_suffix(".md"), (page + shown).encode())


def _page(
    task: Task, runs: Sequence[Job], records: Sequence[Record], found: Sequence[TunedCell], command: str
) -> tuple[str, list[Entry]]:
    """Return the report of a recipe's cells, and its figures."""
    recipe, cells = task.recipe, task.cells
    figures = entries(recipe, cells, records)
    commits = sorted({one["commit"] for record in records for one in record.versions if "commit" in one})
    made = f"`{command}`, commit {', '.join(commits) or 'none'}; {len(records)} of {len(runs)} runs"
    versions = environments(one.versions for one in records)
    more = [
        differences_as_markdown(recipe, figures, last_rises(recipe, cells, records)),
        lost_as_markdown(cells, records),
        several_data_as_markdown(cells, records),
        tuning_as_markdown(found),
        ranks_as_markdown(ranking(merged(figures), recipe.ranked), recipe.ranked),
    ]
    return markdown(recipe, figures, "; ".join([made, *versions]), lessened(recipe, cells), more), figures
