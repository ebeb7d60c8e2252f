"""What a Grid may offer beyond Flower's own interface, what is under way in it, and a Grid that shows a part of it."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

FLOWER_ENGINES = {"InMemoryGrid": "simulation", "HttpGrid": "deployment"}
"""What runs the clients behind Flower's own Grids, by the names of their classes."""

DEPLOYMENT_POLL = 0.25
"""Seconds between two looks for replies, for a Grid that does not say its own interval."""


@runtime_checkable
class NamesEngine(Protocol):
    """A Grid that says what runs its clients: ``local``, ``simulation`` or ``deployment``."""

    engine: str


@runtime_checkable
class Polled(Protocol):
    """A Grid that says how many seconds to wait between two looks for replies; 0: looking waits by itself."""

    pull_interval: float


@runtime_checkable
class Stoppable(Protocol):
    """A Grid whose user may ask that no further round is begun."""

    stop_requested: bool


@runtime_checkable
class Clocked(Protocol):
    """A Grid that simulates time: `clock` is in seconds since the run began."""

    clock: float


@runtime_checkable
class ListsNodes(Protocol):
    """A Grid that knows since when each node is here, and its public key."""

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes' records, as Flower's SuperLink has them."""


class InFlight(NamedTuple):
    """Where an engine stands between two rounds: numbers that JSON can hold, and replies not yet handed out."""

    numbers: Mapping[str, Any]
    replies: Mapping[str, Message]


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


@runtime_checkable
class KeepsClients(Protocol):
    """A Grid that can write its clients' states into a checkpoint, and take them up again."""

    def save_clients(self, folder: Path) -> dict[int, str]:
        """Write every client's state; return the digest of each, by client id."""

    def load_clients(self, folder: Path, client_ids: Set[int]) -> None:
        """Take up the state of each of these clients, and forget that of all others."""

    def hold(self) -> InFlight:
        """Let clients that have something to do finish it, and return what is under way, which stays so."""

    def restore(self, held: InFlight) -> None:
        """Go on where `hold` was."""


def engine_of(grid: Grid) -> str:
    """Return what runs the clients behind a Grid: ``local``, ``simulation`` or ``deployment``."""
    return grid.engine if isinstance(grid, NamesEngine) else FLOWER_ENGINES.get(type(grid).__name__, "deployment")


def is_stopped(grid: Grid) -> bool:
    """Say whether no further round is to begin."""
    return isinstance(grid, Stoppable) and grid.stop_requested


def pull_interval(grid: Grid) -> float:
    """Return the seconds between two looks for replies."""
    return grid.pull_interval if isinstance(grid, Polled) else DEPLOYMENT_POLL


def simulated_time(grid: Grid) -> float | None:
    """Return the simulated seconds since the run began; None where time is not simulated."""
    return grid.clock if isinstance(grid, Clocked) else None


class GridView(Grid):
    """A Grid of which a strategy sees only some nodes; everything else goes through."""

    def __init__(self, grid: Grid, nodes: Sequence[int]) -> None:
        self._grid = grid
        self._nodes = list(nodes)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes of this view, ordered by client id."""
        return list(self._nodes)

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push messages and pull their replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)
