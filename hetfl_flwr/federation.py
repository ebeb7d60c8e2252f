"""The clients as the server sees them: who they are, who takes part in a round, and what they answered.

Node ids are random in every run; the stable identity of a client is its partition. Everything here is ordered by
partition and drawn from the run's own generators, so that the same config and seed give the same bits in every
engine.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, field
from decimal import Decimal
from logging import INFO, WARNING
from math import ceil, inf, isfinite
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore import log
from pydantic import TypeAdapter, ValidationError

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import FederationError, PayloadError
from hetfl_flwr.payloads import (
    Arrays,
    PayloadSpec,
    from_record,
    halved,
    payload_bytes,
    payload_numbers,
    seeds,
    to_record,
    wire_bytes,
)
from hetfl_flwr.seeding import generator

T = TypeVar("T")

ARRAYS, CONFIG, METRICS, EXAMPLES, ROUND = "arrays", "config", "metrics", "num-examples", "server-round"
"""Names of records and keys in messages: those of Flower's own strategies."""

MEMBER = "member"
"""Name of the record in which a client answers the roll call."""

RUN = "run"
"""Key, beside `ROUND`, under which a roll call names the run that this one goes on with."""

NEWEST = 2**62
"""A round later than all: clients go on with the newest state that they have."""

SEEDS, POOL, LABELLED = "query.seeds", "query.pool", "labelled"
"""Messages that ask a client for its public rows and that bring it those of others; whether labels are asked for."""

FRACTIONS = {"accuracy", "global-accuracy", "validation-accuracy", "acc", "fwt"}
"""Metrics that are fractions in [0, 1]."""

MOST_SAMPLES = 2**53
"""More samples than a client has; sums of weights up to here are exact in float64."""

LONGEST_REASON = 500
"""Characters of a failure's reason that are kept: what it quotes may come from the client, and be of any length."""

STAGES = {MessageType.QUERY: "roll call", SEEDS: "sharing of seeds", POOL: "sharing of seeds"}
"""How errors call what a message asks for, where its type says too little."""

BUSY = "still busy with an earlier message"
"""Why a node was sent nothing: it has not answered what it was sent before."""

SILENCE = 60.0
"""Seconds after which nodes that have not answered the roll call are named in the log."""

DEPLOYMENT_POLL = 0.5
"""Seconds between two looks for replies, for a Grid that does not say its own interval."""


@dataclass(frozen=True)
class Member:
    """A client as it answered the roll call.

    Parameters
    ----------
    node : int
        Flower's node id, random in each run.
    partition, partitions : int
        Which client it is, and of how many.
    model : str
        Name of its model. What it is made of stays at home, save for `parameters` and `weights`.
    parameters, width, classes : int
        Trainable numbers, embedding width D and classes C.
    shape : tuple of int
        Shape of one input.
    vocabulary : int
        Different tokens of its texts; 0 where its data are none.
    weights, body : str
        Fingerprint of the names, shapes and dtypes of the model's weights, and of its body's alone: equal for clients
        whose weights, or whose bodies', can be averaged.
    dtype : str
        What its inputs are stored as, such as ``"uint8"``: the form in which public rows travel.
    train, public, validation, test : int
        Numbers of samples; the public ones are among those it trains on.
    round : int
        The round that its saved state is of. 0: it has none; -1: its algorithm keeps nothing.
    holds : tuple of int
        Partitions whose public rows it has been brought.
    """

    node: int
    partition: int
    partitions: int
    model: str
    parameters: int
    width: int
    classes: int
    shape: tuple[int, ...]
    vocabulary: int
    weights: str
    body: str
    dtype: str
    train: int
    public: int
    validation: int
    test: int
    round: int
    holds: tuple[int, ...]

    @property
    def spec(self) -> DataSpec:
        """What its model fits."""
        return DataSpec(self.shape, self.classes, self.vocabulary)

    def to_record(self) -> ConfigRecord:
        """Write the answer to the roll call."""
        return ConfigRecord(
            {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in vars(self).items()
                if name != "node"
            }
        )

    @classmethod
    def from_reply(cls, reply: Message) -> "Member":
        """Read the answer to the roll call.

        Raises
        ------
        FederationError
            A field is missing or has another type.
        """
        node = reply.metadata.src_node_id
        try:
            return _MEMBERS.validate_python({**reply.content.config_records[MEMBER], "node": node})
        except (KeyError, ValidationError):
            raise FederationError(
                f"node {node}: not an answer to this roll call; does it run another version of this app?"
            ) from None

    def __str__(self) -> str:
        """Return how messages call it."""
        return f"client {self.partition} ({self.model})"


