"""What a client keeps between rounds: in Flower's ``Context.state``, or on disk where a state folder is set.

A ClientApp is built anew for every message, so whatever must survive is written here as one safetensors blob under a
stamp that says whose it is. A stamp that does not fit raises: state never leaks between runs, algorithms, models or
clients.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol

import torch
from flwr.app import ConfigRecord, Context
from safetensors import SafetensorError
from safetensors.torch import load, save

from hetfl_flwr.errors import DamagedError, StateError, private
from hetfl_flwr.files import (
    as_json,
    check_seal,
    digest_in,
    header,
    is_sealed,
    read_file,
    read_header,
    replace_file,
    seal,
)

SCHEMA = 3
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
    """Write state, stamp and a digest of all of it as one safetensors blob."""
    numbers = {name: as_json(number) for name, number in state.numbers.items()}
    own = {"stamp": asdict(stamp), "numbers": numbers, "round": state.round, "names": list(state.tensors)}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
    return seal(save(tensors, header("state", own)))


def decode(blob: bytes, stamp: Stamp, where: str) -> ClientState:
    """Read a blob after checking its digest and its stamp.

    Raises
    ------
    DamagedError
        The blob is not as it was written.
    StateError
        It belongs to another run, algorithm, model, client or schema: names which, found and expected.
    """
    try:
        written = read_header(blob, "state")
        found: Mapping[str, object] = dict(written["stamp"])
        if is_sealed(blob) or found.get("schema") == SCHEMA:
            check_seal(blob)
        numbers = {name: float(n) if isinstance(n, str) else n for name, n in dict(written["numbers"]).items()}
        round = int(written["round"])
        loaded = load(blob)
        tensors = {name: loaded[name] for name in written.get("names", loaded)}  # safetensors has an order of its own
    except DamagedError as error:
        raise DamagedError(f"{where}: damaged state ({error})") from None
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{where}: damaged state ({type(error).__name__})") from None
    _check(found, stamp, where)
    return ClientState(tensors, numbers, round)


def _check(found: Mapping[str, object], stamp: Stamp, where: str) -> None:
    for name, expected in asdict(stamp).items():
        if found.get(name) != expected:
            raise StateError(
                f"{where}: state of another {name}: found {found.get(name)!r}, expected {expected!r}; "
                "use another state-dir or delete it"
            )


class StateStore(Protocol):
    """Where a client's state lies, as a blob for whoever moves it."""

    where: str
    """What messages call the place, a path being `private`."""

    def load(self, stamp: Stamp, who: str) -> ClientState | None:
        """Return the state, or None where nothing was saved yet; a stamp that does not fit raises StateError."""

    def save(self, state: ClientState, stamp: Stamp) -> None:
        """Replace the state; the older one stays if this fails."""

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


class BlobStore(ABC):
    """A store that knows blobs alone."""

    where: str

    def load(self, stamp: Stamp, who: str) -> ClientState | None:
        """Decode the blob."""
        blob = self.read()
        return None if blob is None else decode(blob, stamp, f"{who}: {self.where}")

    def save(self, state: ClientState, stamp: Stamp) -> None:
        """Write a blob."""
        self.write(encode(state, stamp))

    @abstractmethod
    def read(self) -> bytes | None:
        """Return the blob."""

    @abstractmethod
    def write(self, blob: bytes) -> None:
        """Replace the blob."""

    @abstractmethod
    def forget(self) -> None:
        """Remove the blob, if there is one."""


class ContextStore(BlobStore):
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


