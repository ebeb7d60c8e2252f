"""What ``--resume`` needs: the server state and, where the engine keeps them, the clients' states.

A checkpoint is a folder of its own, written beside the older ones and renamed; a reader finds all of it or nothing.
Its ``knowledge.safetensors`` names the run, the config, and each other file with its digest, so that a file that is
missing, damaged or of another checkpoint is noticed. The last two are kept.
"""

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from hetfl_flwr.common.errors import DamagedError, RunFolderError
from hetfl_flwr.common.files import check_seal, header, read_header, read_sealed, replace_file, seal
from hetfl_flwr.config import RunConfig
from hetfl_flwr.node.state import SCHEMA
from hetfl_flwr.runs.checkpoints.downloads import PREFIX, pooled
from hetfl_flwr.runs.checkpoints.metadata import check_messages, read_metadata
from hetfl_flwr.runs.schema import CHECKPOINTS, CONFIG_FILE, SERVER_STATE_FILE
from hetfl_flwr.runs.settings import KeptConfig, begun_as, unlike
from hetfl_flwr.server.messaging.grids import KeepsClients, UnderWay
from hetfl_flwr.wire.spec import Arrays

MESSAGES_FILE = "messages.safetensors"

KEPT = 2
"""Checkpoints of a run folder: the newest, and one to go back to should it be damaged."""

PACKED = "knowledge"
"""Key of the metadata of what `pack` has written."""

