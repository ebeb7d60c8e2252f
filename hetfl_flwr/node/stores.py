"""Where a client's state lies: in Flower's ``Context.state``, or on disk where a state folder is set."""

import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from flwr.app import ConfigRecord, Context

from hetfl_flwr.common.blobs import checksum_in, verified
from hetfl_flwr.common.files import read_file, replace_file
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import StateError
from hetfl_flwr.node.state import STATE, StateStore

RECORD = "hetfl-state"
"""Key of the client's state in ``Context.state``."""


class ContextStore(StateStore):
    """State in Flower's Context: survives between rounds, goes with the run.

    Runs of one series share a node's Context, so the blob's key names the run, and another run's blob is dropped.
    """

    def __init__(self, context: Context, run: str) -> None:
        self.where = "the Context of this node"
        self._context = context
        self._run = run

    def move(self, context: Context) -> None:
        """Go on in the node's Context of another message."""
        self._context = context

    def read(self) -> bytes | None:
        """Return this run's blob, or None."""
        record = self._context.state.config_records.get(RECORD)
        blob = record.get(self._run) if record is not None else None
        return blob if isinstance(blob, bytes) else None

    def write(self, blob: bytes) -> None:
        """Replace this run's blob."""
        self._context.state[RECORD] = ConfigRecord({self._run: blob})

    def forget(self) -> None:
        """Remove this run's blob."""
        self._context.state.pop(RECORD, None)


class FileStore(StateStore):
    """State in one file of a folder: survives the process, SIGKILL and a restarted node.

    Parameters
    ----------
    folder : Path
        Made when something is written.
    client_id : int
        Which client.
    lasting : bool
        Whether it is to survive the machine's failure, too. False: it goes with the run, and nothing waits for the
        disk.
    """

    def __init__(self, folder: Path, client_id: int, *, lasting: bool = True) -> None:
        self._lasting = lasting
        self._path = state_file(folder, client_id)
        self._kept = folder / f"client-{client_id}.checkpoint.safetensors"
        self.where = _called(self._path)

    def read(self) -> bytes | None:
        """Return the file's content, or None where there is no file."""
        return self._content(self._path)

    def write(self, blob: bytes) -> None:
        """Replace the file in one step; a reader sees the older or the newer one, never a part."""
        write = replace_file if self._lasting else _replace_scratch
        try:
            write(self._path, blob)
        except OSError as error:
            raise StateError(f"{self.where}: cannot be written: {error.strerror}") from None

    def give(self, path: Path) -> str | None:
        """Write the content to a file that is not there yet; or give it a second name.

        What is written here later is another file, and changes nothing there. It survives the machine's failure.

        Returns
        -------
        str or None
            The checksum that the content names; None where there is no content.
        """
        if not self._path.exists():
            return None
        try:
            path.hardlink_to(self._path)
        except OSError:  # another disk, or one without second names
            path.write_bytes(read_file(self._path))
        if not self._lasting:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        return checksum_in(path, STATE)

    def keep(self) -> None:
        """Give the file a second name, in one step; a copy where the disk knows no second names."""
        unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}")  # swept by the next `write`
        try:
            try:
                unfinished.unlink(missing_ok=True)
                unfinished.hardlink_to(self._path)
                unfinished.replace(self._kept)
            except OSError:
                replace_file(self._kept, read_file(self._path))
        except OSError as error:
            raise StateError(f"{_called(self._kept)}: cannot be written: {error.strerror}") from None
        finally:
            unfinished.unlink(missing_ok=True)

    def kept(self) -> bytes | None:
        """Return what was kept, or None."""
        return self._content(self._kept)

    def model(self) -> str | None:
        """Return the model that the state is of; None where there is no state that can be read."""
        try:
            content = self.read()
            return None if content is None else str(verified(content, STATE)["stamp"]["model"])
        except StateError:
            return None  # who reads the state says what is wrong with it

    def check_writable(self) -> None:
        """Raise StateError where nothing could be written; nothing is left of the attempt."""
        folder = self._path.parent
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder) as file:
                file.write(b"?")
        except OSError as error:
            raise StateError(f"state-dir {folder.parent} cannot be written: {error.strerror}") from None
        finally:
            for path in made:
                with suppress(OSError):
                    path.rmdir()

    def forget(self) -> None:
        """Remove the files."""
        try:
            self._path.unlink(missing_ok=True)
            self._kept.unlink(missing_ok=True)
        except OSError as error:
            raise StateError(f"{self.where}: cannot be removed: {error.strerror}") from None

    def _content(self, path: Path) -> bytes | None:
        try:
            return read_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"{_called(path)}: cannot be read: {error.strerror}") from None


def run_store(config: RunConfig, run: str, client_id: int) -> FileStore:
    """Return where a client's state of some run lies on disk."""
    return FileStore(run_folder(config, run), client_id)


def run_folder(config: RunConfig, run: str) -> Path:
    """Return the part of a state folder that is a run's."""
    return Path(config.state_dir) / f"run-{run}"


def state_file(folder: Path, client_id: int) -> Path:
    """Return the file of a client's state in a run's part of a state folder."""
    return folder / f"client-{client_id}.safetensors"


def kept_inputs(folder: Path, client_id: int) -> Path:
    """Return the file beside a client's state that has its config and says what its model takes."""
    return folder / f"inputs-{client_id}.safetensors"


def kept_measured(folder: Path, client_id: int) -> Path:
    """Return the file beside a client's state that says what it was measured with last."""
    return folder / f"measured-{client_id}.safetensors"


def prune(state_dir: Path, client_id: int, keep: int, needed: Collection[str]) -> list[str]:
    """Remove a client's files of old runs from a state folder, and return which runs these were.

    Parameters
    ----------
    state_dir : Path
        Folder of the runs' folders, ``run-ID``.
    client_id : int
        Whose; the files of other clients stay.
    keep : int
        How many runs stay, those in which the client has saved last; 0: all.
    needed : collection of str
        Ids of runs that stay in any case; they count among these.
    """
    own = re.compile(rf"client-{client_id}\.(checkpoint\.)?safetensors|(inputs|measured)-{client_id}\.safetensors")
    found: dict[str, list[Path]] = {}
    for folder in state_dir.glob("run-*"):
        if files := [path for path in folder.iterdir() if own.fullmatch(path.name)]:
            found[folder.name.removeprefix("run-")] = files
    newest = sorted(found, key=lambda run: max(path.stat().st_mtime_ns for path in found[run]), reverse=True)
    stay = {*needed, *[run for run in newest if run not in needed][: max(keep - len(set(needed)), 0)]}
    removed = [run for run in newest if run not in stay] if keep else []
    for run in removed:
        for path in found[run]:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # other clients' files are there
            (state_dir / f"run-{run}").rmdir()
    return removed


def _called(path: Path) -> str:
    return f"state file {path}"


def _replace_scratch(path: Path, content: bytes) -> None:
    """Write a file of this process's own through a temporary one: whoever holds the older one keeps it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".unfinished")
    temporary.write_bytes(content)
    temporary.replace(path)
