"""Admission: nodes are asked to register, and each is admitted as a client, or refused with a message that names it.

By keys, or first come: a number belongs to the node whose key is listed for it or, without a list, to the node that
takes it first. Each client has to fit the first one.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from math import inf
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Message, MessageType, Metadata, RecordDict

from hetfl_flwr.common.flower import log
from hetfl_flwr.common.versions import installed
from hetfl_flwr.errors import ConfigError, Failure, FederationError
from hetfl_flwr.server.grids import ListsNodes, is_stopped, pull_interval
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.messenger import FlowerExchange, reason, received
from hetfl_flwr.server.roster import Roster, draw
from hetfl_flwr.text import some
from hetfl_flwr.wire.messages import CONFIG, REGISTRATION, ROUND, RUN

if TYPE_CHECKING:
    from hetfl_flwr.server.federation import Federation

Check = Callable[[Roster], object]
"""Raises FederationError for clients that an algorithm cannot work with."""

MAX_START = 600.0
"""Seconds that a deployment waits for nodes, at most, unless ``start-timeout`` is set."""

REPORT = 30.0
"""Seconds between two log lines that list missing clients."""

SILENCE = 60.0
"""Seconds after which a silent node of a deployment is named in the log."""

RETRY = 10.0
"""Seconds after which a refused node is asked again: the client id that it claims may be free by then."""

NEWCOMERS = 5.0
"""Seconds between two checks for new nodes while a round of a deployment is running."""

MAX_NAMED = 20
"""Maximum number of refused nodes that are named before a round."""

SILENT = "no answer yet: it is loading its data, or has to be started again if its log says nothing new"


@dataclass(frozen=True)
class Origin:
    """The run that this one resumes, if the clients have its state on their disks."""

    run: int
    """The run's id."""
    round: int
    """The round after which the server resumes; `NEWEST` if the clients are not in step with it."""
    trained: Mapping[int, int]
    """The round in which each client had trained last, by client id."""


