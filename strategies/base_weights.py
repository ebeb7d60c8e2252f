"""Base of the server sides that average weights: what they share around Flower's own strategies."""

from collections.abc import Iterable, Sequence
from logging import INFO

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, Strategy
from torch.nn import Module

from hetfl_flwr.algorithms import for_heterogeneous_models
from hetfl_flwr.common.errors import FederationError
from hetfl_flwr.common.flower import log
from hetfl_flwr.config import RunConfig
from hetfl_flwr.learning.aggregation import Average, parse_robust
from hetfl_flwr.learning.training import most_drawn
from hetfl_flwr.server.global_model import global_model
from hetfl_flwr.server.left_out import LeftOut
from hetfl_flwr.server.messaging.exchange import Most, Reply, arrays_of, averageable, with_arrays
from hetfl_flwr.server.messaging.member import Member, Sharing
from hetfl_flwr.server.messaging.roster import Roster
from hetfl_flwr.server.strategy import FederatedStrategy, Sends
from hetfl_flwr.wire.codec import to_record
from hetfl_flwr.wire.messages import ARRAYS
from hetfl_flwr.wire.spec import Arrays, PayloadSpec
from hetfl_flwr.wire.weights import model_arrays, weights


class WeightStrategy(Strategy, FederatedStrategy):
    """A strategy whose clients exchange the weights of one model, or of a part of it that all have.

    A client's weight is the number of its training samples (n_k of McMahan et al. 2017), however many a round's batches
    hold. Flower's own strategies do the averaging: FedAvg, FedMedian or FedTrimmedAvg, as ``robust`` says; with
    "multikrum" FedAvg, of the messages that it keeps. Flower's MultiKrum is not taken: it compares weights in float32,
    by norms and inner products, and after a small change, such as one round of fine-tuning, that is rounding alone.
    FedMedian and FedTrimmedAvg give each client the same weight, whatever its number of samples. Running statistics are
    averaged as weights are; integer buffers stay with the clients.

    Parameters
    ----------
    algorithm : str
        Its name, for errors.
    robust : str
        As in `hetfl_flwr.learning.aggregation.parse_robust`.
    bodies : bool
        Whether only the weights of bodies are exchanged.
    asking : flwr.serverapp.strategy.FedAvg, optional
        The strategy of Flower's that writes the messages to clients. Default: the one that averages.
    exchange_every : int
        How many times the local work of the run config lies between two exchanges.

    Raises
    ------
    ConfigError
        ``robust`` is none of what it may be.

    Attributes
    ----------
    roster : Roster
        The clients, set by `prepare`.
    config : RunConfig
        The run config, set by `prepare`.
    """

    heterogeneous = False
    """Whether clients may have different architectures."""

    width = 0
    """Embedding width that all models get where the run config's ``width`` is 0. 0: each keeps its own."""

    sharing: Sharing | None = None
    """What is needed of the clients' public samples: nothing."""

    asynchronous = False
    """Whether each client is answered as soon as it has uploaded, without waiting for the others."""

    exchanges = True
    """Whether clients learn from each other."""

    sends: Sends = "weights"
    """What leaves a client."""
    parts = False
    """Whether clients may have parts of one network of different width."""

    takes_messages = True
    """Whether uploads come as Flower's messages: its strategies take them."""

    roster: Roster
    config: RunConfig

    def __init__(
        self,
        algorithm: str,
        robust: str,
        *,
        bodies: bool = False,
        asking: FedAvg | None = None,
        exchange_every: int = 1,
    ) -> None:
        self.robust = parse_robust(robust)
        self.exchange_every = exchange_every
        self._algorithm, self._bodies = algorithm, bodies
        self._averaging = _flower_s(self.robust)
        self._left_out = LeftOut(algorithm, self.robust)
        self._asking = asking or self._averaging

    def check(self, roster: Roster) -> None:
        """Refuse heterogeneous models, or different bodies.

        Raises
        ------
        FederationError
            Names the clients that differ and the algorithms for heterogeneous models.
        """
        roster.check_same_weights(self._algorithm, for_heterogeneous_models(), bodies=self._bodies)

    def prepare(self, roster: Roster, config: RunConfig) -> ArrayRecord:
        """Check the federation; draw the initial weights of the global model, or of its body.

        Raises
        ------
        FederationError
            As `check` and `hetfl_flwr.server.global_model.global_model`; or the body has no weights.
        ModelError
            As `hetfl_flwr.server.global_model.global_model`.
        """
        self.check(roster)
        self.roster, self.config = roster, config
        shared = self.first_shared()
        self._uploads = weights(shared)
        if not self._uploads.names:
            name = next(iter(roster)).model
            raise FederationError(
                f"{self._algorithm} averages the weights of bodies, but the body of '{name}' has none: set models"
            )
        return to_record(model_arrays(shared))

    def first_shared(self) -> Module:
        """Return what is averaged, with the weights that it has before round 1: the clients' one model, or its body."""
        model = global_model(self.roster, self.config, bodies=self._bodies)
        return model.body if self._bodies else model

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect weights like the global model's, or like its body's."""
        return self._uploads

    def most_samples(self, member: Member) -> Most:
        """Return the client's training samples, by which its weights are weighted, and these in a round's batches."""
        return Most(member.train, most_drawn(self.config, member.train, times=self.exchange_every))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the weights to each client of the round."""
        return self._asking.configure_train(server_round, arrays, config, grid)

    def aggregate_replies(self, server_round: int, arrays: ArrayRecord, replies: Sequence[Reply]) -> ArrayRecord | None:
        """Let Flower's strategy average the messages."""
        return self.aggregate_train(server_round, averageable(replies))[0]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the weights. The replies stay as they are: Flower's median and trimmed mean take theirs apart."""
        copies = [with_arrays(reply, ArrayRecord(dict(reply.content.array_records[ARRAYS]))) for reply in replies]
        if self.robust.form == "multikrum" and copies:
            sent = [arrays_of(reply) for reply in copies]
            clients = [self.roster.of(reply.metadata.src_node_id).client_id for reply in copies]
            kept = self._left_out.kept(clients, [np.stack([arrays[name] for arrays in sent]) for name in sent[0]])
            self._left_out.tell(server_round)
            copies = [reply for reply, its in zip(copies, kept, strict=True) if its]
        return self._averaging.aggregate_train(server_round, copies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the weights to each client, to be measured."""
        return self._asking.configure_evaluate(server_round, arrays, config, grid)

    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Return the weights."""
        return server_state

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the clients' metrics by their numbers of samples."""
        return self._averaging.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log how weights are averaged, and the settings of Flower's strategy."""
        log(INFO, "\t├── robust = %s", self.robust)
        self._asking.summary()


def _flower_s(average: Average) -> FedAvg:
    """Return the strategy of Flower's that averages so."""
    if average.form == "median":
        return FedMedian(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    if average.form == "trimmed":
        return FedTrimmedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1, beta=average.share)
    return FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
