"""A client's state between rounds, and the stores that keep it.

A ClientApp is rebuilt for every message, so its state is written as one safetensors blob. A stamp in the blob names its
owner and is checked on reading: state never leaks between runs, algorithms, models or clients.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context
from safetensors.torch import load, save

from hetfl_flwr.common.blobs import checksum_in, sealed, unpack, verified
from hetfl_flwr.common.files import as_json, check_writable, read_file, replace_file, writing
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import DamagedError, StateError

STATE = "state"
"""The kind of file that holds a client's state."""

RECORD = "hetfl-state"
"""Key of a client's state in ``Context.state``."""


@dataclass(frozen=True)
class Stamp:
    """Identifies the owner of a blob. Every field must match on reading."""

    run: str
    algorithm: str
    model: str
    client_id: int


@dataclass
class ClientState:
    """The state of a client after a round.

    `tensors` holds its networks and optimizers under dotted names, and `numbers` the algorithm's counters and scalars.
    In a state folder, `inputs` describes the client's config and the form of its inputs, so that the state can be
    loaded without the client's data.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    numbers: dict[str, int | float] = field(default_factory=dict)
    round: int = 0
    inputs: dict[str, Any] | None = None


def encode(state: ClientState, stamp: Stamp) -> bytes:
    """Encode state, stamp and a checksum as one blob."""
    numbers = {name: as_json(number) for name, number in state.numbers.items()}
    tensors, seen = dict[str, torch.Tensor](), set[int]()
    for name, tensor in state.tensors.items():
        own = tensor.detach().cpu().contiguous()
        if (place := own.untyped_storage().data_ptr()) in seen:  # tied weights: safetensors stores no shared memory
            own = own.clone()
        seen.add(place)
        tensors[name] = own
    values = {"stamp": asdict(stamp), "numbers": numbers, "round": state.round, "inputs": state.inputs}
    return sealed(STATE, values, tensors, save)


def decode(content: bytes, stamp: Stamp, where: str) -> ClientState:
    """Check the checksum and the stamp of a blob, and decode it.

    Raises DamagedError if the blob has changed since it was written, and StateError if it belongs to another run,
    algorithm, model or client.
    """
    try:
        blob = unpack(content, STATE, load)
    except DamagedError as error:
        raise DamagedError(f"{where}: damaged state ({error})") from None
    values = blob.values
    _check_stamp(values["stamp"], stamp, where)
    numbers = {name: float(n) if isinstance(n, str) else n for name, n in values["numbers"].items()}
    return ClientState(blob.arrays, numbers, values["round"], values.get("inputs"))


def _check_stamp(found: Mapping[str, object], stamp: Stamp, where: str) -> None:
    for name, expected in asdict(stamp).items():
        if found.get(name) != expected:
            raise StateError(
                f"{where}: state of another {name}: found {found.get(name)!r}, expected {expected!r}; "
                "use another state-dir or delete it"
            )


class StateStore(ABC):
    """A store that keeps a client's state as a blob."""

    where: str
    """The store's name in messages."""

    def load(self, stamp: Stamp, who: object) -> ClientState | None:
        """Return the state, or None if nothing was saved yet; raise StateError if its stamp does not match."""
        blob = self.read()
        return None if blob is None else decode(blob, stamp, f"{who}: {self.where}")

    def save(self, state: ClientState, stamp: Stamp) -> ClientState | None:
        """Replace the state; if this fails, the old state remains.

        Returns the object that the next `load` returns, if the store keeps one.
        """
        self.write(encode(state, stamp))
        return None

    @abstractmethod
    def read(self) -> bytes | None:
        """Return the blob, or None if nothing was written yet."""

    @abstractmethod
    def write(self, blob: bytes) -> None:
        """Replace the blob; if this fails, the old blob remains."""

    @abstractmethod
    def forget(self) -> None:
        """Remove the blob and the kept blob, if they exist."""

    def keep(self) -> None:
        """Keep the current blob in addition to the next one, for a run that resumes this one."""
        return

    def kept(self) -> bytes | None:
        """Return the kept blob, or None."""
        return None


