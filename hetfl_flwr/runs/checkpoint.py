"""Checkpoints for ``--resume``: the server state and, where the engine holds the clients, their states.

A checkpoint is a folder of its own, written under another name and renamed; a reader finds all of it or nothing. Its
``knowledge.safetensors`` has the checksums of the clients' files, so that a file that is missing, damaged or of another
checkpoint is noticed. The last two checkpoints are kept.
"""

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NotRequired, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 only

from hetfl_flwr.common.blobs import pack, read_blob, verified
from hetfl_flwr.common.files import read_file, replace_file
from hetfl_flwr.common.notices import accepting
from hetfl_flwr.config import Value
from hetfl_flwr.errors import DamagedError, RunFolderError
from hetfl_flwr.node.state import STATE
from hetfl_flwr.runs.folder import KNOWLEDGE, Known
from hetfl_flwr.runs.record import CHECKPOINTS, SERVER_STATE_FILE
from hetfl_flwr.server.exchange import Pending
from hetfl_flwr.server.grids import KeepsClients
from hetfl_flwr.wire.spec import Arrays

KEPT = 2
"""Checkpoints of a run folder: the newest, and one to go back to should it be damaged."""

SENT, UNDER_WAY = "sent to clients: ", "under way: "
"""Prefixes of the arrays that are none of the server state's: what clients are measured with, and what is under way."""

_NAME = re.compile(r"round-(0|[1-9][0-9]{0,17})")


class Standing(TypedDict):
    """The state of a run after a round, as JSON.

    ``run`` is the run's id, with which the clients' states are stamped, and ``begun`` that under which it was begun:
    another one, once Flower has resumed it. ``counts`` are of each client, by name and client id; ``trained`` is the
    round in which each client has trained last. ``clients`` are checksums of the clients' states, where the engine
    keeps them. ``downloads`` are clients that are sent the same to measure with, and by the name of an array in it the
    name under which the checkpoint has it. ``versions`` are as in `hetfl_flwr.runs.ledger.Ledger`. ``engine`` is what
    runs the clients; checkpoints of older versions do not say.
    """

    round: int
    run: int
    begun: int
    config: dict[str, Value]
    rounds: Known
    counts: dict[str, dict[int, Any]]
    trained: dict[int, int]
    versions: list[dict[str, str]]
    under_way: dict[str, Any]
    clients: dict[int, str]
    downloads: list[tuple[list[int], dict[str, str]]]
    engine: NotRequired[str]


_STANDING = TypeAdapter(Standing)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk, without the clients' states."""

    folder: Path
    """Where it is."""
    at: Standing
    """The state of the run."""
    arrays: Arrays
    """The server state, what clients are sent, and what is under way."""

    @property
    def round(self) -> int:
        """The round after which it was written."""
        return self.at["round"]

    @property
    def server_state(self) -> dict[str, NDArray[Any]]:
        """The server state."""
        return {name: array for name, array in self.arrays.items() if not name.startswith((SENT, UNDER_WAY))}

    @property
    def under_way(self) -> Pending:
        """The messages under way between server and clients."""
        found = {name: array for name, array in self.arrays.items() if name.startswith(UNDER_WAY)}
        return Pending(self.at["under_way"], {name.removeprefix(UNDER_WAY): one for name, one in found.items()})

    def download(self, client_id: int) -> Arrays:
        """Return the download that a client is evaluated with; empty if it has never registered."""
        for clients, names in self.at["downloads"]:
            if client_id in clients:
                return {name: self.arrays[key] for name, key in names.items()}
        return {}

    def client_state(self, client_id: int) -> bytes:
        """Return a client's state as it was written with this checkpoint.

        Raises
        ------
        RunFolderError
            It is missing, damaged or of another checkpoint: names the file.
        """
        path = self.folder / f"client-{client_id}"
        try:
            content = read_file(path)
            if verified(content, STATE)["checksum"] != self.at["clients"][client_id]:
                raise DamagedError("it is of another checkpoint")
        except OSError as error:
            raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from None
        except DamagedError as error:
            raise RunFolderError(f"{path}: damaged ({error})") from None
        return content

    @classmethod
    def read(cls, run_folder: Path) -> Self:
        """Read the last checkpoint of a run folder.

        Raises
        ------
        RunFolderError
            There is none, or it is damaged: names its file.
        """
        return cls.read_one(newest(run_folder))

    @classmethod
    def read_one(cls, folder: Path) -> Self:
        """Read a checkpoint from its folder; raises as `read`."""
        try:
            values, arrays, _ = read_blob(folder / SERVER_STATE_FILE, KNOWLEDGE)
        except DamagedError as error:
            raise RunFolderError(str(error)) from None
        if folder.name != f"round-{values['round']}":
            raise RunFolderError(f"{folder}: damaged (it is of round {values['round']})")
        return cls(folder, _STANDING.validate_python(values), arrays)


