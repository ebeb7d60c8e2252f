"""What is under way between two rounds, and Grids that keep the clients' states."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from flwr.app import Message


class Held(NamedTuple):
    """Where an engine stands between two rounds: numbers that JSON can hold, and replies not yet handed out."""

    numbers: Mapping[str, Any]
    replies: Mapping[str, Message]


@runtime_checkable
class KeepsClients(Protocol):
    """A Grid that can write its clients' states into a checkpoint, and take them up again."""

    def save_clients(self, folder: Path) -> dict[int, str]:
        """Write every client's state; return the digest of each, by partition."""

    def load_clients(self, folder: Path, client_ids: Set[int]) -> None:
        """Take up the state of each of these clients, and forget that of all others."""

    def hold(self) -> Held:
        """Let clients that have something to do finish it, and return what is under way, which stays so."""

    def take_up(self, held: Held) -> None:
        """Go on where `hold` was."""


@dataclass(frozen=True)
class UnderWay:
    """What is under way between two rounds.

    Parameters
    ----------
    numbers : mapping
        What JSON can hold.
    messages : mapping of str to bytes
        Messages and replies, serialised, by name.
    """

    numbers: Mapping[str, Any] = field(default_factory=dict)
    messages: Mapping[str, bytes] = field(default_factory=dict)