class ContextStore(StateStore):
    """State in Flower's Context, which lasts until the end of the run.

    Runs of one series share a node's Context, so the key of the blob names the run, and the blob of another run is
    dropped.
    """

    where = "the Context of this node"

    def __init__(self, context: Context) -> None:
        self.context, self._run = context, str(context.run_id)

    def read(self) -> bytes | None:
        """Return this run's blob, or None."""
        blob = self.context.state.config_records.get(RECORD, ConfigRecord()).get(self._run)
        return blob if isinstance(blob, bytes) else None

    def write(self, blob: bytes) -> None:
        """Replace this run's blob."""
        self.context.state[RECORD] = ConfigRecord({self._run: blob})

    def forget(self) -> None:
        """Remove this run's blob."""
        self.context.state.pop(RECORD, None)


class FileStore(StateStore):
    """State in a file, which survives the end of the process, SIGKILL and a restart of the node.

    The folder is created at the first write. With `lasting`, the file also survives a crash of the machine; without,
    it ends with the run, and no write waits for the disk.
    """

    def __init__(self, folder: Path, client_id: int, *, lasting: bool = True) -> None:
        self._lasting = lasting
        self._path = state_file(folder, client_id)
        self._kept = folder / f"client-{client_id}.checkpoint.safetensors"
        self.where = _called(self._path)

    def read(self) -> bytes | None:
        """Return the content of the file, or None if it does not exist."""
        return _content(self._path)

    def write(self, blob: bytes) -> None:
        """Replace the file atomically: a reader sees the old or the new content, never a part."""
        write = replace_file if self._lasting else _replace_scratch
        with writing(self.where, StateError):
            write(self._path, blob)

    def give(self, path: Path) -> str | None:
        """Hard-link or copy the file to a path; return the checksum in its content, or None if there is no file.

        Later writes do not change the new file. It survives a crash of the machine.
        """
        if not self._path.exists():
            return None
        try:
            path.hardlink_to(self._path)
        except OSError:  # another file system, or one without hard links
            path.write_bytes(read_file(self._path))
        if not self._lasting:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        return checksum_in(path, STATE)

    def keep(self) -> None:
        """Keep the file under a second name, atomically: a hard link, or a copy if the file system has no links."""
        # named so that `write` removes it if it is left behind, but never writes to it: it is the state itself
        unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}.kept")
        try:
            unfinished.hardlink_to(self._path)
            unfinished.replace(self._kept)
        except OSError:
            with writing(_called(self._kept), StateError):
                replace_file(self._kept, read_file(self._path))
        finally:
            unfinished.unlink(missing_ok=True)

    def kept(self) -> bytes | None:
        """Return the kept blob, or None."""
        return _content(self._kept)

    def model(self) -> str | None:
        """Return the model that the state belongs to, or None if there is no readable state."""
        try:
            content = self.read()
            return None if content is None else str(verified(content, STATE)["stamp"]["model"])
        except StateError:
            return None  # `load` reports what is wrong

    def check_writable(self) -> None:
        """Raise StateError if the folder cannot be written or created; leave nothing behind."""
        with writing(f"state-dir {self._path.parent.parent}", StateError):
            check_writable(self._path.parent)

    def forget(self) -> None:
        """Remove the files."""
        try:
            self._path.unlink(missing_ok=True)
            self._kept.unlink(missing_ok=True)
        except OSError as error:
            raise StateError(f"{self.where}: cannot be removed: {error.strerror}") from None


