"""Many runs, some at a time, each in a folder of its own; what was stopped goes on, what has ended is not run again."""

import _thread
import json
import multiprocessing
import os
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from threading import Lock, Thread
from typing import TypeVar

from rich.console import Console
from rich.progress import TextColumn

from hetfl_flwr.common.errors import HetflError, Interrupted
from hetfl_flwr.common.notices import warn
from hetfl_flwr.config import RunConfig, Value, read_toml
from hetfl_flwr.node.machine.allocation import keep_freed_memory
from hetfl_flwr.runs.observers.progress import Bar
from hetfl_flwr.runs.schema import CHECKPOINTS, CONFIG_FILE, read_notes, read_summary, rounds_written

MADE_BY = "made-by.json"
"""File of a run folder that says which commits of this project, or versions, made it: more than one if it went on."""

ELSEWHERE = ("data-dir", "device", "threads", "rounds", "checkpoint-every")
"""Keys in which a run may differ from what is asked for and still be that run."""


@dataclass(frozen=True)
class Job:
    """One run that is wanted.

    Parameters
    ----------
    name : str
        What people call it.
    folder : Path
        Its run folder.
    settings : dict
        Its config keys, ``seed`` among them and ``output-dir`` not.
    """

    name: str
    folder: Path
    settings: dict[str, Value]

    @property
    def rounds(self) -> int:
        """How many rounds it has in all."""
        return int(self.settings.get("rounds", 50))

    @property
    def finished(self) -> bool:
        """Whether its run has ended, and was one of these settings."""
        summary = read_summary(self.folder)
        return summary is not None and summary["rounds"] >= self.rounds and self._is_as_asked()

    def _is_as_asked(self) -> bool:
        made = RunConfig().to_flat() | read_toml(self.folder / CONFIG_FILE)  # keys younger than the run as by default
        matters = {key: value for key, value in self.settings.items() if key not in ELSEWHERE and self.concerns(key)}
        return all(made.get(key) == value for key, value in matters.items())

    def concerns(self, key: str) -> bool:
        """Whether a key has a meaning for this run: it is not another algorithm's."""
        table, _, _ = key.rpartition(".")
        return not table or table == self.settings.get("algorithm", "fedhe")

    @property
    def done(self) -> int:
        """How many rounds are in its folder, round 0 left out."""
        return rounds_written(self.folder)


J = TypeVar("J", bound=Job)


def run_all(
    wanted: Sequence[J], workers: int, console: Console, ended: Callable[[J], object] = lambda job: None
) -> dict[Path, str]:
    """Run what has not ended yet, and return what went wrong with which, by folder.

    Parameters
    ----------
    wanted : sequence of Job
        What is to be there afterwards. A run that was stopped goes on from its last checkpoint; one of other settings
        in its place is refused, not repeated.
    workers : int
        Runs at a time, each in a process of its own.
    console : Console
        Where progress is shown, and what goes wrong.
    ended : callable
        Called with each run that has ended well, as soon as it has.

    Raises
    ------
    HetflError
        A process has died.
    Interrupted
        After Ctrl-C, when all that were running have ended their rounds.
    """
    left = [job for job in wanted if not job.finished]
    failed: dict[Path, str] = {}
    if not left:
        return failed
    context = multiprocessing.get_context("spawn")
    label, total = f"{len(left)} runs", sum(job.rounds for job in left)
    done, said = {job.folder: job.done for job in left}, list[str]()
    column = TextColumn("{task.completed}/{task.total} rounds")
    with (
        ProcessPoolExecutor(min(workers, len(left)), mp_context=context, initializer=_begin) as pool,
        Bar(column, console=console, label=label, total=total, period=600) as bar,
    ):
        todo, waiting = deque(left), dict[Future[str], J]()
        try:
            while todo or waiting:
                while todo and len(waiting) < workers:  # the pool would begin one more after Ctrl-C
                    job = todo.popleft()
                    waiting[pool.submit(_run, job.folder, job.settings)] = job
                over, _ = wait(waiting, timeout=1, return_when=FIRST_COMPLETED)
                for future in over:
                    job = waiting.pop(future)
                    done[job.folder] = job.rounds
                    for line in [line for line in read_notes(job.folder) if line not in said]:
                        said.append(line)
                        warn(line)
                    if reason := future.result():
                        failed[job.folder] = reason
                        console.print(f"{job.name}: {reason}", markup=False)
                    else:
                        ended(job)
                done |= {job.folder: job.done for job in waiting.values()}
                bar.update(sum(done.values()), description=f"{len(todo) + len(waiting)} runs")
        except KeyboardInterrupt:
            raise Interrupted("stopped; the same command goes on") from None
        except BrokenProcessPool:
            raise HetflError(
                "a process of these runs has died: out of memory, or in a script that starts them outside of "
                'if __name__ == "__main__":; what has ended is kept'
            ) from None
    return failed


def _run(folder: Path, settings: dict[str, Value]) -> str:
    """Run one, or go on with it, in this process; return why it did not end, if so."""
    from simulations.engine.run import run_locally

    chosen: dict[str, Value] = {**settings, "output-dir": str(folder)}
    resume = any((folder / CHECKPOINTS).glob("round-*"))
    try:
        with _BUSY:
            folder.mkdir(parents=True, exist_ok=True)
            before = _makers(folder) if resume else []
            (folder / MADE_BY).write_text(json.dumps(list(dict.fromkeys([*before, made_by()])), allow_nan=False))
            run_locally(chosen, resume=resume, verbose=False, progress=False)
    except Interrupted:
        return "stopped; the same command goes on with it"
    except HetflError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


_BUSY = Lock()
"""Held while this process runs one."""


def _begin() -> None:
    """Set this process up. It does not outlive the one that started it: nobody else would tell it to stop."""
    keep_freed_memory()
    Thread(target=_outlive_nobody, daemon=True).start()


def _outlive_nobody() -> None:
    """Wait for the end of the process that started this one; then stop what runs here, as Ctrl-C does, and end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    if not _BUSY.acquire(blocking=False):
        _thread.interrupt_main()
        _BUSY.acquire()
    os._exit(1)


def made_by() -> str:
    """Return the commit of this project, or outside a clone its version."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout.strip() if said.returncode == 0 else version("hetfl")


def commits(done: Iterable[Job]) -> Iterator[str]:
    """Go through the commits, or versions, that made these runs."""
    for job in done:
        yield from _makers(job.folder)


def _makers(folder: Path) -> list[str]:
    """Return what is written down of who made a run; of one that was begun by itself, nothing."""
    path = folder / MADE_BY
    return list(json.loads(path.read_text())) if path.exists() else []
