"""Whom the server asks to measure its model, and what it knows already."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message

from hetfl_flwr.server.admission.draw import draw_to_evaluate
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server.messaging.exchange import Exchange, Reply
from hetfl_flwr.server.messaging.grids import engine_of
from hetfl_flwr.wire.messages import ARRAYS

if TYPE_CHECKING:
    from hetfl_flwr.strategy import KnowledgeStrategy


class Evaluation:
    """Lets clients measure their models; those that have not changed since are not measured again.

    That is so where a client has not been asked to train, is sent nothing that it is measured with, and is simulated:
    a node on a machine of its own may have other test samples by now. What it said last then counts, as if it had been
    asked: only the bytes of evaluation tell the difference.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._keeps = engine_of(federation.grid) != "deployment"
        self._known: dict[int, Reply] = {}

    def forget(self, messages: Iterable[Message]) -> list[Message]:
        """Note that the models of those who get these messages change, and return the messages."""
        those = list(messages)
        for message in those:
            self._known.pop(message.metadata.dst_node_id, None)
        return those

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

    def evaluate(self, strategy: "KnowledgeStrategy", number: int, arrays: ArrayRecord) -> Exchange:
        """Let the clients that are drawn for it measure their models after a round; 0: before any training."""
        federation = self._federation
        members = draw_to_evaluate(federation.roster, federation.config, number)
        messages = list(strategy.configure_evaluate(number, arrays, ConfigRecord(), federation.view(members)))
        alone = {message.metadata.dst_node_id for message in messages if not _sends_arrays(message)}
        known = {node: self._known[node] for node in alone & self._known.keys()}
        evaluated = federation.exchange(one for one in messages if one.metadata.dst_node_id not in known)
        if self._keeps:
            nodes = {member.client_id: member.node for member in members}
            self._known |= {
                nodes[reply.client_id]: reply for reply in evaluated.replies if nodes[reply.client_id] in alone
            }
        evaluated.replies = sorted([*evaluated.replies, *known.values()], key=lambda reply: reply.client_id)
        return evaluated


def _sends_arrays(message: Message) -> bool:
    return bool(message.content.array_records.get(ARRAYS))