_MEMBERS = TypeAdapter(Member)


@dataclass(frozen=True)
class Sharing:
    """What an algorithm needs of the clients' public rows ("seeds"); exchanged once, before the first round.

    Parameters
    ----------
    labelled : bool
        Whether their labels travel too.
    to_clients : bool
        Whether each client is sent the rows of all others; False: they stay with the server.
    """

    labelled: bool = True
    to_clients: bool = True


class Roster:
    """The clients that are in the federation now, by partition. Grows when one joins late, shrinks when one leaves.

    Attributes
    ----------
    seeds : dict
        The public rows that clients have shared, by partition: payloads of `hetfl_flwr.payloads.seeds`. Those of a
        client that leaves stay: everybody knows them.
    """

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self._by_node = {member.node: member for member in members}
        self._nodes = {member.partition: member.node for member in self._by_node.values()}
        self._ordered: list[Member] | None = None
        self.seeds: dict[int, Arrays] = {}

    def __iter__(self) -> Iterator[Member]:
        """Go through the members by partition."""
        if self._ordered is None:
            self._ordered = sorted(self._by_node.values(), key=lambda member: member.partition)
        return iter(self._ordered)

    def __len__(self) -> int:
        """Count the members."""
        return len(self._by_node)

    def __contains__(self, node: int) -> bool:
        """Say whether a node is a member."""
        return node in self._by_node

    def of(self, node: int) -> Member:
        """Return the member behind a node id."""
        return self._by_node[node]

    def add(self, member: Member) -> None:
        """Take in a client, unless its partition is taken."""
        other = self._nodes.setdefault(member.partition, member.node)
        if other != member.node:
            raise FederationError(f"partition-id {member.partition} is claimed by two nodes, {other} and {member.node}")
        self._by_node[member.node] = member
        self._ordered = None

    def remove(self, node: int) -> None:
        """Forget a client, if its node is a member."""
        member = self._by_node.pop(node, None)
        if member is not None:
            del self._nodes[member.partition]
            self._ordered = None

    def keep(self, nodes: Set[int]) -> None:
        """Forget clients whose nodes are gone."""
        for node in self._by_node.keys() - nodes:
            self.remove(node)

    @property
    def classes(self) -> int:
        """The number of classes that all clients share.

        Raises
        ------
        FederationError
            They do not share one, or there is no client.
        """
        values = self._first_with(lambda member: member.classes)
        if len(values) != 1:
            said = ", ".join(f"{member} has {value}" for value, member in values.items()) or "no client is here"
            raise FederationError(f"the clients must have the same number of classes: {said}")
        return next(iter(values))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input that all clients share.

        Raises
        ------
        FederationError
            They do not share one, or there is no client.
        """
        values = self._first_with(lambda member: (member.shape, member.dtype, member.vocabulary))
        if len(values) != 1:
            said = ", ".join(
                f"{member} has {shape} {dtype}" + f" of {tokens} tokens" * (tokens > 0)
                for (shape, dtype, tokens), member in values.items()
            )
            raise FederationError(f"the clients must have inputs of the same shape: {said or 'no client is here'}")
        return next(iter(values))[0]

    def _first_with(self, value: Callable[[Member], T]) -> dict[T, Member]:
        first: dict[T, Member] = {}
        for member in self:
            first.setdefault(value(member), member)
        return first

    def check_sharing(self, algorithm: str, *, labelled: bool = True) -> None:
        """Refuse clients whose public rows cannot be shared: none there, or inputs of another shape or class count.

        Parameters
        ----------
        algorithm : str
            Its name.
        labelled : bool
            Whether labels are shared. Without them, clients may differ in their classes.

        Raises
        ------
        FederationError
            Names the clients.
        """
        _ = (self.classes if labelled else None), self.shape
        without = [member.partition for member in self if member.public == 0]
        if without:
            raise FederationError(
                f"{algorithm} needs public samples of each client, but client {_listed(without)} has none: "
                "raise public-fraction"
            )

    def check_same_width(self, algorithm: str, suggested: int) -> None:
        """Refuse unlike embedding widths, for an algorithm that averages what depends on them.

        Parameters
        ----------
        algorithm : str
            Its name.
        suggested : int
            A width that all could have.

        Raises
        ------
        FederationError
            Names the clients that differ.
        """
        first = self._first_with(lambda member: member.width)
        if len(first) > 1:
            said = ", ".join(f"{member} has {width}" for width, member in first.items())
            raise FederationError(
                f"{algorithm} needs the same embedding width of all clients: {said}; set width, such as "
                f"width = {suggested}, or give models an equal width"
            )

    def check_same_weights(self, algorithm: str, instead: Sequence[str], *, bodies: bool = False) -> None:
        """Refuse unlike models, for an algorithm that averages weights.

        Parameters
        ----------
        algorithm : str
            Its name.
        instead : sequence of str
            Names of algorithms for unlike models.
        bodies : bool
            Whether it averages the bodies alone: then the heads may differ.

        Raises
        ------
        FederationError
            Names the clients that differ and the algorithms that would do.
        """
        kinds: dict[str, list[Member]] = {}
        for member in self:
            kinds.setdefault(member.body if bodies else member.weights, []).append(member)
        if len(kinds) > 1:
            said = "; ".join(
                f"{group[0].model} on client {_listed([member.partition for member in group])}"
                for group in kinds.values()
            )
            what, same = ("the weights of bodies", "body") if bodies else ("weights", "model")
            raise FederationError(
                f"{algorithm} averages {what}, so all clients need the same {same}, but there are {said}. "
                f"Set one, such as models = '{next(iter(self)).model}', "
                f"or take an algorithm for unlike models: {', '.join(instead)}"
            )


@dataclass(frozen=True)
class Failure:
    """What went wrong with one client in one round. Its partition is -1 where it has not said which it is."""

    partition: int
    stage: str
    reason: str
    node: int


@dataclass(frozen=True)
class Origin:
    """The run that this one goes on with, where the clients have its state on their disks.

    Parameters
    ----------
    run : int
        Its id.
    round : int
        The round after which the server goes on; `NEWEST` where clients are not in step with it.
    trained : mapping of int to int
        The round in which each client had trained last, by partition.
    """

    run: int
    round: int
    trained: Mapping[int, int]


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
        replies = sorted(self.replies, key=lambda reply: roster.of(reply.metadata.src_node_id).partition)
        failures = sorted(self.failures, key=lambda failure: failure.partition)
        return Exchange(replies, failures, dict(sorted(self.traffic.items())))

    def add(self, other: "Exchange") -> None:
        """Count failures and cost of another exchange in; its replies have been used."""
        self.failures += other.failures
        for partition, traffic in other.traffic.items():
            self.traffic.setdefault(partition, Traffic()).add(traffic)


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
    def stage(self) -> str:
        """What the message asks for, as failures call it."""
        kind = self.message.metadata.message_type
        return STAGES.get(kind, kind)


class Federation:
    """A Grid with a roll call, ordered replies, checked uploads and measured bytes.

    Parameters
    ----------
    grid : Grid
        The engine's own.
    config : RunConfig
        The run.
    origin : Origin, optional
        The run that this one goes on with.

    Attributes
    ----------
    roster : Roster
        Who is here.
    trained : dict of int to int
        The round in which each client has trained last, by partition.
    """

    def __init__(self, grid: Grid, config: RunConfig, origin: Origin | None = None) -> None:
        self.grid = grid
        self.config = config
        self.roster = Roster()
        self.trained = dict(origin.trained) if origin else {}
        self._origin = origin
        self._noted: list[Failure] = []
        self._since: dict[int, str] = {}
        self._holds: dict[int, set[int]] = {}
        self._late: dict[str, int] = {}
        self.poll: float = getattr(grid, "pull_interval", DEPLOYMENT_POLL)

    def assemble(self) -> None:
        """Wait for the nodes and call the roll.

        With ``clients`` set, each client that cannot take part is an error; without, it is left out where others can.

        Raises
        ------
        FederationError
            Too few nodes within ``round-timeout``, or clients that cannot take part: names them and why.
        """
        deadline = time.monotonic() + self.config.round_timeout
        seen, refused = -1, dict[int, Failure]()
        while True:
            present = {node: since for node, since in self._present().items() if node not in refused}
            self.roster.keep(present.keys())
            refused |= self._call_roll(present)
            if refused and (self.config.clients or not len(self.roster)):
                raise FederationError(next(iter(refused.values())).reason)
            announced = max((member.partitions for member in self.roster), default=1)
            wanted = self.config.clients or announced
            if len(self.roster) + len(refused) >= wanted or time.monotonic() > deadline:
                break
            if len(self.roster) != seen:
                seen = len(self.roster)
                log(INFO, "waiting for nodes: %d of %d are here", seen, wanted)
            time.sleep(max(self.poll, 0.1))
        if len(self.roster) < self.config.min_clients:
            reasons = "".join(f"; {failure.reason}" for failure in refused.values())
            raise FederationError(
                f"min-clients = {self.config.min_clients}, but there are {len(self.roster)} clients{reasons}"
            )
        self._noted += refused.values()
        self._check_origin()

    def notes(self) -> list[Failure]:
        """Return what has been noticed about clients since the last call."""
        noted, self._noted = self._noted, []
        return noted

    def welcome(self, check: Callable[[Roster], None] | None = None) -> list[Failure]:
        """Forget nodes that left, call the roll of new and restarted ones, and return what was noticed.

        Parameters
        ----------
        check : callable, optional
            Raises FederationError for a roster that the algorithm cannot work with; a node that makes it so is not
            taken in.
        """
        present = self._present()
        self._late = {message: node for message, node in self._late.items() if node in present}
        for member in list(self.roster):
            if member.node not in present:
                self._forget(member.node)
        failures = self._call_roll(present, check)
        return [*self.notes(), *sorted(failures.values(), key=lambda failure: failure.reason)]

    def _present(self) -> dict[int, str]:
        """Return the nodes that are here, and where the Grid knows it, since when."""
        if hasattr(self.grid, "get_nodes"):
            return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}
        return dict.fromkeys(self.grid.get_node_ids(), "")

    def _call_roll(
        self, present: Mapping[int, str], check: Callable[[Roster], None] | None = None
    ) -> dict[int, Failure]:
        """Ask each node that is new, or has restarted since it was asked, who it is; return those not taken in."""
        wanted = [node for node in sorted(present) if node not in self.roster or self._since.get(node) != present[node]]
        calls = [Message(self._roll_call(), node, MessageType.QUERY) for node in wanted]
        failures = {}
        answers = dict(self._answers(calls, silence=SILENCE))
        for node, reply in ((node, answers[node]) for node in wanted):
            if reply == BUSY and node in self.roster:
                continue  # restarted, and what it was sent before is not given up yet
            if isinstance(reply, Message) and reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
                self._forget(node)
                continue  # where it comes back, it is asked again
            self.roster.remove(node)
            try:
                self._take_in(_member(reply, node), check)
                self._since[node] = present[node]
            except FederationError as error:
                failures[node] = Failure(-1, "roll call", str(error), node)
        return failures

    def _roll_call(self) -> RecordDict:
        if self._origin is None:
            return RecordDict()
        return RecordDict({CONFIG: ConfigRecord({RUN: str(self._origin.run), ROUND: self._origin.round})})

    def _take_in(self, member: Member, check: Callable[[Roster], None] | None) -> None:
        self.roster.add(member)
        try:
            if check is not None:
                check(self.roster)
        except FederationError:
            self.roster.remove(member.node)
            raise
        self._holds[member.node] = set(member.holds)
        if self._is_behind(member):
            has = f"with its state of round {member.round}" if member.round else "without its state"
            self._note(
                member, f"comes {has}, but it has trained until round {self.trained[member.partition]}: see state-dir"
            )

    def _is_behind(self, member: Member) -> bool:
        return 0 <= member.round < self.trained.get(member.partition, 0)

    def _forget(self, node: int) -> None:
        """Take a node that is not there any more off the roster, where it is on it, and note that it has left."""
        if node in self.roster:
            self._note(self.roster.of(node), "its node has left")
            self.roster.remove(node)

    def _note(self, member: Member, what: str) -> None:
        self._noted.append(Failure(member.partition, "roll call", f"{member}: {what}", member.node))

    def _check_origin(self) -> None:
        before = [member for member in self.roster if self.trained.get(member.partition)]
        if self._origin is not None and before and all(map(self._is_behind, before)):
            raise FederationError(
                f"no client has its state of run {self._origin.run}: resume needs nodes that were started with "
                "the state-dir that they had"
            )

    def share(self, sharing: Sharing | None) -> Exchange:
        """Collect public rows of clients that have not shared theirs yet, and bring each client those it lacks.

        After the first call this costs nothing, until a client joins. Clients that `sharing` could not be done with
        are failures of the exchange; `holding` leaves them out.
        """
        result = Exchange()
        if sharing is None:
            return result
        self._collect(sharing, result)
        if sharing.to_clients:
            self._distribute(result)
        return result

    def holding(self, members: Iterable[Member], sharing: Sharing | None) -> list[Member]:
        """Return those members that have shared their public rows, and hold those of all others where they should."""
        if sharing is None:
            return list(members)
        return [
            member
            for member in members
            if member.partition in self.roster.seeds and not (sharing.to_clients and self._lacks(member))
        ]

    def _collect(self, sharing: Sharing, result: Exchange) -> None:
        calls = [
            Message(RecordDict({CONFIG: ConfigRecord({LABELLED: sharing.labelled})}), member.node, SEEDS)
            for member in self.roster
            if member.partition not in self.roster.seeds
        ]

        def declared(member: Member) -> PayloadSpec:
            return seeds(member.public, member.spec, member.dtype, labelled=sharing.labelled)

        collected = self.exchange(calls, declared)
        for reply in collected.replies:
            member = self.roster.of(reply.metadata.src_node_id)
            self.roster.seeds[member.partition] = from_record(reply.content.array_records[ARRAYS])
        self.roster.seeds = dict(sorted(self.roster.seeds.items()))
        result.add(collected)

    def _distribute(self, result: Exchange) -> None:
        lacking = {member.node: self._lacks(member) for member in self.roster}
        records: dict[frozenset[int], ArrayRecord] = {}

        def record(partitions: frozenset[int]) -> ArrayRecord:
            if partitions not in records:
                records[partitions] = to_record(
                    {
                        f"{name}.{partition}": array
                        for partition in sorted(partitions)
                        for name, array in self.roster.seeds[partition].items()
                    }
                )
            return records[partitions]

        calls = [
            Message(RecordDict({ARRAYS: record(frozenset(partitions))}), node, POOL)
            for node, partitions in lacking.items()
            if partitions
        ]
        brought = self.exchange(calls)
        for reply in brought.replies:
            node = reply.metadata.src_node_id
            self._holds[node] = self._holds.get(node, set()) | lacking[node]
        result.add(brought)

    def _lacks(self, member: Member) -> set[int]:
        return set(self.roster.seeds) - {member.partition} - self._holds.get(member.node, set())

    def draw(self, round: int) -> list[Member]:
        """Draw the clients of a round: ``fraction`` of those that may train, rounded up, by the run's own generator."""
        members = self._trainable()
        count = ceil(Decimal(str(self.config.fraction)) * len(members))
        if count == len(members):
            return members
        chosen = generator(self.config.seed, round, "draw").choice(len(members), count, replace=False)
        return [members[index] for index in sorted(chosen)]

    def _trainable(self) -> list[Member]:
        """Return those that may train: all but ``absent-fraction``, rounded, of the partitions that there are."""
        members, config = list(self.roster), self.config
        if not config.absent_fraction:
            return members
        clients = config.clients or len(members)
        absent = generator(config.seed, "absent").permutation(clients)[: round(config.absent_fraction * clients)]
        return [member for member in members if member.partition not in absent.tolist()]

    def view(self, members: Sequence[Member]) -> Grid:
        """Return the Grid as it looks to a strategy that asks it for nodes: just these."""
        return GridView(self.grid, [member.node for member in members])

    def exchange(self, messages: Iterable[Message], uploads: Callable[[Member], PayloadSpec] | None = None) -> Exchange:
        """Send messages, wait for the replies, and set aside those that cannot be used.

        Parameters
        ----------
        messages : iterable of Message
            At most one a node.
        uploads : callable, optional
            What each client is to upload. None: no arrays are looked at.
        """
        result = Exchange()
        sent = {
            message.metadata.dst_node_id: Sent.of(message)
            for message in sorted(
                self.as_sent(messages), key=lambda message: self.roster.of(message.metadata.dst_node_id).partition
            )
        }
        for node, reply in self._answers([one.message for one in sent.values()]):
            self.judge(reply, sent[node], result, uploads)
        return result.ordered(self.roster)

    def as_sent(self, messages: Iterable[Message]) -> list[Message]:
        """Return messages as they travel: in half precision, if so configured; what many share is halved once."""
        written = list(messages)
        if not self.config.half:
            return written
        records = {id(record): record for message in written for record in message.content.array_records.values()}
        halves = {key: to_record(halved(from_record(record))) for key, record in records.items()}
        return [
            _with_arrays(message, halves[id(message.content.array_records[ARRAYS])])
            if ARRAYS in message.content
            else message
            for message in written
        ]

    def judge(
        self,
        reply: Message | str,
        sent: "Sent",
        result: Exchange,
        uploads: Callable[[Member], PayloadSpec] | None = None,
    ) -> bool:
        """Count a reply's cost, and put it with the good ones or the failures. A text says why there is none.

        Returns
        -------
        bool
            Whether it may be used.
        """
        member = self.roster.of(sent.node)
        if reply != BUSY:
            result.traffic.setdefault(member.partition, Traffic()).add(sent.traffic)
        if isinstance(reply, str):
            result.failures.append(Failure(member.partition, sent.stage, f"{member}: {reply}", member.node))
            return False
        try:
            result.traffic[member.partition].add(_cost(reply, member))
            reply = _checked(reply, sent.message, member, uploads, half=self.config.half)
        except PayloadError as error:
            result.failures.append(Failure(member.partition, sent.stage, _line(str(error)), member.node))
            return False
        if sent.message.metadata.message_type == MessageType.TRAIN:
            self.trained[member.partition] = sent.round
        result.replies.append(reply)
        return True

    def give_up(self, sent: Sent, result: Exchange) -> None:
        """Count a message as not answered in time; its node is busy until the late reply is in."""
        self.judge(f"no reply within {self.config.round_timeout:g} s", sent, result)
        self._late[sent.message.metadata.message_id] = sent.node

    def busy(self) -> set[int]:
        """Return the nodes that have not answered an earlier message yet: they are sent nothing more."""
        self._take_late()
        return set(self._late.values())

    def _answers(self, messages: Sequence[Message], silence: float = inf) -> Iterator[tuple[int, Message | str]]:
        """Yield each node and its reply as they come, and last the nodes without one and why.

        A node that has not answered in time is sent nothing more until its late reply is in: one message at a time.
        After `silence` seconds, those that have not answered yet are named in the log.
        """
        busy = self.busy()
        nodes = [message.metadata.dst_node_id for message in messages]
        free = [message for message, node in zip(messages, nodes, strict=True) if node not in busy]
        for message in free:
            message.metadata.ttl = max(message.metadata.ttl, self.config.round_timeout)
        if free:
            self.grid.push_messages(free)
        waiting = {message.metadata.message_id: message.metadata.dst_node_id for message in free}
        deadline, patience = (time.monotonic() + seconds for seconds in (self.config.round_timeout, silence))
        while waiting:
            for reply in self.grid.pull_messages(waiting.keys()):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, reply
            if time.monotonic() > deadline:
                break
            if waiting and time.monotonic() > patience:
                patience = inf
                log(
                    WARNING,
                    "no answer to the roll call within %g s from node %s: it is loading its data, or is to be started "
                    "again if its log says nothing new",
                    silence,
                    ", ".join(map(str, sorted(waiting.values()))),
                )
            if waiting and self.poll:
                time.sleep(self.poll)
        self._late |= waiting
        yield from ((node, f"no reply within {self.config.round_timeout:g} s") for node in waiting.values())
        yield from ((node, BUSY) for node in nodes if node in busy)

    def _take_late(self) -> None:
        """Drop replies that came after their round: they belong to knowledge that is gone."""
        if self._late:
            for reply in self.grid.pull_messages(list(self._late)):
                self._late.pop(reply.metadata.reply_to_message_id, None)


