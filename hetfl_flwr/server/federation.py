"""The clients as the server sees them: who takes part in a round, and what they answered.

Node ids are random in every run; the stable identity of a client is its partition. Everything here is ordered by
partition and drawn from the run's own generators, so that the same config and seed give the same bits in every
engine.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from logging import INFO, WARNING
from math import ceil, inf
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, FederationError, PayloadError
from hetfl_flwr.flower import ErrorCode, log
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.exchange import (
    LONGEST_REASON,
    MOST_SAMPLES,
    Exchange,
    Sent,
    Traffic,
    arrays_of,
    checked,
    cost,
    reason,
    with_arrays,
)
from hetfl_flwr.server.failure import Failure
from hetfl_flwr.server.guard import FEWEST, ROWS_FACTOR, Guard, Size, Sizes, measure, measure_rows
from hetfl_flwr.server.node_keys import NodeKeys
from hetfl_flwr.server.roster import Member, Roster, Sharing
from hetfl_flwr.server.start import FIRST_REPORT, Refusal, Start
from hetfl_flwr.server.uploads import Uploads
from hetfl_flwr.text import printable
from hetfl_flwr.versions import installed
from hetfl_flwr.wire.codec import from_record, halved, to_record
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, EXAMPLES, LABELLED, METRICS, POOL, ROUND, RUN, SHARE, STAGES
from hetfl_flwr.wire.samples import public_samples
from hetfl_flwr.wire.spec import PayloadSpec

Check = Callable[[Roster], object]
"""Raises FederationError for a roster that an algorithm cannot work with."""

BUSY = "still busy with an earlier message"
"""Why a node was sent nothing: it has not answered what it was sent before."""

UNLISTED = "its key is not in node-keys"
"""Why a node was not asked who it is."""

SILENCE = 60.0
"""Seconds after which nodes of a deployment that have not registered are named."""

NEWCOMERS = 5.0
"""Seconds between two looks for nodes that have come while a round of a deployment is running."""

MOST_AHEAD = 1_000_000
"""Rounds, or messages of an asynchronous run, that a client's state may be ahead of the server's checkpoint."""

DEPLOYMENT_POLL = 0.5
"""Seconds between two looks for replies, for a Grid that does not say its own interval."""


def engine_of(grid: Grid) -> str:
    """Return what runs the clients behind a Grid: ``local``, ``simulation`` or ``deployment``."""
    known = {"InMemoryGrid": "simulation", "HttpGrid": "deployment"}
    return getattr(grid, "engine", known.get(type(grid).__name__, "deployment"))


@dataclass(frozen=True)
class Presence:
    """A node that is here.

    Parameters
    ----------
    since : str
        Since when, where the Grid knows it.
    partition : int
        The client that its key is listed for in ``node-keys``. -1: none, or there is no list.
    """

    since: str
    client_id: int


class Call(NamedTuple):
    """A registration request that has not been answered.

    Parameters
    ----------
    node : int
        Who was asked.
    patience : float
        When it is named as silent; infinity once it has been.
    """

    node: int
    patience: float


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
    sent : int
        The number of the last message that an asynchronous run had sent.
    """

    run: int
    round: int
    trained: Mapping[int, int]
    sent: int = 0