_NAME = re.compile(r"round-(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stood after a round.

    Parameters
    ----------
    round : int
        The round.
    run : int
        The run's id, with which the clients' states are stamped.
    config : mapping
        The run's config.
    counts : mapping
        What is counted of each client so far, as JSON can hold it.
    trained : mapping of int to int
        The round in which each client has trained last, by client id.
    arrays : mapping of str to array
        The server state.
    under_way : UnderWay
        Messages between server and clients.
    clients : mapping of int to str
        Digests of the clients' states, by client id, where the engine keeps them. Known once it is written.
    begun : int, optional
        The id under which the run was begun, which stays where it goes on under another.
    members : mapping of int to mapping
        What each client has said of its data, by client id: see `data_of`.
    downloads : iterable of (int, mapping of str to array)
        What each client is measured with, by client id, where that is of the server. When a checkpoint has been read,
        `download` returns it.
    versions : sequence of mapping
        What the run was made with so far, as `Ledger.versions`.
    """

    round: int
    run: int
    config: KeptConfig
    counts: Mapping[str, Any]
    trained: Mapping[int, int]
    arrays: Arrays
    under_way: UnderWay = field(default_factory=UnderWay)
    clients: Mapping[int, str] = field(default_factory=dict)
    begun: int | None = None
    members: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    downloads: Iterable[tuple[int, Arrays]] = ()
    versions: Sequence[Mapping[str, str]] = ()

    def download(self, client_id: int) -> Arrays:
        """Return what a client is measured with beside what it keeps; empty where it has never registered."""
        return dict(self.downloads).get(client_id, {})

    def write(self, run_folder: Path, grid: object) -> None:
        """Write this checkpoint into a run folder, and remove all but the last two; that of a round is written once."""
        parent = run_folder / CHECKPOINTS
        target, unfinished = parent / f"round-{self.round}", parent / f"unfinished-{os.getpid()}"
        if target.exists():
            return
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        clients = grid.save_clients(unfinished) if isinstance(grid, KeepsClients) else {}
        messages = pack({name: np.frombuffer(one, np.uint8) for name, one in self.under_way.messages.items()}, {})
        if self.under_way.messages:
            replace_file(unfinished / MESSAGES_FILE, messages)
        pool, sent = pooled(self.arrays, self.downloads)
        metadata = {
            "round": self.round,
            "run": self.run,
            "begun": self.begun,
            "config": self.config,
            "counts": self.counts,
            "trained": self.trained,
            "under way": self.under_way.numbers,
            "messages": check_seal(messages) if self.under_way.messages else None,
            "clients": clients,
            "members": self.members,
            "downloads": sent,
            "versions": self.versions,
        }
        replace_file(unfinished / SERVER_STATE_FILE, pack({**self.arrays, **pool}, metadata))
        unfinished.replace(target)
        for older in (*checkpoints(run_folder)[KEPT:], *parent.glob("unfinished-*")):
            with suppress(OSError):
                remove(older)

    def load_clients(self, run_folder: Path, grid: object, lost: Set[int] = frozenset()) -> None:
        """Let the Grid, if it keeps clients, take up their states; those that are lost starts over."""
        if isinstance(grid, KeepsClients):
            grid.load_clients(run_folder / CHECKPOINTS / f"round-{self.round}", self.clients.keys() - lost)

    def lost_clients(self, run_folder: Path) -> dict[int, str]:
        """Return the clients whose states are not as they were written, and what is wrong with each."""
        lost = {}
        for client_id in self.clients:
            try:
                self.client_state(run_folder, client_id)
            except FileNotFoundError:
                lost[client_id] = "missing"
            except (OSError, DamagedError) as error:
                lost[client_id] = f"damaged ({getattr(error, 'strerror', None) or error})"
        return lost

    def client_state(self, run_folder: Path, client_id: int) -> bytes:
        """Return a client's state as it was written with this checkpoint.

        Raises
        ------
        OSError
            It is missing, or cannot be read.
        DamagedError
            It is damaged, of another checkpoint, or of a version that cannot be read here.
        """
        blob = read_sealed(self.client_file(run_folder, client_id))
        if check_seal(blob) != self.clients[client_id]:
            raise DamagedError("it is of another checkpoint")
        schema = read_header(blob, "state").get("stamp", {}).get("schema")
        if schema != SCHEMA:
            raise DamagedError(f"it has layout {schema}, and this version reads {SCHEMA}")
        return blob

    def client_file(self, run_folder: Path, client_id: int) -> Path:
        """Return where a Grid that keeps clients has written a client's state, if it has."""
        return run_folder / CHECKPOINTS / f"round-{self.round}" / f"client-{client_id}"

    @classmethod
    def read(cls, run_folder: Path) -> Self:
        """Read the last checkpoint of a run folder.

        Raises
        ------
        RunFolderError
            There is none, or its server state is damaged.
        """
        found = checkpoints(run_folder)
        if not found:
            raise RunFolderError(
                f"{run_folder} has no checkpoint to resume from: it was interrupted before the first one, or they were "
                "removed"
            )
        return cls.read_one(found[0])

    @classmethod
    def read_one(cls, folder: Path) -> Self:
        """Read a checkpoint from its folder.

        Raises
        ------
        RunFolderError
            Its server state, or what was under way, is damaged.
        """
        try:
            arrays, raw = unpack(folder / SERVER_STATE_FILE)
            metadata = read_metadata(raw)
            if folder.name != f"round-{metadata['round']}":
                raise DamagedError(f"it is of round {metadata['round']}")
            messages: dict[str, bytes] = {}
            if metadata["messages"]:
                packed, own = unpack(folder / MESSAGES_FILE)
                if own["digest"] != metadata["messages"]:
                    raise DamagedError(f"{MESSAGES_FILE} is of another checkpoint")
                messages = {name: array.tobytes() for name, array in packed.items()}
            check_messages(metadata, messages)
            downloads = [
                (client, {name: arrays[key] for name, key in sent["arrays"].items()})
                for sent in metadata.get("downloads", [])
                for client in sent["clients"]
            ]
            arrays = {name: array for name, array in arrays.items() if not name.startswith(PREFIX)}
            return cls(
                metadata["round"],
                metadata["run"],
                metadata["config"],
                metadata["counts"],
                {int(client): round for client, round in metadata["trained"].items()},
                arrays,
                UnderWay(metadata["under way"], messages),
                {int(client): digest for client, digest in metadata["clients"].items()},
                metadata.get("begun"),
                {int(client): said for client, said in metadata.get("members", {}).items()},
                downloads,
                metadata.get("versions", []),
            )
        except DamagedError as error:
            raise RunFolderError(f"{folder}: damaged checkpoint ({error})") from None
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            said = getattr(error, "strerror", None) or type(error).__name__
            raise RunFolderError(f"{folder}: damaged checkpoint ({said})") from None


class Choice(NamedTuple):
    """The checkpoint to go on from, and what is lost by that.

    Parameters
    ----------
    checkpoint : Checkpoint
        The newest that is whole; or, where the loss is accepted and none is, the newest that can be read.
    lost : frozenset of int
        Clients whose state in it is lost.
    losses : list of (int, str)
        What is lost of the checkpoints, and whose it was; -1 where it is not one client's.
    records : tuple of str
        What is lost of the run's records beside them.
    """

    checkpoint: Checkpoint
    lost: frozenset[int]
    losses: list[tuple[int, str]]
    records: tuple[str, ...] = ()


def choose(run_folder: Path, config: RunConfig) -> Choice:
    """Choose the checkpoint that a run goes on from: the newest.

    If that is damaged, ``accept-loss`` takes the newest that is whole, for the rounds since can be run again; where
    none is, the newest whose server state can be read; clients whose state is lost start over.

    Raises
    ------
    RunFolderError
        There is none, or it is another run's, or it is damaged and no loss is accepted: names what is damaged, what it
        would mean, and what can be done.
    """
    found = checkpoints(run_folder)
    if not found:
        Checkpoint.read(run_folder)
    readable: list[tuple[Checkpoint, dict[int, str]]] = []
    damage: list[str] = []
    begun = begun_as(run_folder)
    for folder in found:
        try:
            checkpoint = Checkpoint.read_one(folder)
        except RunFolderError as error:
            damage.append(str(error))
            continue
        if None not in (begun, checkpoint.begun) and begun != checkpoint.begun:
            damage.append(f"{folder} is of run {checkpoint.begun}, and {run_folder / CONFIG_FILE} of run {begun}")
            continue
        if differs := unlike(run_folder, checkpoint.config):
            raise RunFolderError(
                f"{folder} is of a run with another config than {run_folder / CONFIG_FILE}: {differs}: "
                "give that file the config back with which the run was begun"
            )
        lost = checkpoint.lost_clients(run_folder)
        if not lost:
            return _whole(checkpoint, damage, accept_loss=config.accept_loss)
        readable.append((checkpoint, lost))
        damage.append(f"{folder}: {_in_words(lost)}")
    if not (config.accept_loss and readable):
        way = "--accept-loss (accept-loss = true) goes on like that" if readable else "no other checkpoint is there"
        raise RunFolderError(f"{damage[0]}; {way}")
    checkpoint, lost = readable[0]
    losses = [
        (client, f"client {client}'s state of round {checkpoint.round} is {what}: it goes on from its initial weights")
        for client, what in lost.items()
    ]
    return Choice(checkpoint, frozenset(lost), losses)


def _whole(checkpoint: Checkpoint, damage: list[str], *, accept_loss: bool) -> Choice:
    if damage and not accept_loss:
        raise RunFolderError(
            f"{damage[0]}; the checkpoint of round {checkpoint.round} is whole: --accept-loss (accept-loss = true) "
            "goes back to it and runs the rounds since then again"
        )
    return Choice(
        checkpoint, frozenset(), [(-1, f"{problem}; gone back to round {checkpoint.round}") for problem in damage]
    )


def _in_words(lost: Mapping[int, str]) -> str:
    """Say whose state is lost, and what that means."""
    said = [f"client {client}'s state is {what}" for client, what in list(lost.items())[:3]]
    said += [f"{len(lost) - 3} more are lost"] * (len(lost) > 3)
    means = "it would go on from its initial weights" if len(lost) == 1 else "they would go on from initial weights"
    return f"{', '.join(said)}: {means}"


def checkpoints(run_folder: Path) -> list[Path]:
    """Return the folders of a run's checkpoints, the newest first; what has other names is somebody else's."""
    found = {path: _NAME.fullmatch(path.name) for path in (run_folder / CHECKPOINTS).glob("round-*")}
    numbers = {path: int(match[1]) for path, match in found.items() if match}
    return sorted(numbers, key=numbers.__getitem__, reverse=True)


def remove(path: Path) -> None:
    """Remove a checkpoint, or what stands in its place; what a link leads to stays."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def pack(arrays: Arrays, metadata: Mapping[str, object]) -> bytes:
    """Write named arrays, in their order, metadata and a digest as one safetensors blob.

    Equal content gives equal bytes.
    """
    return seal(
        save(
            {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()},
            header(PACKED, {**metadata, "names": list(arrays)}),
        )
    )


def unpack(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what `pack` has written.

    Raises
    ------
    DamagedError
        It is not as it was written.
    """
    blob = read_sealed(path)
    metadata = read_header(blob, PACKED)
    loaded = load(blob)
    if not isinstance(names := metadata.get("names"), list) or sorted(map(str, names)) != sorted(loaded):
        raise DamagedError("it does not hold the arrays that it names")
    return {name: loaded[name] for name in names}, metadata
