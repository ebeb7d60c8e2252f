"""Base class of an algorithm's server side."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from logging import INFO, WARNING
from typing import Literal, final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hetfl_flwr.common.flower import aggregate_metricrecords, log
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, PayloadError
from hetfl_flwr.learning.aggregation import Average, parse_robust
from hetfl_flwr.learning.training import max_drawn
from hetfl_flwr.seeding import seeded
from hetfl_flwr.server.exchange import Reply, SampleLimits, expectation
from hetfl_flwr.server.exchange import Upload as Upload  # algorithms import it from here
from hetfl_flwr.server.left_out import LeftOut
from hetfl_flwr.server.member import Member, Sharing
from hetfl_flwr.server.messenger import read, written
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.text import brief
from hetfl_flwr.wire.codec import from_record, to_record
from hetfl_flwr.wire.messages import EXAMPLES, METRICS
from hetfl_flwr.wire.spec import Arrays, PayloadSpec, frozen

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
"""What leaves a client, in the order of the groups in `hetfl list algorithms`.

"weights": all weights of the model. "parts of weights": the body, the head or some channels. "small models": a small
model that is sent while the client's own model stays. "prototypes": the mean embedding of each class. "logits": the
mean logits of each class. "representations": embeddings of samples that all clients have. "public samples": only the
samples, or predictions on them.
"""


class KnowledgeStrategy(Strategy, ABC):
    """A strategy whose clients exchange knowledge instead of weights.

    An algorithm implements `initial`, `download_for`, `aggregate` and `upload_spec`. The server state is a set of named
    arrays that these methods receive and return; nothing else is kept, so runs are checkpointed and resumed without any
    code in the algorithm.

    Attributes
    ----------
    heterogeneous : bool
        Class attribute: whether clients may have different architectures, with the default hyperparameters. Default:
        True.
    width : int
        Class attribute: the embedding width of all models if the run config's ``width`` is 0. Default: 0, each model
        keeps its own.
    sharing : Sharing or None
        Class attribute: how the clients' public samples are shared; they are in ``roster.public_samples`` before round
        1. Default: None, no public samples.
    asynchronous : bool
        Whether each client receives its next download as soon as it has uploaded. Default: False.
    exchanges : bool
        Class attribute: whether clients learn from each other. Default: True.
    sends : Sends
        Class attribute: what leaves a client in a round; `Sends` explains the words. Default: "something else".
    parts : bool
        Class attribute: whether clients may have parts of one network with different widths, such as ``NAME@0.5``;
        ``models = "auto"`` then gives every second client half the width. Default: False.
    averages : bool
        Whether uploads are averaged by `robust`, so that the run config's ``robust`` may be set. Default: False.
    robust : Average
        How uploads are averaged, from the run config's ``robust``. Set before `initial` is called.
    left_out : LeftOut
        Collects the clients whose uploads `robust` leaves out.
    roster : Roster
        The clients, set before `initial` is called.
    config : RunConfig
        The run config, set before `initial` is called.

    Examples
    --------
    >>> import numpy as np
    >>> from hetfl_flwr import KnowledgeStrategy, PayloadSpec, Upload, learnt
    >>> class Mean(KnowledgeStrategy):
    ...     def initial(self, roster):
    ...         return {"logits": np.zeros((roster.classes, roster.classes), np.float32)}
    ...     def download_for(self, member, server_state, round):
    ...         return server_state
    ...     def upload_spec(self, member):
    ...         return PayloadSpec((learnt("logits", (member.classes, member.classes)),))
    ...     def aggregate(self, server_state, uploads, round):
    ...         return {"logits": np.mean([upload.arrays["logits"] for upload in uploads], axis=0)}
    >>> uploads = [Upload(client_id, {"logits": np.eye(2) * client_id}, samples=50) for client_id in (0, 1)]
    >>> Mean().aggregate({}, uploads, 1)["logits"].tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """

    heterogeneous = True
    width = 0
    sharing: Sharing | None = None
    asynchronous = False
    exchanges = True
    sends: Sends = "something else"
    parts = False
    averages = False

    robust = Average("none")
    roster: Roster
    config: RunConfig

    def __init__(self) -> None:
        """Accept no hyperparameters."""

    @cached_property
    def left_out(self) -> LeftOut:
        """Collects the clients whose uploads `robust` leaves out."""
        return LeftOut(self.robust)

    @property
    def name(self) -> str:
        """The algorithm's name, for errors and logs."""
        return self.config.algorithm if hasattr(self, "config") else type(self).__name__.lower()

    def check(self, roster: Roster) -> None:
        """Raise an error if the algorithm does not support these clients. By default, their classes must be the same.

        It is called with all clients before round 1, and later with two: the first client and one that joins. In a
        deployment, it is also called with the first client and each other one before round 1, and a client that does
        not fit is refused. It should therefore compare clients, not count them.

        Raises
        ------
        FederationError
            Clients differ; one line names them.
        """
        _ = roster.classes

    @abstractmethod
    def initial(self, roster: Roster) -> Arrays:
        """Return the server state before round 1."""

    @abstractmethod
    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Return a client's download in a round, as the client side declares it."""

    @abstractmethod
    def upload_spec(self, member: Member) -> PayloadSpec:
        """Declare a client's upload."""

    def sample_limits(self, member: Member) -> SampleLimits:
        """Return the largest numbers of samples that a client may report after training.

        By default, these are the number of its training samples, and the number of samples in the batches of a round.
        """
        return SampleLimits(member.train, max_drawn(self.config, member.train))

    @abstractmethod
    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Return the server state after one or more uploads, ordered by client id. Rounds start at 1."""

    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Return a client's download for evaluation: by default, it is empty."""
        return {}

    # --- called by the server's loop

    @final
    def prepare(self, roster: Roster, config: RunConfig) -> Arrays:
        """Check the federation and return the server state before round 1.

        Raises
        ------
        FederationError
            Raised by `check`.
        """
        self.config, self.robust = config, parse_robust(config.robust)
        self.left_out = LeftOut(self.robust)
        self.check(roster)
        self.roster = roster
        with seeded(config.seed, "initial"):
            self._sent: Arrays = frozen(self._checked(self.initial(roster)))
        return self._sent

    @final
    def learn(self, server_state: Arrays, replies: Sequence[Reply], round: int) -> Arrays:
        """Aggregate uploads, and check the new server state."""
        return self._checked(self.aggregate(server_state, [reply.upload for reply in replies], round))

    def _checked(self, arrays: Arrays) -> Arrays:
        """Return a server state; raise `ConfigError` unless it consists of named numeric arrays."""
        for name, array in arrays.items() if isinstance(arrays, Mapping) else [("server state", arrays)]:
            if not isinstance(name, str) or np.asarray(array).dtype.kind not in "biuf":
                what = f"its server state has {brief(array)} as {brief(name)}, expected a numeric array"
                raise ConfigError(f"{self.name}: {what}")
        return arrays

    def summary(self) -> None:
        """Log the hyperparameters."""
        for name, value in sorted(vars(self).items()):
            if not name.startswith("_") and name not in ("roster", "config", "sharing", "left_out"):
                log(INFO, "\t├── %s = %s", name, value)

    # --- called by Flower's own loop, where the server state is an ArrayRecord

    @final
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the training message to each client."""
        self._sent, members = from_record(arrays), self._members(grid)
        downloads = {member: self.download_for(member, self._sent, server_round) for member in members}
        return _messages(MessageType.TRAIN, server_round, downloads)

    @final
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the replies to `configure_train`, in any order, as `learn` does; log invalid replies."""
        answers = self._read_replies(MessageType.TRAIN, replies)
        if not answers:
            return None, None
        learnt = self.learn(self._sent, answers, server_round)
        self.left_out.log(self.name, server_round, self.left_out.taken())
        return to_record(learnt), _averaged(answers)

    @final
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the evaluation message to each client."""
        known, members = from_record(arrays), self._members(grid)
        downloads = {member: self.assess_download_for(member, known) for member in members}
        return _messages(MessageType.EVALUATE, server_round, downloads)

    @final
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the clients' metrics, weighted by their numbers of samples."""
        return _averaged(self._read_replies(MessageType.EVALUATE, replies))

    def _members(self, grid: Grid) -> list[Member]:
        """Return the registered clients among a Grid's nodes."""
        return [self.roster.of(node) for node in grid.get_node_ids() if node in self.roster]

    def _read_replies(self, kind: str, replies: Iterable[Message]) -> list[Reply]:
        """Return the valid replies, ordered by client id; log what is wrong with the others."""
        answers = list[Reply]()
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in self.roster:
                continue
            try:
                expected = expectation(self, kind, self.roster.of(node))
                answers.append(read(reply, expected, half=self.config.half))
            except PayloadError as error:
                log(WARNING, "%s", error)
        return sorted(answers, key=lambda answer: answer.client_id)


def _averaged(answers: Iterable[Reply]) -> MetricRecord | None:
    """Average metrics, weighted by numbers of samples."""
    contents = [RecordDict({METRICS: MetricRecord(dict(answer.metrics))}) for answer in answers]
    return aggregate_metricrecords(contents, EXAMPLES) if contents else None


def _messages(kind: str, number: int, downloads: Mapping[Member, Arrays]) -> list[Message]:
    return [written(kind, number, member, to_record(download)) for member, download in downloads.items()]
