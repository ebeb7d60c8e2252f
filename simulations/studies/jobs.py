"""Several runs in parallel, each in its own folder; stopped runs are resumed, finished ones are not repeated."""

import multiprocessing
import os
import shlex
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Lock, Thread
from types import FrameType
from typing import Protocol

from rich.console import Console

from hetfl_flwr.common.notices import option, speaking_of, warn
from hetfl_flwr.config import HOW_RUN, KEYS, RunConfig, Value, read_toml
from hetfl_flwr.errors import HetflError, Interrupted
from hetfl_flwr.node.machine import keep_freed_memory
from hetfl_flwr.runs.lock import FolderInUse
from hetfl_flwr.runs.progress import Bar
from hetfl_flwr.runs.record import CHECKPOINTS, CONFIG_FILE, read_notes, read_summary, rounds_written

PLACES = ("data-dir", "device", "threads", "checkpoint-every")
"""Keys of where and when things happen, which change bits at most: ``versions`` has device and threads."""

ASIDE = {key for key, field in KEYS.items() if HOW_RUN in field.metadata} - {"costs", "keep-uploads"}
"""Keys in which a finished run may differ from a request; the two others set what it records."""

STOPPED = "stopped"
"""Reason of an interrupted run."""

_BUSY = Lock()
"""Held while this process executes a run."""

_TOLD_TO_STOP = Event()
"""Set when the study has stopped: this process starts no further run."""


@dataclass(frozen=True)
class Job:
    """A run of a study.

    Parameters
    ----------
    name : str
        Its name for people.
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
        """The number of its rounds."""
        return int(self.settings.get("rounds", 50))

    @property
    def finished(self) -> bool:
        """Whether the run has ended with these settings."""
        summary = read_summary(self.folder)
        if summary is None or summary["rounds"] < self.rounds:
            return False
        made = RunConfig().to_flat() | read_toml(self.folder / CONFIG_FILE)  # keys newer than the run by default
        return all(made.get(key) == value for key, value in self.asked.items() if key not in ("rounds", *ASIDE))

    @property
    def asked(self) -> dict[str, Value]:
        """The settings that make a run another run: neither `PLACES` nor the keys of other algorithms."""
        own = ("", self.settings.get("algorithm", "fedhe"))
        known = self.settings.items()
        return {key: value for key, value in known if key not in PLACES and key.rpartition(".")[0] in own}

    @property
    def done(self) -> int:
        """The number of rounds in its folder, without round 0."""
        return rounds_written(self.folder)


def run_one(job: Job) -> str:
    """Run or resume a run in this process; return why it did not end, or an empty text. Its warnings have its name."""
    from simulations.engine.run import run_locally

    chosen: dict[str, Value] = {**job.settings, "output-dir": str(job.folder)}
    if _TOLD_TO_STOP.is_set():
        return STOPPED
    try:
        with _BUSY, speaking_of(job.name):
            run_locally(chosen, resume=any((job.folder / CHECKPOINTS).glob("round-*")), verbose=False, progress=False)
    except KeyboardInterrupt:
        return STOPPED
    except FolderInUse as error:
        return f"{error.who} is making this run: wait for its end, and repeat the command"
    except HetflError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


Submit = Callable[[Job], "Future[str]"]
"""Starts a run; the result is as of `run_one`."""


class Backend(Protocol):
    """A place for the runs of a study."""

    @property
    def workers(self) -> int:
        """Maximum number of parallel runs."""

    def open(self, wanted: Sequence[Job]) -> AbstractContextManager[Submit]:
        """Make room for these runs. After an exception those that are going on end their rounds."""


@dataclass(frozen=True)
class LocalBackend:
    """Processes of this machine, each with one run at a time. They end with this process."""

    workers: int = 1

    @contextmanager
    def open(self, wanted: Sequence[Job]) -> Iterator[Submit]:
        """Start the processes.

        Raises
        ------
        ConfigError
            The program is a script on standard input.
        HetflError
            A process has died.
        """
        from simulations.engine.workers import check_starts_processes

        check_starts_processes(f"workers = {self.workers}")
        others = {*multiprocessing.active_children()}
        context = multiprocessing.get_context("spawn")

        def submit(job: Job) -> "Future[str]":
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a process inherits it, up to `_begin`
            try:
                return pool.submit(run_one, job)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        def ours() -> set[BaseProcess]:
            return {*multiprocessing.active_children()} - others

        try:
            with ProcessPoolExecutor(self.workers, mp_context=context, initializer=_begin) as pool:
                try:
                    yield submit
                except BaseException:
                    for process in ours():
                        os.kill(process.pid or 0, signal.SIGINT)
                    raise
        except BrokenProcessPool:
            raise HetflError(
                "a process of these runs has died: out of memory, or in a script that starts them outside of "
                'if __name__ == "__main__":; what has ended is kept'
            ) from None
        except KeyboardInterrupt:  # the second one: the processes have not ended
            for process in ours():
                process.kill()
            raise


def _begin() -> None:
    """Prepare a process for runs: the study passes Ctrl-C on, and takes the process with it when it dies."""
    os.setpgrp()
    signal.signal(signal.SIGINT, _interrupted)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    keep_freed_memory()
    Thread(target=_end_with_parent, daemon=True).start()


def _interrupted(number: int, frame: FrameType | None) -> None:
    _TOLD_TO_STOP.set()
    if _BUSY.locked():
        raise KeyboardInterrupt


def _end_with_parent() -> None:
    """Wait for the end of the parent process; then stop the run in this one, as Ctrl-C does, and end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGINT)
    _BUSY.acquire()
    os._exit(1)


