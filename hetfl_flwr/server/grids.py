"""What a Grid may offer beyond Flower's own interface."""

from collections.abc import Iterable, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from flwr.serverapp import Grid

from hetfl_flwr.config import RunConfig
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.server.upload_counts import UploadCounts

if TYPE_CHECKING:
    from hetfl_flwr.server.exchange import Exchange
    from hetfl_flwr.strategy import KnowledgeStrategy

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
class ListsNodes(Protocol):
    """A Grid that knows since when each node is here, and its public key."""

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes' records, as Flower's SuperLink has them."""


@runtime_checkable
class KeepsClients(Protocol):
    """A Grid that can write its clients' states into a checkpoint, and take them up again."""

    def save_clients(self, folder: Path) -> dict[int, str]:
        """Write every client's state; return the digest of each, by client id."""

    def load_clients(self, folder: Path, client_ids: Set[int]) -> None:
        """Take up the state of each of these clients, and forget that of all others."""


@runtime_checkable
class Exchanges(Protocol):
    """A Grid that reaches its clients without messages."""

    def exchange(
        self, config: RunConfig, roster: Roster, strategy: "KnowledgeStrategy", uploads: UploadCounts | None
    ) -> "Exchange":
        """Return what reaches them."""


def engine_of(grid: Grid) -> str:
    """Return what runs the clients behind a Grid: ``local``, ``simulation`` or ``deployment``."""
    return grid.engine if isinstance(grid, NamesEngine) else FLOWER_ENGINES.get(type(grid).__name__, "deployment")


def is_stopped(grid: Grid) -> bool:
    """Say whether no further round is to begin."""
    return isinstance(grid, Stoppable) and grid.stop_requested


def pull_interval(grid: Grid) -> float:
    """Return the seconds between two looks for replies."""
    return grid.pull_interval if isinstance(grid, Polled) else DEPLOYMENT_POLL
