"""The exchange through Flower's messages: the only place where the server writes and reads them."""

import time
from collections.abc import Callable, Collection, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, Metadata, RecordDict
from flwr.serverapp import Grid

from hetfl_flwr.common.flower import SUPERLINK_NODE_ID, ErrorCode
from hetfl_flwr.errors import PayloadError
from hetfl_flwr.server.exchange import (
    MAX_METRICS,
    Exchange,
    Expected,
    Outcome,
    Reply,
    Request,
    Traffic,
    error_line,
)
from hetfl_flwr.server.grids import pull_interval
from hetfl_flwr.server.member import Member
from hetfl_flwr.text import brief
from hetfl_flwr.wire.codec import decode, payload_bytes, payload_numbers, to_record, wire_bytes
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, LABELLED, METRICS, POOL, ROUND, SHARE
from hetfl_flwr.wire.spec import frozen

if TYPE_CHECKING:
    from hetfl_flwr.server.federation import Federation

LOST = "its node has left or restarted before it answered"
"""Reason for a failure: the server has stopped waiting for the reply."""

MAX_ENTRIES = 100_000
"""Maximum number of records, arrays and other entries in a reply."""


@dataclass(eq=False)
class InFlight(Request):
    """A request that was sent as a message, and its reply until that is processed."""

    asked: Metadata | None = None
    """The metadata of the message."""
    deadline: float = inf
    """Time until which the server waits for the reply, as of `time.monotonic`."""
    reply: Message | str | None = None
    """The reply, or the reason why there will be none."""


class FlowerExchange(Exchange):
    """Exchanges arrays through Flower's messages, one message per node at a time.

    A node that has restarted is asked to register again; its reply shows that the message before is lost. ``poll`` is
    the poll interval in seconds. ``engaged`` returns nodes that are busy with another message, such as a request to
    register, and ``idle`` is called at each poll without a reply.
    """

    _request = InFlight

    def __init__(self, federation: "Federation") -> None:
        super().__init__(federation)
        self.grid, self._own, self.poll = federation.grid, federation.own, pull_interval(federation.grid)
        self.engaged: Callable[[], set[int]] = set
        self.idle: Callable[[], object] = lambda: None
        self._waiting: dict[str, InFlight] = {}
        self._late: dict[str, int] = {}  # message id -> node, of replies that are no longer waited for

    @property
    def waiting(self) -> Collection[Request]:
        """The requests under way."""
        return self._waiting.values()

    def overdue(self) -> set[int]:
        """Return the nodes whose replies are no longer waited for, or that are busy otherwise, see ``engaged``."""
        if self._late:  # a late reply is discarded: it belongs to an earlier server state
            self._pull(self._late)
        return {*self._late.values(), *self.engaged()}

    def busy(self) -> set[int]:
        """Return the nodes that have not answered an earlier message."""
        return {*self.overdue(), *(one.member.node for one in self._waiting.values() if one.reply is None)}

    def answers_again(self, node: int) -> None:
        """Record that a node that had left or restarted has registered again, so earlier messages to it are lost.

        A node answers its messages one by one, in the order in which they were sent. If the reply to an earlier message
        has not arrived by now, it never will.
        """
        sent = {message for message, late in self._late.items() if late == node}
        sent |= {message for message, one in self._waiting.items() if one.member.node == node and one.reply is None}
        if sent:
            self._pull(sent)
        for message in sent:
            self._late.pop(message, None)
            if (one := self._waiting.get(message)) and one.reply is None:
                one.reply = LOST

    def drop_departed(self) -> None:
        """Stop waiting for clients that have left."""
        for message in [message for message, one in self._waiting.items() if one.member.node not in self.roster]:
            self._late[message] = self._waiting.pop(message).member.node

    def forget_late(self, present: Collection[int]) -> None:
        """Forget late messages to nodes that have left."""
        self._late = {message: node for message, node in self._late.items() if node in present}

    def _post(self, sent: Sequence[InFlight]) -> None:
        """Build and send the messages; a download of several clients is serialized once."""
        records: dict[int, ArrayRecord] = {}
        messages = list[Message]()
        for one in sent:
            if id(one.download) not in records:
                records[id(one.download)] = to_record(one.download)
            messages.append(written(one.kind, one.number, one.member, records[id(one.download)]))
            messages[-1].metadata.ttl = max(messages[-1].metadata.ttl, self.config.round_timeout)
            one.traffic, one.asked = weighed(messages[-1]), messages[-1].metadata
        if messages:
            self.grid.push_messages(messages)
        for one, message in zip(sent, messages, strict=True):
            one.deadline = time.monotonic() + self.config.round_timeout
            self._waiting[message.metadata.message_id] = one

    def _take(self, outcome: Outcome) -> Request:
        """Wait for the next reply; a node that misses its deadline is busy until its late reply arrives."""
        while not (came := next((message for message, one in self._waiting.items() if one.reply is not None), "")):
            now = time.monotonic()  # a reply that comes in parts holds up those that came whole meanwhile
            self._pull(self._waiting)
            for message, one in self._waiting.items():
                if one.reply is None and now > one.deadline:
                    one.reply, self._late[message] = f"no reply within {self.config.round_timeout:g} s", one.member.node
            if all(one.reply is None for one in self._waiting.values()):
                if self.poll:
                    time.sleep(self.poll)
                self.idle()
        sent = self._waiting.pop(came)
        self.judge(sent, outcome)
        return sent

    def _pull(self, messages: Iterable[str]) -> None:
        """Receive the replies that have arrived."""
        for reply in list(self.grid.pull_messages(list(messages))):
            message = reply.metadata.reply_to_message_id
            self._late.pop(message, None)
            if (one := self._waiting.get(message)) and one.reply is None:
                one.reply = reply

    def judge(self, sent: InFlight, outcome: Outcome) -> None:
        """Decode and check the reply of a request, add its traffic, and add the result to the outcome."""
        member, reply = sent.member, sent.reply
        outcome.traffic[member.client_id] = sent.traffic
        try:
            if not isinstance(reply, Message):
                raise PayloadError(f"{member}: {reply}")
            sent.traffic.add(cost(reply, member))
            if sent.asked is not None and (unfit := misaddressed(reply, sent.asked)):
                raise PayloadError(f"{member}: {unfit}")
            refused = reply.has_error() and reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            if refused and sent.kind == MessageType.TRAIN:
                self.uploads.refused(member.client_id)
            self._accept(sent, read(reply, self.expected(sent), half=self.config.half, own=self._own), outcome)
        except PayloadError as error:
            outcome.fail(member, sent.stage, str(error))


