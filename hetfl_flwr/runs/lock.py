"""One process at a time writes a run folder."""

import json
import os
import socket
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from hetfl_flwr.common.errors import RunFolderError

LOCK_FILE = ".lock"
"""File in a run folder that a process holds while it writes there, with its name in it; removed when it ends."""


class FolderLock:
    """The operating system's lock on a file of a folder: it ends with the process, however that ends.

    Parameters
    ----------
    folder : Path
        The run folder, which is there.
    run : int
        The run's id, for whoever is refused.

    Raises
    ------
    RunFolderError
        Another process, or another run of this one, holds it: names which.
    """

    def __init__(self, folder: Path, run: int) -> None:
        self._path = folder / LOCK_FILE
        self._lock = FileLock(self._path, thread_local=False)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise RunFolderError(
                f"{folder} is being written by {self._holder()}: wait for its end, or name another folder"
            ) from None
        except OSError as error:
            raise RunFolderError(f"run folder {folder} cannot be written: {error.strerror}") from None
        began = datetime.now().isoformat(" ", "seconds")
        mine = {"host": socket.gethostname(), "pid": os.getpid(), "since": began, "run": run}
        with suppress(OSError):  # a full disk: the lock holds all the same
            self._path.write_text(json.dumps(mine, allow_nan=False) + "\n")

    def release(self) -> None:
        """Give the folder free."""
        if self._lock.is_locked:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._lock.release()

    def _holder(self) -> str:
        try:
            holder = json.loads(self._path.read_text())
            return f"process {holder['pid']} on {holder['host']} since {holder['since']} (run {holder['run']})"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"