class Admission(ABC):
    """Maintains the roster: admits clients before the first round and, if they can come and go, before each later one.

    ``clients`` is the number of clients, online or not; before the start, 0 if it is unknown.
    """

    _longest = inf  # seconds that nodes are waited for, unless start-timeout is set
    _numbers: Sequence[int] = ()  # the clients', if others than from 0 to clients - 1

    def __init__(self, federation: "Federation") -> None:
        self.config, self.roster, self.grid = federation.config, federation.roster, federation.grid
        self.clients = self.config.clients
        self._origin = federation.origin
        self._noted: list[Failure] = []

    @abstractmethod
    def assemble(self, check: Check | None = None) -> None:
        """Wait for the nodes and admit them.

        `check` raises FederationError for clients that the algorithm cannot work with. In a deployment, it is called
        with the first client and each other one. Raises `ConfigError` if, in a deployment, the number of clients is not
        set or is larger than the number of keys, and `FederationError`, which names clients and reasons, if there are
        too few clients or, in a simulation, one cannot take part.
        """

    def welcome(self, round: int, check: Check | None = None) -> list[Failure]:
        """Update the roster before a round, and return notes on what has changed. By default, no client comes or goes.

        `check` is as in `assemble`.
        """
        return self.notes()

    def gone(self) -> set[int]:
        """Return the nodes of clients that have left or restarted since they registered: by default, none."""
        return set()

    def notes(self) -> list[Failure]:
        """Return what was noted about clients since the last call."""
        noted, self._noted = self._noted, []
        return noted

    def note(self, losses: Iterable[str]) -> None:
        """Add to the notes what was lost when the run continued."""
        self._noted += [Failure(-1, "resume", loss, 0) for loss in losses]

    # --- the start -------------------------------------------------------------------------------

    @property
    def _seconds(self) -> float:
        """Seconds to wait for nodes."""
        return self.config.start_timeout or min(self.config.round_timeout, self._longest)

    def _looks(self, *, report: bool = False) -> Iterator[bool]:
        """Yield False repeatedly until the time is up or a stop is requested, and then True."""
        began = reported = time.monotonic()
        while (now := time.monotonic()) <= began + self._seconds and not is_stopped(self.grid):
            yield False
            if report and now >= reported + REPORT:
                log(INFO, "waiting for nodes: %s; %.0f s left", self._missing(), began + self._seconds - now)
                reported = now
            time.sleep(max(pull_interval(self.grid), 0.1))
        yield True
        if report:
            log(WARNING, "waited %.0f s for nodes: %s", now - began, self._missing())

    def _missing(self) -> str:
        """Describe which clients are missing."""
        numbers, here = self._numbers or range(self.clients), self.roster.client_ids()
        if not numbers:
            return f"{len(here)} clients are here"
        missing = some([number for number in numbers if number not in here])
        return f"{len(here)} of {self.config.clients or len(numbers)} clients are here; missing: client {missing}"

    def _query(self, node: int) -> Message:
        """Build the message that asks a node to register."""
        content = RecordDict()
        if self._origin is not None:
            content[CONFIG] = ConfigRecord({RUN: str(self._origin.run), ROUND: self._origin.round})
        message = Message(content, node, MessageType.QUERY)
        message.metadata.ttl = max(message.metadata.ttl, self.config.round_timeout)
        return message

    def _begin(self, refused: Sequence[Failure]) -> None:
        """Start with the clients that have registered, unless there are too few or all have lost their state."""
        here, drawn, config = len(self.roster), self._drawn(1), self.config
        few = f", of whom a round draws {drawn}" if drawn < here else ""
        wanted = {"start-clients": (config.start_clients, here), "min-clients": (config.min_clients, drawn)}
        for key, (least, count) in wanted.items():
            if count < least:
                reasons = [refusal.reason for refusal in refused[:3]]
                raise FederationError("; ".join([f"{key} = {least}, but there are {here} clients{few}", *reasons]))
        self.clients = self.clients or here
        self._noted += refused
        self._log_versions(self.roster)
        before = [member for member in self.roster if self.roster.trained.get(member.client_id)]
        if self._origin is not None and before and all(map(self.is_behind, before)):
            raise FederationError(
                f"no client has its state of run {self._origin.run}: resume needs nodes that were started with "
                "the state-dir that they had"
            )

    # --- clients ---------------------------------------------------------------------------------

    def _drawn(self, round: int, busy: Collection[int] = ()) -> int:
        """Return how many of the clients that are online and not busy a round draws."""
        clients = self.clients or len(self.roster)
        return sum(member.node not in busy for member in draw(self.roster, self.config, clients, round))

    def is_behind(self, member: Member) -> bool:
        """Return whether a client has registered without what it had learned in this run."""
        return 0 <= member.round < self.roster.trained.get(member.client_id, 0)

    def _note_state(self, member: Member) -> None:
        """Note a client that joins without what it had learned."""
        if self.is_behind(member):
            has = f"with its state of round {member.round}" if member.round else "without its state"
            trained = self.roster.trained[member.client_id]
            self._note(member, f"joins {has}, but it has trained until round {trained}: see state-dir")

    def _note(self, member: Member, what: str) -> None:
        self._noted.append(Failure(member.client_id, REGISTRATION, f"{member}: {what}", member.node))

    def _log_versions(self, members: Iterable[Member]) -> None:
        """Log in one line which clients run different versions from the server; ``clients.json`` has the versions."""
        here = installed()
        if others := [member.client_id for member in members if member.versions != here]:
            log(
                WARNING,
                "versions differ from the server's (see clients.json), so results may not be bit-identical: client %s",
                some(others),
            )


@dataclass
class OnlineNode:
    """A node that is online."""

    since: str
    """Time since which it has been online, if the Grid knows it."""
    client_id: int
    """The client that its key is listed for in ``node-keys``. -1: none, or there is no list."""
    asked: Metadata | None = None
    """The message that asks it to register; None once the node has answered."""
    answer: Message | str | None = None
    """Its answer, or why the answer is invalid, until it is admitted or refused."""
    at: float = -inf
    """Time at which it was asked or refused."""
    here: bool = False
    """Whether it is a client."""
    refusal: str = ""
    """Why it is refused, reported once. Empty: it is not refused."""


