"""Runs the cells of a recipe over seeds, some at a time, and goes on where it was stopped."""

import json
import multiprocessing
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hetfl_flwr.config import Value, read_toml
from hetfl_flwr.errors import HetflError, Interrupted
from simulations.reproduce.recipe import Cell

MADE_BY = "made-by.json"
"""File of a run folder that says which commits of this project, or versions, made it: more than one if it went on."""


ELSEWHERE = ("data-dir", "device", "threads", "rounds", "checkpoint-every")
"""Keys in which a run may differ from what is asked for and still be that run."""


class Job(NamedTuple):
    """One cell with one seed."""

    cell: Cell
    seed: int
    folder: Path

    @property
    def rounds(self) -> int:
        """How many rounds it has in all."""
        return int(self.cell.settings.get("rounds", 50))

    @property
    def finished(self) -> bool:
        """Whether its run has ended, and was one of these settings."""
        return (self.folder / "summary.json").exists() and self.done >= self.rounds and self._is_as_asked()

    def _is_as_asked(self) -> bool:
        made = read_toml(self.folder / "config.toml")
        return all(made.get(key) == value for key, value in self.cell.settings.items() if self._matters(key))

    def _matters(self, key: str) -> bool:
        """Whether a run with another value of this key is another run; the keys of other algorithms are not."""
        table, _, _ = key.rpartition(".")
        return key not in ELSEWHERE and (not table or table == self.cell.settings.get("algorithm", "fedhe"))

    @property
    def done(self) -> int:
        """How many rounds are in its folder, round 0 left out."""
        path = self.folder / "rounds.jsonl"
        return max(path.read_bytes().count(b"\n") - 1, 0) if path.exists() else 0


def jobs(cells: Sequence[Cell], seeds: int, folder: Path) -> list[Job]:
    """Return what is to be run, all cells of a seed before the next seed."""
    return [Job(cell, seed, folder / cell.folder / f"seed-{seed}") for seed in range(seeds) for cell in cells]


def run(wanted: Sequence[Job], workers: int, console: Console) -> dict[Path, str]:
    """Run what has not ended yet, and return what went wrong with which, by folder.

    Parameters
    ----------
    wanted : sequence of Job
        What is to be there afterwards. A run that was stopped goes on from its last checkpoint; one of other settings
        in its place is refused, not repeated.
    workers : int
        Runs at a time, each in a process of its own.
    """
    left = [job for job in wanted if not job.finished]
    failed: dict[Path, str] = {}
    if not left:
        return failed
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} rounds"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=True))
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(min(workers, len(left)), mp_context=context) as pool,
        Progress(*columns, *times, console=console, speed_estimate_period=600) as progress,
    ):
        task = progress.add_task(f"{len(left)} runs", total=sum(job.rounds for job in left))
        waiting: dict[Future[str], Job] = {}
        try:
            waiting = {pool.submit(_run, job.folder, job.cell.settings, job.seed): job for job in left}
            while waiting:
                ended, _ = wait(waiting, timeout=1)
                for future in ended:
                    job = waiting.pop(future)
                    if reason := future.result():
                        failed[job.folder] = reason
                        progress.console.print(f"{job.cell.name}, seed {job.seed}: {reason}", markup=False)
                rounds = sum(job.rounds if job.folder in failed else job.done for job in left)
                progress.update(task, completed=rounds, description=f"{len(waiting)} runs")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return failed


def _run(folder: Path, settings: dict[str, Value], seed: int) -> str:
    """Run one, or go on with it, in this process; return why it did not end, if so."""
    from simulations.local import run_locally

    chosen: dict[str, Value] = {**settings, "seed": seed, "output-dir": str(folder)}
    resume = any((folder / "checkpoint").glob("round-*"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = json.loads((folder / MADE_BY).read_text()) if resume else []
        (folder / MADE_BY).write_text(json.dumps(list(dict.fromkeys([*before, made_by()]))))
        run_locally(chosen, resume=resume, verbose=False)
    except Interrupted:
        return "stopped; the same command goes on with it"
    except HetflError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def made_by() -> str:
    """Return the commit of this project, or outside a clone its version."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout.strip() if said.returncode == 0 else version("hetfl")


def commits(done: Sequence[Job]) -> Iterator[str]:
    """Go through the commits, or versions, that made these runs."""
    for job in done:
        yield from json.loads((job.folder / MADE_BY).read_text())
