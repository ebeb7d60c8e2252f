"""What ``--resume`` needs: the server's knowledge and, where the engine keeps them, the clients' states.

A checkpoint is a folder of its own, written beside the older one and renamed; a reader finds the one or the
other, never a part.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hetfl_flwr.errors import RunFolderError
from hetfl_flwr.payloads import Arrays
from hetfl_flwr.state import replace_file

CHECKPOINTS, KNOWLEDGE_FILE = "checkpoint", "knowledge.safetensors"


@runtime_checkable
class KeepsClients(Protocol):
    """A Grid that can write its clients' states into a checkpoint, and take them up again."""

    def save_clients(self, folder: Path) -> None:
        """Write every client's state."""

    def load_clients(self, folder: Path) -> None:
        """Take up every client's state."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stood after a round.

    Parameters
    ----------
    round : int
        The round.
    run : int
        The run's id, with which the clients' states are stamped.
    traffic : mapping
        Bytes of each client so far, by partition and kind.
    trained : mapping of int to int
        The round in which each client has trained last, by partition.
    arrays : mapping of str to array
        The server's knowledge.
    """

    round: int
    run: int
    traffic: Mapping[int, Mapping[str, int]]
    trained: Mapping[int, int]
    arrays: Arrays

    def write(self, run_folder: Path, grid: object) -> None:
        """Write this checkpoint into a run folder, in place of the older one; that of a round is written once."""
        parent = run_folder / CHECKPOINTS
        target, unfinished = parent / f"round-{self.round}", parent / f"unfinished-{os.getpid()}"
        if target.exists():
            return
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        metadata = {"round": self.round, "run": self.run, "traffic": self.traffic, "trained": self.trained}
        replace_file(unfinished / KNOWLEDGE_FILE, pack(self.arrays, metadata))
        if isinstance(grid, KeepsClients):
            grid.save_clients(unfinished)
        unfinished.replace(target)
        for older in parent.iterdir():
            if older != target:
                shutil.rmtree(older, ignore_errors=True)

    def load_clients(self, run_folder: Path, grid: object) -> None:
        """Let the Grid, if it keeps clients, take up their states."""
        if isinstance(grid, KeepsClients):
            grid.load_clients(run_folder / CHECKPOINTS / f"round-{self.round}")

    def client_file(self, run_folder: Path, partition: int) -> Path:
        """Return where a Grid that keeps clients has written a client's state, if it has."""
        return run_folder / CHECKPOINTS / f"round-{self.round}" / f"client-{partition}"

    @classmethod
    def read(cls, run_folder: Path) -> Self:
        """Read the last checkpoint of a run folder.

        Raises
        ------
        RunFolderError
            There is none, or it is damaged.
        """
        found = list((run_folder / CHECKPOINTS).glob("round-*"))
        if not found:
            raise RunFolderError(
                f"{run_folder} has no checkpoint to resume from (it was interrupted before the first one)"
            )
        last = max(found, key=lambda path: int(path.name.removeprefix("round-")))
        try:
            arrays, metadata = unpack(last / KNOWLEDGE_FILE)
            traffic = {int(client): counts for client, counts in metadata["traffic"].items()}
            trained = {int(client): int(round) for client, round in metadata["trained"].items()}
            checkpoint = cls(metadata["round"], metadata["run"], traffic, trained, arrays)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise RunFolderError(f"{last}: damaged checkpoint ({type(error).__name__})") from None
        return checkpoint


def pack(arrays: Arrays, metadata: Mapping[str, object]) -> bytes:
    """Write named arrays, in their order, and metadata as one safetensors blob; equal content gives equal bytes."""
    return save(
        {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()},
        {"knowledge": json.dumps({**metadata, "names": list(arrays)})},
    )


def unpack(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what `pack` has written."""
    with safe_open(path, "numpy") as file:
        metadata: dict[str, Any] = json.loads(file.metadata()["knowledge"])
        return {name: file.get_tensor(name) for name in metadata["names"]}, metadata
