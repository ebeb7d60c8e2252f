"""Flower's four hooks, written once over what an algorithm writes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from logging import INFO
from typing import final

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hetfl_flwr.common.flower import aggregate_metricrecords, log
from hetfl_flwr.config import RunConfig
from hetfl_flwr.server.messaging.exchange import Reply, Upload
from hetfl_flwr.server.messaging.member import Member
from hetfl_flwr.server.messaging.roster import Roster
from hetfl_flwr.server.strategy import FederatedStrategy
from hetfl_flwr.wire.codec import from_record, to_record
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, EXAMPLES, ROUND
from hetfl_flwr.wire.spec import Arrays


class FlowerHooks(Strategy, FederatedStrategy, ABC):
    """What Flower and the server's loop call, by way of `hetfl_flwr.strategy.KnowledgeStrategy`.

    The server state passes through here as an ArrayRecord, and as arrays through the algorithm.
    """

    takes_messages = False
    """Whether uploads come as Flower's messages. They do not: they are decoded and checked where they arrive."""

    roster: Roster
    config: RunConfig

    @abstractmethod
    def initial(self, roster: Roster) -> Arrays:
        """Return the server state before round 1."""

    @abstractmethod
    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Return what a client is sent in a round."""

    @abstractmethod
    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Return what a client is sent when it is asked to measure its model."""

    @abstractmethod
    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Return the server state after a round."""

    @final
    def prepare(self, roster: Roster, config: RunConfig) -> ArrayRecord:
        """Check the federation and return the server state before round 1.

        Raises
        ------
        FederationError
            As `check`.
        """
        self.check(roster)
        self.roster, self.config = roster, config
        self._sent = to_record(self.initial(roster))
        return self._sent

    @final
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Write one message to each client of the round."""
        self._sent = arrays
        server_state = from_record(arrays)
        config[ROUND] = server_round
        return [
            Message(RecordDict({ARRAYS: to_record(download), CONFIG: config}), node, MessageType.TRAIN)
            for node in grid.get_node_ids()
            for download in [self.download_for(self.roster.of(node), server_state, server_round)]
        ]

    @final
    def aggregate_replies(self, server_round: int, arrays: ArrayRecord, replies: Sequence[Reply]) -> ArrayRecord:
        """Let the algorithm aggregate what clients have uploaded."""
        return to_record(self.aggregate(from_record(arrays), [reply.upload for reply in replies], server_round))

    @final
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Do as `aggregate_replies` with the answers to `configure_train`, in any order: Flower's own hook."""
        messages = list(replies)
        if not messages:
            return None, None
        found = [Reply.of(one, self.roster.of(one.metadata.src_node_id).client_id) for one in messages]
        ordered = sorted(found, key=lambda reply: reply.client_id)
        learnt = self.aggregate_replies(server_round, self._sent, ordered)
        return learnt, aggregate_metricrecords([message.content for message in messages], EXAMPLES)

    @final
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask each client to measure the model that it keeps."""
        server_state = from_record(arrays)
        config[ROUND] = server_round
        return [
            Message(RecordDict({ARRAYS: to_record(download), CONFIG: config}), node, MessageType.EVALUATE)
            for node in grid.get_node_ids()
            for download in [self.assess_download_for(self.roster.of(node), server_state)]
        ]

    @final
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the clients' metrics by their numbers of samples."""
        contents = [reply.content for reply in replies]
        return aggregate_metricrecords(contents, EXAMPLES) if contents else None

    def summary(self) -> None:
        """Log the hyper-parameters."""
        for name, value in sorted(vars(self).items()):
            if not name.startswith("_") and name not in ("roster", "config", "sharing"):
                log(INFO, "\t├── %s = %s", name, value)
