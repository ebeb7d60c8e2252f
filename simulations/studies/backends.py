"""Where the runs of a study happen: in processes of this machine, or on the machines of a Ray cluster.

On a cluster, each run has a folder on its machine, which is fetched when the run has ended and from time to time before
that. When a machine is lost, its run goes on elsewhere from what was fetched last.
"""

import logging
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from queue import Empty, Queue
from tempfile import gettempdir
from threading import Thread
from typing import Any

from hetfl_flwr.common.notices import warn
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, HetflError, unknown
from simulations.studies.jobs import Backend, Job
from simulations.studies.worker import STOPPED, Look, Worker, mend, pack, processes, run_one, unpack

MAX_LOSSES = 3
"""How often a run begins again when its machine, or its process there, is lost."""

PATIENCE = 60.0
"""Seconds without a free machine after which a line says so."""

CONNECT = 10.0
"""Seconds that a cluster may take to answer."""


@dataclass(frozen=True)
class LocalBackend:
    """Processes of this machine, each with one run at a time."""

    workers: int = 1

    def lacks(self, job: Job) -> str:
        """Return which data set of a run is not on this machine."""
        from hetfl_flwr.data.domains import check_places

        try:
            config = RunConfig.from_flat(
                {key: job.settings[key] for key in ("dataset", "data-dir") if key in job.settings}
            )
            if config.dataset:  # else a bundled one, by the method
                check_places(config.dataset, config.data_dir)
        except HetflError as error:
            return str(error)
        return ""

    @contextmanager
    def open(self, wanted: Sequence[Job]) -> Iterator["ProcessPool"]:
        """Start the processes."""
        with processes(self.workers) as pool:
            yield ProcessPool(pool)


