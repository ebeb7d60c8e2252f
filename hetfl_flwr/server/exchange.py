"""What is sent to clients and comes back: what it costs, and whether it may be used."""

import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from numpy.typing import NDArray

from hetfl_flwr.errors import PayloadError
from hetfl_flwr.server.failure import Failure
from hetfl_flwr.server.roster import Member, Roster
from hetfl_flwr.text import LONGEST_NAME, brief, printable
from hetfl_flwr.wire.codec import decode, from_record, payload_bytes, payload_numbers, to_record, wire_bytes
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, EXAMPLES, METRICS, ROUND, STAGES
from hetfl_flwr.wire.spec import Arrays, PayloadSpec

FRACTIONS = {"accuracy", "global-accuracy", "validation-accuracy", "acc", "fwt"}
"""Metrics that are fractions in [0, 1]."""

MOST_SAMPLES = 2**53
"""More samples than a client has; sums of weights up to here are exact in float64."""

LONGEST_REASON = 500
"""Characters of a failure's reason that are kept: what it quotes may come from the client, and be of any length."""

MOST_METRICS = 100
"""Metrics that one reply may have."""

MOST_ENTRIES = 100_000
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


@dataclass
class Exchange:
    """Replies that may be used, ordered by partition; what failed; and what it cost, by partition."""

    replies: list[Message] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    traffic: dict[int, Traffic] = field(default_factory=dict)

    def ordered(self, roster: Roster) -> "Exchange":
        """Return it with everything in the order of the clients, whoever's reply came first."""
        replies = sorted(self.replies, key=lambda reply: roster.of(reply.metadata.src_node_id).client_id)
        failures = sorted(self.failures, key=lambda failure: failure.client_id)
        return Exchange(replies, failures, dict(sorted(self.traffic.items())))

    def add(self, other: "Exchange") -> None:
        """Count failures and cost of another exchange in; its replies have been used."""
        self.failures += other.failures
        for client_id, traffic in other.traffic.items():
            self.traffic.setdefault(client_id, Traffic()).add(traffic)


@dataclass(frozen=True)
class Sent:
    """A message on its way, and what it costs: measured before a Grid in this process hands it over."""

    message: Message
    traffic: Traffic

    @classmethod
    def of(cls, message: Message) -> "Sent":
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
        told = record.get(ROUND, 0)
        return told if isinstance(told, int) else 0

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


def checked(
    reply: Message,
    message: Message,
    member: Member,
    uploads: Callable[[Member], PayloadSpec] | None,
    most: int,
    *,
    half: bool,
) -> Message:
    """Return a reply, with its arrays in their declared dtypes, or raise a PayloadError that says what is wrong."""
    if reply.has_error():  # Flower's own, such as that a node is not there any more, come from the SuperLink
        raise PayloadError(reason(reply.error, member))
    for name, came, asked in (
        ("node", reply.metadata.src_node_id, message.metadata.dst_node_id),
        ("run", reply.metadata.run_id, message.metadata.run_id),
    ):
        if came != asked:
            raise PayloadError(f"{member}: a reply of {name} {came}, expected {name} {asked}")
    content = reply.content
    if content.config_records:
        raise PayloadError(f"{member}: config records {', '.join(content.config_records)}, expected none")
    if list(content.metric_records) != [METRICS]:
        raise PayloadError(f"{member}: records {', '.join(content) or 'none'}, expected '{METRICS}'")
    _check_metrics(dict(content.metric_records[METRICS]), member, most)
    if uploads is None:
        return reply
    if list(content.array_records) != [ARRAYS]:
        raise PayloadError(f"{member}: array records {', '.join(content.array_records) or 'none'}, expected '{ARRAYS}'")
    arrays = decode(uploads(member), content.array_records[ARRAYS], str(member), half=half)
    return with_arrays(reply, to_record(arrays)) if half else reply


def arrays_of(message: Message) -> dict[str, NDArray[Any]]:
    """Return the arrays of a message that this process has written or checked; none where it has none."""
    return from_record(message.content.array_records.get(ARRAYS) or ArrayRecord())


def with_arrays(message: Message, arrays: ArrayRecord) -> Message:
    """Return a message with other arrays; all else is the same."""
    message = copy(message)
    message.content = RecordDict({**message.content, ARRAYS: arrays})
    return message


def reason(error: Error, who: object) -> str:
    """Return in a line why there is no answer, and from whom.

    What the client calls itself is repeated only where it is what the server knows it as.
    """
    said = error.reason or f"error {error.code} without a reason"
    line = printable(" ".join(said.split()), LONGEST_REASON)
    known = isinstance(who, Member) and line.startswith(f"client {who.client_id}, ")
    return line if known else f"{who}: {line}"


def _check_bounds(content: RecordDict, member: Member) -> None:
    """Refuse a reply of too many entries before any of them is looked at."""
    metrics = sum(map(len, content.metric_records.values()))
    if metrics > MOST_METRICS:
        raise PayloadError(f"{member}: {metrics} metrics, expected at most {MOST_METRICS}")
    entries = len(content) + sum(map(len, content.values()))
    if entries > MOST_ENTRIES:
        raise PayloadError(f"{member}: {entries} entries, expected at most {MOST_ENTRIES}")


def _check_metrics(metrics: Mapping[str, object], member: Member, most: int) -> None:
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
    examples = metrics.get(EXAMPLES)
    if not isinstance(examples, int) or not 0 <= examples <= MOST_SAMPLES:
        raise PayloadError(f"{member}: metric '{EXAMPLES}' is {brief(examples)}, expected a number of samples")
    if examples > most:
        raise PayloadError(
            f"{member}: metric '{EXAMPLES}' is {examples}, expected at most {most} of the samples it is registered with"
        )
