"""One run on disk: config, rounds, summary, clients and the server state."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from hetfl_flwr.common.blobs import pack
from hetfl_flwr.common.files import replace_file
from hetfl_flwr.common.notices import option
from hetfl_flwr.config import RunConfig, to_toml
from hetfl_flwr.data.folders import dataset_called
from hetfl_flwr.errors import RunFolderError
from hetfl_flwr.methods import for_flower
from hetfl_flwr.runs.callbacks import RoundCallback
from hetfl_flwr.runs.checkpoint import KNOWLEDGE, Checkpoint, checkpoints, newest, remove
from hetfl_flwr.runs.ledger import Ledger
from hetfl_flwr.runs.lock import FolderLock
from hetfl_flwr.runs.round_log import RoundLog
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
    summary_file,
)
from hetfl_flwr.runs.settings import PASSING, lasting
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
    log : RoundLog
        Its rounds on disk.
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
        self.log = RoundLog(folder)
        self.begun = run
        noise = noise_source(config.noise_source, engine) if config.noise_multiplier > 0 else None
        entropy = noise == "system" or (noise is not None and engine != "local")
        self.ledger = Ledger(config, engine, UploadCounts(folder / UPLOADS_FILE if entropy else None), noise)
        if config.resume:
            newest(folder)
        written = *(folder / name for name in (CONFIG_FILE, RESUME_FILE, ROUNDS_FILE)), folder, *folder.parents
        self._made = [path for path in written if not path.exists()]
        with self.writing():
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(folder, run)
        try:
            if not config.resume:
                self._check_free()
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
        with self.writing():
            self.log.add(entry)

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

    def _check_free(self) -> None:
        """Refuse to begin where a run is."""
        folder = self.folder
        if _holds_run(folder):
            going_on = option("--resume", "resume=True")
            raise RunFolderError(f"{folder} already holds a run: go on with it by {going_on}, or name another folder")
        if found := checkpoints(folder):
            raise RunFolderError(
                f"{found[0]} is of an earlier run, whose {ROUNDS_FILE} is gone: go on with it by "
                f"{option('--resume --accept-loss', 'resume=True, accept_loss=True')}, or name another folder"
            )

    def _begin(self) -> None:
        with self.writing():
            self._write_settings()
            (self.folder / UPLOADS_FILE).unlink(missing_ok=True)
            (self.folder / ROUNDS_FILE).touch()

    def _write_settings(self) -> None:
        replace_file(self.folder / CONFIG_FILE, to_toml(lasting(self.config)).encode())
        if self.engine != "local":  # `flwr run` takes values or a file, not both
            going_on = self.config.with_values({**PASSING, "resume": True, "output-dir": str(self.folder)})
            replace_file(self.folder / RESUME_FILE, to_toml(for_flower(going_on)).encode())

    def resume(self, checkpoint: Checkpoint) -> None:
        """Write the folder as it was at a checkpoint, with the config of this process.

        Rounds and checkpoints after it are removed.
        """
        self.begun = checkpoint.begun
        with self.writing():
            self._write_settings()
            for folder in checkpoints(self.folder):
                if int(folder.name.removeprefix("round-")) > checkpoint.round:
                    remove(folder)
            self.ledger.rounds = self.log.restore()

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