class MemoryStore(StateStore):
    """State in memory, as tensors that are copied on saving.

    State is loaded from the store `under` it, and flushed to that store. `nbytes` is the size of the tensors in memory.
    """

    where = "the memory of this process"

    def __init__(self, under: StateStore) -> None:
        self._under = under
        self.nbytes = 0
        self._saved: tuple[ClientState, Stamp] | None = None
        self._copied: tuple[Mapping[str, torch.Tensor], list[torch.Tensor], list[torch.Tensor]] | None = None
        self._flushed = True

    def load(self, stamp: Stamp, who: object) -> ClientState | None:
        """Return the state. The caller must not change its tensors, and the next `save` overwrites them."""
        if self._saved is None:
            state = self._under.load(stamp, who)
            if state is None:
                return None
            self._saved = state, stamp
            self.nbytes = sum(tensor.nbytes for tensor in state.tensors.values())
        state, found = self._saved
        if found is not stamp:
            _check_stamp(asdict(found), stamp, f"{who}: {self.where}")
        return state

    def save(self, state: ClientState, stamp: Stamp) -> ClientState:
        """Keep a copy of the state and return it; reuse the tensors of the last copy if shapes and dtypes match.

        To save the same tensors again, pass the same mapping: they are then not compared again.
        """
        known = self._saved[0].tensors if self._saved else {}
        if self._copied is None or self._copied[0] is not state.tensors:
            live, kept = list(state.tensors.values()), list(known.values())
            if list(state.tensors) != list(known) or _forms(live) != _forms(kept):
                kept = [torch.empty_like(one, memory_format=torch.contiguous_format) for one in live]
                known = dict(zip(state.tensors, kept, strict=True))
                self.nbytes = sum(tensor.nbytes for tensor in kept)
            self._copied = state.tensors, live, kept
        if self._copied[1]:
            with torch.no_grad():
                torch._foreach_copy_(self._copied[2], self._copied[1])
        saved = ClientState(known, dict(state.numbers), state.round)
        self._saved, self._flushed = (saved, stamp), False
        return saved

    def read(self) -> bytes | None:
        """Return the state as a blob."""
        return self._under.read() if self._flushed else encode(*self._saved)  # type: ignore[misc]

    def write(self, blob: bytes) -> None:
        """Write a blob to the store behind this one; the next `load` decodes it."""
        self._under.write(blob)
        self.drop()

    def flush(self) -> None:
        """Write the state to the store behind this one, if it has changed since the last flush."""
        if not self._flushed:
            self._under.write(encode(*self._saved))  # type: ignore[misc]
            self._flushed = True

    def drop(self) -> None:
        """Drop the state in memory; the next `load` reads the store behind this one."""
        self._saved, self._copied, self._flushed, self.nbytes = None, None, True, 0

    def forget(self) -> None:
        """Remove the state here and in the store behind this one."""
        self._under.forget()
        self.drop()


def run_store(config: RunConfig, run: str, client_id: int) -> FileStore:
    """Return the store on disk of a client's state in a run."""
    return FileStore(Path(config.state_dir) / f"run-{run}", client_id)


def state_file(folder: Path, client_id: int) -> Path:
    """Return the path of a client's state in the subfolder of a run."""
    return folder / f"client-{client_id}.safetensors"


def prune(config: RunConfig, client_id: int, needed: Collection[str]) -> list[str]:
    """Remove a client's files of old runs from its state folder, and return the ids of these runs.

    The ``state-keep`` runs in which the client saved last stay. Runs in `needed` always stay, and are included in that
    number. Files of other clients are not touched.
    """
    state_dir, keep = Path(config.state_dir), config.state_keep
    found: dict[str, list[Path]] = {}
    for name in glob(f"run-*/client-{client_id}.*safetensors", root_dir=state_dir):  # folders may vanish meanwhile
        found.setdefault(Path(name).parent.name.removeprefix("run-"), []).append(state_dir / name)
    newest = sorted(found, key=lambda run: max(path.stat().st_mtime_ns for path in found[run]), reverse=True)
    stay = {*needed, *[run for run in newest if run not in needed][: max(keep - len(set(needed)), 0)]}
    removed = [run for run in newest if run not in stay] if keep else []
    for run in removed:
        for path in found[run]:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty: it has files of other clients
            (state_dir / f"run-{run}").rmdir()
    return removed


def _content(path: Path) -> bytes | None:
    try:
        return read_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{_called(path)}: cannot be read: {error.strerror}") from None


def _replace_scratch(path: Path, content: bytes) -> None:
    """Replace a file through a temporary one, without waiting for the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".unfinished")
    temporary.write_bytes(content)
    temporary.replace(path)


def _called(path: Path) -> str:
    return f"state file {path}"


def _forms(tensors: list[torch.Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in tensors]
