"""One run on disk: config, rounds, summary, clients and the server state."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

from hetfl_flwr.algorithms import for_flower
from hetfl_flwr.config import RunConfig, read_toml, to_toml
from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.files import replace_file
from hetfl_flwr.notices import warn
from hetfl_flwr.runs.callbacks import RoundCallback
from hetfl_flwr.runs.checkpoint import CHANGEABLE, checkpoints, pack, remove
from hetfl_flwr.runs.ledger import Ledger
from hetfl_flwr.runs.lock import FolderLock
from hetfl_flwr.runs.schema import (
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
    clients_file,
    read_rounds,
    round_line,
    summary_file,
)
from hetfl_flwr.server.messaging.uploads import Uploads
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

    Raises
    ------
    RunFolderError
        The folder cannot be written, is being written by another process, holds another run, or has nothing to resume.
    """

    def __init__(self, folder: Path, config: RunConfig, engine: str, run: int) -> None:
        self.folder = folder
        self.config = config
        self.engine = engine
        self.run = run
        self.lines: dict[int, str] = {}
        noise = noise_source(config.noise_source, engine) if config.noise_multiplier > 0 else None
        lasting = noise == "system" or (noise is not None and engine != "local")
        self.ledger = Ledger(config, engine, Uploads(folder / UPLOADS_FILE if lasting else None), noise)
        if config.resume:
            _check_holds_run(folder)
        written = *(folder / name for name in (CONFIG_FILE, RESUME_FILE, ROUNDS_FILE)), folder, *folder.parents
        self._made = [path for path in written if not path.exists()]
        with self.writing():
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(folder, run)
        try:
            self._check_free()
            self._begin()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let other processes write the folder; what was made for a run that has reached nothing is taken back."""
        self._lock.release()
        if error is not None and not self.ledger.rounds and not self.config.resume:
            for path in self._made:
                with suppress(OSError):  # not empty: what others have put there stays
                    path.rmdir() if path.is_dir() else path.unlink()

    def round(self, entry: Round) -> None:
        """Write a round down."""
        line = round_line(entry)
        self.lines[entry.round] = _digest(line)
        with self.writing(), (self.folder / ROUNDS_FILE).open("ab") as file:
            file.write(line + b"\n")

    def end(self, summary: Summary, error: BaseException | None) -> None:
        """Write summary, clients and the server state, unless nothing was reached."""
        if self.ledger.rounds:
            self.write()

    def write(self) -> None:
        """Write summary, clients and the server state so far."""
        ledger = self.ledger
        with self.writing():
            replace_file(self.folder / SERVER_STATE_FILE, pack(from_record(ledger.arrays), {"round": ledger.reached}))
            replace_file(self.folder / CLIENTS_FILE, clients_file(ledger.clients()))
            replace_file(self.folder / SUMMARY_FILE, summary_file(ledger.summary()))

    def go_back(self, round: int, lines: Mapping[int, str]) -> list[Round]:
        """Return the rounds of a checkpoint; those that were written after it are dropped.

        Parameters
        ----------
        round : int
            The checkpoint's. Later checkpoints, which are damaged and given up, are removed.
        lines : mapping of int to str
            Digests of the lines that it knows.
        """
        self.lines = dict(lines)
        known = self._known_lines()
        with self.writing():
            for folder in checkpoints(self.folder):
                if int(folder.name.removeprefix("round-")) > round:
                    remove(folder)
            replace_file(self.folder / ROUNDS_FILE, b"".join(line + b"\n" for line, _ in known))
        return [entry for _, entry in known]

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
                f"{found[0]} is of an earlier run, whose {ROUNDS_FILE} is gone: delete {folder / CHECKPOINTS} to begin "
                "again, or name another folder"
            )

    def _begin(self) -> None:
        folder, config = self.folder, self.config
        with self.writing():
            kept = config.with_values({"resume": False, "accept-loss": False, "output-dir": ""})
            replace_file(folder / CONFIG_FILE, to_toml(kept.to_flat()).encode())
            if self.engine != "local":  # `flwr run` takes values or a file, not both
                going_on = kept.with_values({"resume": True, "output-dir": str(folder)})
                replace_file(folder / RESUME_FILE, to_toml(for_flower(going_on)).encode())
            if not config.resume:
                (folder / UPLOADS_FILE).unlink(missing_ok=True)
            (folder / ROUNDS_FILE).touch()

    def _known_lines(self) -> list[tuple[bytes, Round]]:
        """Read the rounds that the checkpoint knows; one that is damaged, missing or doubled is said, and none else.

        Lines of later rounds, and one that was being written when the run was killed, are dropped.
        """
        path, known = self.folder / ROUNDS_FILE, dict[int, tuple[bytes, Round]]()
        for number, line, entry in read_rounds(self.folder):
            digest = self.lines.get(entry.round)
            if digest not in (None, _digest(line)):
                warn(f"{path}, line {number} is damaged and left out: round {entry.round} was written otherwise")
            elif entry.round in known:
                warn(f"{path}, line {number} is left out: round {entry.round} is there already")
            elif digest is not None:
                known[entry.round] = line, entry
        if lost := [round for round in self.lines if round not in known]:
            warn(f"{path} has lost round {', '.join(map(str, lost[:5]))}{' and more' * (len(lost) > 5)}")
        return [known[round] for round in sorted(known)]

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
    what = f"{config.algorithm}-{(config.dataset or OWN).replace('/', '-')}".encode()[:150].decode(errors="ignore")
    name = f"{what}-seed{config.seed}-{moment}"
    parent, tries = Path.cwd() / "runs", 1
    while (parent / (name if tries == 1 else f"{name}-{tries}")).exists():
        tries += 1
    return parent / (name if tries == 1 else f"{name}-{tries}")


def config_of(folder: Path) -> RunConfig:
    """Return the config that a run folder holds.

    Raises
    ------
    RunFolderError
        It holds none.
    """
    if not (folder / CONFIG_FILE).exists():
        raise RunFolderError(f"{folder} holds no run to resume")
    return RunConfig.from_flat(read_toml(folder / CONFIG_FILE))


def check_unchanged(folder: Path, config: RunConfig) -> None:
    """Refuse to go on with the run in a folder under another config.

    Raises
    ------
    ConfigError
        Names a key that differs, and both values.
    """
    before = config_of(folder).to_flat()
    for key, value in config.to_flat().items():
        if key not in CHANGEABLE and before.get(key) != value:
            raise ConfigError(
                f"{folder} was run with {key} = {before.get(key)!r}, not {value!r}: "
                "only rounds, checkpoint-every, track, callbacks, node-keys, accept-loss and how to start may change "
                "on resume"
            )


def _holds_run(folder: Path) -> bool:
    path = folder / ROUNDS_FILE
    if path.exists() and not path.is_file():
        raise RunFolderError(f"{path} is no file")
    return path.exists() and path.stat().st_size > 0


def _check_holds_run(folder: Path) -> None:
    if not _holds_run(folder):
        raise RunFolderError(f"{folder} holds no run to resume")


def _digest(line: bytes) -> str:
    return blake2b(line, digest_size=8).hexdigest()
