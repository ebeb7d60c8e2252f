"""What ``--resume`` needs: the server state and, where the engine keeps them, the clients' states.

A checkpoint is a folder of its own, written under another name and renamed; a reader finds all of it or nothing. Its
``knowledge.safetensors`` has the checksums of the clients' files, so that a file that is missing, damaged or of another
checkpoint is noticed. The last two checkpoints are kept.
"""

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from hetfl_flwr.common.blobs import pack, read_blob, verified
from hetfl_flwr.common.files import read_file, replace_file
from hetfl_flwr.common.notices import accepting
from hetfl_flwr.errors import DamagedError, RunFolderError
from hetfl_flwr.node.state import STATE
from hetfl_flwr.runs.downloads import PREFIX, Download, pooled
from hetfl_flwr.runs.round_log import Known
from hetfl_flwr.runs.schema import CHECKPOINTS, SERVER_STATE_FILE
from hetfl_flwr.runs.settings import KeptConfig
from hetfl_flwr.server.messaging.grids import KeepsClients, UnderWay
from hetfl_flwr.wire.spec import Arrays

KEPT = 2
"""Checkpoints of a run folder: the newest, and one to go back to should it be damaged."""

KNOWLEDGE = "knowledge"
"""The kind of file that holds a server state."""

MESSAGE = "message: "
"""Prefix of the arrays that hold messages under way."""

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
    begun : int
        The id under which the run was begun; another than `run` once Flower has resumed it.
    config : mapping
        The run's config.
    rounds : Known
        What ``rounds.jsonl`` holds.
    counts : mapping
        What is counted of each client so far, by name and client id.
    trained : mapping of int to int
        The round in which each client has trained last, by client id.
    arrays : mapping of str to array
        The server state.
    under_way : UnderWay
        Messages between server and clients.
    clients : mapping of int to str
        Checksums of the clients' states, by client id, where the engine keeps them. Known once it is written.
    downloads : iterable of (int, mapping of str to array)
        What each client is sent to measure with, by client id. When a checkpoint has been read, `download` returns it.
    versions : sequence of mapping
        What the run was made with so far, as `Ledger.versions`.
    """

    round: int
    run: int
    begun: int
    config: KeptConfig
    rounds: Known
    counts: Mapping[str, Mapping[int, Any]]
    trained: Mapping[int, int]
    arrays: Arrays
    under_way: UnderWay = field(default_factory=UnderWay)
    clients: Mapping[int, str] = field(default_factory=dict)
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
        pool, sent = pooled(self.arrays, self.downloads)
        messages = {f"{MESSAGE}{name}": np.frombuffer(one, np.uint8) for name, one in self.under_way.messages.items()}
        values = {
            "round": self.round,
            "run": self.run,
            "begun": self.begun,
            "config": self.config,
            "rounds": self.rounds,
            "counts": self.counts,
            "trained": self.trained,
            "under way": self.under_way.numbers,
            "clients": clients,
            "downloads": sent,
            "versions": self.versions,
        }
        replace_file(unfinished / SERVER_STATE_FILE, pack(KNOWLEDGE, values, {**self.arrays, **pool, **messages}))
        unfinished.replace(target)
        for old in (*checkpoints(run_folder)[KEPT:], *parent.glob("unfinished-*")):
            with suppress(OSError):
                remove(old)

    def load_clients(self, run_folder: Path, grid: object) -> None:
        """Let the Grid, if it keeps clients, restore their states."""
        if isinstance(grid, KeepsClients):
            grid.load_clients(run_folder / CHECKPOINTS / f"round-{self.round}", self.clients.keys())

    def client_state(self, run_folder: Path, client_id: int) -> bytes:
        """Return a client's state as it was written with this checkpoint.

        Raises
        ------
        DamagedError
            It is missing, damaged or of another checkpoint: names the file.
        """
        path = self.client_file(run_folder, client_id)
        try:
            content = read_file(path)
            if verified(content, STATE)["checksum"] != self.clients[client_id]:
                raise DamagedError("it is of another checkpoint")
        except OSError as error:
            raise DamagedError(f"{path}: cannot be read: {error.strerror}") from None
        except DamagedError as error:
            raise DamagedError(f"{path}: damaged ({error})") from None
        return content

    def client_file(self, run_folder: Path, client_id: int) -> Path:
        """Return where a Grid that keeps clients has written a client's state, if it has."""
        return run_folder / CHECKPOINTS / f"round-{self.round}" / f"client-{client_id}"

    @classmethod
    def read(cls, run_folder: Path) -> Self:
        """Read the last checkpoint of a run folder, without the clients' states.

        Raises
        ------
        RunFolderError
            There is none, or it is damaged.
        """
        return cls.read_one(newest(run_folder))

    @classmethod
    def read_one(cls, folder: Path) -> Self:
        """Read a checkpoint from its folder, without the clients' states.

        Raises
        ------
        RunFolderError
            It is damaged, or of another round: names its file.
        """
        try:
            values, arrays, _ = read_blob(folder / SERVER_STATE_FILE, KNOWLEDGE)
        except DamagedError as error:
            raise RunFolderError(str(error)) from None
        if folder.name != f"round-{values['round']}":
            raise RunFolderError(f"{folder}: damaged (it is of round {values['round']})")
        sent: list[Download] = values["downloads"]
        return cls(
            round=values["round"],
            run=values["run"],
            begun=values["begun"],
            config=values["config"],
            rounds=values["rounds"],
            counts={name: _by_number(counted) for name, counted in values["counts"].items()},
            trained=_by_number(values["trained"]),
            arrays={name: array for name, array in arrays.items() if not name.startswith((PREFIX, MESSAGE))},
            under_way=UnderWay(
                values["under way"],
                {
                    name.removeprefix(MESSAGE): array.tobytes()
                    for name, array in arrays.items()
                    if name.startswith(MESSAGE)
                },
            ),
            clients=_by_number(values["clients"]),
            downloads=[
                (client, {name: arrays[key] for name, key in alike["arrays"].items()})
                for alike in sent
                for client in alike["clients"]
            ],
            versions=values["versions"],
        )


