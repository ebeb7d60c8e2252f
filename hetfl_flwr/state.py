"""What a client keeps between rounds: in Flower's ``Context.state``, or on disk where a state folder is set.

A ClientApp is built anew for every message, so whatever must survive is written here as one safetensors blob under a
stamp that says whose it is. A stamp that does not fit raises: state never leaks between runs, algorithms, models or
clients.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from flwr.app import ConfigRecord, Context
from safetensors import SafetensorError
from safetensors.torch import load, save

from hetfl_flwr.errors import StateError

SCHEMA = 2
"""Version of the blob's layout; raised when older files can no longer be read."""

RECORD = "hetfl-state"
"""Key of the client's record in ``Context.state``."""


@dataclass(frozen=True)
class Stamp:
    """Whose state a blob is. Every field must fit on reading."""

    run: str
    algorithm: str
    model: str
    partition: int
    schema: int = SCHEMA


@dataclass
class ClientState:
    """What survives between rounds.

    Parameters
    ----------
    tensors : dict of tensors
        Model and optimizer, under dotted names.
    numbers : dict of numbers
        Counters and scalars that an algorithm keeps.
    round : int
        The round in which it was written.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    numbers: dict[str, int | float] = field(default_factory=dict)
    round: int = 0


def encode(state: ClientState, stamp: Stamp) -> bytes:
    """Write state and stamp as one safetensors blob."""
    metadata = {"state": json.dumps({"stamp": asdict(stamp), "numbers": state.numbers, "round": state.round})}
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}, metadata)


def decode(blob: bytes, stamp: Stamp, where: str) -> ClientState:
    """Read a blob after checking its stamp.

    Raises
    ------
    StateError
        The blob is damaged, or belongs to another run, algorithm, model, client or schema: names which, found and
        expected.
    """
    try:
        size = int.from_bytes(blob[:8], "little")
        written = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["state"])
        found: Mapping[str, object] = dict(written["stamp"])
        numbers, round = dict(written["numbers"]), int(written["round"])
        tensors = load(blob)
    except (SafetensorError, ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise StateError(f"{where}: damaged state ({type(error).__name__})") from None
    for name, expected in asdict(stamp).items():
        if found.get(name) != expected:
            raise StateError(
                f"{where}: state of another {name}: found {found.get(name)!r}, expected {expected!r}; "
                "use another state-dir or delete it"
            )
    return ClientState(tensors, numbers, round)


class StateStore(Protocol):
    """Where the blob lies."""

    where: str

    def read(self) -> bytes | None:
        """Return the blob, or None where nothing was written yet."""

    def write(self, blob: bytes) -> None:
        """Replace the blob; the older one stays if this fails."""

    def keep(self) -> None:
        """Keep what was written last beside what is written next, in place of what was kept before."""

    def kept(self) -> bytes | None:
        """Return what was kept, or None."""

    def forget(self) -> None:
        """Remove the blob, if there is one, and what was kept."""


class ContextStore:
    """State in Flower's Context: survives between rounds, goes with the run.

    Runs of one series share a node's Context, so the blob's key names the run, and another run's blob is dropped.
    """

    def __init__(self, context: Context, run: str) -> None:
        self.where = "the Context of this node"
        self._context = context
        self._run = run

    def read(self) -> bytes | None:
        """Return this run's blob, or None."""
        record = self._context.state.config_records.get(RECORD)
        blob = record.get(self._run) if record is not None else None
        return blob if isinstance(blob, bytes) else None

    def write(self, blob: bytes) -> None:
        """Replace this run's blob."""
        self._context.state[RECORD] = ConfigRecord({self._run: blob})

    def keep(self) -> None:
        """Keep nothing: no other run finds this Context."""

    def kept(self) -> None:
        """Return None."""

    def forget(self) -> None:
        """Remove this run's blob."""
        self._context.state.pop(RECORD, None)


class FileStore:
    """State in one file of a folder: survives the process, SIGKILL and a restarted node."""

    def __init__(self, folder: Path, partition: int) -> None:
        self._path = folder / f"client-{partition}.safetensors"
        self._kept = folder / f"client-{partition}.checkpoint.safetensors"
        self.where = str(self._path)

    def read(self) -> bytes | None:
        """Return the file's content, or None where there is no file."""
        return self._content(self._path)

    def write(self, blob: bytes) -> None:
        """Replace the file in one step; a reader sees the older or the newer one, never a part."""
        try:
            replace_file(self._path, blob)
        except OSError as error:
            raise StateError(f"{self.where}: cannot be written: {error.strerror}") from None

    def keep(self) -> None:
        """Give the file a second name, in one step; a copy where the disk knows no second names."""
        unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}")  # swept by the next `write`
        try:
            unfinished.unlink(missing_ok=True)
            try:
                unfinished.hardlink_to(self._path)
            except OSError:
                shutil.copyfile(self._path, unfinished)
            unfinished.replace(self._kept)
        except OSError as error:
            raise StateError(f"{self._kept}: cannot be written: {error.strerror}") from None
        finally:
            unfinished.unlink(missing_ok=True)

    def kept(self) -> bytes | None:
        """Return what was kept, or None."""
        return self._content(self._kept)

    def forget(self) -> None:
        """Remove the files."""
        try:
            self._path.unlink(missing_ok=True)
            self._kept.unlink(missing_ok=True)
        except OSError as error:
            raise StateError(f"{self.where}: cannot be removed: {error.strerror}") from None

    def _content(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"{path}: cannot be read: {error.strerror}") from None


def replace_file(path: Path, content: bytes) -> None:
    """Write a file through a temporary one beside it: flushed to disk, then renamed.

    Temporary files of processes that were killed while they wrote this one are removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        for remains in path.parent.glob(f".{path.name}.*"):
            remains.unlink(missing_ok=True)
    finally:
        temporary.unlink(missing_ok=True)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return an optimizer's moments and counters under ``INDEX.NAME``."""
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if value is not None
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put moments and counters back into a new optimizer over the same parameters."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, entry = name.partition(".")
        state.setdefault(int(index), {})[entry] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