class MemoryStore:
    """State as tensors of this process, copied on the way in and only read on the way out.

    Parameters
    ----------
    under : BlobStore
        Where it lies when it is not in memory: it comes from there, and goes there when it is flushed.
    """

    def __init__(self, under: BlobStore) -> None:
        self.where = "the memory of this process"
        self._under = under
        self._saved: tuple[ClientState, Stamp] | None = None
        self._flushed = True

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors in memory."""
        return sum(tensor.nbytes for tensor in self._saved[0].tensors.values()) if self._saved else 0

    def load(self, stamp: Stamp, who: str) -> ClientState | None:
        """Return the state; its tensors are not to be changed."""
        if self._saved is None:
            state = self._under.load(stamp, who)
            if state is None:
                return None
            self._saved = state, stamp
        state, found = self._saved
        if found != stamp:
            _check(asdict(found), stamp, f"{who}: {self.where}")
        return state

    def save(self, state: ClientState, stamp: Stamp) -> None:
        """Keep a copy."""
        tensors = {
            name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in state.tensors.items()
        }
        self._saved, self._flushed = (ClientState(tensors, dict(state.numbers), state.round), stamp), False

    def read(self) -> bytes | None:
        """Return the state as a blob."""
        return self._under.read() if self._flushed else encode(*self._saved)  # type: ignore[misc]

    def write(self, blob: bytes) -> None:
        """Take a blob, to be decoded when it is asked for."""
        self._under.write(blob)
        self.drop()

    def flush(self) -> None:
        """Let the store below have the state as well, if it has an older one."""
        if not self._flushed:
            self._under.write(encode(*self._saved))  # type: ignore[misc]
            self._flushed = True

    def drop(self) -> None:
        """Forget what is in memory: the store below knows better."""
        self._saved, self._flushed = None, True

    def keep(self) -> None:
        """Keep nothing: the engine that holds this memory writes checkpoints itself."""

    def kept(self) -> None:
        """Return None."""

    def forget(self) -> None:
        """Forget the state."""
        self._under.forget()
        self.drop()


class ResidentContext(Context):
    """The Context of a client that stays in this process: its state and its surroundings are kept in memory.

    Parameters
    ----------
    *args, **keys
        As those of Context.
    file : BlobStore, optional
        Where the state lies when it is not in memory. Default: in the Context itself.

    Attributes
    ----------
    store : MemoryStore
        Its state.
    surroundings : dict
        What a `Node` has besides its model.
    """

    def __init__(self, *args: Any, file: BlobStore | None = None, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self.store = MemoryStore(file or ContextStore(self, str(self.run_id)))
        self.surroundings: dict[str, Any] = {}

    def rest(self) -> None:
        """Keep nothing in memory but the records: the state goes to its file, the surroundings are made again."""
        self.store.flush()
        self.store.drop()
        self.surroundings.clear()

    @property
    def nbytes(self) -> int:
        """The bytes of its state, and of what the client was sent to keep and has made of it."""
        return self.store.nbytes + 2 * sum(record.count_bytes() for record in self.state.array_records.values())


def state_file(folder: Path, partition: int) -> Path:
    """Return the file of a client's state in a run's part of a state folder."""
    return folder / f"client-{partition}.safetensors"


def _called(path: Path) -> str:
    return f"state file {private(path)}"


class FileStore(BlobStore):
    """State in one file of a folder: survives the process, SIGKILL and a restarted node.

    Parameters
    ----------
    folder : Path
        Made when something is written.
    partition : int
        Which client.
    lasting : bool
        Whether it is to survive the machine's failure, too. False: it goes with the run, and nothing waits for the
        disk.
    """

    def __init__(self, folder: Path, partition: int, *, lasting: bool = True) -> None:
        self._lasting = lasting
        self._path = state_file(folder, partition)
        self._kept = folder / f"client-{partition}.checkpoint.safetensors"
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
        """Write the content to a file that is not there yet; or give it a second name, for nothing.

        What is written here later is another file, and changes nothing there.

        Returns
        -------
        str or None
            The digest that the content names; None where there is no content.
        """
        if not self._path.exists():
            return None
        try:
            path.hardlink_to(self._path)
        except OSError:  # another disk, or one without second names
            path.write_bytes(read_file(self._path))
        return digest_in(path)

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

    def check_writable(self) -> None:
        """Raise StateError where nothing could be written; nothing is left of the attempt."""
        folder = self._path.parent
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder) as file:
                file.write(b"?")
        except OSError as error:
            raise StateError(f"state-dir {private(folder.parent)} cannot be written: {error.strerror}") from None
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


def prune(state_dir: Path, partition: int, keep: int, needed: Collection[str]) -> list[str]:
    """Remove a client's files of old runs from a state folder, and return which runs these were.

    Parameters
    ----------
    state_dir : Path
        Folder of the runs' folders, ``run-ID``.
    partition : int
        Whose; the files of other clients stay.
    keep : int
        How many runs stay, those in which the client has saved last; 0: all.
    needed : collection of str
        Ids of runs that stay in any case; they count among these.
    """
    own = re.compile(rf"client-{partition}\.(checkpoint\.safetensors|safetensors|toml)|inputs-{partition}\.safetensors")
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


def _replace_scratch(path: Path, content: bytes) -> None:
    """Write a file of this process's own through a temporary one: whoever holds the older one keeps it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".unfinished")
    temporary.write_bytes(content)
    temporary.replace(path)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return an optimizer's moments and counters under ``INDEX.NAME``, INDEX that of the parameter."""
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, parameter in enumerate(_parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put copies of moments and counters back into a new optimizer over the same parameters."""
    parameters = _parameters(optimizer)
    for name, tensor in tensors.items():
        index, _, entry = name.partition(".")
        parameter = parameters[int(index)]
        optimizer.state[parameter][entry] = tensor.to(parameter.device, copy=True)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
