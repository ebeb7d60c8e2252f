"""Checkpoints for ``--resume``: the server state and, where the engine holds the clients, their states.

Each checkpoint is a folder, written under a temporary name and then renamed, so that it is complete or absent. Its
``knowledge.safetensors`` has the checksums of the clients' files, so that a file that is missing, damaged or of another
checkpoint is detected. The last two checkpoints are kept.
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
from typing_extensions import TypedDict  # pydantic accepts typing.TypedDict only from Python 3.12

from hetfl_flwr.common.blobs import pack, read_blob, verified
from hetfl_flwr.common.files import read_file, replace_file
from hetfl_flwr.common.notices import accepting
from hetfl_flwr.config import Value
from hetfl_flwr.errors import DamagedError, RunFolderError
from hetfl_flwr.node.state import STATE
from hetfl_flwr.runs.folder import KNOWLEDGE, RoundsRecord
from hetfl_flwr.runs.record import CHECKPOINTS, SERVER_STATE_FILE
from hetfl_flwr.server.exchange import Pending
from hetfl_flwr.server.grids import KeepsClients
from hetfl_flwr.wire.spec import Arrays

KEPT = 2
"""Number of checkpoints to keep: the newest, and one to fall back to if it is damaged."""

SENT, UNDER_WAY = "sent to clients: ", "under way: "
"""Prefixes of arrays outside the server state: downloads for evaluation, and messages under way."""

_NAME = re.compile(r"round-(0|[1-9][0-9]{0,17})")


class RunState(TypedDict):
    """The state of a run after a round, as JSON.

    ``run`` is the run's id, which the clients' states carry too, and ``begun`` its id when it was new: Flower gives a
    resumed run another id. ``counts`` are the counts of each client, by name and client id; ``trained`` is the last
    round in which each client trained. ``clients`` are checksums of the clients' states, where the engine keeps them.
    ``downloads`` pairs the clients that get the same download for evaluation with the arrays of that download: its
    names for them, and the checkpoint's. ``versions`` and ``data`` are as in `hetfl_flwr.runs.ledger.Ledger`. ``data``
    and ``engine`` are missing in checkpoints of older versions.
    """

    round: int
    run: int
    begun: int
    config: dict[str, Value]
    rounds: RoundsRecord
    counts: dict[str, dict[int, Any]]
    trained: dict[int, int]
    versions: list[dict[str, str]]
    under_way: dict[str, Any]
    clients: dict[int, str]
    downloads: list[tuple[list[int], dict[str, str]]]
    engine: NotRequired[str]
    data: NotRequired[list[str]]


_RUN_STATE = TypeAdapter(RunState)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, without the clients' states."""

    folder: Path
    at: RunState
    arrays: Arrays
    """The server state, the downloads for evaluation, and the arrays under way."""

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
        """Return the download that a client is evaluated with; empty for a client that never registered."""
        for clients, names in self.at["downloads"]:
            if client_id in clients:
                return {name: self.arrays[key] for name, key in names.items()}
        return {}

    def data_digest(self, client_id: int) -> str:
        """Return the digest of a client's data in the run; empty if it was not recorded, as in Flower's engines."""
        digest: str = self.at["under_way"].get("engine", {}).get("rows", {}).get(str(client_id), "")
        return digest

    def client_state(self, client_id: int) -> bytes:
        """Return a client's saved state.

        Raises `RunFolderError`, which names the file, if it is missing, damaged or of another checkpoint.
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
        """Read the newest checkpoint of a run folder; raise `RunFolderError` if there is none or it is damaged."""
        return cls.read_one(newest(run_folder))

    @classmethod
    def read_one(cls, folder: Path) -> Self:
        """Read a checkpoint from its folder; raise `RunFolderError` if it is damaged."""
        try:
            values, arrays, _ = read_blob(folder / SERVER_STATE_FILE, KNOWLEDGE)
        except DamagedError as error:
            raise RunFolderError(str(error)) from None
        if folder.name != f"round-{values['round']}":
            raise RunFolderError(f"{folder}: damaged (it holds round {values['round']})")
        return cls(folder, _RUN_STATE.validate_python(values), arrays)


def write_checkpoint(
    run_folder: Path,
    at: Mapping[str, Any],
    server_state: Arrays,
    downloads: Iterable[tuple[int, Arrays]],
    under_way: Pending,
    grid: object,
) -> None:
    """Write a checkpoint into a run folder, unless that round has one, and remove all but the last two.

    `at` has the entries of `RunState` that the other arguments do not give. `downloads` are what each client is
    evaluated with, by client id. `grid` writes the clients' states if it keeps clients.
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
    """Deduplicate the arrays of downloads: return each array that is not in `known` once, and which client gets which.

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
    seen = {id(array): (array, name) for name, array in known.items()}  # references keep the ids unique
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
    """Return the checkpoint from which a run resumes, and messages about what is lost.

    It is the newest checkpoint or, with `accept_loss`, the newest intact one. Raises `RunFolderError` if there is none,
    or if the newest is damaged without `accept_loss`.
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
                f"{damage[0]}; the checkpoint of round {checkpoint.round} is intact: {accepting()} "
                "goes back to it and repeats the rounds since then"
            )
        return checkpoint, [f"{one}; went back to round {checkpoint.round}" for one in damage]
    raise RunFolderError(f"{damage[0]}; there is no other checkpoint")


def newest(run_folder: Path) -> Path:
    """Return the folder of a run's newest checkpoint; raise `RunFolderError` if there is none."""
    found = checkpoints(run_folder)
    if not found:
        raise RunFolderError(
            f"{run_folder} has no checkpoint to resume from: it holds no run, the run was interrupted before its first "
            "checkpoint, or its checkpoints were removed"
        )
    return found[0]


def checkpoints(run_folder: Path) -> list[Path]:
    """Return the folders of a run's checkpoints, newest first; folders with other names are ignored."""
    found = [path for path in (run_folder / CHECKPOINTS).glob("round-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=round_of, reverse=True)


def round_of(checkpoint: Path) -> int:
    """Return the round in the folder name of a checkpoint."""
    return int(checkpoint.name.removeprefix("round-"))


def remove(path: Path) -> None:
    """Remove a checkpoint folder, or a file or symbolic link in its place; the target of a link stays."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
