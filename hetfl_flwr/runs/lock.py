"""One process at a time writes a run folder."""

import fcntl
import os
import socket
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated

from filelock import FileLock, Timeout
from pydantic import AfterValidator, BaseModel, Field

from hetfl_flwr.common.files import read_file
from hetfl_flwr.errors import RunFolderError
from hetfl_flwr.text import printable

LOCK_FILE = ".lock"
"""File in a run folder that a process holds while it writes there, with its name in it; removed when it ends."""

MAX_SIZE = 1 << 12
"""Bytes of that file, at most."""

Line = Annotated[str, AfterValidator(printable)]


class Holder(BaseModel):
    """Who holds a folder, as its lock file says."""

    host: Line
    pid: Annotated[int, Field(ge=1, lt=2**31)]
    since: Line
    run: int

    def __str__(self) -> str:
        """Return how a line calls it."""
        return f"process {self.pid} on {self.host} since {self.since}"


def holder_of(folder: Path) -> Holder | None:
    """Return whom a folder's lock file names, whether it still runs or not; None where there is no such file."""
    path = folder / LOCK_FILE
    with suppress(OSError, ValueError):
        if path.stat().st_size <= MAX_SIZE:
            return Holder.model_validate_json(read_file(path), strict=True)
    return None


def writer_of(folder: Path) -> Holder | None:
    """Return which process writes a folder; None where none does, such as one of this machine that has ended."""
    holder = holder_of(folder)
    if holder is None or holder.host != socket.gethostname():
        return holder
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except OSError:
        return holder
    return None


class FolderLock:
    """The operating system's lock on a file of a folder: it ends with the process, however that ends.

    Parameters
    ----------
    folder : Path
        The run folder, which exists.
    run : int
        The run's id, for the error of another process.

    Raises
    ------
    RunFolderError
        Another process, or another run of this one, holds it: names which.
    OSError
        The folder cannot be written.
    """

    def __init__(self, folder: Path, run: int) -> None:
        self._path = folder / LOCK_FILE
        self._lock = FileLock(self._path, thread_local=False)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            who = f"{holder} (run {holder.run})" if (holder := holder_of(folder)) else "another process"
            raise RunFolderError(
                f"{folder} is being written by {who}: wait for its end, or name another folder"
            ) from None
        now = datetime.now().isoformat(" ", "seconds")
        with suppress(OSError):  # a full disk: the lock holds all the same
            holder = Holder(host=socket.gethostname(), pid=os.getpid(), since=now, run=run)
            self._path.write_text(holder.model_dump_json() + "\n")

    def release(self) -> None:
        """Release the lock."""
        if self._lock.is_locked:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._lock.release()
