"""Where the runs of a study happen: in processes of this machine, or on the machines of a Ray cluster."""

import logging
import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from platform import node
from tempfile import TemporaryDirectory
from typing import Any

from hetfl_flwr.common.notices import warn
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.errors import ConfigError, HetflError, unknown
from simulations.studies.jobs import Backend, Job
from simulations.studies.worker import STOPPED, processes, run_one

MAX_LOSSES = 3
"""How often a run begins again when its machine, or its process there, is lost."""

CONNECT = 10.0
"""Seconds that a cluster may take to answer."""


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
            return self._pool.submit(run_one, job.name, job.folder, job.settings).result()
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


@dataclass
class RayBackend:
    """A running Ray cluster whose machines share a file system: each run is a task, which writes its own folder.

    Parameters
    ----------
    workers : int
        Runs at a time, 1 or more. Each takes as many processors as the largest ``threads`` of any, and one GPU if the
        ``device`` of any is ``cuda``.
    address : str
        ``HOST:PORT``, or ``auto``, the cluster of this machine. Empty: ``RAY_ADDRESS``, or else ``auto``.
    """

    workers: int = 1
    address: str = ""
    _ray: Any = field(default=None, init=False, repr=False)
    _task: Any = field(default=None, init=False, repr=False)
    _running: set[Any] = field(default_factory=set, init=False, repr=False)
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
                with ignored, TemporaryDirectory() as empty, chdir(empty):  # it is first on the path of each worker
                    ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
            except (RuntimeError, ValueError, OverflowError, OSError) as error:
                raise HetflError(
                    f"no Ray cluster at {address!r} that this machine could use: {_first_line(error)}; begin one by "
                    "`ray start --head`, and name another one in RAY_ADDRESS"
                ) from None
        needs = {"CPU": max(1, *(int(job.settings.get("threads", 1)) for job in wanted))}
        needs |= {"GPU": int(any(str(job.settings.get("device", "")).startswith("cuda") for job in wanted))}
        if not any(
            all(one["Resources"].get(key, 0) >= needs[key] for key in needs)
            for one in ray.nodes()  # type: ignore[no-untyped-call]
        ):
            room = f"{needs['CPU']} processors" + " and a GPU" * needs["GPU"]
            warn(f"no machine of the cluster has {room} for a run; waiting for one that has")
        self._ray, self._running, self._stopped = ray, set(), False
        own = {"num_cpus": needs["CPU"], "num_gpus": needs["GPU"], "max_retries": 0}
        self._task = ray.remote(_on_machine).options(**own)
        try:
            yield
        finally:
            if mine:
                ray.shutdown()

    def run(self, job: Job) -> str:
        """Run or resume a run on a free machine; if that is lost, go on elsewhere from the last checkpoint.

        Raises
        ------
        HetflError
            A machine of the cluster cannot run it: it has no hetfl, another version, or not the run's folder.
        """
        job.folder.mkdir(parents=True, exist_ok=True)
        lost, failed = STOPPED, self._ray.exceptions
        for losses in range(MAX_LOSSES + 1):
            if self._stopped:
                break
            task = self._task.remote(job.name, job.folder.absolute(), job.settings, os.getcwd(), version("hetfl"))
            self._running.add(task)
            try:
                return str(self._ray.get(task))
            except failed.TaskCancelledError:
                return STOPPED
            except failed.RayTaskError as error:
                raise HetflError(f"a machine of the cluster cannot run these: {_cause(error)}") from None
            except failed.RayError as error:
                lost = f"its machine was lost: {_cause(error)}"
                if losses < MAX_LOSSES:
                    warn(f"{job.name}: {lost}; it goes on elsewhere from round {job.done}")
            finally:
                self._running.discard(task)
        return lost

    def done(self, job: Job) -> int:
        """Return how many rounds a run has done."""
        return job.done

    def stop(self) -> None:
        """Let all runs end their rounds."""
        warn("the runs finish their rounds. Press Ctrl-C again to stop immediately.")
        self._stopped = True
        for task in [*self._running]:
            self._ray.cancel(task)


def _on_machine(name: str, folder: Path, settings: dict[str, Value], imports: str, hetfl: str) -> str:
    """Run or resume a run on a machine of the cluster; return why it did not end, with the machine's name."""
    if version("hetfl") != hetfl:
        raise HetflError(
            f"{node()} has hetfl {version('hetfl')}, not {hetfl}: all machines of the cluster need the same"
        )
    if not folder.is_dir():
        raise HetflError(f"{node()} has no {folder}: set --out to a folder on a file system that all machines share")
    if imports not in sys.path:
        sys.path.append(imports)
    reason = run_one(name, folder, settings)
    return f"on {node()}: {reason}" if reason and reason != STOPPED else reason


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
