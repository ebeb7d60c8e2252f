"""What is sent to clients and comes back: decoded and checked once, where it arrives, and what it costs."""

import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from math import isfinite
from operator import attrgetter
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, Metadata, RecordDict
from numpy.typing import NDArray

from hetfl_flwr.common.flower import SUPERLINK_NODE_ID
from hetfl_flwr.errors import PayloadError
from hetfl_flwr.server.guard import Sizes
from hetfl_flwr.server.member import Failure, Member
from hetfl_flwr.text import LONGEST_NAME, LONGEST_TEXT, brief, printable, quoted
from hetfl_flwr.wire.classes import numbered, wrong_list
from hetfl_flwr.wire.codec import decode, from_record, payload_bytes, payload_numbers, wire_bytes
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, EXAMPLES, METRICS, ROUND, SEEN, STAGES
from hetfl_flwr.wire.naming import called
from hetfl_flwr.wire.spec import Arrays, PayloadSpec

FRACTIONS = {
    *("accuracy", "global-accuracy", "validation-accuracy", "acc", "fwt"),
    *("balanced-accuracy", "macro-f1", "auc", "majority"),
}
"""Metrics that are fractions in [0, 1]."""

MAX_SAMPLES = 2**53
"""More samples than a client has; sums of weights up to here are exact in float64."""

LONGEST_REASON = 500
"""Characters of a failure's reason that are kept: what it quotes may come from the client, and be of any length."""

MAX_METRICS = 100
"""Metrics that one reply may have."""

MAX_ENTRIES = 100_000
"""Arrays and other entries that one reply may have, in all of its records."""

METRIC_NAME = re.compile(r"[A-Za-z0-9_-]+([ ./:][A-Za-z0-9_-]+)*")
"""Names that every tracker takes, too."""


@dataclass
class Traffic:
    """What goes to and from a client: numbers and bytes of payload (what papers count), bytes of messages (wire)."""

    numbers_up: int = 0
    numbers_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    wire_up: int = 0
    wire_down: int = 0

    def add(self, other: "Traffic") -> None:
        """Count another exchange in."""
        self.numbers_up += other.numbers_up
        self.numbers_down += other.numbers_down
        self.bytes_up += other.bytes_up
        self.bytes_down += other.bytes_down
        self.wire_up += other.wire_up
        self.wire_down += other.wire_down


@dataclass(frozen=True)
class Upload:
    """What one client sent in one round, already checked.

    Parameters
    ----------
    client_id : int
        Which client.
    arrays : mapping of str to array
        What it has learnt, as the strategy's `KnowledgeStrategy.upload_spec` declares it.
    samples : int
        How many training samples it has, however many of them it saw in the round.
    """

    client_id: int
    arrays: Arrays
    samples: int


