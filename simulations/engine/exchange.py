"""Exchange of arrays with the clients of the local engine: by reference, and in the order of simulated time."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict

from hetfl_flwr.common.flower import ErrorCode, name_message
from hetfl_flwr.config import RunConfig, simulated
from hetfl_flwr.errors import PayloadError
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.exchange import Exchange, Outcome, Pending, Reply, Request, Traffic, error_line
from hetfl_flwr.server.messenger import cost, read, weighed, written
from hetfl_flwr.wire.codec import arrays_wire_bytes, to_record, widened, wire_bytes
from hetfl_flwr.wire.cost_metrics import FLOPS
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, METRICS, ROUND
from hetfl_flwr.wire.spec import Arrays, frozen
from simulations.engine.clients import FIRST_NODE, Answer
from simulations.engine.workers import Task

if TYPE_CHECKING:
    from hetfl_flwr.server.federation import Federation
    from simulations.engine.grid import LocalEngine

MAX_SIZES = 10_000
"""Maximum number of cached sizes of messages without arrays."""

BY_REFERENCE = (MessageType.TRAIN, MessageType.EVALUATE)
"""Types of requests that are passed on without a message."""


@dataclass(eq=False)
class Flight(Request):
    """A request to a client of the local engine.

    `place` is its number among all requests sent. `error` says why there is no valid reply, and is empty while that is
    unknown; `raised` is whether the client raised it.
    """

    place: int = 0
    ticket: int = -1
    reply: Reply | None = None
    error: str = ""
    raised: bool = False

    @property
    def landed(self) -> bool:
        """Whether the answer is known."""
        return self.reply is not None or bool(self.error)


class Times:
    """Simulated times of clients and links, as the run config sets them.

    Training takes a client's ``client-seconds``, or its counted operations divided by ``client-speed``, times a factor
    from 0.9 to 1.1 drawn with the run's seed. Transfers take what ``client-mbits`` and ``client-latency`` say. Nothing
    else takes time, not even evaluation.
    """

    def __init__(self, config: RunConfig) -> None:
        self._seed, self._counts, self._weighs = config.seed, bool(config.client_speed), bool(config.client_mbits)
        self._seconds = simulated("client-seconds", config.client_seconds)
        self._speeds = simulated("client-speed", config.client_speed)
        self._links = simulated("client-mbits", config.client_mbits)
        self._latency = simulated("client-latency", config.client_latency)

    def known(self, flight: Flight) -> float:
        """Return the seconds that are known when a request is sent: a lower bound of its time."""
        client_id, trains = flight.member.client_id, flight.kind == MessageType.TRAIN
        took = 0.0
        if trains and not self._counts:
            (seconds,) = self._seconds[client_id % len(self._seconds)]
            took = seconds * self._jitter(client_id, flight.place)
        return took + self._carried(flight, 0, flight.traffic.wire_down)

    def more(self, flight: Flight, metrics: Mapping[str, Any], wire_up: int) -> float:
        """Return the further seconds that are known once the answer is there."""
        client_id, took = flight.member.client_id, 0.0
        if self._counts and (operations := metrics.get(FLOPS, 0.0)):  # as counted by the client
            (speed,) = self._speeds[client_id % len(self._speeds)]
            took = float(operations / (1e9 * speed) * self._jitter(client_id, flight.place))
        return took + (self._carried(flight, 1, wire_up) if self._weighs else 0.0)

    def _jitter(self, client_id: int, place: int) -> float:
        return float(generator(self._seed, client_id, place, "seconds").uniform(0.9, 1.1))

    def _carried(self, flight: Flight, way: int, wire: int) -> float:
        """Return the seconds of a transfer on a client's link, down (0) or up (1)."""
        if flight.kind == MessageType.EVALUATE:
            return 0.0
        client_id = flight.member.client_id
        (delay,) = self._latency[client_id % len(self._latency)]
        if not self._weighs:
            return 2 * delay * (way == 0)  # both ways are known when the request is sent
        link = self._links[client_id % len(self._links)]
        return delay + 8e-6 * wire / (link[-1] if way else link[0])


