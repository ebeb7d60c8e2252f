"""Many runs, some at a time, each in a folder of its own; what was stopped goes on, what has ended is not run again."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import TextColumn

from hetfl_flwr.common.errors import Interrupted
from hetfl_flwr.common.notices import warn
from hetfl_flwr.config import RunConfig, Value, read_toml
from hetfl_flwr.runs.observers.progress import Bar
from hetfl_flwr.runs.schema import CONFIG_FILE, read_notes, read_summary, rounds_written
from simulations.studies.backends.backend import Backend

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
    wanted: Sequence[J], backend: Backend, console: Console, ended: Callable[[J], object] = lambda job: None
) -> dict[Path, str]:
    """Run what has not ended yet, and return what went wrong with which, by folder.

    What needs data that are not there is said once, before anything runs, and does not begin.

    Parameters
    ----------
    wanted : sequence of Job
        What is to be there afterwards. A run that was stopped goes on from its last checkpoint; one of other settings
        in its place is refused, not repeated.
    backend : Backend
        Where they run.
    console : Console
        Where progress is shown, and what goes wrong.
    ended : callable
        Called with each run that has ended well, as soon as it has.

    Raises
    ------
    HetflError
        Nothing can run there, or no longer.
    Interrupted
        After Ctrl-C, when all that were running have ended their rounds.
    """
    unfinished = [job for job in wanted if not job.finished]
    failed = {job.folder: lack for job in unfinished if (lack := backend.lacks(job))}
    for lack in dict.fromkeys(failed.values()):
        console.print(lack, markup=False)
    left = [job for job in unfinished if job.folder not in failed]
    if not left:
        return failed
    label, total = f"{len(left)} runs", sum(job.rounds for job in left)
    done, said = {job.folder: job.done for job in left}, list[str]()
    column = TextColumn("{task.completed}/{task.total} rounds")
    todo, running = deque(left), dict[Path, J]()
    try:
        with (
            backend.open(left) as pool,
            Bar(column, console=console, label=label, total=total, period=600) as bar,
        ):
            while todo or running:
                while todo and pool.free():
                    job = todo.popleft()
                    running[job.folder] = job
                    pool.begin(job)
                for folder, reason in pool.ended(seconds=1):
                    job = running.pop(folder)
                    done[folder] = job.rounds
                    for line in [line for line in read_notes(folder) if line not in said]:
                        said.append(line)
                        warn(line)
                    if reason:
                        failed[folder] = reason
                        console.print(f"{job.name}: {reason}", markup=False)
                    else:
                        ended(job)
                done |= {job.folder: pool.done(job) for job in running.values()}
                bar.update(sum(done.values()), description=f"{len(todo) + len(running)} runs")
    except KeyboardInterrupt:
        raise Interrupted("stopped; the same command goes on") from None
    return failed
