"""Base of the server sides: what an algorithm implements."""

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
"""What leaves a client, in the order in which `hetfl list algorithms` groups by it.

"weights": all of the model's. "parts of weights": the body, the head or some channels. "small models": a model that
travels while another stays. "prototypes": the mean embedding of each class. "logits": the mean logits of each class.
"representations": of samples that all know. "public samples": these alone, or predictions on them. "nothing".
"""


class KnowledgeStrategy(Strategy, ABC):
    """A strategy whose clients exchange knowledge instead of weights.

    An algorithm implements `initial`, `download_for`, `aggregate` and `upload_spec`. The server state is a set of
    named arrays that these functions receive and return; nothing else is kept, so that a run can be checkpointed and
    resumed without the algorithm's help.

    Attributes
    ----------
    heterogeneous : bool
        Class attribute: whether clients may have different architectures, with the default hyper-parameters. Default:
        True.
    width : int
        Class attribute: the embedding width that all models get where the run config's ``width`` is 0. Default: 0, each
        model keeps its own.
    sharing : Sharing or None
        Class attribute: what is needed of the clients' public samples, which are in ``roster.public_samples`` before
        round 1. Default: None, nothing.
    asynchronous : bool
        Whether each client is answered as soon as it has uploaded. Default: False.
    exchanges : bool
        Class attribute: whether clients learn from each other. Default: True.
    sends : {"weights", "parts of weights", "small models", "prototypes", "logits", "representations", \
"public samples", "nothing", "something else"}
        Class attribute: what leaves a client in a round. `hetfl list algorithms` groups by it. "parts of weights": the
        body, the head or some channels; "small models": a model that travels while another stays; "prototypes" and
        "logits": a mean of each class; "representations": embeddings of samples that all know; "public samples": these
        alone, or predictions on them. Default: "something else".
    parts : bool
        Class attribute: whether clients may have parts of one network of different width, as ``NAME@0.5``; then
        ``models = "auto"`` gives every second client half of the width. Default: False.
    averages : bool
        Whether uploads are averaged by `robust`, so that the run config's ``robust`` may be set. Default: False.
    robust : Average
        How uploads are averaged, as the run config's ``robust`` sets. Set before `initial` is called.
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
        """Take no hyper-parameters."""

    @cached_property
    def left_out(self) -> LeftOut:
        """The clients whose uploads `robust` leaves out."""
        return LeftOut(self.robust)

    @property
    def name(self) -> str:
        """The algorithm's name, for errors and logs."""
        return self.config.algorithm if hasattr(self, "config") else type(self).__name__.lower()

    def check(self, roster: Roster) -> None:
        """Refuse a federation that the algorithm does not support. By default: clients must agree on the classes.

        Called before round 1, and with the first client and each one that joins later; in a deployment, where a client
        that does not fit the first one is refused, also with the first and each other one. So it compares clients, and
        does not count them.

        Raises
        ------
        FederationError
            One line that names who differs.
        """
        _ = roster.classes

    @abstractmethod
    def initial(self, roster: Roster) -> Arrays:
        """Return the server state before round 1."""

    @abstractmethod
    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Return a client's download of a round, as the client side declares it."""

    @abstractmethod
    def upload_spec(self, member: Member) -> PayloadSpec:
        """Declare a client's upload."""

    def sample_limits(self, member: Member) -> SampleLimits:
        """Return the largest numbers of samples that a client may report after training.

        By default those of its training samples, and of these in the batches of a round, as the run config has it.
        """
        return SampleLimits(member.train, max_drawn(self.config, member.train))

    @abstractmethod
    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Return the server state after uploads, at least one, ordered by client id. Rounds count from 1."""

    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Return a client's download for evaluation: by default empty."""
        return {}

    # --- what the server's loop calls

    @final
    def prepare(self, roster: Roster, config: RunConfig) -> Arrays:
        """Check the federation and return the server state before round 1.

        Raises
        ------
        FederationError
            As `check`.
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
        """Refuse a server state that is not named arrays of numbers."""
        for name, array in arrays.items() if isinstance(arrays, Mapping) else [("server state", arrays)]:
            if not isinstance(name, str) or np.asarray(array).dtype.kind not in "biuf":
                what = f"its server state has {brief(array)} as {brief(name)}, expected numbers"
                raise ConfigError(f"{self.name}: {what}")
        return arrays

    def summary(self) -> None:
        """Log the hyper-parameters."""
        for name, value in sorted(vars(self).items()):
            if not name.startswith("_") and name not in ("roster", "config", "sharing", "left_out"):
                log(INFO, "\t├── %s = %s", name, value)

    # --- what Flower's own loop calls: the server state is an ArrayRecord there

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
        """As `learn`, with the answers to `configure_train` in any order; invalid answers are logged."""
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
        """Ask each client to evaluate its model."""
        known, members = from_record(arrays), self._members(grid)
        downloads = {member: self.assess_download_for(member, known) for member in members}
        return _messages(MessageType.EVALUATE, server_round, downloads)

    @final
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the clients' metrics by their numbers of samples."""
        return _averaged(self._read_replies(MessageType.EVALUATE, replies))

    def _members(self, grid: Grid) -> list[Member]:
        """Return the clients behind a Grid's nodes; nodes that have joined since have none."""
        return [self.roster.of(node) for node in grid.get_node_ids() if node in self.roster]

    def _read_replies(self, kind: str, replies: Iterable[Message]) -> list[Reply]:
        """Return the valid answers by client id; log what is wrong with the others."""
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
    """Average metrics by numbers of samples."""
    contents = [RecordDict({METRICS: MetricRecord(dict(answer.metrics))}) for answer in answers]
    return aggregate_metricrecords(contents, EXAMPLES) if contents else None


def _messages(kind: str, number: int, downloads: Mapping[Member, Arrays]) -> list[Message]:
    return [written(kind, number, member, to_record(download)) for member, download in downloads.items()]
