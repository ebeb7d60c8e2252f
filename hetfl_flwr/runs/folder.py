"""The folder of an active run: locked, written round by round, and removed if the run has no result."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

from typing_extensions import TypedDict  # pydantic accepts typing.TypedDict only from Python 3.12

from hetfl_flwr.common.blobs import pack
from hetfl_flwr.common.files import replace_file, writing
from hetfl_flwr.common.notices import option
from hetfl_flwr.config import RunConfig, to_toml
from hetfl_flwr.errors import RunFolderError, StateError, WorkerError
from hetfl_flwr.methods import for_flower
from hetfl_flwr.runs.callbacks import RoundCallback
from hetfl_flwr.runs.ledger import Ledger
from hetfl_flwr.runs.lock import FolderLock
from hetfl_flwr.runs.record import (
    CHECKPOINTS,
    CLIENTS_FILE,
    CONFIG_FILE,
    RESUME_FILE,
    ROUNDS_FILE,
    SERVER_STATE_FILE,
    SUMMARY_FILE,
    UPLOADS_FILE,
    Round,
    Summary,
    check_no_run_file,
    clients_file,
    read_rounds,
    resume_command,
    round_line,
    summary_file,
)
from hetfl_flwr.runs.settings import PROCESS_KEYS, stored_config
from hetfl_flwr.server.upload_counts import UploadCounts
from hetfl_flwr.wire.privacy import noise_source

KNOWLEDGE = "knowledge"
"""File kind of a server state."""


class RoundsRecord(TypedDict):
    """A checkpoint's record of ``rounds.jsonl``: the length of its rounds in bytes, and their checksum."""

    bytes: int
    checksum: str