@dataclass(frozen=True)
class Reply:
    """A client's answer, decoded and checked once, where it arrived.

    Parameters
    ----------
    client_id : int
        Which client.
    metrics : mapping of str to number
        What it has measured, ``num-examples`` among it.
    arrays : mapping of str to array
        What it has uploaded.
    classes : mapping of str to list
        What it has measured class by class, as `hetfl_flwr.wire.classes` names it; None for a class without figure.
    """

    client_id: int
    metrics: Mapping[str, float]
    arrays: Arrays = field(default_factory=dict)
    classes: Mapping[str, list[float | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, message: Message, client_id: int) -> "Reply":
        """Decode a message that this process has written, or has checked before."""
        return cls(client_id, _numbers(message), arrays_of(message))

    @property
    def samples(self) -> int:
        """How many training samples it has, or it has measured on."""
        return int(self.metrics[EXAMPLES])

    @property
    def seen(self) -> int:
        """How many samples it has trained on, repeats included."""
        return int(self.metrics.get(SEEN, self.samples))

    @property
    def upload(self) -> Upload:
        """What an algorithm is given."""
        return Upload(self.client_id, self.arrays, self.samples)


class Most(NamedTuple):
    """The largest numbers of samples that a client may say when it has trained.

    Parameters
    ----------
    samples : int
        Of ``num-examples``.
    seen : int
        Of ``samples-seen``.
    """

    samples: int = MAX_SAMPLES
    seen: int = MAX_SAMPLES


class Expected(NamedTuple):
    """What replies are held against.

    Parameters
    ----------
    uploads : callable, optional
        What each client is to upload. None: no arrays are looked at.
    samples : callable, optional
        The largest numbers of samples that each client may say, by its registered rows and the run config. None: any.
    """

    uploads: Callable[[Member], PayloadSpec] | None = None
    samples: Callable[[Member], Most] | None = None

    def most(self, sent: "Request", member: Member) -> Most:
        """Return what an answer is held against: of an evaluation the test samples that the client has registered."""
        if sent.is_evaluation:
            return Most(member.test)
        return self.samples(member) if self.samples else Most()


METRICS_ALONE = Expected()
"""Replies are to have metrics, and no arrays are looked at."""


@dataclass
class Outcome:
    """Replies that may be used, ordered by client id; what failed; and by client id what it cost and how large it was.

    Parameters
    ----------
    replies : list of Reply
        Those that may be used.
    failures : list of Failure
        Why others may not, or did not come.
    traffic : dict of int to Traffic
        What it cost.
    sizes : dict of int to Sizes
        How large the uploads were, for the guard.
    """

    replies: list[Reply] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    traffic: dict[int, Traffic] = field(default_factory=dict)
    sizes: dict[int, Sizes] = field(default_factory=dict)

    def ordered(self) -> "Outcome":
        """Return it with everything in the order of the clients, whoever's reply came first."""
        replies = sorted(self.replies, key=attrgetter("client_id"))
        failures = sorted(self.failures, key=attrgetter("client_id"))
        return Outcome(replies, failures, dict(sorted(self.traffic.items())))

    def add(self, other: "Outcome") -> None:
        """Count failures and cost of another exchange in; its replies have been used."""
        self.failures += other.failures
        for client_id, traffic in other.traffic.items():
            self.traffic.setdefault(client_id, Traffic()).add(traffic)


@dataclass(frozen=True)
class Request:
    """A message on its way, and what it costs: measured before a Grid in this process hands it over."""

    message: Message
    traffic: Traffic

    @classmethod
    def of(cls, message: Message) -> "Request":
        """Measure a message."""
        numbers, payload, wire = payload_numbers(message), payload_bytes(message), wire_bytes(message)
        return cls(message, Traffic(numbers_down=numbers, bytes_down=payload, wire_down=wire))

    @property
    def node(self) -> int:
        """Where it goes."""
        return self.message.metadata.dst_node_id

    @property
    def round(self) -> int:
        """The round that its client is told; 0 where it is told none."""
        record = self.message.content.config_records.get(CONFIG) or ConfigRecord()
        number = record.get(ROUND, 0)
        return number if isinstance(number, int) else 0

    @property
    def is_training(self) -> bool:
        """Whether it asks for training."""
        return self.message.metadata.message_type == MessageType.TRAIN

    @property
    def is_evaluation(self) -> bool:
        """Whether it asks for an evaluation."""
        return self.message.metadata.message_type == MessageType.EVALUATE

    @property
    def arrays(self) -> Arrays:
        """The arrays that its client is sent."""
        return arrays_of(self.message)

    @property
    def stage(self) -> str:
        """What the message asks for, as failures call it."""
        kind = self.message.metadata.message_type
        return STAGES.get(kind, kind)


def cost(reply: Message, member: Member) -> Traffic:
    """Measure a reply.

    Raises
    ------
    PayloadError
        It holds a number that no message can, or more entries than any client has.
    """
    if reply.has_content():
        _check_bounds(reply.content, member)
    try:
        return Traffic(numbers_up=payload_numbers(reply), bytes_up=payload_bytes(reply), wire_up=wire_bytes(reply))
    except ValueError as error:  # from a client in this process: nothing has serialised its numbers before
        raise PayloadError(f"{member}: a reply that no message can hold: {error}") from None


def read(
    reply: Message,
    sent: Request,
    member: Member,
    spec: PayloadSpec | None,
    most: Most,
    *,
    half: bool = False,
    own: bool = False,
) -> Reply:
    """Decode and check a reply.

    Parameters
    ----------
    reply : Message
        What came.
    sent : Request
        What it answers.
    member : Member
        Who was asked.
    spec : PayloadSpec, optional
        What is to be uploaded. None: no arrays are looked at.
    most : Most
        The largest numbers of samples.
    half : bool
        Whether arrays must have come in half precision. They have their declared dtypes all the same.
    own : bool
        Whether all nodes are the user's own: see `reason`.

    Raises
    ------
    PayloadError
        Says what is wrong.
    """
    if unfit := misaddressed(reply, sent.message.metadata):
        raise PayloadError(f"{member}: {unfit}")
    if reply.has_error():
        raise PayloadError(reason(reply, member, own=own))
    content = reply.content
    if content.config_records:
        raise PayloadError(f"{member}: config records {_names(content.config_records)}, expected none")
    if list(content.metric_records) != [METRICS]:
        raise PayloadError(f"{member}: records {_names(content)}, expected '{METRICS}'")
    metrics: Mapping[str, object] = content.metric_records[METRICS]
    check_metrics(metrics, member, most, evaluated=sent.is_evaluation)
    if spec is None:
        return Reply(member.client_id, _numbers(reply), classes=numbered(metrics))
    if list(content.array_records) != [ARRAYS]:
        raise PayloadError(f"{member}: array records {_names(content.array_records)}, expected '{ARRAYS}'")
    arrays = decode(spec, content.array_records[ARRAYS], str(member), half=half)
    return Reply(member.client_id, _numbers(reply), arrays)


def _numbers(reply: Message) -> dict[str, float]:
    metrics = reply.content.metric_records[METRICS]
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def arrays_of(message: Message) -> dict[str, NDArray[Any]]:
    """Return the arrays of a message that this process has written or checked; none where it has none."""
    return from_record(message.content.array_records.get(ARRAYS) or ArrayRecord())


def with_arrays(message: Message, arrays: ArrayRecord) -> Message:
    """Return a message with other arrays; all else is the same."""
    message = copy(message)
    message.content = RecordDict({**message.content, ARRAYS: arrays})
    return message


def misaddressed(reply: Message, asked: Metadata) -> str:
    """Say in what a reply is no answer to what was asked; empty where it is one, or Flower's own error."""
    came = reply.metadata
    if reply.has_error() and came.src_node_id == SUPERLINK_NODE_ID:  # such as that a node is not there any more
        return ""
    for by, name, value, wanted in (
        ("of", "node", came.src_node_id, asked.dst_node_id),
        ("to", "node", came.dst_node_id, asked.src_node_id),
        ("of", "run", came.run_id, asked.run_id),
        ("of", "type", came.message_type, asked.message_type),
        ("of", "group", came.group_id, asked.group_id),
    ):
        if value != wanted:
            return f"a reply {by} {name} {brief(value)}, expected {name} {brief(wanted)}"
    return "" if came.ttl > 0 else f"a reply that lives for {came.ttl:g} s"


def reason(reply: Message, who: Member | int, *, own: bool = False) -> str:
    """Return in a line why there is no answer, and from whom: a member, or a node by its id; see `blamed`."""
    trusted = own or reply.metadata.src_node_id == SUPERLINK_NODE_ID
    return blamed(reply.error.reason or "", who, code=reply.error.code, own=trusted)


def blamed(said: str, who: Member | int, *, code: int = 0, own: bool = True) -> str:
    """Return in a line what a member, or a node by its id, says of an error that it has come to.

    What the client calls itself is repeated only where it is what the server knows it as, and what a node says is
    quoted, unless it is the user's `own`.
    """
    longest = LONGEST_REASON if isinstance(who, Member) else LONGEST_TEXT  # who cannot register says all that is wrong
    line = printable(" ".join(said.split()), longest)
    by = str(who) if isinstance(who, Member) else f"node {who}"
    of = f"{by}: "
    if isinstance(who, Member) and line.startswith(prefix := f"{called(who.client_id)}, "):
        by = called(who.client_id, who.name)
        of, line = f"{by}, ", line.removeprefix(prefix)
    if not line:
        return f"{of}error {code} without a reason"
    return of + line if own else f"{by} says: {quoted(line)}"


def _names(records: Iterable[str]) -> str:
    """Return names that a client has chosen, quoted."""
    return ", ".join(map(brief, records)) or "none"


def _check_bounds(content: RecordDict, member: Member) -> None:
    """Refuse a reply of too many entries before any of them is looked at."""
    metrics = sum(map(len, content.metric_records.values()))
    if metrics > MAX_METRICS:
        raise PayloadError(f"{member}: {metrics} metrics, expected at most {MAX_METRICS}")
    entries = len(content) + sum(map(len, content.values()))
    if entries > MAX_ENTRIES:
        raise PayloadError(f"{member}: {entries} entries, expected at most {MAX_ENTRIES}")


def _without_lists(metrics: Mapping[str, object], member: Member) -> dict[str, object]:
    """Return the metrics that are no lists; refuse a list that is not of the client's classes."""
    lists = {name: value for name, value in metrics.items() if isinstance(value, list)}
    for name, value in lists.items():
        if wrong := wrong_list(name, value, member.classes):
            raise PayloadError(f"{member}: metric {brief(name)} is {brief(value)}, {wrong}")
    return {name: value for name, value in metrics.items() if name not in lists}


def check_metrics(metrics: Mapping[str, object], member: Member, most: Most, *, evaluated: bool = False) -> None:
    """Raise `PayloadError` unless a client's metrics, of training or of an evaluation, may be used."""
    if len(metrics) > MAX_METRICS:
        raise PayloadError(f"{member}: {len(metrics)} metrics, expected at most {MAX_METRICS}")
    if evaluated:
        metrics = _without_lists(metrics, member)
    rows = f"the {'test ' * evaluated}samples it is registered with"
    for name, value in metrics.items():
        if len(name) > LONGEST_NAME or not METRIC_NAME.fullmatch(name):
            raise PayloadError(
                f"{member}: a metric is called {brief(name)}, expected at most {LONGEST_NAME} ASCII letters, digits, "
                "'_' and '-', with single ' ', '.', '/' or ':' between them"
            )
        if not isinstance(value, int | float) or not isfinite(value):
            raise PayloadError(f"{member}: metric '{name}' is {brief(value)}, expected a finite number")
        if name in FRACTIONS and not 0 <= value <= 1:
            raise PayloadError(f"{member}: metric '{name}' is {value!r}, expected a fraction from 0 to 1")
    _check_samples(EXAMPLES, metrics.get(EXAMPLES), member, most.samples, rows)
    _check_samples(SEEN, metrics.get(SEEN, 0), member, most.seen, "what a round draws of its samples")


def _check_samples(name: str, number: object, member: Member, most: int, why: str) -> None:
    """Refuse a number of samples that a client cannot have."""
    if not isinstance(number, int) or not 0 <= number <= MAX_SAMPLES:
        raise PayloadError(f"{member}: metric '{name}' is {brief(number)}, expected a number of samples")
    if number > most:
        raise PayloadError(f"{member}: metric '{name}' is {number}, expected at most {most}, {why}")
