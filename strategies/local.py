"""Local training, server side: nothing is exchanged. The papers call it IND, SOLO or Private."""

from collections.abc import Sequence

from hetfl_flwr import EMPTY, Arrays, KnowledgeStrategy, Member, PayloadSpec, Roster, Sends, Upload


class Local(KnowledgeStrategy):
    """Local training: nothing is exchanged (IND, SOLO and Private in the papers). The baseline to beat.

    Wire   nothing either way.
    State  none.
    """

    sends: Sends = "nothing"
    exchanges = False

    def check(self, roster: Roster) -> None:
        """Accept any clients, because they exchange nothing."""

    def initial(self, roster: Roster) -> Arrays:
        """Return an empty state."""
        return {}

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send nothing."""
        return {}

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect nothing."""
        return EMPTY

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Return the state unchanged."""
        return server_state
