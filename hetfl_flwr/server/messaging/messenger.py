"""Messages to clients, and their replies: sent, waited for, counted, checked and compared."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from math import inf

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import PayloadError
from hetfl_flwr.flower import ErrorCode
from hetfl_flwr.server.messaging.exchange import (
    LONGEST_REASON,
    METRICS_ALONE,
    Exchange,
    Expected,
    Reply,
    Sent,
    Traffic,
    cost,
    kept,
    read,
    with_arrays,
)
from hetfl_flwr.server.messaging.failure import Failure
from hetfl_flwr.server.messaging.grids import pull_interval
from hetfl_flwr.server.messaging.guard import Guards, measure
from hetfl_flwr.server.messaging.roster import Member, Roster
from hetfl_flwr.server.messaging.uploads import Uploads
from hetfl_flwr.text import printable
from hetfl_flwr.wire.codec import from_record, halved, to_record
from hetfl_flwr.wire.messages import ARRAYS

BUSY = "still busy with an earlier message"
"""Why a node was sent nothing: it has not answered what it was sent before."""

MOST_MISSED = 2
"""Messages of one kind, one after the other, that a client may miss before it is hardly waited for at the next."""


class Messenger:
    """Sends messages to clients and takes in their replies. A node is sent one message at a time.

    A client that has not answered its last `MOST_MISSED` messages of a kind in time is still asked, but waited for no
    longer than twice the time that the others take. Once it has answered within ``round-timeout``, too late or not, it
    is waited for again.

    Parameters
    ----------
    grid : Grid
        The engine's own.
    config : RunConfig
        The run.
    roster : Roster
        The clients.
    uploads : Uploads
        Where uploads are counted.

    Attributes
    ----------
    guards : Guards
        What sizes and numbers of samples are held against.
    poll : float
        Seconds between two looks for replies.
    engaged : callable
        Returns nodes that are busy with what somebody else has sent them.
    idle : callable
        Is called when there is time, while replies are waited for.
    before_push : callable
        Is called before messages are sent.
    """

    def __init__(self, grid: Grid, config: RunConfig, roster: Roster, uploads: Uploads) -> None:
        self.grid = grid
        self.config = config
        self.roster = roster
        self.uploads = uploads
        self.guards = Guards(config.outlier_factor)
        self.poll = pull_interval(grid)
        self.engaged: Callable[[], set[int]] = set
        self.idle: Callable[[], object] = lambda: None
        self.before_push: Callable[[], object] = lambda: None
        self._late: dict[str, int] = {}
        self._missed: Counter[tuple[int, str]] = Counter()
        self._due: dict[str, tuple[float, tuple[int, str]]] = {}
        self._lost: dict[str, float] = {}
        self._restarted: dict[int, float] = {}

    def exchange(self, messages: Iterable[Message], expected: Expected = METRICS_ALONE) -> Exchange:
        """Send messages, wait for the replies, and set aside those that cannot be used.

        Parameters
        ----------
        messages : iterable of Message
            At most one a node.
        expected : Expected
            What the replies are held against. Default: they are to have metrics alone.
        """
        result = Exchange()
        sent = {
            message.metadata.dst_node_id: Sent.of(message)
            for message in sorted(
                self.as_sent(messages), key=lambda message: self.roster.of(message.metadata.dst_node_id).client_id
            )
        }
        for node, reply in self.answers([one.message for one in sent.values()]):
            self.judge(reply, sent[node], result, expected)
        self.set_aside(result, {self.roster.of(node).client_id: one for node, one in sent.items()})
        return result.ordered()

    def set_aside(self, result: Exchange, sent: Mapping[int, Sent]) -> None:
        """Move replies that are far larger than those of others from the good ones to the failures.

        Of training these are the uploads and ``num-examples``, of evaluations ``num-examples`` alone.

        Parameters
        ----------
        result : Exchange
            Replies that have been judged.
        sent : mapping of int to Sent
            What each client was sent.
        """
        trained = {reply.client_id: reply.samples for reply in result.replies if reply.client_id in result.sizes}
        tested = {reply.client_id: reply.samples for reply in result.replies if sent[reply.client_id].is_evaluation}
        members = {member.client_id: member for member in self.roster}
        far = self.guards.set_aside(result.sizes, trained, tested, members.keys())
        result.replies = [reply for reply in result.replies if reply.client_id not in far]
        for client_id, why in far.items():
            member = members[client_id]
            line = f"{member}: {why}: set aside (outlier-factor = {self.config.outlier_factor:g})"
            result.failures.append(Failure(client_id, sent[client_id].stage, line, member.node))

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

    def judge(self, reply: Message | str, sent: Sent, result: Exchange, expected: Expected = METRICS_ALONE) -> bool:
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

    def _taken(self, message: Message, sent: Sent, member: Member, result: Exchange, expected: Expected) -> Reply:
        """Decode and check a reply, and measure what it uploads."""
        most = expected.most(sent, member)
        spec, half = expected.uploads(member) if expected.uploads else None, self.config.half
        reply = read(message, sent, member, spec, most, half=half)
        if sent.is_training and spec is not None:
            result.sizes[member.client_id] = measure(reply.arrays, spec, sent.arrays, min(reply.seen, most.seen))
        return kept(reply, expected, half=half)

    def push(self, messages: Sequence[Message]) -> None:
        """Send messages; each that asks a client to train is answered by an upload."""
        self.before_push()
        for message in messages:
            message.metadata.ttl = max(message.metadata.ttl, self.config.round_timeout)
            self._restarted.pop(message.metadata.dst_node_id, None)
        asked = [one.metadata.dst_node_id for one in messages if one.metadata.message_type == MessageType.TRAIN]
        self.uploads.asked(self.roster.of(node).client_id for node in asked)
        self.grid.push_messages(messages)

    def _count_back(self, reply: Message | str, sent: Sent, member: Member) -> None:
        """Count no upload where the client says that it has come to an error instead."""
        if isinstance(reply, str) or not (sent.is_training and reply.has_error()):
            return
        if reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
            self.uploads.refused(member.client_id)

    def has_restarted(self, sent: Sent) -> bool:
        """Say whether a node has restarted since it was sent a message, which may be lost with what it had begun."""
        return sent.node in self._restarted

    def give_up(self, sent: Sent, result: Exchange) -> None:
        """Count a message as not answered; its node is busy until the late reply is in.

        Where it has restarted since, it is busy until ``round-timeout`` after that at most.
        """
        restarted = "its node has restarted before it answered"
        late = f"no reply within {self.config.round_timeout:g} s"
        self.judge(restarted if self.has_restarted(sent) else late, sent, result)
        self.leave({sent.message.metadata.message_id: sent.node})

    def leave(self, messages: Mapping[str, int]) -> None:
        """Wait no longer for the answers to messages; their nodes are busy until these are in.

        Where a node has restarted since, it is busy until ``round-timeout`` after that at most.
        """
        self._late |= messages
        self._give_up_lost(self._restarted.keys())

    def forget_gone(self, present: Iterable[int]) -> None:
        """Expect no late reply of nodes that are not there any more."""
        here = set(present)
        self._late = {message: node for message, node in self._late.items() if node in here}
        self._due = {message: due for message, due in self._due.items() if message in self._late}
        self._restarted = {node: seen for node, seen in self._restarted.items() if node in here}

    def restarted(self, nodes: Set[int]) -> None:
        """Wait for late replies of nodes that have restarted no longer than ``round-timeout``.

        What they had begun to work on is lost; what still waits for them, they answer.
        """
        self._restarted |= dict.fromkeys(nodes, time.monotonic())  # what they were sent may still be waited for
        self._give_up_lost(nodes)
        for kind in [kind for kind in self._missed if kind[0] in nodes]:
            del self._missed[kind]

    def _give_up_lost(self, nodes: Set[int]) -> None:
        for message, node in self._late.items():
            if node in nodes:
                self._lost.setdefault(message, self._restarted[node] + self.config.round_timeout)

    def lost(self) -> set[int]:
        """Return the nodes that are busy with what they were sent before they restarted, as far as is known."""
        return {node for message, node in self._late.items() if message in self._lost}

    def busy(self) -> set[int]:
        """Return the nodes that have not answered an earlier message yet: they are sent nothing more."""
        self._take_late()
        return {*self._late.values(), *self.engaged()}

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
        kinds = {one.metadata.message_id: (one.metadata.dst_node_id, one.metadata.message_type) for one in free}
        unreliable = {message for message, kind in kinds.items() if self._missed[kind] >= MOST_MISSED}
        began = time.monotonic()
        deadline = limit = began + self.config.round_timeout
        while waiting:
            for reply in self.grid.pull_messages(waiting.keys()):
                message = reply.metadata.reply_to_message_id
                node = waiting.pop(message, None)
                if node is not None:
                    del self._missed[kinds[message]]
                    yield node, reply
            now = time.monotonic()
            if deadline == limit and len(unreliable) < len(kinds) and unreliable.issuperset(waiting):
                deadline = min(limit, now + (now - began))
            if now > deadline:
                break
            if waiting:
                self.pause()
        self.leave(waiting)
        self._missed.update(kinds[message] for message in waiting)
        self._due |= {message: (limit, kinds[message]) for message in unreliable & waiting.keys()}
        late = f"no reply within {self.config.round_timeout:g} s"
        if deadline < limit:
            late += f" to the last {MOST_MISSED} messages, and none now in twice the time that the others took"
        yield from ((node, late) for node in waiting.values())
        yield from ((node, BUSY) for node in nodes if node in busy)

    def pause(self) -> None:
        """Wait a moment for replies."""
        if self.poll:
            time.sleep(self.poll)
        self.idle()

    def _take_late(self) -> None:
        """Drop replies that came after their round: they belong to a server state that is gone."""
        now = time.monotonic()
        for message in [message for message, lost in self._lost.items() if message not in self._late or now > lost]:
            del self._lost[message]
            self._late.pop(message, None)
        if self._late:
            for reply in self.grid.pull_messages(list(self._late)):
                message = reply.metadata.reply_to_message_id
                self._late.pop(message, None)
                due, kind = self._due.pop(message, (-inf, (0, "")))
                if time.monotonic() <= due:
                    self._missed[kind] = MOST_MISSED - 1