class RunFolder(RoundCallback):
    """The folder of a run: a context manager that locks it, and a callback that runs before all others.

    The folder is created if it is missing; without ``resume`` it must not hold a run. `run` is the run's id, and
    ``begun`` its id when it was new. ``ledger`` has the results so far. Raises `RunFolderError` if the folder cannot be
    written, is being written by another process, or holds another run.
    """

    def __init__(self, folder: Path, config: RunConfig, engine: str, run: int) -> None:
        self.folder = check_no_run_file(folder)
        self.config, self.engine, self.run, self.begun = config, engine, run, run
        noise = noise_source(config.noise_source, engine) if config.noise_multiplier > 0 else None
        entropy = noise == "system" or (noise is not None and engine != "local")
        self.ledger = Ledger(config, engine, UploadCounts(folder / UPLOADS_FILE if entropy else None), noise)
        self._path = folder / ROUNDS_FILE
        self._kept: bytes | None = None
        self._bytes, self._hash = 0, blake2b(digest_size=32)
        written = *(folder / name for name in (CONFIG_FILE, RESUME_FILE, ROUNDS_FILE)), folder, *folder.parents
        self._made = [path for path in written if not path.exists()]
        with self.writing("name another folder"):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(folder, run)
        try:
            if not config.resume:
                self._begin()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __enter__(self) -> Self:
        """Return the folder, which the constructor has locked."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock; after an error, remove the files of a run without results."""
        self._lock.release()
        if error is None or self._holds_run():
            return
        for path in self._made:
            with suppress(OSError):  # not empty: files of others stay
                path.rmdir() if path.is_dir() else path.unlink()

    def _holds_run(self) -> bool:
        rounds = self._path.exists() and not (self._path.is_file() and self._path.stat().st_size == 0)
        return rounds or self._has_checkpoint()

    def _has_checkpoint(self) -> bool:
        return any((self.folder / CHECKPOINTS).glob("round-*"))

    def _begin(self) -> None:
        if self._holds_run():
            remedy = f"continue it with {option('--resume', 'resume=True')}, or"
            if not self._has_checkpoint():
                reached = (self.folder / SUMMARY_FILE).exists()
                remedy = "without a checkpoint:" if reached else "it ended before its first checkpoint: remove it, or"
            raise RunFolderError(f"{self.folder} already holds a run: {remedy} name another folder")
        if below := [path.parent for depth in ("*", "*/*") for path in self.folder.glob(f"{depth}/{CONFIG_FILE}")]:
            raise RunFolderError(f"{self.folder} holds runs in subfolders, such as {min(below)}: name another folder")
        with self.writing("name another folder"):
            self._write_settings()
            (self.folder / UPLOADS_FILE).unlink(missing_ok=True)
            self._path.touch()

    def _write_settings(self) -> None:
        replace_file(self.folder / CONFIG_FILE, to_toml(stored_config(self.config)).encode())
        if self.engine != "local":  # `flwr run` takes values or a file, not both
            resuming = self.config.model_copy(update={**PROCESS_KEYS, "resume": True, "output_dir": str(self.folder)})
            replace_file(self.folder / RESUME_FILE, to_toml(for_flower(resuming)).encode())

    def writing(self, way_out: str = "") -> AbstractContextManager[None]:
        """Turn an OSError into one line: the folder cannot be written."""
        return writing(f"run folder {self.folder}", way_out=way_out)

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Add to an error of this machine, such as a full disk, how the run continues if it has a checkpoint."""
        try:
            yield
        except (RunFolderError, StateError, WorkerError) as error:
            if not self._has_checkpoint():
                raise
            again = resume_command(self.folder, self.engine, self.config.algorithm)
            raise type(error)(f"{error}; once this is fixed, continue with: {again}") from None

    def round(self, entry: Round) -> None:
        """Append the round's line to ``rounds.jsonl``, in full or not at all."""
        line = round_line(entry) + b"\n"
        with self.writing(), self._path.open("ab", buffering=0) as file:
            whole = file.seek(0, os.SEEK_END)
            try:
                left = line
                while left:  # a disk that is nearly full writes only a part
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(whole)
                raise
        self._bytes += len(line)
        self._hash.update(line)

    def end(self, summary: Summary, error: BaseException | None) -> None:
        """Write summary, clients and the server state, unless there are no rounds."""
        if self.ledger.rounds and self._holds_run():
            self.write()

    def write(self) -> None:
        """Write summary, clients and the server state so far."""
        ledger = self.ledger
        with self.writing():
            server_state = pack(KNOWLEDGE, {"round": ledger.done}, ledger.arrays)
            replace_file(self.folder / SERVER_STATE_FILE, server_state)
            replace_file(self.folder / CLIENTS_FILE, clients_file(ledger.clients()))
            replace_file(self.folder / SUMMARY_FILE, summary_file(ledger.summary()))

    def synced(self) -> RoundsRecord:
        """Flush all rounds to disk, and return the length and checksum of the file."""
        with self._path.open("a") as file:
            os.fsync(file.fileno())
        return {"bytes": self._bytes, "checksum": self._hash.hexdigest()}

    def keep(self, record: RoundsRecord) -> str:
        """Read the rounds up to a checkpoint; return what is wrong with the file, or an empty text.

        If the file does not match the checkpoint, none of its rounds are used.
        """
        content = self._path.read_bytes() if self._path.is_file() else b""
        digest = blake2b(content[: record["bytes"]], digest_size=32)
        if digest.hexdigest() != record["checksum"]:
            return f"{self._path} is {'not the file that the checkpoint recorded' if content else 'missing or empty'}"
        self._kept, self._bytes, self._hash = content[: record["bytes"]], record["bytes"], digest
        return ""

    def resume(self, begun: int) -> None:
        """Restore the folder to its state at a checkpoint, with the config of this process.

        Rounds after the checkpoint are removed. A file that does not match the checkpoint is renamed to
        ``rounds.damaged.jsonl``, or to a name with a number if there is one.
        """
        self.begun = begun
        with self.writing():
            self._write_settings()
            if self._kept is None and self._path.is_file():
                names = ("rounds.damaged.jsonl", *(f"rounds.damaged-{number}.jsonl" for number in range(2, 1000)))
                free = (path for name in names if not (path := self._path.with_name(name)).exists())
                self._path.replace(next(free))
            replace_file(self._path, self._kept or b"")
        self.ledger.rounds = read_rounds(self.folder)
