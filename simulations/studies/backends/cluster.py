"""Runs on the machines of a Ray cluster: each in a folder there, which is fetched when the run has ended.

A run that goes on is fetched from time to time, too, as it would lie there had its process been killed; so when its
machine is lost, the run goes on elsewhere from its last checkpoint that was fetched.
"""

import logging
import os
import socket
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from hetfl_flwr.common.errors import HetflError
from hetfl_flwr.common.notices import warn
from simulations.studies.backends.backend import Ended, JobLike
from simulations.studies.backends.folders import mend, pack, unpack
from simulations.studies.backends.worker import Ready, Worker

MOST_LOSSES = 3
"""How often a run begins again when the machine that has it is lost, or its process there."""

PATIENCE = 60.0
"""Seconds without a free machine after which a line says so."""

CONNECT = 10.0
"""Seconds that a cluster may take to answer."""

FETCH_EVERY = 300.0
"""Seconds between two fetches of a run that goes on, at least."""


@dataclass(frozen=True)
class RayBackend:
    """A Ray cluster that is there.

    Parameters
    ----------
    workers : int
        Runs at a time, 1 or more. Each takes as many processors of a machine as the most ``threads`` of any of them,
        and one GPU where the ``device`` of any is ``cuda``.
    address : str
        Of the cluster: ``HOST:PORT`` or ``auto``, the one that this machine is part of.
        Empty: ``RAY_ADDRESS``, or else ``auto``.
    fetch_every : float
        Seconds between two fetches of a run that goes on, at least.
    """

    workers: int = 1
    address: str = ""
    fetch_every: float = FETCH_EVERY

    def lacks(self, job: JobLike) -> str:
        """Return nothing: what is on the machines of a cluster is known there alone."""
        return ""

    @contextmanager
    def open(self, wanted: Sequence[JobLike]) -> Iterator["RayPool"]:
        """Connect to the cluster. Where the block is left by an exception, runs end their rounds and are fetched.

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
        try:
            pool = RayPool(ray, wanted, min(self.workers, len(wanted)), self.fetch_every)
            try:
                yield pool
            except BaseException:
                pool.stop()
                raise
            finally:
                pool.close()
        finally:
            if mine:
                ray.shutdown()


@dataclass(eq=False)
class _Remote:
    """A process on some machine, and what was last asked of it."""

    actor: Any
    asked: Any
    where: str = ""
    job: JobLike | None = None


class RayPool:
    """Processes on the machines of a cluster, each of which has one run at a time."""

    def __init__(self, ray: Any, wanted: Sequence[JobLike], count: int, fetch_every: float) -> None:
        self._ray, self._count, self._fetch_every = ray, count, fetch_every
        threads = [job.settings.get("threads", 1) for job in wanted]
        gpu = any(str(job.settings.get("device", "")).startswith("cuda") for job in wanted)
        self._needs = {"num_cpus": max(1, *map(int, threads)), "num_gpus": int(gpu)}
        self._remotes: list[_Remote] = []
        self._again: deque[JobLike] = deque()
        self._over: list[Ended] = []
        self._losses: Counter[Path] = Counter()
        self._done: dict[Path, int] = {}
        self._alone_since: float | None = time.monotonic()
        for _ in range(count):
            self._hire()

    def free(self) -> bool:
        """Return whether a process has nothing to do, and no run that was lost waits for one."""
        return not self._again and self._idle() is not None

    def begin(self, job: JobLike) -> None:
        """Begin a run on a machine that has said that it is ready, from what is in its folder here."""
        remote = self._idle()
        assert remote is not None
        self._done[job.folder] = job.done
        try:
            mend(job.folder)
            packed = pack(job.folder) if job.folder.is_dir() else None
        except OSError as error:
            self._over.append(Ended(job.folder, f"{job.folder} cannot be read: {error.strerror}"))
            return
        remote.job, remote.asked = job, remote.actor.begin.remote(job.settings, packed)

    def ended(self, seconds: float) -> list[Ended]:
        """Wait until a run is over, at most about so many seconds, and return which are, their folders fetched.

        Raises
        ------
        HetflError
            A machine of the cluster cannot run them: it has no hetfl, or another one.
        """
        while self._again and self._idle() is not None:
            self.begin(self._again.popleft())
        asked = {remote.asked: remote for remote in self._remotes if remote.asked is not None}
        over, _ = self._ray.wait(list(asked), timeout=seconds) if asked else ([], [])
        for reference in over:
            self._take(asked[reference], seconds)
        self._say_if_alone()
        known, self._over = self._over, []
        return known

    def done(self, job: JobLike) -> int:
        """Return how many rounds a run had done when its machine was last asked."""
        return self._done[job.folder]

    def stop(self) -> None:
        """Let what runs end its round, and fetch it."""
        busy = [remote for remote in self._remotes if remote.job is not None]
        if busy:
            warn(f"{len(busy)} runs finish their rounds; once more to stop at once")
        for remote in busy:
            remote.actor.stop.remote()
        self._again.clear()
        self._count = 0
        self._dismiss([remote for remote in self._remotes if remote.job is None])
        while any(remote.job is not None for remote in self._remotes):
            self.ended(seconds=1)

    def close(self) -> None:
        """End all processes."""
        self._dismiss(list(self._remotes))

    def _dismiss(self, remotes: Sequence[_Remote]) -> None:
        left = [remote.actor.leave.remote() for remote in remotes if remote.where]
        if left:
            self._ray.wait(left, num_returns=len(left), timeout=CONNECT)
        for remote in remotes:
            self._ray.kill(remote.actor)
            self._remotes.remove(remote)

    def _idle(self) -> _Remote | None:
        return next((remote for remote in self._remotes if remote.job is None and remote.asked is None), None)

    def _hire(self) -> None:
        actor = self._ray.remote(Worker).options(max_concurrency=2, **self._needs).remote()
        self._remotes.append(_Remote(actor, actor.ready.remote(os.getcwd())))

    def _take(self, remote: _Remote, seconds: float) -> None:
        """Take in what a machine has answered."""
        try:
            answer = self._ray.get(remote.asked)
        except self._ray.exceptions.RayTaskError as error:
            if remote.job is None:
                raise HetflError(f"a machine of the cluster cannot run these: {_cause(error)}") from None
            self._lost(remote, _cause(error))
            return
        except self._ray.exceptions.RayError as error:
            self._lost(remote, _first_line(error))
            return
        if isinstance(answer, Ready):
            self._check(answer)
            remote.where, remote.asked, self._alone_since = answer.where, None, None
            return
        job = remote.job
        if job is not None and answer is not None:
            self._done[job.folder] = answer.done
            if answer.packed is not None:
                try:
                    unpack(answer.packed, job.folder)
                except OSError as error:
                    answer = answer._replace(reason=f"{job.folder} cannot be written: {error.strerror or error}")
            if answer.reason is not None:
                remote.job = remote.asked = None
                reason = f"on {remote.where}: {answer.reason}" if answer.reason else ""
                self._over.append(Ended(job.folder, reason))
                return
        remote.asked = remote.actor.look.remote(seconds, self._fetch_every)

    def _lost(self, remote: _Remote, why: str) -> None:
        """Do without a machine, or a process there, and have its run done again, from what was fetched of it."""
        self._remotes.remove(remote)
        with suppress(Exception):
            self._ray.kill(remote.actor)
        where, job = remote.where or "a machine of the cluster", remote.job
        if job is None:
            self._losses[Path()] += not remote.where
            if self._losses[Path()] > MOST_LOSSES * max(self._count, 1):
                raise HetflError(f"no machine of the cluster starts a process for these runs: {why}")
        else:
            self._losses[job.folder] += 1
            if self._losses[job.folder] > MOST_LOSSES or not self._count:
                self._over.append(Ended(job.folder, f"{where} was lost: {why}"))
            else:
                warn(f"{job.name}: {where} was lost ({why}); it goes on elsewhere from round {job.done}")
                self._again.append(job)
        if len(self._remotes) < self._count:
            self._hire()

    def _check(self, ready: Ready) -> None:
        if ready.version != version("hetfl"):
            raise HetflError(
                f"{ready.where} has hetfl {ready.version}, this machine {version('hetfl')}: "
                "all machines of the cluster need the same"
            )

    def _say_if_alone(self) -> None:
        if self._alone_since is not None and time.monotonic() - self._alone_since > PATIENCE:
            needs = f"{self._needs['num_cpus']} processors" + " and a GPU" * self._needs["num_gpus"]
            warn(f"no machine of the cluster has had {needs} free for {PATIENCE:.0f} s; still waiting")
            self._alone_since = None


def _check_reached(address: str) -> None:
    """See that somebody answers there, for Ray itself would wait for minutes.

    Raises
    ------
    OSError
        Nobody does.
    """
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT).close()


def _cause(error: Any) -> str:
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {_first_line(cause)}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return (f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]).rstrip(".")
