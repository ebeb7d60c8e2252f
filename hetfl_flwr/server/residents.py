"""Admission without messages: the clients of a Grid that keeps them are here from the start, and none leaves."""

from typing import TYPE_CHECKING

from hetfl_flwr.errors import FederationError
from hetfl_flwr.server.grids import KeepsClients
from hetfl_flwr.server.member import Failure
from hetfl_flwr.server.registration import Check, Registration
from hetfl_flwr.wire.messages import REGISTRATION

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
            causes = {reason.partition(f", {REGISTRATION}: ")[2] for reason in reasons}
            shared = len(causes) == 1 < len(reasons) and not len(self.roster)
            raise FederationError(causes.pop() or reasons[0] if shared else reasons[0])
        self.clients = len(self.roster)
        self._check_enough()

    def welcome(self, round: int, check: Check | None = None) -> list[Failure]:
        """Return what was noted: nobody comes or goes."""
        return self.notes()

    def gone(self) -> set[int]:
        """Return no node."""
        return set()
