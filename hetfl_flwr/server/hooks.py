"""Flower's hooks of a strategy, over arrays: with them Flower's own loop can run it."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from logging import WARNING
from typing import Any, final

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hetfl_flwr.common.flower import aggregate_metricrecords, log
from hetfl_flwr.server.exchange import Reply
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.messenger import reason, written
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.wire.codec import from_record, to_record
from hetfl_flwr.wire.messages import ARRAYS, EXAMPLES, METRICS
from hetfl_flwr.wire.spec import Arrays


class FlowerHooks(Strategy):
    """What Flower calls, over what an algorithm writes; the server state is an ArrayRecord here.

    Attributes
    ----------
    roster : Roster
        The clients.
    """

    roster: Roster
    _sent: Arrays

    @abstractmethod
    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Return what a client is sent in a round."""

    @abstractmethod
    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Return what a client is sent along when it is asked to measure its model."""

    @abstractmethod
    def learn(self, server_state: Arrays, replies: Sequence[Reply], round: int) -> Arrays:
        """Return what the server knows after replies, ordered by client id."""

    @final
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Write one message to each client of the round."""
        self._sent, members = from_record(arrays), self._members(grid)
        downloads = {member: self.download_for(member, self._sent, server_round) for member in members}
        return _messages(MessageType.TRAIN, server_round, downloads)

    @final
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Do as `learn` with the answers to `configure_train`, in any order; errors are logged."""
        messages = _answers(replies)
        if not messages:
            return None, None
        ordered = sorted(map(self._reply, messages), key=lambda reply: reply.client_id)
        learnt = to_record(self.learn(self._sent, ordered, server_round))
        return learnt, _averaged(messages)

    @final
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask each client to measure the model that it keeps."""
        known, members = from_record(arrays), self._members(grid)
        downloads = {member: self.assess_download_for(member, known) for member in members}
        return _messages(MessageType.EVALUATE, server_round, downloads)

    @final
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the clients' metrics by their numbers of samples."""
        return _averaged(_answers(replies))

    def _members(self, grid: Grid) -> list[Member]:
        """Return the clients behind a Grid's nodes; nodes that have come since are none."""
        return [self.roster.of(node) for node in grid.get_node_ids() if node in self.roster]

    def _reply(self, message: Message) -> Reply:
        content = message.content
        metrics: Any = dict(content.metric_records[METRICS])
        client_id = self.roster.of(message.metadata.src_node_id).client_id
        return Reply(client_id, metrics, from_record(content.array_records[ARRAYS]))


def _answers(replies: Iterable[Message]) -> list[Message]:
    """Return the replies that are no errors, and log the others."""
    answers = list[Message]()
    for reply in replies:
        if reply.has_error():
            log(WARNING, "%s", reason(reply, reply.metadata.src_node_id))
        else:
            answers.append(reply)
    return answers


def _averaged(answers: Iterable[Message]) -> MetricRecord | None:
    """Average metrics by numbers of samples; not those of single classes, which are lists and of other classes each."""
    contents = [
        RecordDict({METRICS: MetricRecord({name: one for name, one in said.items() if not isinstance(one, list)})})
        for said in (answer.content.metric_records[METRICS] for answer in answers)
    ]
    return aggregate_metricrecords(contents, EXAMPLES) if contents else None


def _messages(kind: str, number: int, downloads: Mapping[Member, Arrays]) -> list[Message]:
    return [written(kind, number, member, to_record(download)) for member, download in downloads.items()]
