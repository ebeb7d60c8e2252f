"""The lock of a run folder: only one process at a time writes it."""

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
"""Lock file in a run folder. It names the process that writes the folder, and is removed when the process ends."""

PATIENCE = 0.5
"""Seconds to wait for the lock, which `writer_of` takes for a moment when it checks whether it is held."""


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def holder_of(folder: Path) -> str:
    """Return the process named in a folder's lock file, even if it has ended; empty without a lock file."""
    with suppress(OSError):
        return printable(read_file(folder / LOCK_FILE)[:200].decode(errors="replace").strip())
    return ""


def writer_of(folder: Path) -> str:
    """Return the process that is writing a folder; empty if none is, or if it was on this machine and has ended."""
    if not _plain(folder / LOCK_FILE):
        return ""  # no lock file, or not a plain file, which no process can lock
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
    """A folder that `who`, another process or another run of this process, is writing."""

    def __init__(self, folder: Path, who: str) -> None:
        super().__init__(f"{folder} is being written by {who}: wait until it ends, or name another folder")
        self.who = who


class FolderLock:
    """A lock of the operating system on a file in a run folder, released when the process ends in any way.

    `run` is the run's id, which the errors of other processes name. Raises `FolderInUse` if another process or another
    run of this process holds the lock, `RunFolderError` if the lock file is not a plain file, and `OSError` if the
    folder cannot be written.
    """

    def __init__(self, folder: Path, run: int) -> None:
        self._path = folder / LOCK_FILE
        if os.path.lexists(self._path) and not _plain(self._path):
            raise RunFolderError(f"{self._path} must be a plain file, which a run locks: remove what is there")
        self._lock = FileLock(self._path, thread_local=False)
        try:
            self._lock.acquire(timeout=PATIENCE)
        except Timeout:
            raise FolderInUse(folder, holder_of(folder) or "another process") from None
        now = datetime.now().isoformat(" ", "seconds")
        with suppress(OSError):  # on a full disk, the lock works without this text
            self._path.write_text(f"process {os.getpid()} on {socket.gethostname()} since {now} (run {run})\n")

    def release(self) -> None:
        """Release the lock."""
        if self._lock.is_locked:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._lock.release()
