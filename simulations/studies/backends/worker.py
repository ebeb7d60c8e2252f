"""A process on a machine of a Ray cluster: it has one run at a time, in a folder of its own."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from platform import node
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hetfl_flwr.config import Value
from hetfl_flwr.runs.schema import CHECKPOINTS, rounds_written
from simulations.studies.backends.folders import pack, unpack
from simulations.studies.backends.work import processes, run_one


class Ready(NamedTuple):
    """A machine that can run something: its name, and its version of hetfl."""

    where: str
    version: str


class Look(NamedTuple):
    """How far a run is.

    Parameters
    ----------
    done : int
        Its rounds.
    packed : bytes or None
        Its folder, if it is to be kept.
    reason : str or None
        Why it has not ended well; empty: it has. None: it goes on.
    """

    done: int
    packed: bytes | None
    reason: str | None


class Worker:
    """Has runs done in a process of its own, which ends with this one."""

    def __init__(self) -> None:
        self._here = TemporaryDirectory(prefix="hetfl-on-ray-")
        self._folder = Path(self._here.name) / "run"
        self._pool = processes(1)
        self._running: Future[str] | None = None
        self._process = 0
        self._fetched = 0.0
        self._stopped = False
        self._checkpoints: set[str] = set()

    def ready(self, folder: str) -> Ready:
        """Say so. Packages that lie in the caller's folder are found, where this machine has that folder, too."""
        if folder not in sys.path:
            sys.path.append(folder)
        self._process = self._pool.submit(os.getpid).result()
        return Ready(node(), version("hetfl"))

    def begin(self, settings: dict[str, Value], packed: bytes | None) -> None:
        """Begin a run, or go on with the one whose folder this is."""
        rmtree(self._folder, ignore_errors=True)
        if packed is not None:
            unpack(packed, self._folder)
        self._checkpoints, self._fetched = self._there(), time.monotonic()
        self._running = self._pool.submit(run_one, self._folder, settings)
        if self._stopped:  # asked for before there was a run
            self.stop()

    def look(self, seconds: float, fetch_every: float) -> Look:
        """Wait for the end of the run, at most so many seconds, and say how far it is."""
        assert self._running is not None
        over, _ = wait([self._running], timeout=seconds)
        if over:
            done, packed = rounds_written(self._folder), pack(self._folder)
            rmtree(self._folder, ignore_errors=True)
            return Look(done, packed, self._running.result())
        so_far = None
        if time.monotonic() - self._fetched >= fetch_every and self._there() - self._checkpoints:
            with self._held():
                self._checkpoints, so_far = self._there(), pack(self._folder)
            self._fetched = time.monotonic()
        return Look(rounds_written(self._folder), so_far, None)

    def stop(self) -> None:
        """Let the run end its round."""
        self._stopped = True
        if self._running is not None and not self._running.done():
            os.kill(self._process, signal.SIGINT)

    def leave(self) -> None:
        """Leave nothing behind on this machine."""
        self._here.cleanup()

    def _there(self) -> set[str]:
        return {path.name for path in (self._folder / CHECKPOINTS).glob("round-*")}

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Have the run stand still: its folder is then as if it had been killed, which it can go on from."""
        os.kill(self._process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process, signal.SIGCONT)
