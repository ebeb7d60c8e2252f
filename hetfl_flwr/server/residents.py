"""Admission without messages: the clients of a Grid that keeps them are here from the start, and none leaves."""

from typing import TYPE_CHECKING

from hetfl_flwr.server.grids import KeepsClients
from hetfl_flwr.server.member import Failure
from hetfl_flwr.server.registration import Check, Registration

if TYPE_CHECKING:
    from hetfl_flwr.server.federation import Federation


class Residents(Registration):
    """Takes in the clients of a Grid that keeps them.

    Parameters
    ----------
    grid : KeepsClients
        Says who they are.
    federation : Federation
        Whose clients they are.
    """

    def __init__(self, grid: KeepsClients, federation: "Federation") -> None:
        super().__init__(federation)
        self._grid = grid

    def assemble(self, check: Check | None = None) -> None:
        """Take in all clients.

        Raises
        ------
        FederationError
            There are too few of them, or one cannot take part: the reason, without its name where it is that of all.
        """
        reasons = list[str]()
        for member in self._grid.members():
            if isinstance(member, str):
                reasons.append(member)
            else:
                self.roster.add(member)
        if reasons:
            raise self._first_of(reasons)
        self.clients = len(self.roster)
        self._check_enough()

    def welcome(self, round: int, check: Check | None = None) -> list[Failure]:
        """Return what was noted: nobody comes or goes."""
        return self.notes()

    def gone(self) -> set[int]:
        """Return no node."""
        return set()