class ProcessPool:
    """Runs in processes of this machine."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, job: Job) -> str:
        """Run or resume a run, and return why it has failed."""
        try:
            return self._pool.submit(run_one, job.folder, job.settings).result()
        except BrokenProcessPool:
            raise HetflError(
                "a process of these runs has died: out of memory, or in a script that starts them outside of "
                'if __name__ == "__main__":; what has ended is kept'
            ) from None

    def done(self, job: Job) -> int:
        """Return how many rounds a run has done."""
        return job.done

    def stop(self) -> None:
        """Do nothing: Ctrl-C reaches the processes, too."""


@dataclass(frozen=True)
class RayBackend:
    """A running Ray cluster.

    Parameters
    ----------
    workers : int
        Runs at a time, 1 or more. Each takes as many processors as the largest ``threads`` of any, and one GPU if the
        ``device`` of any is ``cuda``.
    address : str
        ``HOST:PORT``, or ``auto``, the cluster of this machine. Empty: ``RAY_ADDRESS``, or else ``auto``.
    fetch_every : float
        Seconds between two fetches of a run that goes on, at least.
    """

    workers: int = 1
    address: str = ""
    fetch_every: float = 300.0

    def lacks(self, job: Job) -> str:
        """Return nothing: only the machines of a cluster know what they have."""
        return ""

    @contextmanager
    def open(self, wanted: Sequence[Job]) -> Iterator["RayPool"]:
        """Connect to the cluster.

        Raises
        ------
        HetflError
            Ray is not installed, no cluster answers there, or it has another Ray or Python.
        """
        try:
            import ray
        except ImportError:
            raise HetflError("--on ray needs Ray: pip install 'hetfl[simulation]'") from None
        address = self.address or os.environ.get("RAY_ADDRESS") or "auto"
        mine = not ray.is_initialized()
        if mine:
            try:
                _check_reached(address)
                ignored = warnings.catch_warnings(action="ignore", category=FutureWarning)
                with ignored, chdir(gettempdir()):  # Ray would put this folder first on the path of each worker
                    ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
            except (RuntimeError, ValueError, OverflowError, OSError) as error:
                raise HetflError(
                    f"no Ray cluster at {address!r} that this machine could use: {_first_line(error)}; begin one by "
                    "`ray start --head`, and name another one in RAY_ADDRESS"
                ) from None
        pool = RayPool(ray, wanted, min(self.workers, len(wanted)), self.fetch_every)
        try:
            yield pool
        finally:
            pool.close()
            if mine:
                ray.shutdown()


@dataclass(eq=False)
class _Actor:
    """A `Worker` somewhere, and the name of its machine once it is ready."""

    handle: Any
    where: str = ""


@dataclass
class RayPool:
    """Actors on the machines of a cluster, each with one run at a time."""

    ray: Any
    wanted: Sequence[Job]
    count: int
    fetch_every: float
    _actors: list[_Actor] = field(default_factory=list)
    _idle: "Queue[_Actor | HetflError | None]" = field(default_factory=Queue)
    _rounds: dict[Path, int] = field(default_factory=dict)
    _stopped: bool = False
    _warned: bool = False

    def __post_init__(self) -> None:
        """Ask for the machines."""
        threads = [int(job.settings.get("threads", 1)) for job in self.wanted]
        gpu = any(str(job.settings.get("device", "")).startswith("cuda") for job in self.wanted)
        self._needs = {"num_cpus": max(1, *threads), "num_gpus": int(gpu)}
        for _ in range(self.count):
            self._hire()

    def run(self, job: Job) -> str:
        """Run or resume a run on the next free machine, again on another one if that is lost.

        Raises
        ------
        HetflError
            A machine of the cluster cannot run it: it has no hetfl, or another version.
        """
        for losses in range(MAX_LOSSES + 1):
            actor = self._next_idle()
            if actor is None:
                return STOPPED
            try:
                reason = self._run_on(actor, job)
                self._idle.put(actor)
                return f"on {actor.where}: {reason}" if reason else ""
            except OSError as error:
                self._replace(actor)
                return f"{job.folder} cannot be read or written: {error.strerror or error}"
            except self.ray.exceptions.RayError as error:
                lost, why = f"{actor.where} was lost", _cause(error)
            self._replace(actor)
            if self._stopped or losses == MAX_LOSSES:
                break
            warn(f"{job.name}: {lost} ({why}); it goes on elsewhere from round {job.done}")
        return f"{lost}: {why}"

    def done(self, job: Job) -> int:
        """Return how many rounds a run had done when its machine was last asked."""
        return self._rounds.get(job.folder, 0)

    def stop(self) -> None:
        """Let all runs end their rounds; `run` returns when they are fetched."""
        if any(actor.where for actor in self._actors):
            warn("the runs finish their rounds; once more to stop at once")
        self._stopped = True
        for actor in self._actors:
            actor.handle.stop.remote()
        for _ in self.wanted:
            self._idle.put(None)

    def close(self) -> None:
        """End all processes."""
        self._stopped = True
        left = [actor.handle.leave.remote() for actor in self._actors if actor.where]
        if left:
            self.ray.wait(left, num_returns=len(left), timeout=CONNECT)
        for actor in self._actors:
            self.ray.kill(actor.handle)

    def _run_on(self, actor: _Actor, job: Job) -> str:
        self._rounds[job.folder] = job.done
        mend(job.folder)
        packed = pack(job.folder) if job.folder.is_dir() else None
        self.ray.get(actor.handle.begin.remote(job.settings, packed))
        while True:
            look: Look = self.ray.get(actor.handle.look.remote(1.0, self.fetch_every))
            self._rounds[job.folder] = look.done
            if look.packed is not None:
                unpack(look.packed, job.folder)
            if look.reason is not None:
                return look.reason

    def _next_idle(self) -> _Actor | None:
        """Wait for a free machine; None after `stop`."""
        while True:
            try:
                found = self._idle.get(timeout=PATIENCE)
            except Empty:
                if not self._warned and not any(actor.where for actor in self._actors):
                    self._warned = True
                    needs = f"{self._needs['num_cpus']} processors" + " and a GPU" * self._needs["num_gpus"]
                    warn(f"no machine of the cluster has had {needs} free for {PATIENCE:.0f} s; still waiting")
                continue
            if isinstance(found, HetflError):
                raise found
            return None if self._stopped else found

    def _hire(self) -> None:
        Thread(target=self._find, daemon=True).start()

    def _find(self) -> None:
        """Wait until a machine has room and is ready; if it is lost before that, try again."""
        why = ""
        for _ in range(MAX_LOSSES + 1):
            actor = _Actor(self.ray.remote(Worker).options(max_concurrency=2, **self._needs).remote())
            self._actors.append(actor)
            try:
                actor.where, theirs = self.ray.get(actor.handle.ready.remote(os.getcwd()))
            except self.ray.exceptions.RayError as error:
                if self._stopped:
                    return
                self._actors.remove(actor)
                why = f"a machine of the cluster cannot run these: {_cause(error)}"
                if isinstance(error, self.ray.exceptions.RayTaskError):
                    break
                continue
            if theirs == (mine := version("hetfl")):
                self._idle.put(actor)
                return
            why = f"{actor.where} has hetfl {theirs}, this machine {mine}: all machines of the cluster need the same"
            break
        self._idle.put(HetflError(why))

    def _replace(self, actor: _Actor) -> None:
        self._actors.remove(actor)
        with suppress(Exception):
            self.ray.kill(actor.handle)
        if not self._stopped:
            self._hire()


def _check_reached(address: str) -> None:
    """Raise `OSError` if nobody answers there: Ray itself would wait for minutes."""
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT).close()


def _cause(error: Exception) -> str:
    cause = getattr(error, "cause", None)
    return _first_line(error) if cause is None else f"{type(cause).__name__}: {_first_line(cause)}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return (f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]).rstrip(".")


BACKENDS: dict[str, Callable[[int], Backend]] = {"local": LocalBackend, "ray": RayBackend}
"""By the name in ``--on``, what makes a backend with so many runs at a time."""


def backend(on: str, workers: int) -> Backend:
    """Return a backend by its name.

    Raises
    ------
    ConfigError
        There is none of this name.

    Examples
    --------
    >>> backend("local", 2)
    LocalBackend(workers=2)
    """
    if on not in BACKENDS:
        raise ConfigError(f"--on: {unknown('backend', on, BACKENDS)}")
    return BACKENDS[on](workers)