def write_checkpoint(
    run_folder: Path,
    at: Mapping[str, Any],
    server_state: Arrays,
    downloads: Iterable[tuple[int, Arrays]],
    under_way: Pending,
    grid: object,
) -> None:
    """Write a checkpoint into a run folder, and remove all but the last two; that of a round is written once.

    Parameters
    ----------
    run_folder : Path
        The run folder.
    at : mapping
        What `Standing` says, as far as the following do not.
    server_state : mapping of str to array
        The server state.
    downloads : iterable of (int, mapping of str to array)
        What each client is sent to measure with.
    under_way : UnderWay
        The messages under way between server and clients.
    grid : Grid
        Writes the clients' states, if it keeps clients.
    """
    parent = run_folder / CHECKPOINTS
    target, unfinished = parent / f"round-{at['round']}", parent / f"unfinished-{os.getpid()}"
    if target.exists():
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    clients = grid.save_clients(unfinished) if isinstance(grid, KeepsClients) else {}
    pool, sent = pooled(server_state, downloads)
    others = {f"{UNDER_WAY}{name}": array for name, array in under_way.arrays.items()}
    values = {**at, "under_way": under_way.numbers, "clients": clients, "downloads": sent}
    replace_file(unfinished / SERVER_STATE_FILE, pack(KNOWLEDGE, values, {**server_state, **pool, **others}))
    unfinished.replace(target)
    for old in (*checkpoints(run_folder)[KEPT:], *parent.glob("unfinished-*")):
        with suppress(OSError):
            remove(old)


def pooled(
    known: Arrays, downloads: Iterable[tuple[int, Arrays]]
) -> tuple[dict[str, NDArray[Any]], list[tuple[list[int], dict[str, str]]]]:
    """Return the arrays of downloads, each once and none of those known, and which clients are sent which.

    Examples
    --------
    >>> known = {"mean": np.ones(3)}
    >>> one, other = {"part": np.ones(2)}, {"part": np.zeros(2)}
    >>> pool, sent = pooled(known, [(0, {"mean": np.ones(3)}), (1, one), (2, other), (3, {"part": np.ones(2)})])
    >>> list(pool)
    ['sent to clients: 0', 'sent to clients: 1']
    >>> [clients for clients, _ in sent], sent[1][1]
    ([[0], [1, 3], [2]], {'part': 'sent to clients: 0'})
    """
    keys: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    seen = {id(array): (array, name) for name, array in known.items()}  # held, so that an id stays its own
    pool: dict[str, NDArray[Any]] = {}
    alike: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for client_id, download in downloads:
        for array in download.values():
            if id(array) not in seen:
                keys = keys or {_bits(one): name for name, one in known.items()}
                key = keys.setdefault(_bits(array), f"{SENT}{len(pool)}")
                seen[id(array)] = array, key
                if key not in known:
                    pool.setdefault(key, array)
        alike.setdefault(tuple((name, seen[id(array)][1]) for name, array in download.items()), []).append(client_id)
    return pool, [(clients, dict(own)) for own, clients in alike.items()]


def _bits(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.str, array.shape, blake2b(np.ascontiguousarray(array).data, digest_size=32).digest()


def choose(run_folder: Path, *, accept_loss: bool) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint from which a run resumes, and what is lost.

    It is the newest or, if a loss is accepted, the newest intact one.

    Raises
    ------
    RunFolderError
        There is none, or it is damaged and no loss is accepted: names what is damaged, and what can be done.
    """
    newest(run_folder)
    damage: list[str] = []
    for folder in checkpoints(run_folder):
        try:
            checkpoint = Checkpoint.read_one(folder)
            for client_id in checkpoint.at["clients"]:
                checkpoint.client_state(client_id)
        except RunFolderError as error:
            damage.append(str(error))
            continue
        if damage and not accept_loss:
            raise RunFolderError(
                f"{damage[0]}; the checkpoint of round {checkpoint.round} is whole: {accepting()} "
                "goes back to it and runs the rounds since then again"
            )
        return checkpoint, [f"{one}; gone back to round {checkpoint.round}" for one in damage]
    raise RunFolderError(f"{damage[0]}; no other checkpoint is there")


def newest(run_folder: Path) -> Path:
    """Return the folder of a run's newest checkpoint.

    Raises
    ------
    RunFolderError
        There is none.
    """
    found = checkpoints(run_folder)
    if not found:
        raise RunFolderError(
            f"{run_folder} has no checkpoint to resume from: it holds no run, the run was interrupted before the first "
            "one, or they were removed"
        )
    return found[0]


def checkpoints(run_folder: Path) -> list[Path]:
    """Return the folders of a run's checkpoints, the newest first; folders of other names are not the run's."""
    found = [path for path in (run_folder / CHECKPOINTS).glob("round-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=round_of, reverse=True)


def round_of(checkpoint: Path) -> int:
    """Return the round in the name of a checkpoint."""
    return int(checkpoint.name.removeprefix("round-"))


def remove(path: Path) -> None:
    """Remove a checkpoint, or what stands in its place; what a link leads to stays."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
