"""What clients are sent and answer as Flower's messages: the only place where the server writes and reads them."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence, Set
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
    Sent,
    Traffic,
    blamed,
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
"""Why a message is waited for no longer."""

MAX_ENTRIES = 100_000
"""Arrays and other entries that one reply may have, in all of its records."""


class Messenger:
    """Carries messages to nodes, and their replies. A node is sent one message at a time.

    A node that has restarted is asked to register besides: its answer shows that the message before is lost.

    Parameters
    ----------
    grid : Grid
        The engine's own.
    timeout : float
        Seconds that a reply is waited for.

    Attributes
    ----------
    poll : float
        Seconds between two looks for replies.
    engaged : callable
        Returns nodes that are busy with another message, such as a request to register.
    idle : callable
        Called from time to time while the messenger waits for replies.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        self.grid = grid
        self.poll = pull_interval(grid)
        self.engaged: Callable[[], set[int]] = set
        self.idle: Callable[[], object] = lambda: None
        self._timeout = timeout
        self._under_way: dict[str, tuple[int, float]] = {}  # messages that are waited for, their nodes, and how long
        self._late: dict[str, int] = {}  # those that nobody waits for any longer
        self._came: dict[str, Message | str] = {}

    def push(self, messages: Sequence[Message]) -> list[str]:
        """Send messages, and wait for the replies from now on; return the messages' ids."""
        for message in messages:
            message.metadata.ttl = max(message.metadata.ttl, self._timeout)
        if messages:
            self.grid.push_messages(messages)
        deadline = time.monotonic() + self._timeout
        self._under_way |= {one.metadata.message_id: (one.metadata.dst_node_id, deadline) for one in messages}
        return [one.metadata.message_id for one in messages]

    def next(self, messages: Set[str]) -> tuple[str, Message | str]:
        """Wait for the next reply to some messages; return the message's id, and the reply or why there is none.

        A node that has not answered in time is busy until its late reply is in.
        """
        while not (came := next((message for message in self._came if message in messages), "")):
            self._pull(messages)
            now, late = time.monotonic(), f"no reply within {self._timeout:g} s"
            for message in [message for message in messages if message not in self._came]:
                if message not in self._under_way:
                    self._came[message] = LOST
                elif now > self._under_way[message][1]:
                    self.leave([message])
                    self._came[message] = late
            if not self._came.keys() & messages:
                self.pause()
        return came, self._came.pop(came)

    def answers_again(self, node: int) -> None:
        """Record that a node which had left, or restarted, has registered again: earlier messages to it are lost.

        A node answers its messages one after the other, in the order in which they were sent: unless an earlier reply
        has come by now, there will be none.
        """
        under_way = {message: of for message, (of, _) in self._under_way.items()}
        sent = {message for message, of in {**self._late, **under_way}.items() if of == node}
        if sent:
            self._pull(sent)
        for message in sent:
            self._late.pop(message, None)
            self._under_way.pop(message, None)

    def drop_departed(self, present: Collection[int]) -> None:
        """Drop late messages to nodes that have left."""
        self._late = {message: node for message, node in self._late.items() if node in present}

    def leave(self, messages: Iterable[str]) -> None:
        """Wait no longer for the answers to messages; their nodes are busy until these are in."""
        self._late |= {one: self._under_way.pop(one)[0] for one in messages if one in self._under_way}

    def overdue(self) -> set[int]:
        """Return the nodes whose answers nobody waits for any longer, or who have been asked who they are."""
        if self._late:  # a reply that comes after its round belongs to a server state that is gone
            self._pull(self._late)
        return {*self._late.values(), *self.engaged()}

    def busy(self) -> set[int]:
        """Return the nodes that have not answered an earlier message yet: they are sent nothing more."""
        return {*self.overdue(), *(node for node, _ in self._under_way.values())}

    def pause(self) -> None:
        """Wait a moment for replies."""
        if self.poll:
            time.sleep(self.poll)
        self.idle()

    def _pull(self, messages: Collection[str]) -> None:
        """Take in the replies to messages that have come."""
        for reply in list(self.grid.pull_messages(list(messages))):
            message = reply.metadata.reply_to_message_id
            self._late.pop(message, None)
            if self._under_way.pop(message, None):
                self._came[message] = reply


