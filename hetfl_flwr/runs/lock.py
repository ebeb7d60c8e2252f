"""One process at a time writes a run folder."""

import fcntl
import os
import re
import socket
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from hetfl_flwr.common.files import read_file
from hetfl_flwr.errors import RunFolderError
from hetfl_flwr.text import printable

LOCK_FILE = ".lock"
"""File in a run folder that a process holds while it writes there, with its name in it; removed when it ends."""

PATIENCE = 0.5
"""Seconds to wait for a lock: checking whether it is held takes it for a moment."""


def holder_of(folder: Path) -> str:
    """Return which process a folder's lock file names, whether it still runs or not; empty where there is no file."""
    with suppress(OSError):
        return printable(read_file(folder / LOCK_FILE)[:200].decode(errors="replace").strip())
    return ""


def writer_of(folder: Path) -> str:
    """Return which process writes a folder; empty where none does, such as one of this machine that has ended."""
    holder = holder_of(folder)
    elsewhere = re.search(r" on (\S+) since ", holder)
    if elsewhere and elsewhere[1] != socket.gethostname():
        return holder
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return ""
    except OSError:
        return holder or "another process"
    return ""


class FolderInUse(RunFolderError):
    """A folder that another process, or another run of this one, writes; `who` says which."""

    def __init__(self, folder: Path, who: str) -> None:
        super().__init__(f"{folder} is being written by {who}: wait for its end, or name another folder")
        self.who = who


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
    FolderInUse
        Another process, or another run of this one, holds it: names which.
    OSError
        The folder cannot be written.
    """

    def __init__(self, folder: Path, run: int) -> None:
        self._path = folder / LOCK_FILE
        self._lock = FileLock(self._path, thread_local=False)
        try:
            self._lock.acquire(timeout=PATIENCE)
        except Timeout:
            raise FolderInUse(folder, holder_of(folder) or "another process") from None
        now = datetime.now().isoformat(" ", "seconds")
        with suppress(OSError):  # a full disk: the lock holds all the same
            self._path.write_text(f"process {os.getpid()} on {socket.gethostname()} since {now} (run {run})\n")

    def release(self) -> None:
        """Release the lock."""
        if self._lock.is_locked:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._lock.release()
