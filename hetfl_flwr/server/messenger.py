"""Messages to clients, and their replies: sent, waited for, counted, checked and compared."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from hetfl_flwr.common.flower import ErrorCode
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import PayloadError
from hetfl_flwr.server.grids import engine_of, pull_interval
from hetfl_flwr.server.guard import Guards, measure
from hetfl_flwr.server.member import Failure, Member
from hetfl_flwr.server.replies import (
    LONGEST_REASON,
    METRICS_ALONE,
    Expected,
    Outcome,
    Reply,
    Request,
    Traffic,
    cost,
    read,
    with_arrays,
)
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.server.upload_counts import UploadCounts
from hetfl_flwr.text import printable
from hetfl_flwr.wire.codec import from_record, halved, to_record
from hetfl_flwr.wire.messages import ARRAYS
from hetfl_flwr.wire.spec import Arrays

BUSY = "still busy with an earlier message"
"""Why a node was sent nothing: it has not answered what it was sent before."""

LOST = "its node has left or restarted before it answered"
"""Why a message is waited for no longer."""


class Messenger:
    """Sends messages to clients and takes in their replies. A node is sent one message at a time.

    A node that has restarted is asked to register besides: its answer shows that the message before is lost.

    Parameters
    ----------
    grid : Grid
        The engine's own.
    config : RunConfig
        The run.
    roster : Roster
        The clients.
    uploads : UploadCounts
        Where uploads are counted.

    Attributes
    ----------
    guards : Guards
        Check sizes and numbers of samples.
    poll : float
        Seconds between two looks for replies.
    engaged : callable
        Returns nodes that are busy with another message, such as a request to register.
    idle : callable
        Called from time to time while the messenger waits for replies.
    received : callable
        Called with each checked upload: the client, what it was sent, and the reply.
    """

    def __init__(self, grid: Grid, config: RunConfig, roster: Roster, uploads: UploadCounts) -> None:
        self.grid = grid
        self.config = config
        self.roster = roster
        self.uploads = uploads
        self.guards = Guards(config.outlier_factor)
        self.poll = pull_interval(grid)
        self._own = engine_of(grid) != "deployment"
        self.engaged: Callable[[], set[int]] = set
        self.idle: Callable[[], object] = lambda: None
        self.received: Callable[[Member, Arrays, Reply], object] | None = None
        self._under_way: dict[str, int] = {}  # messages that are waited for, and their nodes
        self._late: dict[str, int] = {}  # those that nobody waits for any longer
        self._doubtful: set[str] = set()  # those that are lost, unless their replies have come by now

    def exchange(self, messages: Iterable[Message], expected: Expected = METRICS_ALONE) -> Outcome:
        """Send messages, wait for the replies, and set aside those that cannot be used.

        Parameters
        ----------
        messages : iterable of Message
            At most one a node.
        expected : Expected
            What the replies are held against. Default: they are to have metrics alone.
        """
        result = Outcome()
        sent = {
            message.metadata.dst_node_id: Request.of(message)
            for message in sorted(
                self.as_sent(messages), key=lambda message: self.roster.of(message.metadata.dst_node_id).client_id
            )
        }
        for node, reply in self.answers([one.message for one in sent.values()]):
            self.judge(reply, sent[node], result, expected)
        self.reject_outliers(result, next((one.stage for one in sent.values()), ""))
        return result.ordered()

    def reject_outliers(self, result: Outcome, stage: str) -> None:
        """Move replies that are far larger than those of others from the good ones to the failures.

        Of training these are the uploads and ``num-examples``, of evaluations ``num-examples`` alone.

        Parameters
        ----------
        result : Outcome
            Replies that have been judged.
        stage : str
            What all were asked for.
        """
        samples = {reply.client_id: reply.samples for reply in result.replies}
        trained = {client_id: count for client_id, count in samples.items() if client_id in result.sizes}
        tested = samples if stage == MessageType.EVALUATE else {}
        far = self.guards.reject_outliers(result.sizes, trained, tested, self.roster.client_ids())
        if not far:
            return
        members = {member.client_id: member for member in self.roster}
        result.replies = [reply for reply in result.replies if reply.client_id not in far]
        for client_id, why in far.items():
            member = members[client_id]
            line = f"{member}: {why}: set aside (outlier-factor = {self.config.outlier_factor:g})"
            result.failures.append(Failure(client_id, stage, line, member.node))

    def as_sent(self, messages: Iterable[Message]) -> list[Message]:
        """Return messages as they travel: in half precision, if so configured; what many share is halved once."""
        written = list(messages)
        if not self.config.half:
            return written
        records = {id(record): record for message in written for record in message.content.array_records.values()}
        halves = {key: to_record(halved(from_record(record))) for key, record in records.items()}
        return [
            with_arrays(message, halves[id(message.content.array_records[ARRAYS])])
            if ARRAYS in message.content
            else message
            for message in written
        ]

    def judge(self, reply: Message | str, sent: Request, result: Outcome, expected: Expected = METRICS_ALONE) -> bool:
        """Count a reply's cost, decode it, and put it with the good ones or the failures. A text says why it is absent.

        Returns
        -------
        bool
            Whether it may be used.
        """
        member = self.roster.of(sent.node)
        self._count_back(reply, sent, member)
        if reply != BUSY:
            result.traffic.setdefault(member.client_id, Traffic()).add(sent.traffic)
        if isinstance(reply, str):
            result.failures.append(Failure(member.client_id, sent.stage, f"{member}: {reply}", member.node))
            return False
        try:
            result.traffic[member.client_id].add(cost(reply, member))
            result.replies.append(self._taken(reply, sent, member, result, expected))
        except PayloadError as error:
            why = printable(str(error), LONGEST_REASON)
            result.failures.append(Failure(member.client_id, sent.stage, why, member.node))
            return False
        if sent.is_training:
            self.roster.trained[member.client_id] = sent.round
        return True

    def _taken(self, message: Message, sent: Request, member: Member, result: Outcome, expected: Expected) -> Reply:
        """Decode and check a reply, and measure what it uploads."""
        most = expected.most(sent, member)
        spec, half = expected.uploads(member) if expected.uploads else None, self.config.half
        reply = read(message, sent, member, spec, most, half=half, own=self._own)
        if sent.is_training and spec is not None:
            download = sent.arrays
            result.sizes[member.client_id] = measure(reply.arrays, spec, download, min(reply.seen, most.seen))
            if self.received is not None:
                self.received(member, download, reply)
        return reply

    def push(self, messages: Sequence[Message]) -> None:
        """Send messages; each that asks a client to train is answered by an upload."""
        for message in messages:
            message.metadata.ttl = max(message.metadata.ttl, self.config.round_timeout)
        asked = [one.metadata.dst_node_id for one in messages if one.metadata.message_type == MessageType.TRAIN]
        self.uploads.asked(self.roster.of(node).client_id for node in asked)
        self.grid.push_messages(messages)
        self.expect({one.metadata.message_id: one.metadata.dst_node_id for one in messages})

    def expect(self, messages: Mapping[str, int]) -> None:
        """Wait for the answers to messages that nodes have been sent."""
        self._under_way |= messages

    def pull(self, messages: Iterable[str]) -> list[Message]:
        """Return the answers to messages that have come, and take note which of the others are lost.

        A message is lost where its node has since answered another, which was sent later: see `answers_again`.
        """
        wanted = list(messages)
        doubtful = self._doubtful.intersection(wanted)
        replies = list(self.grid.pull_messages(wanted))
        came = {reply.metadata.reply_to_message_id for reply in replies}
        for message in came | doubtful:
            self._under_way.pop(message, None)
            self._late.pop(message, None)
        self._doubtful -= came | doubtful
        return replies

    def answers_again(self, node: int) -> None:
        """Record that a node which had left, or restarted, has registered again: earlier messages to it are lost.

        A node answers its messages one after the other, in the order in which they were sent: unless an earlier reply
        has come by now, there will be none.
        """
        self._doubtful |= {message for message, of in {**self._late, **self._under_way}.items() if of == node}

    def drop_departed(self, present: Collection[int]) -> None:
        """Drop late messages to nodes that have left."""
        self._late = {message: node for message, node in self._late.items() if node in present}

    def is_under_way(self, message: str) -> bool:
        """Return whether a message is waited for, and not known to be lost."""
        return message in self._under_way

    def _count_back(self, reply: Message | str, sent: Request, member: Member) -> None:
        """Count no upload where the client says that it has come to an error instead."""
        if isinstance(reply, str) or not (sent.is_training and reply.has_error()):
            return
        if reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
            self.uploads.refused(member.client_id)

    def time_out(self, sent: Request, result: Outcome) -> None:
        """Count a message as not answered in time, or as lost; its node is busy until a late reply is in."""
        message = sent.message.metadata.message_id
        self.judge(self._late_line if self.is_under_way(message) else LOST, sent, result)
        self.leave([message])

    def leave(self, messages: Iterable[str]) -> None:
        """Wait no longer for the answers to messages; their nodes are busy until these are in."""
        self._late |= {one: self._under_way.pop(one) for one in messages if one in self._under_way}

    def overdue(self) -> set[int]:
        """Return the nodes whose answers nobody waits for any longer, or who have been asked who they are."""
        if self._late:  # a reply that comes after its round belongs to a server state that is gone
            self.pull(self._late)
        return {*self._late.values(), *self.engaged()}

    def busy(self) -> set[int]:
        """Return the nodes that have not answered an earlier message yet: they are sent nothing more."""
        return {*self.overdue(), *self._under_way.values()}

    def refuse_busy(self, members: Iterable[Member], result: Outcome) -> list[Member]:
        """Return those members that can be asked to train; the others, which are busy, are failures."""
        busy, free = self.busy(), list[Member]()
        for member in members:
            if member.node in busy:
                line = f"{member}: {BUSY}"
                result.failures.append(Failure(member.client_id, MessageType.TRAIN, line, member.node))
            else:
                free.append(member)
        return free

    def answers(self, messages: Sequence[Message]) -> Iterator[tuple[int, Message | str]]:
        """Yield each node and its reply as they come, and last the nodes without one and why.

        A node that has not answered in time is sent nothing more until its late reply is in.
        """
        busy = self.busy()
        nodes = [message.metadata.dst_node_id for message in messages]
        free = [message for message, node in zip(messages, nodes, strict=True) if node not in busy]
        if free:
            self.push(free)
        waiting = {message.metadata.message_id: message.metadata.dst_node_id for message in free}
        deadline = time.monotonic() + self.config.round_timeout
        while waiting:
            for reply in self.pull(waiting):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, reply
            for message in [message for message in waiting if not self.is_under_way(message)]:
                yield waiting.pop(message), LOST
            if time.monotonic() > deadline:
                break
            if waiting:
                self.pause()
        self.leave(waiting)
        yield from ((node, self._late_line) for node in waiting.values())
        yield from ((node, BUSY) for node in nodes if node in busy)

    @property
    def _late_line(self) -> str:
        return f"no reply within {self.config.round_timeout:g} s"

    def pause(self) -> None:
        """Wait a moment for replies."""
        if self.poll:
            time.sleep(self.poll)
        self.idle()
