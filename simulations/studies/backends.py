"""Where the runs of a study happen: in processes of this machine, or on the machines of a Ray cluster.

On a cluster, each run has a folder on its machine, which is fetched when the run has ended and from time to time before
that. When a machine is lost, its run goes on elsewhere from what was fetched last.
"""

import logging
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from hetfl_flwr.common.notices import warn
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, HetflError, unknown
from simulations.studies.jobs import Backend, Job
from simulations.studies.worker import STOPPED, Look, Worker, mend, pack, processes, run_one, unpack

MAX_LOSSES = 3
"""How often a run begins again when its machine, or its process there, is lost."""

PATIENCE, CONNECT = 60.0, 10.0
"""Seconds without a free machine after which a line says so, and that a cluster may take to answer."""


@dataclass
class LocalBackend:
    """Processes of this machine, each with one run at a time."""

    workers: int = 1
    _pool: ProcessPoolExecutor | None = field(default=None, init=False, repr=False)

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
    def open(self, wanted: Sequence[Job]) -> Iterator[None]:
        """Start the processes."""
        with processes(self.workers) as self._pool:
            yield

    def run(self, job: Job) -> str:
        """Run or resume a run, and return why it has failed."""
        assert self._pool is not None
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


@dataclass(eq=False)
class _Actor:
    """A `Worker` on a machine of the cluster, and the name of the machine."""

    handle: Any
    where: str = "a machine"


@dataclass
class RayBackend:
    """A running Ray cluster, and actors on its machines, each with one run at a time.

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
    _ray: Any = field(default=None, init=False, repr=False)
    _needs: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    _actors: list[_Actor] = field(default_factory=list, init=False, repr=False)
    _idle: list[_Actor] = field(default_factory=list, init=False, repr=False)
    _rounds: dict[Path, int] = field(default_factory=dict, init=False, repr=False)
    _stopped: bool = field(default=False, init=False, repr=False)

    def lacks(self, job: Job) -> str:
        """Return nothing: only the machines of a cluster know what they have."""
        return ""

    @contextmanager
    def open(self, wanted: Sequence[Job]) -> Iterator[None]:
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
        threads = [int(job.settings.get("threads", 1)) for job in wanted]
        gpu = any(str(job.settings.get("device", "")).startswith("cuda") for job in wanted)
        self._ray, self._needs = ray, {"num_cpus": max(1, *threads), "num_gpus": int(gpu)}
        self._actors, self._idle, self._rounds, self._stopped = [], [], {}, False
        try:
            yield
        finally:
            self._stopped = True
            ray.wait([actor.handle.leave.remote() for actor in self._idle] or [ray.put(0)], timeout=CONNECT)
            for actor in self._actors:
                ray.kill(actor.handle)
            if mine:
                ray.shutdown()

    def run(self, job: Job) -> str:
        """Run or resume a run on a free machine, again on another one if that is lost.

        Raises
        ------
        HetflError
            A machine of the cluster cannot run it: it has no hetfl, or another version.
        """
        lost = STOPPED
        for losses in range(MAX_LOSSES + 1):
            actor = _Actor(None)
            try:
                actor = self._free()
                if self._stopped:
                    return STOPPED
                reason = self._run_on(actor, job)
                self._idle.append(actor)
                return f"on {actor.where}: {reason}" if reason else ""
            except OSError as error:
                return f"{job.folder} cannot be read or written: {error.strerror or error}"
            except self._ray.exceptions.RayError as error:
                lost = f"{actor.where} was lost: {_cause(error)}"
                self._end(actor)
            if self._stopped or losses == MAX_LOSSES:
                break
            warn(f"{job.name}: {lost}; it goes on elsewhere from round {job.done}")
        return lost

    def done(self, job: Job) -> int:
        """Return how many rounds a run had done when its machine was last asked."""
        return self._rounds.get(job.folder, 0)

    def stop(self) -> None:
        """Let all runs end their rounds; `run` returns when they are fetched."""
        warn("the runs finish their rounds; once more to stop at once")
        self._stopped = True
        for actor in self._actors:
            actor.handle.stop.remote()

    def _free(self, attempts: int = MAX_LOSSES) -> _Actor:
        """Wait for a machine that has room, or whose run has ended, and can run this project."""
        # one thread for calls, and one for `stop` meanwhile
        hired = _Actor(self._ray.remote(Worker).options(max_concurrency=2, **self._needs).remote())
        self._actors.append(hired)
        ready, began, warned = hired.handle.ready.remote(os.getcwd()), time.monotonic(), False
        while not self._stopped and not self._ray.wait([ready], timeout=0.2)[0]:
            if self._idle:
                self._end(hired)
                return self._idle.pop()
            if not warned and time.monotonic() - began > PATIENCE and not self._rounds:
                warned = True
                needs = f"{self._needs['num_cpus']} processors" + " and a GPU" * self._needs["num_gpus"]
                warn(f"no machine of the cluster has had {needs} free for {PATIENCE:.0f} s; still waiting")
        if self._stopped:
            return hired
        try:
            hired.where, theirs = self._ray.get(ready)
        except self._ray.exceptions.RayTaskError as error:
            raise HetflError(f"a machine of the cluster cannot run these: {_cause(error)}") from None
        except self._ray.exceptions.RayError:  # lost before it had a run
            self._end(hired)
            if not attempts:
                raise
            return self._free(attempts - 1)
        if theirs != (mine := version("hetfl")):
            raise HetflError(
                f"{hired.where} has hetfl {theirs}, this machine {mine}: all machines of the cluster need the same"
            )
        return hired

    def _end(self, actor: _Actor) -> None:
        if actor in self._actors:
            self._actors.remove(actor)
            with suppress(Exception):
                self._ray.kill(actor.handle)

    def _run_on(self, actor: _Actor, job: Job) -> str:
        self._rounds[job.folder] = job.done
        mend(job.folder)
        packed = pack(job.folder) if job.folder.is_dir() else None
        self._ray.get(actor.handle.begin.remote(job.settings, packed))
        while True:
            look: Look = self._ray.get(actor.handle.look.remote(1.0, self.fetch_every))
            self._rounds[job.folder] = look.done
            if look.packed is not None:
                unpack(look.packed, job.folder)
            if look.reason is not None:
                return look.reason


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
