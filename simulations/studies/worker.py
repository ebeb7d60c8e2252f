"""One run of a study in the process that does it, on this machine or on one of a Ray cluster."""

import _thread
import io
import multiprocessing
import os
import signal
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from platform import node
from shutil import rmtree
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import NamedTuple

from hetfl_flwr.config import Value
from hetfl_flwr.errors import HetflError, Interrupted
from hetfl_flwr.node.machine import keep_freed_memory
from hetfl_flwr.runs.record import CHECKPOINTS, rounds_written

STOPPED = "stopped; the same command goes on with it"
"""Why an interrupted run has not ended."""

_BUSY = Lock()
"""Held while this process has a run."""


def run_one(folder: Path, settings: dict[str, Value]) -> str:
    """Run or resume a run in this process; return why it did not end, or an empty text."""
    from simulations.engine.run import run_locally

    chosen: dict[str, Value] = {**settings, "output-dir": str(folder)}
    resume = any((folder / CHECKPOINTS).glob("round-*"))
    try:
        with _BUSY:
            folder.mkdir(parents=True, exist_ok=True)
            run_locally(chosen, resume=resume, verbose=False, progress=False)
    except Interrupted:
        return STOPPED
    except HetflError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def processes(count: int) -> ProcessPoolExecutor:
    """Return processes for `run_one`; none of them outlives this one.

    Raises
    ------
    ConfigError
        The program is a script on standard input.
    """
    from simulations.engine.workers import check_starts_processes

    check_starts_processes(f"workers = {count}")
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)


def _begin() -> None:
    keep_freed_memory()
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of the parent process; then stop the run in this one, as Ctrl-C does, and end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    if not _BUSY.acquire(blocking=False):
        _thread.interrupt_main()
        _BUSY.acquire()
    os._exit(1)


class Look(NamedTuple):
    """The progress of a run.

    Parameters
    ----------
    done : int
        Its rounds.
    packed : bytes or None
        Its folder, if there is something new to keep.
    reason : str or None
        Why it has failed; empty if it has ended well. None: it is running.
    """

    done: int
    packed: bytes | None
    reason: str | None


class Worker:
    """An actor on a machine of a Ray cluster: it has one run at a time, in a child process and a folder of its own."""

    def __init__(self) -> None:
        self._here = TemporaryDirectory(prefix="hetfl-on-ray-")
        self._folder = Path(self._here.name) / "run"
        self._pool = processes(1)
        self._running: Future[str] | None = None
        self._process = 0
        self._fetched = 0.0
        self._stopped = False
        self._checkpoints: set[str] = set()

    def ready(self, folder: str) -> tuple[str, str]:
        """Return the name of the machine and its version of hetfl, once it can import what is in a folder."""
        if folder not in sys.path:
            sys.path.append(folder)
        self._process = self._pool.submit(os.getpid).result()
        return node(), version("hetfl")

    def begin(self, settings: dict[str, Value], packed: bytes | None) -> None:
        """Begin a run, or resume the one whose folder is given."""
        rmtree(self._folder, ignore_errors=True)
        if packed is not None:
            unpack(packed, self._folder)
        self._checkpoints, self._fetched = self._there(), time.monotonic()
        self._running = self._pool.submit(run_one, self._folder, settings)
        if self._stopped:  # asked for before there was a run
            self.stop()

    def look(self, seconds: float, fetch_every: float) -> Look:
        """Wait at most so many seconds for the end of the run, and return how far it is."""
        assert self._running is not None
        over, _ = wait([self._running], timeout=seconds)
        if over:
            done, packed = rounds_written(self._folder), pack(self._folder)
            rmtree(self._folder, ignore_errors=True)
            return Look(done, packed, self._running.result())
        so_far = None
        if time.monotonic() - self._fetched >= fetch_every and self._there() - self._checkpoints:
            with self._paused():
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
    def _paused(self) -> Iterator[None]:
        """Pause the run: its folder is then as if it had been killed, and can be resumed."""
        os.kill(self._process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process, signal.SIGCONT)


def pack(folder: Path) -> bytes:
    """Return a folder as an archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    """Replace a folder by a packed one, completely or not at all.

    Raises
    ------
    OSError
        It cannot be written, or a member would leave `folder`; the old folder is still there.
    """
    new, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    for path in (new, old):
        rmtree(path, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(new, filter="data")
        with suppress(FileNotFoundError):
            folder.rename(old)
        new.rename(folder)
    except tarfile.TarError as error:
        raise OSError(str(error)) from None
    finally:
        mend(folder)
        for path in (new, old):
            rmtree(path, ignore_errors=True)


def mend(folder: Path) -> None:
    """Put the old folder back if `unpack` was killed after it had moved it away."""
    old = folder.with_name(f".{folder.name}.old")
    if old.exists() and not folder.exists():
        old.rename(folder)
