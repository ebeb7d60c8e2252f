"""The backends by name: processes on this machine, and the machines of a Ray cluster."""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import chdir, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from multiprocessing.process import BaseProcess
from platform import node
from tempfile import TemporaryDirectory
from threading import Event, Lock
from types import FrameType
from typing import Any, cast

from hetfl_flwr.common.notices import speaking_of, warn
from hetfl_flwr.errors import ConfigError, DivergedError, HetflError, RunFolderError, TooFewClients, unknown
from hetfl_flwr.node.machine import end_with_parent, keep_freed_memory, release_freed_memory
from hetfl_flwr.runs.lock import FolderInUse
from hetfl_flwr.runs.record import CHECKPOINTS, read_summary
from simulations.studies.jobs import Backend, Failed, Job, Submit

STOPPED = "stopped"
"""Reason of an interrupted run."""

_BUSY = Lock()
"""Held while this process executes a run."""

_TOLD_TO_STOP = Event()
"""Set when the study has stopped: this process starts no more runs."""

MAX_LOSSES = 3
"""Maximum number of restarts of a run whose machine, or process on that machine, is lost."""

CONNECT = 10.0
"""Timeout of a cluster's answer, in seconds."""

FINISHING = "the runs finish their rounds. Press Ctrl-C again to stop immediately."


def run_job(job: Job) -> Failed | None:
    """Run or resume a run in this process; return why it did not end, or None. Its warnings have its name."""
    from hetfl_flwr.runs.checkpoint import Checkpoint
    from simulations.engine.run import run_locally

    if _TOLD_TO_STOP.is_set():
        return Failed(STOPPED)
    try:
        with _BUSY, speaking_of(job.name):
            resume = any((job.folder / CHECKPOINTS).glob("round-*"))
            if resume and (made := Checkpoint.read(job.folder).at["config"]["rounds"]) != job.rounds:
                raise RunFolderError(
                    f"{job.folder} was run with rounds = {made}, not {job.rounds}, and what a method does in a round "
                    "may depend on their number: use another folder"
                )
            if resume and "lost_rounds" in (read_summary(job.folder) or ()):
                raise RunFolderError(f"{job.folder} has lost the figures of some rounds: remove it to run it again")
            run_locally(job.config.to_flat(), resume=resume, verbose=False, progress=False)
    except KeyboardInterrupt:
        return Failed(STOPPED)
    except FolderInUse as error:
        return Failed(f"{error.who} is executing this run: wait until it ends, and repeat the command")
    except HetflError as error:
        return Failed(str(error), by_settings=isinstance(error, DivergedError | TooFewClients))
    except Exception as error:
        return Failed(f"{type(error).__name__}: {error}")
    finally:
        release_freed_memory()
    return None


@dataclass(frozen=True)
class LocalBackend:
    """Processes on this machine, each with one run at a time. They end with this process."""

    workers: int = 1

    @contextmanager
    def open(self, wanted: Sequence[Job]) -> Iterator[Submit]:
        """Start the processes.

        Raises `ConfigError` if the program is a script on standard input, and `HetflError` once a process has died.
        """
        from simulations.engine.workers import check_starts_processes

        check_starts_processes(f"workers = {self.workers}")
        others = {*multiprocessing.active_children()}
        context = multiprocessing.get_context("spawn")

        def submit(job: Job) -> "Future[Failed | None]":
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a process inherits it, up to `_begin`
            try:
                return pool.submit(run_job, job)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        def ours() -> set[BaseProcess]:
            return {*multiprocessing.active_children()} - others

        try:
            with ProcessPoolExecutor(self.workers, mp_context=context, initializer=_begin) as pool:
                try:
                    yield submit
                except BaseException as error:
                    if isinstance(error, KeyboardInterrupt):
                        warn(FINISHING)
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
    """Prepare a process for runs: the study forwards Ctrl-C, and the process ends when the study does."""
    end_with_parent()
    os.setpgrp()
    signal.signal(signal.SIGINT, _interrupted)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    keep_freed_memory()


def _interrupted(number: int, frame: FrameType | None) -> None:
    _TOLD_TO_STOP.set()
    if _BUSY.locked():
        raise KeyboardInterrupt