class Registration(Admission):
    """Asks nodes that join or restart in a deployment to register, and drops those that have left.

    `exchange` reaches the nodes. While it waits for replies, new nodes are asked to register.
    """

    _longest = MAX_START

    def __init__(self, federation: "Federation", exchange: FlowerExchange) -> None:
        super().__init__(federation)
        self._exchange, self._keys = exchange, federation.keys
        if self._keys:
            self._numbers = self._keys.clients
            self.clients = self.clients or self._numbers[-1] + 1
        self._nodes: dict[int, OnlineNode] = {}
        self._first: Member | None = None  # None: before the start
        self._number_of: dict[int, int] = {}  # since the start
        self._next_look = 0.0
        exchange.engaged = lambda: {node for node, known in self._nodes.items() if known.asked}
        exchange.idle = self._look_meanwhile

    def assemble(self, check: Check | None = None) -> None:
        """Wait for the nodes and register them; one that cannot take part is refused."""
        self._check_numbers()
        for over in self._looks(report=True):
            for refusal in self._look(check, over=over):
                log(WARNING, "not taken in: %s", refusal.reason)
            if self._may_begin():
                break
        self._begin(self._refused())
        self._first = self.roster.first
        self._number_of = {member.node: member.client_id for member in self.roster}

    def welcome(self, round: int, check: Check | None = None) -> list[Failure]:
        """Drop nodes that have left, ask new and restarted ones to register, and return notes on what has changed.

        Their answers are not waited for, unless the round can draw fewer clients than ``min-clients``.
        """
        refused, waits = list[Failure](), False
        for over in self._looks():
            refused += self._look(check, over=over)
            if self._drawn(round, self._exchange.overdue()) >= self.config.min_clients:
                break
            if not waits:
                here = len(self.roster), self.config.min_clients, self._seconds
                log(WARNING, "%d clients are online, too few for min-clients = %d: waiting up to %.0f s", *here)
            waits = True
        if (more := len(refused) - MAX_NAMED) > 0:
            refused[MAX_NAMED:] = [Failure(-1, REGISTRATION, f"{more} more nodes were refused", 0)]
        return [*self.notes(), *sorted(refused, key=lambda refusal: refusal.reason)]

    def gone(self) -> set[int]:
        """Poll which nodes are online, and return those of clients that have left, or restarted."""
        self._update()
        here = {node for node, known in self._nodes.items() if known.here}
        return {member.node for member in self.roster} - here

    # --- the start -------------------------------------------------------------------------------

    def _check_numbers(self) -> None:
        clients, quorum, listed = self.config.clients, self.config.start_clients, len(self._numbers)
        if not (self._keys or clients or quorum):
            raise ConfigError(
                "a deployment cannot tell how many clients there will be: set clients, start-clients or node-keys"
            )
        if self._keys and (most := max(clients, quorum)) > listed:
            raise ConfigError(f"clients = {most}: more than the {listed} in node-keys")

    def _may_begin(self) -> bool:
        """Return whether the run may start without further waiting."""
        here, config = len(self.roster), self.config
        if 0 < config.start_clients <= here and self._drawn(1) >= config.min_clients:
            return True
        if 0 < (config.clients or len(self._numbers)) <= here:
            return True
        failed = {known.client_id for known in self._nodes.values() if known.refusal and not known.asked}
        return self._keys is not None and {*self.roster.client_ids(), *failed}.issuperset(self._numbers)

    # --- nodes -----------------------------------------------------------------------------------

    def _look_meanwhile(self) -> None:
        """Ask nodes that have joined or restarted during a round to register, and collect their answers."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + NEWCOMERS
            self._update()
            self._ask()

    def _update(self) -> Collection[int]:
        """Poll which nodes are online; drop those that have left or restarted, and add new ones."""
        grid, keys = self.grid, self._keys
        if isinstance(grid, ListsNodes):
            online = {
                one.node_id: (one.last_activated_at, keys.number(one.public_key) if keys else -1)
                for one in grid.get_nodes()
            }
        else:
            online = dict.fromkeys(grid.get_node_ids(), ("", -1))
        for node, (since, client_id) in online.items():
            if node not in self._nodes or self._nodes[node].since != since:
                self._nodes[node] = OnlineNode(since, client_id)
        for node in self._nodes.keys() - online.keys():
            del self._nodes[node]
        return online.keys()

    def _drop_departed(self, online: Collection[int]) -> None:
        """Remove clients whose nodes have left from the roster; before the start, those that have restarted, too."""
        self._exchange.forget_late(online)
        for member in list(self.roster):
            if member.node not in online or not (self._first or self._nodes[member.node].here):
                self.roster.remove(member.node)
                if self._first:
                    self._note(member, "its node has left")

    def _ask(self) -> None:
        """Ask nodes that are new, or were refused a while ago, to register, and receive their answers."""
        now, queries = time.monotonic(), list[Message]()
        for node, known in sorted(self._nodes.items()):
            if known.asked or known.answer or known.here or now < known.at + RETRY:
                continue
            known.at = now
            if self._keys and known.client_id < 0:
                known.answer = f"node {node}: its key is not in node-keys"
            else:
                queries.append(self._query(node))
                known.asked = queries[-1].metadata
        if queries:
            self.grid.push_messages(queries)
        asked = {known.asked.message_id: known.asked for known in self._nodes.values() if known.asked}
        for node, answer in received(self.grid, asked).items():
            self._nodes[node].answer, self._nodes[node].asked = answer, None
            self._exchange.answers_again(node)

    def _look(self, check: Check | None, *, over: bool) -> Iterator[Failure]:
        """Ask new nodes, drop those that have left, and admit those that have answered; yield the refusals.

        A silent node is refused, after a while or when the time is up, until it answers.
        """
        self._drop_departed(self._update())
        self._ask()
        since = inf if over else time.monotonic() - SILENCE
        for node, known in sorted(self._nodes.items()):
            answer, known.answer = known.answer, None
            if answer is None and not (known.asked and not known.refusal and known.at <= since):
                continue
            try:
                if answer is None:
                    raise FederationError(f"node {node}: {SILENT}")
                self.roster.remove(node)
                self._admit(member_from(answer, node), check)
                known.here, known.refusal = True, ""
            except FederationError as error:
                before, known.refusal, known.at = known.refusal, str(error), time.monotonic()
                if known.refusal != before:
                    yield Failure(known.client_id, REGISTRATION, known.refusal, node)

    def _refused(self) -> list[Failure]:
        """Return the nodes that are refused, and why."""
        return [
            Failure(known.client_id, REGISTRATION, known.refusal, node)
            for node, known in sorted(self._nodes.items())
            if known.refusal
        ]

    # --- clients ---------------------------------------------------------------------------------

    def _admit(self, member: Member, check: Check | None) -> None:
        """Add a client to the roster.

        Raises `FederationError` if it cannot be the client that it claims to be, its id is taken, or it does not fit
        the first client.
        """
        if wrong := self._false_claim(member):
            raise FederationError(f"node {member.node}: says that it is client {member.client_id}, but {wrong}")
        first = self._first or self.roster.first
        self.roster.add(member)
        if check is not None and first is not None:
            try:
                check(Roster([replace(first, node=-1), member]))  # the first's node may have come back as this one
            except FederationError as error:
                self.roster.remove(member.node)
                raise FederationError(f"{member}: does not fit the first client: {error}") from None
        if self._first:
            self._number_of[member.node] = member.client_id
            self._log_versions([member])
        self._note_state(member)

    def _false_claim(self, member: Member) -> str:
        """Return why a node cannot be the client that it claims to be; empty if it can."""
        number, listed = member.client_id, self._nodes[member.node].client_id
        before = self._number_of.get(member.node, number)
        if self._keys and number != listed:
            return f"its key is that of client {listed} in node-keys"
        if not self._keys and 0 < self.config.clients <= number:
            return f"there are {self.config.clients} clients, with numbers from 0: see partition-id and clients"
        if number != before:
            return f"in this run it has been client {before}"
        return ""


def member_from(answer: Message | str, node: int) -> Member:
    """Read a registration, or raise a FederationError that says why there is none."""
    if isinstance(answer, str):
        raise FederationError(answer)
    if answer.has_error():
        raise FederationError(reason(answer, node))
    return Member.from_reply(answer)
