"""Arrays to and from the clients of the local engine: by reference, without a message."""

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flwr.app import ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict

from hetfl_flwr.common.flower import LARGEST_CHUNK, ErrorCode, name_message
from hetfl_flwr.errors import PayloadError
from hetfl_flwr.server.exchange import Downloads
from hetfl_flwr.server.guard import measure
from hetfl_flwr.server.member import Failure, Member
from hetfl_flwr.server.messenger import Messenger
from hetfl_flwr.server.replies import (
    FRACTIONS,
    LONGEST_REASON,
    Most,
    Outcome,
    Reply,
    Traffic,
    blamed,
    check_metrics,
)
from hetfl_flwr.text import printable
from hetfl_flwr.wire.classes import numbered
from hetfl_flwr.wire.codec import NPY_HEADER, halved, payload_bytes, payload_numbers, to_record, widened, wire_bytes
from hetfl_flwr.wire.forms import frozen, sizes, twins
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, EXAMPLES, METRICS, ROUND, SEEN
from hetfl_flwr.wire.spec import Arrays, interned
from simulations.engine.clients import Answer

if TYPE_CHECKING:
    from hetfl_flwr.strategy import KnowledgeStrategy
    from simulations.engine.grid import LocalEngine

MAX_COSTS = 10_000
"""Forms of messages whose costs are remembered."""


class Seat:
    """What the answers of one client are held against, found out once.

    Parameters
    ----------
    member : Member
        The client.
    strategy : KnowledgeStrategy
        Says what it is to upload.
    """

    def __init__(self, member: Member, strategy: "KnowledgeStrategy") -> None:
        self.member, self.name = member, str(member)
        self.form, self.most = interned(strategy.upload_spec(member)), strategy.most_samples(member)
        self._names: tuple[str, ...] = ()
        self._fractions: list[str] = []

    def check(self, metrics: Mapping[str, Any]) -> None:
        """Raise `PayloadError` unless metrics of training may be used; their names are looked at where they are new."""
        names = tuple(metrics)
        if names == self._names and all(not isinstance(one, list) and isfinite(one) for one in metrics.values()):
            examples, seen, most = metrics[EXAMPLES], metrics.get(SEEN, 0), self.most
            counted = type(examples) is type(seen) is int and 0 <= examples <= most.samples and 0 <= seen <= most.seen
            if counted and not [name for name in self._fractions if not 0 <= metrics[name] <= 1]:
                return
        check_metrics(metrics, self.member, self.most)
        self._names, self._fractions = names, [name for name in names if name in FRACTIONS]