class LocalExchange(Exchange):
    """Passes arrays to clients in this process or in worker processes, and receives their answers.

    Answers are returned in the order of simulated time, so that an asynchronous server sends the same requests for any
    number of workers. A download is checked once per declaration. An upload is checked once, by the client itself,
    unless it comes from another process or is declared differently. The sizes of messages are computed. Public samples,
    which are sent once, travel as messages.
    """

    clock: float = 0.0
    _request = Flight

    def __init__(self, engine: "LocalEngine", federation: "Federation") -> None:
        super().__init__(federation)
        self._engine, self._times = engine, Times(self.config)
        self._timed = self.config.simulates_time or self.strategy.asynchronous
        self._places = self.config.clients  # one request per client was its registration
        self._due: list[tuple[float, int]] = []  # a heap: when a reply arrives, and its place
        self._flights: dict[int, Flight] = {}
        self._sizes: dict[tuple[object, ...], int] = {}  # wire bytes of messages without arrays

    @property
    def waiting(self) -> Collection[Request]:
        """The requests under way."""
        return self._flights.values()

    def _post(self, sent: Sequence[Flight]) -> None:
        """Pass arrays to clients; sizes are computed once for each set of arrays."""
        weights: dict[int, tuple[int, int, int]] = {}
        tasks = list[Task]()
        for flight in sent:
            kind, number, travels = flight.kind, flight.number, flight.download
            if kind in BY_REFERENCE:
                if id(travels) not in weights:
                    weights[id(travels)] = self._weigh(kind, travels, {ROUND: number}, reply=False)
                numbers, payload, wire = weights[id(travels)]
                flight.traffic = Traffic(numbers_down=numbers, bytes_down=payload, wire_down=wire)
                tasks.append(Task(kind, flight.member.node, travels, number))
            else:
                message = self._engine.named(written(kind, number, flight.member, to_record(travels)))
                flight.traffic = weighed(message)
                tasks.append(Task("answer", flight.member.node, message))
        for flight, ticket in zip(sent, self._engine.submit(tasks), strict=True):
            self._places += 1
            flight.place, flight.ticket = self._places, ticket
            self._flights[flight.place] = flight
            heappush(self._due, (self.clock + self._times.known(flight) if self._timed else 0.0, flight.place))

    def _take(self, outcome: Outcome) -> Request:
        """Wait for the answer that is next in simulated time."""
        while True:
            when, place = self._due[0]
            flight = self._flights[place]
            if flight.landed:
                break
            heapreplace(self._due, (when + self._land(flight), place))  # another may arrive before it
        heappop(self._due)
        del self._flights[place]
        self.clock = max(self.clock, when)
        member = flight.member
        outcome.traffic[member.client_id] = flight.traffic
        if flight.raised and flight.kind == MessageType.TRAIN:
            self.uploads.refused(member.client_id)
        if flight.reply is None:
            outcome.fail(member, flight.stage, flight.error)
        else:
            self._accept(flight, flight.reply, outcome)
        return flight

    def hold(self) -> Pending:
        """Let clients finish their tasks, and return the requests under way, which stay under way.

        No reply is used early, so results do not change.
        """
        self._due = sorted(
            (when if (flight := self._flights[place]).landed else when + self._land(flight), place)
            for when, place in self._due
        )
        flights, arrays = [], dict[str, Any]()
        for when, place in self._due:
            flight = self._flights[place]
            flights.append(
                {
                    "when": when,
                    "place": place,
                    "client": flight.member.client_id,
                    "kind": flight.kind,
                    "number": flight.number,
                    "traffic": asdict(flight.traffic),
                    "error": flight.error,
                    "raised": flight.raised,
                    "metrics": dict(flight.reply.metrics) if flight.reply else {},
                    "classes": dict(flight.reply.classes) if flight.reply else {},
                }
            )
            upload = flight.reply.arrays if flight.reply else {}
            arrays |= {f"{place} down {name}": array for name, array in flight.download.items()}
            arrays |= {f"{place} up {name}": array for name, array in upload.items()}
        numbers = {"clock": self.clock, "places": self._places, "rows": self._engine.rows(), "flights": flights}
        return Pending({"engine": numbers}, arrays)

    def restore(self, under_way: Pending) -> list[str]:
        """Restore what `hold` returned; return what is lost, see `LocalEngine.check_rows`."""
        numbers = under_way.numbers["engine"]
        lost = self._engine.check_rows(numbers["rows"])
        self.clock, self._places = numbers["clock"], numbers["places"]
        members = {member.client_id: member for member in self.roster}
        for one in numbers["flights"]:
            member, place = members[one["client"]], one["place"]
            down, up = (
                {name.removeprefix(own): array for name, array in under_way.arrays.items() if name.startswith(own)}
                for own in (f"{place} down ", f"{place} up ")
            )
            flight = Flight(member, one["kind"], one["number"], frozen(down), Traffic(**one["traffic"]), place)
            flight.error, flight.raised = one["error"], one["raised"]
            if not flight.error:
                flight.reply = Reply(member.client_id, one["metrics"], frozen(up), one["classes"])
            self._flights[place] = flight
            heappush(self._due, (one["when"], place))
        return lost

    def _land(self, flight: Flight) -> float:
        """Wait for a client's answer and check it; return its further simulated seconds."""
        answer = self._engine.answer(flight.ticket)
        before = flight.traffic.wire_up
        try:
            flight.reply = self._read(flight, answer)
        except PayloadError as error:
            flight.error = str(error)
        if not self._timed:
            return 0.0
        up = 0 if flight.raised else flight.traffic.wire_up - before  # an error has no content
        metrics = answer.metrics if isinstance(answer, Answer) else {}
        return self._times.more(flight, metrics, up)

    def _read(self, flight: Flight, answer: Answer | Message) -> Reply:
        """Return the checked answer; raise `PayloadError` if it is invalid."""
        member, expected, half = flight.member, self.expected(flight), self.config.half
        if isinstance(answer, Message):
            flight.raised = answer.has_error()
            flight.traffic.add(cost(answer, member))
            return read(answer, expected, half=half, own=True)
        if answer.error is not None:
            error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, answer.error)
            flight.raised, flight.traffic.wire_up = True, wire_bytes(Message(error, reply_to=_request_of(flight.kind)))
            raise PayloadError(error_line(answer.error, member))
        try:
            weight = self._weigh(flight.kind, answer.arrays, answer.metrics, reply=True)
        except ValueError as error:
            raise PayloadError(f"{member}: the reply cannot be serialized: {error}") from None
        flight.traffic.numbers_up, flight.traffic.bytes_up, flight.traffic.wire_up = weight
        expected.check(answer.metrics)
        arrays = answer.arrays
        if (spec := expected.spec) is not None:
            if half:
                arrays = widened(spec, arrays, str(member))
            if answer.form is not spec:
                spec.check_named(arrays, str(member), answer.form)
        return expected.reply(answer.metrics, arrays)

    def _weigh(self, kind: str, arrays: Arrays, numbers: Mapping[str, Any], *, reply: bool) -> tuple[int, int, int]:
        """Return the numbers, payload bytes and wire bytes that a message would have."""
        key = kind, reply, _forms(numbers)
        if key not in self._sizes:
            if len(self._sizes) >= MAX_SIZES:
                self._sizes.clear()
            record = arrays_wire_bytes({}) if _has_arrays(kind, reply=reply) else 0
            self._sizes[key] = wire_bytes(_empty(kind, numbers, reply=reply)) - record
        values = arrays.values()
        wire = self._sizes[key] + (arrays_wire_bytes(arrays) if _has_arrays(kind, reply=reply) else 0)
        return sum([one.size for one in values]), sum([one.nbytes for one in values]), wire


def _forms(values: Mapping[Any, Any]) -> tuple[object, ...]:
    """Return what determines the size of named numbers, or of lists of them, in a message."""
    return (
        *values,
        *[
            "f"
            if isinstance(one, float)
            else (2 * one if one >= 0 else -2 * one - 1).bit_length()  # as protobuf writes it
            if isinstance(one, int)
            else _forms(dict(enumerate(one)))
            if isinstance(one, list)
            else repr(one)
            for one in values.values()
        ],
    )


def _has_arrays(kind: str, *, reply: bool) -> bool:
    return kind == MessageType.TRAIN or not reply


def _empty(kind: str, numbers: Mapping[str, Any], *, reply: bool) -> Message:
    """Return a message without arrays."""
    content = RecordDict({ARRAYS: ArrayRecord()} if _has_arrays(kind, reply=reply) else {})
    content[METRICS if reply else CONFIG] = (MetricRecord if reply else ConfigRecord)(dict(numbers))
    return Message(content, reply_to=_request_of(kind)) if reply else Message(content, FIRST_NODE, kind)


def _request_of(kind: str) -> Message:
    message = Message(RecordDict(), FIRST_NODE, kind)
    name_message(message, str(UUID(int=1)))
    return message