def written(kind: str, number: int, member: Member, arrays: ArrayRecord) -> Message:
    """Return the message to a client."""
    records: dict[str, Any] = {} if kind == SHARE else {ARRAYS: arrays}
    if kind != POOL:
        records[CONFIG] = ConfigRecord({LABELLED: bool(number)} if kind == SHARE else {ROUND: number})
    return Message(RecordDict(records), member.node, kind)


def weighed(message: Message) -> Traffic:
    """Return the traffic of a message to a client."""
    numbers, payload, wire = payload_numbers(message), payload_bytes(message), wire_bytes(message)
    return Traffic(numbers_down=numbers, bytes_down=payload, wire_down=wire)


def cost(reply: Message, member: Member) -> Traffic:
    """Return the traffic of a reply.

    Raises `PayloadError` if it holds too many entries, or a number that cannot be serialized.
    """
    if reply.has_content():
        _check_bounds(reply.content, member)
    try:
        return Traffic(numbers_up=payload_numbers(reply), bytes_up=payload_bytes(reply), wire_up=wire_bytes(reply))
    except ValueError as error:  # a reply from this process has never been serialized
        raise PayloadError(f"{member}: the reply cannot be serialized: {error}") from None


def read(reply: Message, expected: Expected, *, half: bool = False, own: bool = False) -> Reply:
    """Decode and check a reply; raise `PayloadError` if it is invalid.

    With `half`, arrays must arrive in half precision; they are returned in their declared dtypes. `own` says whether
    all nodes are the user's own, see `reason`.
    """
    member = expected.member
    if reply.has_error():
        raise PayloadError(reason(reply, member, own=own))
    content = reply.content
    unfit = expected.spec is not None and list(content.array_records) != [ARRAYS]
    if unfit or content.config_records or list(content.metric_records) != [METRICS]:
        names = ", ".join(map(brief, content)) or "none"
        raise PayloadError(f"{member}: records {names}, expected numbers as '{METRICS}' and arrays as '{ARRAYS}'")
    metrics = dict(content.metric_records[METRICS])
    expected.check(metrics)
    if expected.spec is None:
        return expected.reply(metrics, {})
    arrays = decode(expected.spec, content.array_records[ARRAYS], str(member), half=half)
    return expected.reply(metrics, frozen(arrays))


def received(grid: Grid, asked: MutableMapping[str, Metadata]) -> dict[int, Message | str]:
    """Return the replies that have arrived, or what is wrong with them, by node; remove them from `asked`."""
    answers = dict[int, Message | str]()
    while asked and (replies := list(grid.pull_messages(asked.keys()))):
        for reply in replies:
            if query := asked.pop(reply.metadata.reply_to_message_id, None):
                unfit, node = misaddressed(reply, query), query.dst_node_id
                answers[node] = f"node {node}: {unfit}" if unfit else reply
    return answers


def misaddressed(reply: Message, asked: Metadata) -> str:
    """Return why a reply does not answer its request; empty if it does, or if it is an error from Flower itself."""
    came = reply.metadata
    if reply.has_error() and came.src_node_id == SUPERLINK_NODE_ID:  # such as an unavailable node
        return ""
    fields = came.src_node_id, came.dst_node_id, came.run_id, came.message_type, came.group_id
    wanted = asked.dst_node_id, asked.src_node_id, asked.run_id, asked.message_type, asked.group_id
    matches = fields == wanted and came.ttl > 0
    return "" if matches else f"a reply with forged metadata: {brief(fields)}, {came.ttl:g} s"


def reason(reply: Message, who: Member | int, *, own: bool = False) -> str:
    """Return the error in a reply of a client, or of a node without one, as one line; see `error_line`."""
    trusted = own or reply.metadata.src_node_id == SUPERLINK_NODE_ID
    return error_line(reply.error.reason or "", who, code=reply.error.code, own=trusted)


def _check_bounds(content: RecordDict, member: Member) -> None:
    """Raise a `PayloadError` if a reply has too many entries, before any of them is read."""
    metrics = sum(map(len, content.metric_records.values()))
    entries = len(content) + sum(map(len, content.values()))
    if metrics > MAX_METRICS or entries > MAX_ENTRIES:
        most = f"{MAX_METRICS} and {MAX_ENTRIES}"
        raise PayloadError(f"{member}: {metrics} metrics and {entries} entries, expected at most {most}")