class Federation:
    """A Grid with a client registration, ordered replies, checked uploads and measured bytes.

    Parameters
    ----------
    grid : Grid
        The engine's own.
    config : RunConfig
        The run.
    origin : Origin, optional
        The run that this one goes on with.
    uploads : Uploads, optional
        Where uploads are counted.

    Attributes
    ----------
    roster : Roster
        Who is here.
    trained : dict of int to int
        The round in which each client has trained last, by partition.
    guard, rows_guard, claims_guard, tests_guard : Guard
        What the sizes of uploads, of public samples, and of ``num-examples`` of training and of evaluations are held
        against.

    Raises
    ------
    ConfigError
        ``node-keys`` without a deployment, or a list that cannot be read.
    """

    def __init__(
        self, grid: Grid, config: RunConfig, origin: Origin | None = None, uploads: Uploads | None = None
    ) -> None:
        self.grid = grid
        self.config = config
        self.roster = Roster()
        self.trained = dict(origin.trained) if origin else {}
        self.uploads = Uploads() if uploads is None else uploads
        self._origin = origin
        self._noted: list[Failure] = []
        self._since: dict[int, str] = {}
        self._holds: dict[int, set[int]] = {}
        self._late: dict[str, int] = {}
        self._calls: dict[str, Call] = {}
        self._next_look = 0.0
        self._keys = NodeKeys(Path(config.node_keys).expanduser()) if config.node_keys else None
        if self._keys and self._own:
            raise ConfigError("node-keys: only nodes of a deployment have keys; leave it out")
        self.guard = Guard(config.outlier_factor)
        self.rows_guard = Guard(ROWS_FACTOR if config.outlier_factor else 0.0)
        self.claims_guard = Guard(ROWS_FACTOR if config.outlier_factor else 0.0)
        self.tests_guard = Guard(ROWS_FACTOR if config.outlier_factor else 0.0)
        self.poll: float = getattr(grid, "pull_interval", DEPLOYMENT_POLL)

    @property
    def _own(self) -> bool:
        """Whether all nodes are the user's own and answer at once, as in the local engine and the simulation."""
        return engine_of(self.grid) != "deployment"

    def assemble(self, check: Check | None = None) -> None:
        """Wait for the nodes and register the clients.

        In the local engine and the simulation all clients are the user's, and one that cannot take part is an error,
        unless there is no ``clients`` and others can. In a deployment such a one is left out by name.

        Parameters
        ----------
        check : callable, optional
            Raises FederationError for a roster that the algorithm cannot work with. In a deployment, those who do not
            get on with a majority of the others are left out by name.

        Raises
        ------
        ConfigError
            A deployment whose operator does not say how many clients there are.
        FederationError
            Too few nodes within ``start-timeout``, or clients that cannot take part: names them and why.
        """
        listed = self._keys.clients if self._keys else ()
        start = Start(self.config, self.roster, fixed=self._own, listed=listed)
        self._wait(start)
        start.check_enough()
        if check is not None:
            self._settle(check, start)
        self._noted += start.failures
        for member, announced in start.disagreeing():
            self._note(member, f"says that there are {member.clients} clients, most say {announced}")
        self._name_versions(self.roster)
        self._check_origin()

    def _wait(self, start: Start) -> None:
        """Take in nodes as they come and answer until the run may begin."""
        began = time.monotonic()
        deadline, report, pause = began + start.seconds, began, FIRST_REPORT
        while True:
            present = self._present()
            self._forget_gone(present, start)
            for refusal in self._call(present):
                start.refuse(refusal)
            self._take_in_answered(present, start, deadline)
            start.check_refused()
            now, pending = time.monotonic(), len(self._calls)
            self._name_silent()
            if start.may_begin(pending) or now > deadline or start.hopeless(pending, now):
                break
            if now >= report:
                log(INFO, "waiting for nodes: %s; %.0f s left", start.missing(pending), deadline - now)
                report, pause = now + pause, 2 * pause
            time.sleep(max(self.poll, 0.1))
        if not start.may_begin(len(self._calls)):
            log(WARNING, "waited %.0f s for nodes: %s", now - began, start.missing())
            for node in self._asked():
                line = f"node {node}: no reply within {start.seconds:g} s"
                start.refused[node] = Refusal(Failure(present[node].client_id, "client registration", line, node))
        if self._own:
            self._late |= {message: call.node for message, call in self._calls.items()}
            self._calls.clear()

    def _forget_gone(self, present: Mapping[int, Presence], start: Start) -> None:
        """Forget who has left or restarted. Their numbers are free: all that were refused may have another chance."""
        left = self._left(present)
        if any(node in self.roster for node in left):
            for node in left:
                self.roster.remove(node)
            left |= start.refused.keys()
        for node in left:
            start.refused.pop(node, None)
            self._since.pop(node, None)

    def _take_in_answered(self, present: Mapping[int, Presence], start: Start, deadline: float) -> None:
        while answers := self._answered():
            for refusal in self._registered_all(answers, present):
                start.refuse(refusal)
            if time.monotonic() > deadline:
                break

    def _left(self, present: Mapping[int, Presence]) -> set[int]:
        """Return nodes that have left or restarted since they were asked who they are, and expect no answer of them."""
        left = {node for node, since in self._since.items() if node not in present or present[node].since != since}
        for node in left:
            del self._since[node]
        self._calls = {message: call for message, call in self._calls.items() if call.node not in left}
        return left

    def _call(self, present: Mapping[int, Presence]) -> list[Refusal]:
        """Ask nodes that are new, or have restarted since they were asked, who they are; return those not listed."""
        busy = self.busy()
        new = [node for node in sorted(present) if node not in self._since and node not in busy]
        self._since |= {node: present[node].since for node in new}
        messages = [self._roll_call(node) for node in new if self._is_listed(present[node])]
        if messages:
            self.grid.push_messages(messages)
        patience = time.monotonic() + SILENCE
        self._calls |= {one.metadata.message_id: Call(one.metadata.dst_node_id, patience) for one in messages}
        return [
            Refusal(Failure(-1, "client registration", f"node {node}: {UNLISTED}", node))
            for node in new
            if not self._is_listed(present[node])
        ]

    def _asked(self) -> set[int]:
        """Return the nodes that have not registered yet."""
        return {call.node for call in self._calls.values()}

    def _answered(self) -> dict[int, Message]:
        """Return the registration replies that have come, by node."""
        replies = list(self.grid.pull_messages(self._calls.keys())) if self._calls else []
        came = {self._calls.pop(reply.metadata.reply_to_message_id, None): reply for reply in replies}
        return {call.node: reply for call, reply in came.items() if call is not None}

    def _name_silent(self) -> list[int]:
        """Name nodes that have not registered for `SILENCE` seconds, each once; return them."""
        now = time.monotonic()
        silent = {message: call.node for message, call in self._calls.items() if now > call.patience}
        self._calls |= {message: Call(node, inf) for message, node in silent.items()}
        nodes = sorted(silent.values())
        if nodes:
            log(
                WARNING,
                "no registration reply within %g s from node %s: it is loading its data, or is to be started "
                "again if its log says nothing new",
                SILENCE,
                ", ".join(map(str, nodes)),
            )
        return nodes

    def _settle(self, check: Check, start: Start) -> None:
        """Set aside, in a deployment, those with whom the algorithm cannot work beside most of the others.

        Only those vote whose numbers the operator waits for. Whoever was refused since one of these had taken its
        number first is taken in, if it does fit.

        Raises
        ------
        FederationError
            It cannot work with those who are here, nor with enough of them that are a majority.
        """
        try:
            check(self.roster)
        except FederationError:
            majority = [] if start.fixed else Roster(start.voters).majority(check)
            if not majority:
                raise
            nodes = {member.node for member in majority}
            odd = [member for member in self.roster if member.node not in nodes]
            for member in odd:
                self.roster.remove(member.node)
            self._take_in_fitting(odd, check, start, self._fit)
            self._take_in_fitting(start.rivals, check, start, self._take_in)
            if len(self.roster) < start.fewest:
                raise

    def _take_in_fitting(
        self, members: Iterable[Member], check: Check, start: Start, take_in: Callable[[Member, Check], object]
    ) -> None:
        """Take in those whose number is free and with whom the algorithm can work, too; the others are left out."""
        taken = {member.client_id for member in self.roster}
        for member in members:
            if member.client_id in taken:
                continue
            start.refused.pop(member.node, None)
            try:
                take_in(member, check)
                taken.add(member.client_id)
            except FederationError as error:
                self._note(member, f"left out, for most clients agree without it: {error}")
                log(WARNING, "not taken in: %s", self._noted[-1].reason)

    def notes(self) -> list[Failure]:
        """Return what has been noticed about clients since the last call."""
        noted, self._noted = self._noted, []
        return noted

    def note(self, losses: Iterable[tuple[int, str]]) -> None:
        """Have it among the notes what was lost when the run went on, and whose it was; -1: not one client's."""
        nodes = {member.client_id: member.node for member in self.roster}
        self._noted += [Failure(client_id, "resume", told, nodes.get(client_id, 0)) for client_id, told in losses]

    @property
    def stop_requested(self) -> bool:
        """Whether no further round is to begin."""
        return bool(getattr(self.grid, "stop_requested", False))

    def welcome(self, check: Check | None = None) -> list[Failure]:
        """Forget nodes that left, register the clients of new and restarted ones, and return what was noticed.

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
        before = {member.node for member in self.roster}
        failures = (self._call_all if self._own else self._call_on)(present, check)
        self._name_versions(member for member in self.roster if member.node not in before)
        return [*self.notes(), *sorted(failures, key=lambda failure: failure.reason)]

    def _present(self) -> dict[int, Presence]:
        """Return the nodes that are here."""
        if not hasattr(self.grid, "get_nodes"):
            return dict.fromkeys(self.grid.get_node_ids(), Presence("", -1))
        return {
            node.node_id: Presence(node.last_activated_at, self._keys.number(node.public_key) if self._keys else -1)
            for node in self.grid.get_nodes()
        }

    def _call_all(self, present: Mapping[int, Presence], check: Check | None) -> list[Failure]:
        """Ask each node that is new, or has restarted since it was asked, who it is; return those not taken in."""
        wanted = [
            node for node in sorted(present) if node not in self.roster or self._since.get(node) != present[node].since
        ]
        answers = dict(self._answers([self._roll_call(node) for node in wanted]))
        return [refusal.failure for refusal in self._registered_all(answers, present, check)]

    def _call_on(self, present: Mapping[int, Presence], check: Check | None) -> list[Failure]:
        """Take in those who have registered since, and ask others; nobody waits for their answers.

        Who was refused is asked once more in each round.
        """
        self._left(present)
        refused = self._registered_all(self._answered(), present, check)
        line = f"no registration reply within {SILENCE:g} s"
        silent = [
            Failure(present[node].client_id, "client registration", f"node {node}: {line}", node)
            for node in self._name_silent()
        ]
        asked = self._asked()
        self._since = {node: since for node, since in self._since.items() if node in self.roster or node in asked}
        refused += self._call(present)
        return [*silent, *(refusal.failure for refusal in refused)]

    def _is_listed(self, presence: Presence) -> bool:
        """Say whether a node may be asked who it is: its key is in ``node-keys``, or there is no such list."""
        return self._keys is None or presence.client_id >= 0

    def _registered_all(
        self, answers: Mapping[int, Message | str], present: Mapping[int, Presence], check: Check | None = None
    ) -> list[Refusal]:
        """Take in the nodes that have registered, by node; return those that are refused."""
        refusals = (self._registered(node, answers[node], present[node], check) for node in sorted(answers))
        return [refusal for refusal in refusals if refusal is not None]

    def _registered(self, node: int, reply: Message | str, presence: Presence, check: Check | None) -> Refusal | None:
        """Take in a node that has registered, or return why not."""
        if reply == BUSY and node in self.roster:
            return None  # restarted, and what it was sent before is not given up yet
        if isinstance(reply, Message) and reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
            self._forget(node)
            self._since.pop(node, None)
            return None  # where it comes back, it is asked again
        self.roster.remove(node)
        member = None
        try:
            member = self._identified(node, reply, presence)
            self._take_in(member, check)
        except FederationError as error:
            return Refusal(Failure(presence.client_id, "client registration", str(error), node), member)
        self._since[node] = presence.since
        return None

    def _identified(self, node: int, reply: Message | str, presence: Presence) -> Member:
        """Read a node's registration reply and hold it against its key.

        Raises
        ------
        FederationError
            It cannot be read, its key is another client's, or its state is of a round that is far from being reached.
        """
        member = _member(reply, node, own=self._own)
        latest = max([self._origin.sent if self._origin else 0, *self.trained.values()])
        if member.round > latest + MOST_AHEAD:
            raise FederationError(f"node {node}: says that its state is of round {member.round}, after round {latest}")
        if self._keys and member.client_id != presence.client_id:
            raise FederationError(
                f"node {node}: says that it is client {member.client_id}, "
                f"but its key is that of client {presence.client_id} in node-keys"
            )
        return member

    def _roll_call(self, node: int) -> Message:
        content = RecordDict()
        if self._origin is not None:
            content[CONFIG] = ConfigRecord({RUN: str(self._origin.run), ROUND: self._origin.round})
        message = Message(content, node, MessageType.QUERY)
        message.metadata.ttl = max(message.metadata.ttl, self.config.round_timeout)
        return message

    def _take_in(self, member: Member, check: Check | None) -> None:
        self._fit(member, check)
        self._holds[member.node] = set(member.holds)
        if self._is_behind(member):
            has = f"with its state of round {member.round}" if member.round else "without its state"
            self._note(
                member, f"comes {has}, but it has trained until round {self.trained[member.client_id]}: see state-dir"
            )

    def _fit(self, member: Member, check: Check | None) -> None:
        """Put a client on the roster, unless its number is taken or it does not fit there."""
        self.roster.add(member)
        try:
            if check is not None:
                check(self.roster)
        except FederationError:
            self.roster.remove(member.node)
            raise

    def _is_behind(self, member: Member) -> bool:
        return 0 <= member.round < self.trained.get(member.client_id, 0)

    def _forget(self, node: int) -> None:
        """Take a node that is not there any more off the roster, where it is on it, and note that it has left."""
        if node in self.roster:
            self._note(self.roster.of(node), "its node has left")
            self.roster.remove(node)

    def _name_versions(self, members: Iterable[Member]) -> None:
        """Name in one line who runs other versions of what bits depend on than the server does."""
        here = installed()
        others = [
            f"{member} has {' and '.join(odd)}"
            for member in members
            if (odd := [f"{name} {value}" for name, value in member.versions.items() if value != here[name]])
        ]
        if others:
            more = f" and {len(others) - 5} more" if len(others) > 5 else ""
            ours = ", ".join(f"{name} {value}" for name, value in here.items())
            log(WARNING, "versions differ, and bits may: the server has %s; %s%s", ours, "; ".join(others[:5]), more)

    def _note(self, member: Member, what: str) -> None:
        self._noted.append(Failure(member.client_id, "client registration", f"{member}: {what}", member.node))

    def _check_origin(self) -> None:
        before = [member for member in self.roster if self.trained.get(member.client_id)]
        if self._origin is not None and before and all(map(self._is_behind, before)):
            raise FederationError(
                f"no client has its state of run {self._origin.run}: resume needs nodes that were started with "
                "the state-dir that they had"
            )

    def share(self, sharing: Sharing | None) -> Exchange:
        """Collect public samples of clients that have not shared theirs yet, and bring each client those it lacks.

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
        """Return those members that have shared their public samples, and hold those of all others where they should."""
        if sharing is None:
            return list(members)
        return [
            member
            for member in members
            if member.client_id in self.roster.public_samples and not (sharing.to_clients and self._lacks(member))
        ]

    def _collect(self, sharing: Sharing, result: Exchange) -> None:
        calls = [
            Message(RecordDict({CONFIG: ConfigRecord({LABELLED: sharing.labelled})}), member.node, SHARE)
            for member in self.roster
            if member.client_id not in self.roster.public_samples
        ]

        def declared(member: Member) -> PayloadSpec:
            return public_samples(member.public, member.spec, member.dtype, labelled=sharing.labelled)

        collected = self.exchange(calls, declared)
        came = {self.roster.of(reply.metadata.src_node_id): arrays_of(reply) for reply in collected.replies}
        far = self.rows_guard.set_aside({one.client_id: measure_rows(rows["inputs"]) for one, rows in came.items()})
        for member, arrays in came.items():
            if why := far.get(member.client_id):
                collected.failures.append(Failure(member.client_id, STAGES[SHARE], f"{member}: {why}", member.node))
            else:
                self.roster.public_samples[member.client_id] = arrays
        self.roster.public_samples = dict(sorted(self.roster.public_samples.items()))
        result.add(collected)

    def _distribute(self, result: Exchange) -> None:
        lacking = {member.node: self._lacks(member) for member in self.roster}
        records: dict[frozenset[int], ArrayRecord] = {}

        def record(client_ids: frozenset[int]) -> ArrayRecord:
            if client_ids not in records:
                records[client_ids] = to_record(
                    {
                        f"{name}.{client_id}": array
                        for client_id in sorted(client_ids)
                        for name, array in self.roster.public_samples[client_id].items()
                    }
                )
            return records[client_ids]

        calls = [
            Message(RecordDict({ARRAYS: record(frozenset(client_ids))}), node, POOL)
            for node, client_ids in lacking.items()
            if client_ids
        ]
        brought = self.exchange(calls)
        for reply in brought.replies:
            node = reply.metadata.src_node_id
            self._holds[node] = self._holds.get(node, set()) | lacking[node]
        result.add(brought)

    def _lacks(self, member: Member) -> set[int]:
        return set(self.roster.public_samples) - {member.client_id} - self._holds.get(member.node, set())

    def draw(self, round: int) -> list[Member]:
        """Draw the clients of a round: ``fraction`` of those that may train, rounded up, by the run's own generator."""
        members = self._trainable()
        count = ceil(Decimal(str(self.config.fraction)) * len(members))
        if count == len(members):
            return members
        chosen = generator(self.config.seed, round, "draw").choice(len(members), count, replace=False)
        return [members[index] for index in sorted(chosen)]

    def _trainable(self) -> list[Member]:
        """Return those that may train: all but ``nonparticipating-fraction``, rounded, of the partitions that there are."""
        members, config = list(self.roster), self.config
        if not config.nonparticipating_fraction:
            return members
        clients = config.clients or len(members)
        absent = generator(config.seed, "absent").permutation(clients)[
            : round(config.nonparticipating_fraction * clients)
        ]
        return [member for member in members if member.client_id not in absent.tolist()]

    def view(self, members: Sequence[Member]) -> Grid:
        """Return the Grid as it looks to a strategy that asks it for nodes: just these."""
        return GridView(self.grid, [member.node for member in members])

    def exchange(
        self,
        messages: Iterable[Message],
        uploads: Callable[[Member], PayloadSpec] | None = None,
        samples: Callable[[Member], int] | None = None,
    ) -> Exchange:
        """Send messages, wait for the replies, and set aside those that cannot be used.

        Parameters
        ----------
        messages : iterable of Message
            At most one a node.
        uploads : callable, optional
            What each client is to upload. None: no arrays are looked at.
        samples : callable, optional
            The largest ``num-examples`` that each client may say, by its registered rows. None: any.
        """
        result = Exchange()
        sent = {
            message.metadata.dst_node_id: Sent.of(message)
            for message in sorted(
                self.as_sent(messages), key=lambda message: self.roster.of(message.metadata.dst_node_id).client_id
            )
        }
        for node, reply in self._answers([one.message for one in sent.values()]):
            self.judge(reply, sent[node], result, uploads, samples)
        self.set_aside(result, sent, uploads)
        return result.ordered(self.roster)

    def set_aside(
        self, result: Exchange, sent: Mapping[int, Sent], uploads: Callable[[Member], PayloadSpec] | None
    ) -> None:
        """Move replies that are far larger than those of others from the good ones to the failures.

        Of training these are the uploads and ``num-examples``, of evaluations ``num-examples`` alone.

        Parameters
        ----------
        result : Exchange
            Replies that have been judged.
        sent : mapping of int to Sent
            What each node was sent.
        uploads : callable, optional
            What each client was to upload, where it was to train.
        """
        came, claims, tests = dict[int, Sizes](), dict[int, Sizes](), dict[int, Sizes]()
        for reply in result.replies:
            member, asked = self.roster.of(reply.metadata.src_node_id), sent[reply.metadata.src_node_id]
            samples = int(reply.content.metric_records[METRICS][EXAMPLES])  # type: ignore[arg-type]
            if asked.is_training and uploads is not None:
                came[member.client_id] = measure(arrays_of(reply), uploads(member), asked.arrays, samples)
                claims[member.client_id] = {EXAMPLES: Size(samples)}
            elif asked.is_evaluation:
                tests[member.client_id] = {EXAMPLES: Size(samples)}
        here = {member.client_id for member in self.roster}
        for guard in (self.guard, self.claims_guard, self.tests_guard):
            guard.keep(here)
        far = self.claims_guard.set_aside(claims) | self.tests_guard.set_aside(tests)
        near = {client: sizes for client, sizes in came.items() if client not in far}
        far |= self.guard.set_aside(near, others_follow=len(self.roster) >= FEWEST)
        for reply in list(result.replies):
            member = self.roster.of(reply.metadata.src_node_id)
            if why := far.get(member.client_id):
                result.replies.remove(reply)
                line = f"{member}: {why}: set aside (outlier-factor = {self.guard.factor:g})"
                result.failures.append(Failure(member.client_id, sent[member.node].stage, line, member.node))

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

    def judge(
        self,
        reply: Message | str,
        sent: Sent,
        result: Exchange,
        uploads: Callable[[Member], PayloadSpec] | None = None,
        samples: Callable[[Member], int] | None = None,
    ) -> bool:
        """Count a reply's cost, and put it with the good ones or the failures. A text says why there is none.

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
            if sent.is_evaluation:
                samples = attrgetter("rows")
            most = samples(member) if samples else MOST_SAMPLES
            reply = checked(reply, sent.message, member, uploads, most, half=self.config.half)
        except PayloadError as error:
            why = printable(str(error), LONGEST_REASON)
            result.failures.append(Failure(member.client_id, sent.stage, why, member.node))
            return False
        if sent.is_training:
            self.trained[member.client_id] = sent.round
        result.replies.append(reply)
        return True

    def push(self, messages: Sequence[Message]) -> None:
        """Send messages; each that asks a client to train is answered by an upload."""
        asked = [one.metadata.dst_node_id for one in messages if one.metadata.message_type == MessageType.TRAIN]
        self.uploads.asked(self.roster.of(node).client_id for node in asked)
        self.grid.push_messages(messages)

    def _count_back(self, reply: Message | str, sent: Sent, member: Member) -> None:
        """Count no upload where the client says that it has come to an error instead."""
        if isinstance(reply, str) or not (sent.is_training and reply.has_error()):
            return
        if reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
            self.uploads.refused(member.client_id)

    def give_up(self, sent: Sent, result: Exchange) -> None:
        """Count a message as not answered in time; its node is busy until the late reply is in."""
        self.judge(f"no reply within {self.config.round_timeout:g} s", sent, result)
        self._late[sent.message.metadata.message_id] = sent.node

    def busy(self) -> set[int]:
        """Return the nodes that have not answered an earlier message yet: they are sent nothing more."""
        self._take_late()
        return {*self._late.values(), *self._asked()}

    def _answers(self, messages: Sequence[Message]) -> Iterator[tuple[int, Message | str]]:
        """Yield each node and its reply as they come, and last the nodes without one and why.

        A node that has not answered in time is sent nothing more until its late reply is in: one message at a time.
        """
        busy = self.busy()
        nodes = [message.metadata.dst_node_id for message in messages]
        free = [message for message, node in zip(messages, nodes, strict=True) if node not in busy]
        for message in free:
            message.metadata.ttl = max(message.metadata.ttl, self.config.round_timeout)
        if free:
            self.push(free)
        waiting = {message.metadata.message_id: message.metadata.dst_node_id for message in free}
        deadline = time.monotonic() + self.config.round_timeout
        while waiting:
            for reply in self.grid.pull_messages(waiting.keys()):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, reply
            if time.monotonic() > deadline:
                break
            if waiting:
                self.pause()
        self._late |= waiting
        yield from ((node, f"no reply within {self.config.round_timeout:g} s") for node in waiting.values())
        yield from ((node, BUSY) for node in nodes if node in busy)

    def pause(self) -> None:
        """Wait a moment for replies; in a deployment, ask nodes that have come meanwhile who they are."""
        if self.poll:
            time.sleep(self.poll)
        if not self._own and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + NEWCOMERS
            present = self._present()
            self._left(present)
            self._call(present)

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


def _member(reply: Message | str, node: int, *, own: bool) -> Member:
    """Read a node's registration reply, or raise a FederationError that says why there is none.

    Where all nodes are the user's `own`, what a client calls itself is enough.
    """
    if isinstance(reply, str):
        raise FederationError(f"node {node}: {reply}")
    if reply.has_error():
        prefix = f"node {node}: "
        line = reason(reply.error, f"node {node}").removeprefix(prefix)
        raise FederationError(line if own and line.startswith("client ") else prefix + line)
    return Member.from_reply(reply)
