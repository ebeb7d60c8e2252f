"""What the server's loop asks of a strategy."""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from hetfl_flwr.config import RunConfig
from hetfl_flwr.server.left_out import LeftOut
from hetfl_flwr.server.messaging.exchange import Most, Reply
from hetfl_flwr.server.messaging.member import Member, Sharing
from hetfl_flwr.server.messaging.roster import Roster
from hetfl_flwr.wire.spec import Arrays, PayloadSpec

Sends = Literal[
    "weights",
    "parts of weights",
    "small models",
    "prototypes",
    "logits",
    "representations",
    "public samples",
    "nothing",
    "something else",
]
"""What leaves a client, in the order in which `hetfl list algorithms` groups by it.

"weights": all of the model's. "parts of weights": the body, the head or some channels. "small models": a model that
travels, beside one that stays. "prototypes": the mean embedding of each class. "logits": the mean logits of each class.
"representations": of samples that all know. "public samples": these alone, or predictions on them. "nothing".
"""


class FederatedStrategy(Protocol):
    """What the server's loop asks of a strategy, beside Flower's own hooks.

    `hetfl_flwr.strategy.KnowledgeStrategy` and `strategies.base_weights.WeightStrategy` fulfil it for all algorithms.

    Attributes
    ----------
    heterogeneous : bool
        Whether clients may have different architectures, with the default hyper-parameters.
    width : int
        Embedding width that all models get where the run config's ``width`` is 0. 0: each keeps its own.
    sharing : Sharing or None
        What is needed of the clients' public samples. None: nothing.
    asynchronous : bool
        Whether each client is answered as soon as it has uploaded, without waiting for the others.
    exchanges : bool
        Whether clients learn anything from each other. False: each trains by itself, on whatever rows it is given.
    sends : str
        What leaves a client: one of the words of `Sends`.
    parts : bool
        Whether clients may have parts of one network of different width, as ``NAME@0.5``; then ``models = "auto"``
        gives every second client half of the width.
    takes_messages : bool
        Whether `aggregate_replies` needs the clients' messages, as Flower's own strategies do. False: their arrays.
    """

    heterogeneous: bool
    width: int
    sharing: Sharing | None
    asynchronous: bool
    exchanges: bool
    sends: Sends
    parts: bool
    takes_messages: bool

    def left_out(self) -> list[int]:
        """Return the clients of whose uploads a robust average has left something out since the last call.

        By default those that ``_left_out`` knows, where a strategy has one.
        """
        left_out: LeftOut | None = getattr(self, "_left_out", None)
        return [] if left_out is None else left_out.taken()

    def check(self, roster: Roster) -> None:
        """Raise a FederationError for clients that the algorithm cannot work with; called again when one joins."""

    def prepare(self, roster: Roster, config: RunConfig) -> ArrayRecord:
        """Check the federation and return what the server knows before round 1."""

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Return what a client is to send."""

    def most_samples(self, member: Member) -> Most:
        """Return the largest ``num-examples`` and ``samples-seen`` that a client may say."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Write one message to each client of the round."""

    def aggregate_replies(self, server_round: int, arrays: ArrayRecord, replies: Sequence[Reply]) -> ArrayRecord | None:
        """Return what the server knows after replies, at least one, that weigh anything, by client id.

        Parameters
        ----------
        server_round : int
            The round, from 1.
        arrays : ArrayRecord
            What it has known before.
        replies : sequence of Reply
            The replies, checked.
        """

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask each client to measure its model."""

    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Return what `configure_evaluate` sends a client along."""

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Take note of what clients have measured."""

    def summary(self) -> None:
        """Log the hyper-parameters."""
