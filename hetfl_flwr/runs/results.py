"""One run on disk: config, rounds, summary, clients and the server state."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

from hetfl_flwr.algorithms import for_flower
from hetfl_flwr.common.blobs import pack
from hetfl_flwr.common.errors import RunFolderError
from hetfl_flwr.common.files import replace_file
from hetfl_flwr.common.notices import warn
from hetfl_flwr.config import RunConfig, to_toml
from hetfl_flwr.data.sources.folders import dataset_called
from hetfl_flwr.runs.callbacks import RoundCallback
from hetfl_flwr.runs.checkpoints.checkpoint import KNOWLEDGE, Checkpoint, checkpoints, remove
from hetfl_flwr.runs.ledger import Ledger
from hetfl_flwr.runs.lock import FolderLock
from hetfl_flwr.runs.schema import (
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
    round_line,
    summary_file,
)
from hetfl_flwr.runs.settings import PASSING, check_unchanged, settings_file
from hetfl_flwr.server.messaging.upload_counts import UploadCounts
from hetfl_flwr.wire.codec import from_record
from hetfl_flwr.wire.naming import OWN
from hetfl_flwr.wire.privacy import noise_source


class Results(RoundCallback):
    """The run folder of a run. It is told of a round before all other callbacks.

    Use it in a ``with``: leaving it lets other processes write the folder.

    Parameters
    ----------
    folder : Path
        The run folder, made if missing.
    config : RunConfig
        The run. With ``resume`` the folder must hold a checkpoint, else it must hold no run.
    engine : str
        ``local``, ``simulation`` or ``deployment``.
    run : int
        The run's id.

    Attributes
    ----------
    ledger : Ledger
        What the run has reached so far.
    lines : dict of int to str
        Digests of the lines of ``rounds.jsonl``, by round.
    begun : int
        The id under which the run was begun.

    Raises
    ------
    RunFolderError
        The folder cannot be written, is being written by another process, holds another run, or has nothing to resume.
    """

    def __init__(self, folder: Path, config: RunConfig, engine: str, run: int) -> None:
        self.folder = check_no_run_file(folder)
        self.config = config
        self.engine = engine
        self.run = run
        self.lines: dict[int, str] = {}
        self.begun = run
        self._known: list[tuple[bytes, Round]] = []
        self._notes: list[str] = []
        noise = noise_source(config.noise_source, engine) if config.noise_multiplier > 0 else None
        lasting = noise == "system" or (noise is not None and engine != "local")
        self.ledger = Ledger(config, engine, UploadCounts(folder / UPLOADS_FILE if lasting else None), noise)
        if config.resume:
            _check_holds_run(folder)
        written = *(folder / name for name in (CONFIG_FILE, RESUME_FILE, ROUNDS_FILE)), folder, *folder.parents
        self._made = [path for path in written if not path.exists()]
        with self.writing():
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(folder, run)
        try:
            self._check_free()
            if not config.resume:
                self._begin()
        except BaseException:
            self._lock.release()
            self._take_back()
            raise

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let other processes write the folder; what was made for a run that has reached nothing is taken back."""
        self._lock.release()
        if error is not None:
            self._take_back()

    def _take_back(self) -> None:
        """Remove what was made for a run of which no round is on the disk; one that goes on has made nothing."""
        if self.config.resume or self._written():
            return
        for path in self._made:
            with suppress(OSError):  # not empty: what others have put there stays
                path.rmdir() if path.is_dir() else path.unlink()

    def _written(self) -> bool:
        return bool(checkpoints(self.folder)) or _holds_run(self.folder)

    def round(self, entry: Round) -> None:
        """Write a round down: all of its line, or none."""
        line = round_line(entry)
        self.lines[entry.round] = _digest(line)
        with self.writing(), (self.folder / ROUNDS_FILE).open("ab", buffering=0) as file:
            whole = file.seek(0, os.SEEK_END)
            try:
                left = line + b"\n"
                while left:  # a disk that is nearly full takes a part
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(whole)
                raise

    def end(self, summary: Summary, error: BaseException | None) -> None:
        """Write summary, clients and the server state, unless nothing was reached."""
        if self.ledger.rounds and self._written():
            self.write()

    def write(self) -> None:
        """Write summary, clients and the server state so far."""
        ledger = self.ledger
        with self.writing():
            server_state = pack(KNOWLEDGE, {"round": ledger.reached}, from_record(ledger.arrays))
            replace_file(self.folder / SERVER_STATE_FILE, server_state)
            replace_file(self.folder / CLIENTS_FILE, clients_file(ledger.clients()))
            replace_file(self.folder / SUMMARY_FILE, summary_file(ledger.summary()))

    def sync(self) -> None:
        """Let all rounds reach the disk."""
        with self.writing(), (self.folder / ROUNDS_FILE).open("a") as file:
            os.fsync(file.fileno())

    def _check_free(self) -> None:
        """Refuse to begin where a run is, or to go on with another one."""
        folder, config = self.folder, self.config
        if config.resume:
            _check_holds_run(folder)
            check_unchanged(folder, config)
        elif _holds_run(folder):
            raise RunFolderError(f"{folder} already holds a run: go on with it by --resume, or name another folder")
        elif found := checkpoints(folder):
            raise RunFolderError(
                f"{found[0]} is of an earlier run, whose {ROUNDS_FILE} is gone: go on with it by --resume "
                "--accept-loss, or name another folder"
            )

    def _begin(self) -> None:
        with self.writing():
            self._write_settings()
            (self.folder / UPLOADS_FILE).unlink(missing_ok=True)
            (self.folder / ROUNDS_FILE).touch()

    def _write_settings(self) -> None:
        replace_file(self.folder / CONFIG_FILE, settings_file(self.config, self.begun))
        if self.engine != "local":  # `flwr run` takes values or a file, not both
            going_on = self.config.with_values({**PASSING, "resume": True, "output-dir": str(self.folder)})
            replace_file(self.folder / RESUME_FILE, to_toml(for_flower(going_on)).encode())

    def read_log(self, checkpoint: Checkpoint) -> str:
        """Read the rounds that a checkpoint knows; return what is lost, where that is all of them, or nothing.

        A line that is damaged, missing or doubled is left out, and said when the run goes on. Lines of later rounds,
        and one that was being written when the run was killed, are dropped then.
        """
        path, known = self.folder / ROUNDS_FILE, dict[int, tuple[bytes, Round]]()
        self.lines = dict(checkpoint.counts["lines"])
        self._notes, number = list[str](), 0
        for number, line, entry in read_rounds(self.folder, self._notes.append):
            digest = self.lines.get(entry.round)
            if digest not in (None, _digest(line)):
                self._notes.append(
                    f"{path}, line {number} is damaged and left out: round {entry.round} was written otherwise"
                )
            elif entry.round in known:
                self._notes.append(f"{path}, line {number} is left out: round {entry.round} is there already")
            elif digest is not None:
                known[entry.round] = line, entry
        if lost := [round for round in self.lines if round not in known]:
            self._notes.append(f"{path} has lost round {', '.join(map(str, lost[:5]))}{' and more' * (len(lost) > 5)}")
        self._known = [known[round] for round in sorted(known)]
        if known or not self.lines:
            return ""
        what = "is of another run" if number else "holds no round" if path.exists() else "is missing"
        rest = f"the figures of all rounds until {checkpoint.round} are lost"
        return f"{path} {what}, by the checkpoint of round {checkpoint.round}: {rest}"

    def resume(self, checkpoint: Checkpoint) -> None:
        """Write the folder as it was at a checkpoint, with the config of this process.

        Rounds and checkpoints after it are removed.
        """
        for note in self._notes:
            warn(note)
        self.begun = checkpoint.begun
        with self.writing():
            self._write_settings()
            for folder in checkpoints(self.folder):
                if int(folder.name.removeprefix("round-")) > checkpoint.round:
                    remove(folder)
            replace_file(self.folder / ROUNDS_FILE, b"".join(line + b"\n" for line, _ in self._known))
        self.ledger.rounds = [entry for _, entry in self._known]

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Say in one line that the folder cannot be written."""
        try:
            yield
        except OSError as error:
            raise RunFolderError(f"run folder {self.folder} cannot be written: {error.strerror}") from None


def new_folder(config: RunConfig) -> Path:
    """Return the run folder that a config names, or a new one under ``runs/`` in the working directory."""
    if config.output_dir:
        return Path(config.output_dir).expanduser().resolve()
    moment = datetime.now().strftime("%Y%m%d-%H%M%S")
    called = dataset_called(config.dataset or OWN).replace("/", "-").replace(" ", "-")
    what = f"{config.algorithm}-{called}".encode()[:150].decode(errors="ignore")
    name = f"{what}-seed{config.seed}-{moment}"
    parent, tries = Path.cwd() / "runs", 1
    while (parent / (name if tries == 1 else f"{name}-{tries}")).exists():
        tries += 1
    return parent / (name if tries == 1 else f"{name}-{tries}")


def _holds_run(folder: Path) -> bool:
    path = folder / ROUNDS_FILE
    if path.exists() and not path.is_file():
        raise RunFolderError(f"{path} is no file")
    return path.exists() and path.stat().st_size > 0


def _check_holds_run(folder: Path) -> None:
    """Refuse to go on where neither rounds nor checkpoints are; those alone are enough to go on."""
    if not _holds_run(folder) and not checkpoints(folder):
        raise RunFolderError(f"{folder} holds no run to resume")


def _digest(line: bytes) -> str:
    return blake2b(line, digest_size=8).hexdigest()