class FlowerExchange(Exchange):
    """Exchanges arrays by Flower's messages.

    Parameters
    ----------
    federation : Federation
        As `Exchange`.
    """

    def __init__(self, federation: "Federation") -> None:
        super().__init__(federation)
        self._messenger, self._own = federation.messenger, federation.own
        self._waiting: dict[str, tuple[Sent, Metadata]] = {}

    @property
    def waiting(self) -> Collection[Sent]:
        """What is under way."""
        return [sent for sent, _ in self._waiting.values()]

    def busy(self) -> set[int]:
        """Return the nodes that have not answered an earlier message."""
        return self._messenger.busy()

    def drop_departed(self) -> None:
        """Wait no longer for clients that have left."""
        gone = [message for message, (sent, _) in self._waiting.items() if sent.member.node not in self.roster]
        self._messenger.leave(gone)
        for message in gone:
            del self._waiting[message]

    def _post(self, sent: Sequence[Sent]) -> None:
        """Write and send messages; arrays that many are sent are written once."""
        records: dict[int, ArrayRecord] = {}
        messages = list[Message]()
        for one in sent:
            if id(one.download) not in records:
                records[id(one.download)] = to_record(one.download)
            messages.append(written(one.kind, one.number, one.member, records[id(one.download)]))
            one.traffic = weighed(messages[-1])
        asked = [message.metadata for message in messages]
        self._waiting |= zip(self._messenger.push(messages), zip(sent, asked, strict=True), strict=True)

    def _take(self, outcome: Outcome) -> Sent:
        """Wait for the next answer."""
        message, reply = self._messenger.next(self._waiting.keys())
        sent, asked = self._waiting.pop(message)
        self.judge(sent, asked, reply, outcome)
        return sent

    def judge(self, sent: Sent, asked: Metadata, reply: Message | str, outcome: Outcome) -> None:
        """Decode and check a reply, count its cost, and add what came of it; a text says why there is none."""
        member = sent.member
        outcome.traffic[member.client_id] = sent.traffic
        try:
            if isinstance(reply, str):
                raise PayloadError(f"{member}: {reply}")
            refused = reply.has_error() and reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            if refused and sent.kind == MessageType.TRAIN:
                self.uploads.refused(member.client_id)
            sent.traffic.add(cost(reply, member))
            if unfit := misaddressed(reply, asked):
                raise PayloadError(f"{member}: {unfit}")
            self._accept(sent, read(reply, self.expected(sent), half=self.config.half, own=self._own), outcome)
        except PayloadError as error:
            outcome.fail(member, sent.stage, str(error))


def written(kind: str, number: int, member: Member, arrays: ArrayRecord) -> Message:
    """Return a message to a client."""
    records: dict[str, Any] = {} if kind == SHARE else {ARRAYS: arrays}
    if kind != POOL:
        records[CONFIG] = ConfigRecord({LABELLED: bool(number)} if kind == SHARE else {ROUND: number})
    return Message(RecordDict(records), member.node, kind)


def weighed(message: Message) -> Traffic:
    """Return what it costs to send a message."""
    numbers, payload, wire = payload_numbers(message), payload_bytes(message), wire_bytes(message)
    return Traffic(numbers_down=numbers, bytes_down=payload, wire_down=wire)


def cost(reply: Message, member: Member) -> Traffic:
    """Return what a reply costs.

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


def read(reply: Message, expected: Expected, *, half: bool = False, own: bool = False) -> Reply:
    """Decode and check a reply.

    Parameters
    ----------
    reply : Message
        What came.
    expected : Expected
        What it is held against.
    half : bool
        Whether arrays must have come in half precision. They have their declared dtypes all the same.
    own : bool
        Whether all nodes are the user's own: see `reason`.

    Raises
    ------
    PayloadError
        Says what is wrong.
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


def misaddressed(reply: Message, asked: Metadata) -> str:
    """Say that a reply is no answer to what was asked; empty where it is one, or Flower's own error."""
    came = reply.metadata
    if reply.has_error() and came.src_node_id == SUPERLINK_NODE_ID:  # such as that a node is not there any more
        return ""
    stamp = came.src_node_id, came.dst_node_id, came.run_id, came.message_type, came.group_id
    wanted = asked.dst_node_id, asked.src_node_id, asked.run_id, asked.message_type, asked.group_id
    return "" if stamp == wanted and came.ttl > 0 else f"a reply with a forged stamp: {brief(stamp)}, {came.ttl:g} s"


def reason(reply: Message, who: Member | int, *, own: bool = False) -> str:
    """Return in a line why there is no answer, and from whom: a member, or a node by its id; see `blamed`."""
    trusted = own or reply.metadata.src_node_id == SUPERLINK_NODE_ID
    return blamed(reply.error.reason or "", who, code=reply.error.code, own=trusted)


def _check_bounds(content: RecordDict, member: Member) -> None:
    """Refuse a reply of too many entries before any of them is looked at."""
    metrics = sum(map(len, content.metric_records.values()))
    entries = len(content) + sum(map(len, content.values()))
    if metrics > MAX_METRICS or entries > MAX_ENTRIES:
        most = f"{MAX_METRICS} and {MAX_ENTRIES}"
        raise PayloadError(f"{member}: {metrics} metrics and {entries} entries, expected at most {most}")
