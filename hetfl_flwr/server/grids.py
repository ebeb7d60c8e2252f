"""Optional capabilities of a Grid, beyond Flower's interface."""

from collections.abc import Iterable, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from flwr.serverapp import Grid

if TYPE_CHECKING:
    from hetfl_flwr.server.exchange import Exchange
    from hetfl_flwr.server.federation import Federation
    from hetfl_flwr.server.member import Member

FLOWER_ENGINES = {"InMemoryGrid": "simulation", "HttpGrid": "deployment"}
"""The engine behind each of Flower's Grids, by class name."""

DEPLOYMENT_POLL = 0.25
"""Default poll interval, in seconds, of a Grid that does not set its own."""


@runtime_checkable
class ListsNodes(Protocol):
    """A Grid that knows when each node joined, and its public key."""

    def get_nodes(self) -> Iterable[Any]:
        """Return the SuperLink's records of the nodes."""


@runtime_checkable
class KeepsClients(Protocol):
    """A Grid that holds its clients: it passes arrays to them, and saves their states."""

    def members(self) -> list["Member | str"]:
        """Return the clients by id; a text says why a client cannot take part, and clients after it may be missing."""

    def data(self) -> list[str]:
        """Return a digest of the run's local data if it has any, see `hetfl_flwr.runs.settings.data_of`."""

    def exchange(self, federation: "Federation") -> "Exchange":
        """Return the exchange that reaches the clients."""

    def save_clients(self, folder: Path) -> dict[int, str]:
        """Write every client's state; return the digest of each, by client id."""

    def load_clients(self, folder: Path, client_ids: Set[int]) -> None:
        """Restore the states of these clients, and drop the states of all others."""


def engine_of(grid: Grid) -> str:
    """Return the engine behind a Grid: ``local``, ``simulation`` or ``deployment``."""
    return getattr(grid, "engine", "") or FLOWER_ENGINES.get(type(grid).__name__, "deployment")


def is_stopped(grid: Grid) -> bool:
    """Return whether the user has asked to stop before the next round."""
    return getattr(grid, "stop_requested", False)


def pull_interval(grid: Grid) -> float:
    """Return the poll interval in seconds; 0: the Grid's call blocks."""
    return getattr(grid, "pull_interval", DEPLOYMENT_POLL)
