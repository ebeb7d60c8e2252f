"""Whom the server asks to measure its model, and what it knows already."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hetfl_flwr.server.exchange import Exchange
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.grids import engine_of
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.replies import Outcome, Reply
from hetfl_flwr.server.roster import draw_to_evaluate
from hetfl_flwr.wire.spec import Arrays

if TYPE_CHECKING:
    from hetfl_flwr.strategy import KnowledgeStrategy


class Evaluation:
    """Lets clients measure their models; those that have not changed since are not measured again.

    That is so where a client has not been asked to train, is sent nothing that it is measured with, and is simulated:
    a node on a machine of its own may have other test samples by now. What it said last then counts, as if it had been
    asked: only the bytes of evaluation tell the difference.
    """

    def __init__(self, federation: Federation, strategy: "KnowledgeStrategy", exchange: Exchange) -> None:
        self._federation = federation
        self._strategy = strategy
        self._exchange = exchange
        self._keeps = engine_of(federation.grid) != "deployment"
        self._known: dict[int, Reply] = {}

    def forget(self, members: Iterable[Member]) -> None:
        """Note that the models of these clients change."""
        for member in members:
            self._known.pop(member.node, None)

    def hold(self) -> dict[str, Any]:
        """Return what is known, by client id, as JSON can hold it."""
        return {
            str(reply.client_id): {"metrics": dict(reply.metrics), "classes": dict(reply.classes)}
            for reply in self._known.values()
        }

    def restore(self, held: Mapping[str, Any]) -> None:
        """Know again what `hold` has returned, of those who are here; nothing where a loss of state is accepted."""
        known = {} if self._federation.config.accept_loss else {int(client): one for client, one in held.items()}
        for member in self._federation.roster:
            if one := known.get(member.client_id):
                self._known[member.node] = Reply(member.client_id, one["metrics"], classes=one["classes"])

    def evaluate(self, number: int, state: Arrays) -> Outcome:
        """Let the clients that are drawn for it measure their models after a round; 0: before any training."""
        federation = self._federation
        members = draw_to_evaluate(federation.roster, federation.config, number)
        downloads = [(member, self._strategy.assess_download_for(member, state)) for member in members]
        alone = {member.client_id: member.node for member, download in downloads if not download}
        known = {node: self._known[node] for node in alone.values() if node in self._known}
        evaluated = self._exchange.measure(number, [one for one in downloads if one[0].node not in known])
        if self._keeps:
            self._known |= {alone[reply.client_id]: reply for reply in evaluated.replies if reply.client_id in alone}
        evaluated.replies = sorted([*evaluated.replies, *known.values()], key=lambda reply: reply.client_id)
        return evaluated