@dataclass(frozen=True)
class RayBackend:
    """A running Ray cluster whose machines share a file system: each run is a task, which writes its own folder.

    The cluster is the one at ``RAY_ADDRESS`` (``HOST:PORT``) or, if that is not set, the one of this machine. `workers`
    is the number of parallel runs, 1 or more. Each takes as many processors as the largest ``threads`` of any run, and
    one GPU if the ``device`` of any run is ``cuda``.
    """

    workers: int = 1

    @contextmanager
    def open(self, wanted: Sequence[Job]) -> Iterator[Submit]:
        """Connect to the cluster.

        Raises `HetflError` if Ray is not installed, no cluster answers, or it has another version of Ray or Python;
        later, if a machine of the cluster cannot execute the runs: it lacks hetfl or the run's folder, or has another
        version.
        """
        with _connected(os.environ.get("RAY_ADDRESS") or "auto") as ray:
            needs = {
                "CPU": max(1, *(int(job.settings.get("threads", 1)) for job in wanted)),
                "GPU": int(any(str(job.settings.get("device", "")).startswith("cuda") for job in wanted)),
            }
            machines = [one["Resources"] for one in ray.nodes()]
            if not any(all(one.get(key, 0) >= needs[key] for key in needs) for one in machines):
                room = f"{needs['CPU']} processors" + " and a GPU" * needs["GPU"]
                warn(f"no machine of the cluster has {room} for a run; waiting for one")
            own = {"num_cpus": needs["CPU"], "num_gpus": needs["GPU"], "max_retries": 0}
            tasks = _Tasks(ray, ray.remote(_on_machine).options(**own))
            with ThreadPoolExecutor(self.workers) as threads:
                try:
                    yield lambda job: threads.submit(tasks.run, job)
                except BaseException:
                    tasks.stop()
                    raise


class _Tasks:
    """The tasks on a cluster."""

    def __init__(self, ray: Any, task: Any) -> None:
        self._ray, self._task, self._stopped = ray, task, False
        self._running = set[Any]()

    def run(self, job: Job) -> Failed | None:
        """Run or resume a run on a free machine; if that is lost, continue on another one from the last checkpoint."""
        job.folder.mkdir(parents=True, exist_ok=True)
        there, lost, failed = replace(job, folder=job.folder.absolute()), STOPPED, self._ray.exceptions
        for losses in range(MAX_LOSSES + 1):
            if self._stopped:
                return Failed(STOPPED)
            task = self._task.remote(there, os.getcwd(), version("hetfl"))
            self._running.add(task)
            try:
                return cast("Failed | None", self._ray.get(task))
            except failed.TaskCancelledError:
                return Failed(STOPPED)
            except failed.RayTaskError as error:
                raise HetflError(f"a machine of the cluster cannot run these: {_cause(error)}") from None
            except failed.RayError as error:
                lost = f"its machine was lost: {_cause(error)}"
                if losses < MAX_LOSSES:
                    warn(f"{job.name}: {lost}; it continues on another machine from round {job.done}")
            finally:
                self._running.discard(task)
        return Failed(lost)

    def stop(self) -> None:
        """Let all runs finish their rounds."""
        warn(FINISHING)
        self._stopped = True
        for task in [*self._running]:
            self._ray.cancel(task)


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Connect to a cluster unless this process is already part of one, and disconnect at the end."""
    try:
        import ray
    except ImportError:
        raise HetflError("--on ray needs Ray: pip install 'hetfl[simulation]'") from None
    if ray.is_initialized():
        yield ray
        return
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    try:
        if host and port.isdecimal():  # Ray itself would wait for minutes where nobody answers
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT).close()
        ignored = warnings.catch_warnings(action="ignore", category=FutureWarning)
        with ignored, TemporaryDirectory() as empty, chdir(empty):  # it is first on the path of each worker
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (RuntimeError, ValueError, OverflowError, OSError) as error:
        raise HetflError(
            f"no Ray cluster at {address!r} that this machine could use: {_first_line(error)}; start one with "
            "`ray start --head`, and name another one in RAY_ADDRESS"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _on_machine(job: Job, imports: str, hetfl: str) -> Failed | None:
    """Run or resume a run on a machine of the cluster; return why it did not end, with the machine's name."""
    if version("hetfl") != hetfl:
        raise HetflError(
            f"{node()} has hetfl {version('hetfl')}, not {hetfl}: all machines of the cluster need the same"
        )
    if not job.folder.is_dir():
        raise HetflError(
            f"{node()} has no {job.folder}: set --out to a folder on a file system that all machines share"
        )
    if imports not in sys.path:
        sys.path.append(imports)
    failure = run_job(job)
    if failure is None or failure.reason == STOPPED:
        return failure
    return failure._replace(reason=f"on {node()}: {failure.reason}")


def _cause(error: Exception) -> str:
    cause = getattr(error, "cause", None)
    return _first_line(error) if cause is None else f"{type(cause).__name__}: {_first_line(cause)}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return (f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]).rstrip(".")


BACKENDS: dict[str, Callable[[int], Backend]] = {"local": LocalBackend, "ray": RayBackend}
"""Constructors of backends by their names in ``--on``, given the number of parallel runs."""


def backend(on: str, workers: int) -> Backend:
    """Return a backend by its name; raises `ConfigError` if there is none of this name.

    Examples
    --------
    >>> backend("local", 2)
    LocalBackend(workers=2)
    """
    if on not in BACKENDS:
        raise ConfigError(f"--on: {unknown('backend', on, BACKENDS)}")
    return BACKENDS[on](workers)