class LocalExchange:
    """Hands arrays to clients in this process, or in worker processes, and takes in what they answer.

    A download is checked once by each form that clients expect; an upload once, by the client itself, unless it has
    come from another process or is expected in another form. What messages would weigh is known by the form of what is
    in them: one of each form is written and weighed.

    Parameters
    ----------
    engine : LocalEngine
        Runs the clients.
    messenger : Messenger
        Counts uploads and compares replies.
    strategy : KnowledgeStrategy
        Says what clients are to upload.
    """

    def __init__(self, engine: "LocalEngine", messenger: Messenger, strategy: "KnowledgeStrategy") -> None:
        self._engine, self._messenger, self._strategy = engine, messenger, strategy
        self._half = messenger.config.half
        self._seats: dict[int, Seat] = {}
        self._known: tuple[object, ...] = ()
        self._costs: dict[tuple[object, ...], tuple[int, int, int]] = {}

    def train(self, number: int, downloads: Downloads) -> Outcome:
        """Let clients learn in a round; return what they have uploaded."""
        messenger, roster, result = self._messenger, self._messenger.roster, Outcome()
        messenger.uploads.asked([member.client_id for member, _ in downloads])
        sent = _Sent(self, MessageType.TRAIN, number, downloads)
        measured, timed = dict[int, float](), messenger.config.simulates_time
        for place, answer in self._engine.ask(MessageType.TRAIN, number, sent.jobs):
            seat = self._seat(downloads[place][0])
            member, download = seat.member, sent.jobs[place][1]
            traffic = result.traffic[member.client_id] = Traffic(*sent.costs[place])
            try:
                reply = self._uploaded(seat, answer, traffic)
            except PayloadError as error:
                self._failed(result, member, MessageType.TRAIN, error)
                continue
            finally:
                if timed:  # an error has no content, which links would take time for
                    up = traffic.wire_up if answer.error is None else 0
                    self._engine.passed(member.client_id, traffic.wire_down, up, answer.metrics)
            seen = min(int(reply.metrics.get(SEEN, reply.metrics[EXAMPLES])), seat.most.seen)
            result.sizes[member.client_id] = measure(reply.arrays, seat.form, download, seen, measured)
            if messenger.received is not None:
                messenger.received(member, download, reply)
            result.replies.append(reply)
            roster.trained[member.client_id] = number
        messenger.reject_outliers(result, MessageType.TRAIN)
        return result.ordered()

    def measure(self, number: int, downloads: Downloads) -> Outcome:
        """Let clients measure after a round; return their metrics."""
        result = Outcome()
        sent = _Sent(self, MessageType.EVALUATE, number, downloads)
        for place, answer in self._engine.ask(MessageType.EVALUATE, number, sent.jobs):
            member = downloads[place][0]
            traffic = result.traffic[member.client_id] = Traffic(*sent.costs[place])
            try:
                self._count(member, MessageType.EVALUATE, answer, traffic)
                check_metrics(answer.metrics, member, Most(member.test), evaluated=True)
            except PayloadError as error:
                self._failed(result, member, MessageType.EVALUATE, error)
                continue
            numbers = {name: value for name, value in answer.metrics.items() if not isinstance(value, list)}
            result.replies.append(Reply(member.client_id, numbers, classes=numbered(answer.metrics)))
        self._messenger.reject_outliers(result, MessageType.EVALUATE)
        return result.ordered()

    def weigh(self, kind: str, arrays: Arrays, numbers: Mapping[str, Any], node: int = 0) -> tuple[int, int, int]:
        """Return the numbers, payload bytes and wire bytes of a message; of a reply where it is from a `node`."""
        values = arrays.values()
        if any(one.nbytes + NPY_HEADER > LARGEST_CHUNK for one in values):  # of its pieces some may be equal
            return _weighed(kind, arrays, numbers, self._engine.get_node_ids()[0], reply=bool(node))
        forms = *arrays, *[(one.dtype, one.shape) for one in values]
        key = kind, bool(node), forms, twins(values), sizes(numbers)
        if key not in self._costs:
            if len(self._costs) >= MAX_COSTS:
                self._costs.clear()
            self._costs[key] = _weighed(kind, arrays, numbers, self._engine.get_node_ids()[0], reply=bool(node))
        return self._costs[key]

    def travelling(self, download: Arrays) -> Arrays:
        """Return a download as it travels: read-only, and in half precision if so configured."""
        return frozen(halved(download) if self._half else download)

    def _uploaded(self, seat: Seat, answer: Answer, traffic: Traffic) -> Reply:
        """Return an upload that has been checked; raise `PayloadError` where it may not be used."""
        member, metrics = seat.member, answer.metrics
        self._count(member, MessageType.TRAIN, answer, traffic)
        seat.check(metrics)
        arrays = answer.arrays
        if self._half:
            arrays = widened(seat.form, arrays, seat.name)
        if answer.form is not seat.form:
            seat.form.check_named(arrays, seat.name)
        return Reply(member.client_id, metrics, arrays)

    def _count(self, member: Member, kind: str, answer: Answer, traffic: Traffic) -> None:
        """Count what an answer costs; raise `PayloadError` where it is an error, or no message can hold it."""
        if answer.error is not None:
            if kind == MessageType.TRAIN:
                self._messenger.uploads.refused(member.client_id)
            traffic.wire_up = _error_bytes(kind, answer.error, member.node)
            raise PayloadError(blamed(answer.error, member))
        try:
            weight = self.weigh(kind, answer.arrays, answer.metrics, member.node)
        except ValueError as error:
            raise PayloadError(f"{member}: a reply that no message can hold: {error}") from None
        traffic.numbers_up, traffic.bytes_up, traffic.wire_up = weight

    def _failed(self, result: Outcome, member: Member, stage: str, error: PayloadError) -> None:
        why = printable(str(error), LONGEST_REASON)
        result.failures.append(Failure(member.client_id, stage, why, member.node))

    def _seat(self, member: Member) -> Seat:
        roster = self._messenger.roster
        if self._known != (known := (roster.changes, id(roster.public_samples))):
            self._known, self._seats = known, {}
        seat = self._seats.get(member.client_id)
        if seat is None:
            seat = self._seats[member.client_id] = Seat(member, self._strategy)
        return seat


class _Sent:
    """What some clients are sent, as it travels, and what that weighs; what is the same for many is made once."""

    def __init__(self, exchange: LocalExchange, kind: str, number: int, downloads: Downloads) -> None:
        self.jobs: list[tuple[int, Arrays]] = []
        self.costs: list[tuple[int, ...]] = []
        made: dict[int, tuple[Arrays, tuple[int, ...]]] = {}
        for member, download in downloads:
            if id(download) not in made:
                travels = exchange.travelling(download)
                numbers, payload, wire = exchange.weigh(kind, travels, {ROUND: number})
                made[id(download)] = travels, (0, numbers, 0, payload, 0, wire)
            travels, weight = made[id(download)]
            self.jobs.append((member.node, travels))
            self.costs.append(weight)


def _weighed(kind: str, arrays: Arrays, numbers: Mapping[str, Any], node: int, *, reply: bool) -> tuple[int, int, int]:
    """Write a message and return what it weighs."""
    if not reply:
        content = RecordDict({ARRAYS: to_record(arrays), CONFIG: ConfigRecord(dict(numbers))})
        message = Message(content, node, kind)
        return payload_numbers(message), payload_bytes(message), wire_bytes(message)
    content = RecordDict({METRICS: MetricRecord(dict(numbers))})
    if kind == MessageType.TRAIN:
        content = RecordDict({ARRAYS: to_record(arrays), METRICS: MetricRecord(dict(numbers))})
    message = Message(content, reply_to=_asked(kind, node))
    return payload_numbers(message), payload_bytes(message), wire_bytes(message)


def _error_bytes(kind: str, said: str, node: int) -> int:
    error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, said)
    return wire_bytes(Message(error, reply_to=_asked(kind, node)))


def _asked(kind: str, node: int) -> Message:
    message = Message(RecordDict(), node, kind)
    name_message(message, str(UUID(int=1)))
    return message
