"""What a Grid may offer beyond Flower's own interface."""

from collections.abc import Iterable, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from flwr.serverapp import Grid

if TYPE_CHECKING:
    from hetfl_flwr.server.exchange import Exchange
    from hetfl_flwr.server.federation import Federation
    from hetfl_flwr.server.member import Member

FLOWER_ENGINES = {"InMemoryGrid": "simulation", "HttpGrid": "deployment"}
"""What runs the clients behind Flower's own Grids, by the names of their classes."""

DEPLOYMENT_POLL = 0.25
"""Seconds between two looks for replies, for a Grid that does not say its own interval."""


@runtime_checkable
class ListsNodes(Protocol):
    """A Grid that knows since when each node is here, and its public key."""

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes' records, as Flower's SuperLink has them."""


@runtime_checkable
class KeepsClients(Protocol):
    """A Grid that has its clients itself: it hands them arrays, and keeps their states."""

    def members(self) -> list["Member | str"]:
        """Return who they are, by client id, or why one cannot take part; after such a one, some may be missing."""

    def exchange(self, federation: "Federation") -> "Exchange":
        """Return what reaches them."""

    def save_clients(self, folder: Path) -> dict[int, str]:
        """Write every client's state; return the digest of each, by client id."""

    def load_clients(self, folder: Path, client_ids: Set[int]) -> None:
        """Take up the state of each of these clients, and forget that of all others."""


def engine_of(grid: Grid) -> str:
    """Return what runs the clients behind a Grid: ``local``, ``simulation`` or ``deployment``."""
    return getattr(grid, "engine", "") or FLOWER_ENGINES.get(type(grid).__name__, "deployment")


def is_stopped(grid: Grid) -> bool:
    """Say whether the user has asked that no further round begins."""
    return getattr(grid, "stop_requested", False)


def pull_interval(grid: Grid) -> float:
    """Return the seconds between two looks for replies; 0: looking waits by itself."""
    return getattr(grid, "pull_interval", DEPLOYMENT_POLL)