def _note_longer(finished: Sequence[Job], console: Console) -> None:
    """Say that finished runs have more rounds than requested."""
    longer = [job for job in finished if job.done > job.rounds]
    if longer:
        first, several = longer[0], f" and {len(longer) - 1} more" * (len(longer) > 1)
        text = f"{first.name}{several}: finished with {first.done} rounds, more than the {first.rounds} requested"
        console.print(text, markup=False)


def run_all(
    wanted: Sequence[Job], backend: Backend, console: Console, ended: Callable[[Job], object] = lambda job: None
) -> dict[Path, str]:
    """Execute the runs that have not ended, and return the failures by folder.

    Parameters
    ----------
    wanted : sequence of Job
        A stopped run is resumed from its last checkpoint; if there is one with other settings, the run fails.
    backend : Backend
        Where they run.
    console : Console
        Where progress and failures are shown, each reason once.
    ended : callable
        Called with each run as soon as it has ended well.

    Raises
    ------
    HetflError
        Nothing can run there, or no longer.
    Interrupted
        After Ctrl-C, when the current runs have ended their rounds; says how to go on.
    """
    left = deque(job for job in wanted if not job.finished)
    _note_longer([job for job in wanted if job not in left], console)
    if not left:
        return {}
    failed, said = dict[Path, str](), set[str]()
    done, total = {job.folder: job.done for job in left}, sum(job.rounds for job in left)
    running = dict[Future[str], Job]()
    try:
        with (
            Bar(console=console, label=f"{len(left)} runs", total=total, period=600) as bar,
            backend.open(left) as submit,
        ):
            while left or running:
                while left and len(running) < backend.workers:
                    job = left.popleft()
                    running[submit(job)] = job
                for future in wait(running, timeout=1, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    reason, done[job.folder] = future.result(), job.rounds
                    said |= _notes(job, said)
                    if not reason:
                        ended(job)
                        continue
                    if reason not in failed.values():
                        console.print(f"{job.name}: {reason}", markup=False)
                    failed[job.folder] = reason
                done |= {job.folder: job.done for job in running.values()}
                bar.update(sum(done.values()), label=f"{len(left) + len(running)} runs")
    except KeyboardInterrupt:
        again = option(shlex.join(["hetfl", *sys.argv[1:]]), "the same call")
        have = f"{sum(job.finished for job in wanted)} of {len(wanted)} runs are finished"
        raise Interrupted(f"stopped, {have}; to continue: {again}") from None
    for reason, count in Counter(failed.values()).items():
        if count > 1:
            console.print(f"{count} runs: {reason}", markup=False)
    return failed


def _notes(job: Job, said: set[str]) -> set[str]:
    """Show the notes of a run that have not been said, and return them."""
    new = [line for line in read_notes(job.folder) if line not in said]
    for line in new:
        warn(line)
    return {*new}