class GridView(Grid):
    """A Grid of which a strategy sees only some nodes; everything else goes through."""

    def __init__(self, grid: Grid, nodes: Sequence[int]) -> None:
        self._grid = grid
        self._nodes = list(nodes)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes of this view, ordered by partition."""
        return list(self._nodes)

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push messages and pull their replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)


def _cost(reply: Message, member: Member) -> Traffic:
    try:
        return Traffic(numbers_up=payload_numbers(reply), bytes_up=payload_bytes(reply), wire_up=wire_bytes(reply))
    except ValueError as error:  # from a client in this process: nothing has serialised its numbers before
        raise PayloadError(f"{member}: a reply that no message can hold: {error}") from None


def _checked(
    reply: Message, message: Message, member: Member, uploads: Callable[[Member], PayloadSpec] | None, *, half: bool
) -> Message:
    """Return a reply, with its arrays in their declared dtypes, or raise a PayloadError that says what is wrong."""
    for name, came, expected in (
        ("node", reply.metadata.src_node_id, message.metadata.dst_node_id),
        ("run", reply.metadata.run_id, message.metadata.run_id),
    ):
        if came != expected:
            raise PayloadError(f"{member}: a reply of {name} {came}, expected {name} {expected}")
    if reply.has_error():
        raise PayloadError(_reason(reply.error, member))
    content = reply.content
    if content.config_records:
        raise PayloadError(f"{member}: config records {', '.join(content.config_records)}, expected none")
    if list(content.metric_records) != [METRICS]:
        raise PayloadError(f"{member}: records {', '.join(content) or 'none'}, expected '{METRICS}'")
    _check_metrics(dict(content.metric_records[METRICS]), member)
    if uploads is None:
        return reply
    if list(content.array_records) != [ARRAYS]:
        raise PayloadError(f"{member}: array records {', '.join(content.array_records) or 'none'}, expected '{ARRAYS}'")
    arrays = uploads(member).decode(content.array_records[ARRAYS], str(member), half=half)
    return _with_arrays(reply, to_record(arrays)) if half else reply


def _with_arrays(message: Message, arrays: ArrayRecord) -> Message:
    message = copy(message)
    message.content = RecordDict({**message.content, ARRAYS: arrays})
    return message


def _member(reply: Message | str, node: int) -> Member:
    """Read a node's answer to the roll call, or raise a FederationError that says why there is none."""
    if isinstance(reply, str):
        raise FederationError(f"node {node}: {reply}")
    if reply.has_error():
        raise FederationError(_reason(reply.error, f"node {node}"))
    return Member.from_reply(reply)


def _reason(error: Error, who: object) -> str:
    line = _line(error.reason or f"error {error.code} without a reason")
    return line if line.startswith("client ") else f"{who}: {line}"


def _check_metrics(metrics: Mapping[str, object], member: Member) -> None:
    for name, value in metrics.items():
        if not isinstance(value, int | float) or not isfinite(value):
            raise PayloadError(f"{member}: metric '{name}' is {value!r}, expected a finite number")
        if name in FRACTIONS and not 0 <= value <= 1:
            raise PayloadError(f"{member}: metric '{name}' is {value!r}, expected a fraction from 0 to 1")
    examples = metrics.get(EXAMPLES)
    if not isinstance(examples, int) or not 0 <= examples <= MOST_SAMPLES:
        raise PayloadError(f"{member}: metric '{EXAMPLES}' is {examples!r}, expected a number of samples")


def _line(text: str) -> str:
    """Return the beginning of a text that may be a client's as one line of printable characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text[:LONGEST_REASON]).split())


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