class Choice(NamedTuple):
    """The checkpoint to go on from, and what is lost by that.

    Parameters
    ----------
    checkpoint : Checkpoint
        The newest that is whole.
    gone_back : bool
        Whether a newer one is damaged.
    losses : list of str
        What is lost.
    """

    checkpoint: Checkpoint
    gone_back: bool
    losses: list[str]


def choose(run_folder: Path, *, accept_loss: bool) -> Choice:
    """Choose the checkpoint that a run goes on from: the newest; or, if a loss is accepted, the newest that is whole.

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
            for client_id in checkpoint.clients:
                checkpoint.client_state(run_folder, client_id)
        except (RunFolderError, DamagedError) as error:
            damage.append(str(error))
            continue
        if damage and not accept_loss:
            raise RunFolderError(
                f"{damage[0]}; the checkpoint of round {checkpoint.round} is whole: {accepting()} "
                "goes back to it and runs the rounds since then again"
            )
        return Choice(checkpoint, bool(damage), [f"{one}; gone back to round {checkpoint.round}" for one in damage])
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
    found = {path: _NAME.fullmatch(path.name) for path in (run_folder / CHECKPOINTS).glob("round-*")}
    numbers = {path: int(match[1]) for path, match in found.items() if match}
    return sorted(numbers, key=numbers.__getitem__, reverse=True)


def remove(path: Path) -> None:
    """Remove a checkpoint, or what stands in its place; what a link leads to stays."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _by_number(values: Mapping[str, Any]) -> dict[int, Any]:
    """Return what JSON has under the texts of numbers by number."""
    return {int(number): value for number, value in values.items()}
