"""Flower's hooks of a strategy, over arrays: with them Flower's own loop can run it."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from logging import WARNING
from typing import final

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hetfl_flwr.common.flower import aggregate_metricrecords, log
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import PayloadError
from hetfl_flwr.server.exchange import Most, Reply, held_against
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.messenger import read, written
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.wire.codec import from_record, to_record
from hetfl_flwr.wire.messages import EXAMPLES, METRICS
from hetfl_flwr.wire.spec import Arrays, PayloadSpec


class FlowerHooks(Strategy):
    """What Flower calls, over what an algorithm writes; the server state is an ArrayRecord here.

    Attributes
    ----------
    roster : Roster
        The clients.
    config : RunConfig
        The run.
    """

    roster: Roster
    config: RunConfig
    _sent: Arrays

    @abstractmethod
    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Return what a client is sent in a round."""

    @abstractmethod
    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Return what a client is sent along when it is asked to measure its model."""

    @abstractmethod
    def upload_spec(self, member: Member) -> PayloadSpec:
        """Return what a client is to upload."""

    @abstractmethod
    def most_samples(self, member: Member) -> Most:
        """Return the largest numbers of samples of a client's answer."""

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
        """Do as `learn` with the answers to `configure_train`, in any order; what is not as declared is logged."""
        answers = self._read_replies(MessageType.TRAIN, replies)
        if not answers:
            return None, None
        return to_record(self.learn(self._sent, answers, server_round)), _averaged(answers)

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
        return _averaged(self._read_replies(MessageType.EVALUATE, replies))

    def _members(self, grid: Grid) -> list[Member]:
        """Return the clients behind a Grid's nodes; nodes that have come since are none."""
        return [self.roster.of(node) for node in grid.get_node_ids() if node in self.roster]

    def _read_replies(self, kind: str, replies: Iterable[Message]) -> list[Reply]:
        """Return the answers of clients that are as declared, by client id; log what is wrong with the others."""
        answers = list[Reply]()
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in self.roster:
                continue
            try:
                expected = held_against(self, kind, self.roster.of(node))
                answers.append(read(reply, expected, half=self.config.half))
            except PayloadError as error:
                log(WARNING, "%s", error)
        return sorted(answers, key=lambda answer: answer.client_id)


def _averaged(answers: Iterable[Reply]) -> MetricRecord | None:
    """Average metrics by numbers of samples."""
    contents = [RecordDict({METRICS: MetricRecord(dict(answer.metrics))}) for answer in answers]
    return aggregate_metricrecords(contents, EXAMPLES) if contents else None


def _messages(kind: str, number: int, downloads: Mapping[Member, Arrays]) -> list[Message]:
    return [written(kind, number, member, to_record(download)) for member, download in downloads.items()]
