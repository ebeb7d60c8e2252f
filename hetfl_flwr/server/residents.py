"""Admission of clients where all nodes are the user's own: they exist from the start, and none leaves."""

from collections.abc import Collection, Sequence
from logging import INFO
from typing import TYPE_CHECKING

from flwr.app import Message, Metadata

from hetfl_flwr.common.flower import log
from hetfl_flwr.errors import Failure, FederationError
from hetfl_flwr.server.grids import KeepsClients
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.messenger import reason, received
from hetfl_flwr.server.registration import SILENT, Admission, Check, member_from
from hetfl_flwr.wire.messages import REGISTRATION

if TYPE_CHECKING:
    from hetfl_flwr.server.federation import Federation


class Residents(Admission):
    """Admits the clients of the local engine and of Flower's simulation.

    A Grid that holds its clients lists them; on other Grids, the nodes are asked to register by message.
    """

    def __init__(self, federation: "Federation") -> None:
        super().__init__(federation)
        self._refused: list[Failure] = []

    def assemble(self, check: Check | None = None) -> None:
        """Admit all clients; the strategy checks later whether they fit each other.

        Raises `FederationError` if there are too few clients, if one cannot take part although ``clients`` is set, or
        if none can. The error is the first reason, without the client's name if all reasons are the same, such as an
        error in a file that all clients read.
        """
        if isinstance(self.grid, KeepsClients):
            for one in self.grid.members():
                self._take_in(one)
        else:
            self._ask()
        if self._must_refuse():
            reasons = [failure.reason for failure in self._refused]
            raise FederationError(reasons[0] if len(self.roster) else _common(reasons))
        for failure in self._refused:
            log(INFO, "not taken in: %s", failure.reason)
        self._begin(self._refused)

    def _ask(self) -> None:
        """Ask all nodes to register, until all have answered or a required client cannot take part."""
        nodes, asked = set[int](), dict[str, Metadata]()
        for over in self._looks(report=True):
            new = sorted(set(self.grid.get_node_ids()) - nodes)
            nodes.update(new)
            queries = list(map(self._query, new))
            self.grid.push_messages(queries)
            asked |= {query.metadata.message_id: query.metadata for query in queries}
            answers = received(self.grid, asked)
            for node in sorted(answers):
                self._take_in(answers[node], node)
            complete = not asked and 0 < self.clients <= len(self.roster) + len(self._refused)
            if complete or self._must_refuse(asked):
                return
            if over:
                for query in asked.values():
                    self._take_in(f"node {query.dst_node_id}: {SILENT}", query.dst_node_id)

    def _must_refuse(self, asked: Collection[str] = ()) -> bool:
        """Return whether the run must be refused: any client failed and ``clients`` is set, or all clients failed."""
        return bool(self._refused) and (self.config.clients > 0 or not (asked or len(self.roster)))

    def _take_in(self, one: Member | Message | str, node: int = 0) -> None:
        """Add a client to the roster, or record why it cannot take part."""
        if isinstance(one, Message) and one.has_error():
            one = _reason(one, node)
        try:
            member = one if isinstance(one, Member) else member_from(one, node)
            self.roster.add(member)
        except FederationError as error:
            self._refused.append(Failure(-1, REGISTRATION, str(error), node))
            return
        if not self.config.clients:
            self.clients = max(self.clients, member.clients)
        self._note_state(member)


def _reason(answer: Message, node: int) -> str:
    """Return why a node cannot take part, with the client's name instead of the node's if it has one."""
    line = reason(answer, node, own=True)
    named = line.removeprefix(f"node {node}: ")
    return named if named.startswith("client ") else line


def _common(reasons: Sequence[str]) -> str:
    """Return the first reason, without the client's name if all clients have the same reason."""
    causes = {line.partition(f", {REGISTRATION}: ")[2] for line in reasons}
    return causes.pop() or reasons[0] if len(causes) == 1 < len(reasons) else reasons[0]
