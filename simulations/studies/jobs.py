"""Many runs, some at a time, each in a folder of its own; what was stopped goes on, what has ended is not run again."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from hetfl_flwr.common.notices import warn
from hetfl_flwr.config import RunConfig, Value, read_toml
from hetfl_flwr.errors import Interrupted
from hetfl_flwr.runs.progress import Bar
from hetfl_flwr.runs.record import CONFIG_FILE, read_notes, read_summary, rounds_written

PLACES = ("data-dir", "device", "threads", "checkpoint-every")
"""Keys of where and when things happen, which change bits at most: ``versions`` has device and threads."""


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
        """Whether its run has ended, and had these settings."""
        summary = read_summary(self.folder)
        if summary is None or summary["rounds"] < self.rounds:
            return False
        made = RunConfig().to_flat() | read_toml(self.folder / CONFIG_FILE)  # keys newer than the run by default
        return all(made.get(key) == value for key, value in self.asked.items() if key != "rounds")

    @property
    def asked(self) -> dict[str, Value]:
        """The settings that make a run another run: neither `PLACES` nor the keys of other algorithms."""
        own = ("", self.settings.get("algorithm", "fedhe"))
        known = self.settings.items()
        return {key: value for key, value in known if key not in PLACES and key.rpartition(".")[0] in own}

    @property
    def done(self) -> int:
        """How many rounds are in its folder, round 0 left out."""
        return rounds_written(self.folder)


class Backend(Protocol):
    """Where the runs of a study happen: while it is open, it runs jobs, each called in a thread of the caller's."""

    @property
    def workers(self) -> int:
        """Runs at a time, at most."""

    def lacks(self, job: Job) -> str:
        """Return what a run needs that is not there, as far as is known here, or an empty text."""

    def open(self, wanted: Sequence[Job]) -> AbstractContextManager[None]:
        """Make room for these runs; raise `HetflError` if nothing can run there."""

    def run(self, job: Job) -> str:
        """Run or resume a run, and return why it did not end, or an empty text. Its folder is here then.

        Raises
        ------
        HetflError
            Nothing can run here any longer.
        """

    def done(self, job: Job) -> int:
        """Return how many rounds a run has done, as far as is known here."""

    def stop(self) -> None:
        """Let what runs end its round."""


def run_all(
    wanted: Sequence[Job], backend: Backend, console: Console, ended: Callable[[Job], object] = lambda job: None
) -> dict[Path, str]:
    """Run what has not ended yet, and return why runs have failed, by folder.

    Runs whose data are not there do not begin; each lack is printed once.

    Parameters
    ----------
    wanted : sequence of Job
        A stopped run is resumed from its last checkpoint; if there is one with other settings, the run fails.
    backend : Backend
        Where they run.
    console : Console
        Where progress and failures are shown.
    ended : callable
        Called with each run as soon as it has ended well.

    Raises
    ------
    HetflError
        Nothing can run there, or no longer.
    Interrupted
        After Ctrl-C, when the current runs have ended their rounds.
    """
    unfinished = [job for job in wanted if not job.finished]
    failed = {job.folder: lack for job in unfinished if (lack := backend.lacks(job))}
    for lack in dict.fromkeys(failed.values()):
        console.print(lack, markup=False)
    left = [job for job in unfinished if job.folder not in failed]
    if not left:
        return failed
    said = set[str]()
    done, total = {job.folder: job.done for job in left}, sum(job.rounds for job in left)
    try:
        with (
            ThreadPoolExecutor(min(backend.workers, len(left))) as threads,
            backend.open(left),
            Bar(console=console, label=f"{len(left)} runs", total=total, period=600) as bar,
        ):
            running = {threads.submit(backend.run, job): job for job in left}
            try:
                while running:
                    over, _ = wait(running, timeout=1, return_when=FIRST_COMPLETED)
                    for future in over:
                        job = running.pop(future)
                        reason, done[job.folder] = future.result(), job.rounds
                        for line in [line for line in read_notes(job.folder) if line not in said]:
                            said.add(line)
                            warn(line)
                        if reason:
                            failed[job.folder] = reason
                            console.print(f"{job.name}: {reason}", markup=False)
                        else:
                            ended(job)
                    done |= {job.folder: backend.done(job) for future, job in running.items() if future.running()}
                    bar.update(sum(done.values()), label=f"{len(running)} runs")
            except BaseException:
                begun = [future for future in running if not future.cancel()]
                backend.stop()
                wait(begun)
                raise
    except KeyboardInterrupt:
        raise Interrupted("Stopped. Run the same command again to continue.") from None
    return failed
