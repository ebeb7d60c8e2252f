"""Admission: nodes are asked to register, and each is taken in as a client or refused by name.

By keys, or first come: a number belongs to the node whose key is listed for it or, without a list, to the node that
takes it first. Each client has to fit the first one.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from math import inf
from typing import TYPE_CHECKING, cast

from flwr.app import ConfigRecord, Message, MessageType, Metadata, RecordDict

from hetfl_flwr.common.flower import log
from hetfl_flwr.common.versions import installed
from hetfl_flwr.errors import ConfigError, FederationError
from hetfl_flwr.server.grids import ListsNodes, is_stopped
from hetfl_flwr.server.member import Failure, Member
from hetfl_flwr.server.messenger import FlowerExchange, misaddressed, reason
from hetfl_flwr.server.roster import Roster, draw, listed
from hetfl_flwr.wire.messages import CONFIG, REGISTRATION, ROUND, RUN

if TYPE_CHECKING:
    from hetfl_flwr.server.federation import Federation

Check = Callable[[Roster], object]
"""Raises FederationError for clients that an algorithm cannot work with."""

MAX_START = 600.0
"""Seconds that a deployment waits for nodes, at most, unless ``start-timeout`` is set."""

REPORT = 30.0
"""Seconds until the log lists missing clients again."""

SILENCE = 60.0
"""Seconds after which a node of a deployment that has not answered is named."""

RETRY = 10.0
"""Seconds after which a refused node is asked again: the number that it wants may be free by then."""

NEWCOMERS = 5.0
"""Seconds between two checks for new nodes while a round of a deployment is running."""

MAX_NAMED = 20
"""Refused nodes that are named one by one before a round."""

SILENT = "no answer yet: it is loading its data, or has to be started again if its log says nothing new"


@dataclass(frozen=True)
class Origin:
    """The run that this one goes on with, where the clients have its state on their disks."""

    run: int
    """Its id."""
    round: int
    """The round after which the server goes on; `NEWEST` where clients are not in step with it."""
    trained: Mapping[int, int]
    """The round in which each client had trained last, by client id."""


@dataclass
class Node:
    """A node that is online."""

    since: str
    """Since when it is online, where the Grid knows it."""
    client_id: int
    """The client that its key is listed for in ``node-keys``. -1: none, or there is no list."""
    asked: Metadata | None = None
    """The message that asks it to register; None where it has been answered."""
    answer: Message | str | None = None
    """What it has answered, or why that is no answer, until it is taken in or refused."""
    at: float = -inf
    """When it was asked or refused."""
    here: bool = False
    """Whether it is a client."""
    refusal: str = ""
    """Why it is refused, which is reported once. Empty: it is not."""


class Registration:
    """Keeps the roster: asks nodes that come or restart to register, and drops those that have left.

    Parameters
    ----------
    federation : Federation
        Whose clients they are. While replies are waited for in a deployment, new nodes are asked to register.

    Attributes
    ----------
    clients : int
        How many clients there are, whether they are online or not. 0 before the start.
    """

    def __init__(self, federation: "Federation") -> None:
        self.config, self.roster, self.clients = federation.config, federation.roster, 0
        self.grid, self._keys = federation.grid, federation.keys
        self._exchange = cast(FlowerExchange, federation.exchange)  # `Residents` use none
        self._origin, self._own = federation.origin, federation.own
        self._numbers = self._keys.clients if self._keys else range(self.config.clients)
        self._nodes: dict[int, Node] = {}
        self._first: Member | None = None
        self._number_of: dict[int, int] = {}  # since the start
        self._noted: list[Failure] = []
        self._next_look = 0.0
        if isinstance(federation.exchange, FlowerExchange):
            self._exchange.engaged = lambda: {node for node, known in self._nodes.items() if known.asked}
            self._exchange.idle = self._look_meanwhile

    def assemble(self, check: Check | None = None) -> None:
        """Wait for the nodes and register them.

        In the local engine and the simulation all clients are the user's, and one that cannot take part is an error,
        unless ``clients`` is not set and others can. In a deployment such a client is refused.

        Parameters
        ----------
        check : callable, optional
            Raises FederationError for clients that the algorithm cannot work with. In a deployment, it is called with
            the first client and each other one.

        Raises
        ------
        ConfigError
            A deployment whose operator does not say how many clients there are, or wants more than have keys.
        FederationError
            Too few nodes within ``start-timeout``, or clients that cannot take part: names them and the reason.
        """
        self._check_numbers()
        began = reported = time.monotonic()
        for refusals in self._looks(None if self._own else check):
            self._check_own()
            for refusal in refusals:
                log(INFO if self._own else WARNING, "not taken in: %s", refusal.reason)
            if self._may_begin():
                break
            if (now := time.monotonic()) >= reported + REPORT:
                log(INFO, "waiting for nodes: %s; %.0f s left", self._missing(), began + self._seconds - now)
                reported = now
        else:
            log(WARNING, "waited %.0f s for nodes: %s", time.monotonic() - began, self._missing())
        self._check_enough()
        self.clients = self._announced or len(self.roster)
        self._first = self.roster.first
        self._number_of = {member.node: member.client_id for member in self.roster}
        self._noted += self._refused()
        self._log_versions(self.roster)
        before = [member for member in self.roster if self.roster.trained.get(member.client_id)]
        if self._origin is not None and before and all(map(self._is_behind, before)):
            raise FederationError(
                f"no client has its state of run {self._origin.run}: resume needs nodes that were started with "
                "the state-dir that they had"
            )

    def welcome(self, round: int, check: Check | None = None) -> list[Failure]:
        """Drop nodes that left, ask new and restarted ones to register, and return what was noted.

        In a deployment nobody waits for their answers, unless the round can draw fewer clients than ``min-clients``.

        Parameters
        ----------
        round : int
            The round before which this is.
        check : callable, optional
            As `assemble`.
        """
        refused, waits = list[Failure](), False
        for refusals in self._looks(check):
            refused += refusals
            if self._all_have_answered() if self._own else self._is_enough(round):
                break
            if not (waits or self._own):
                here = len(self.roster), self.config.min_clients, self._seconds
                log(WARNING, "%d clients are online, too few for min-clients = %d: waiting up to %.0f s", *here)
            waits = True
        if (more := len(refused) - MAX_NAMED) > 0:
            refused[MAX_NAMED:] = [Failure(-1, REGISTRATION, f"{more} more nodes were refused", 0)]
        return [*self.notes(), *sorted(refused, key=lambda refusal: refusal.reason)]

    def notes(self) -> list[Failure]:
        """Return what was noted about clients since the last call."""
        noted, self._noted = self._noted, []
        return noted

    def note(self, losses: Iterable[str]) -> None:
        """Add what was lost when the run went on to the notes."""
        self._noted += [Failure(-1, "resume", loss, 0) for loss in losses]

    def gone(self) -> set[int]:
        """Return the nodes of clients that have left, or restarted, since they registered."""
        self._update()
        here = {node for node, known in self._nodes.items() if known.here}
        return {member.node for member in self.roster} - here

    # --- the start -------------------------------------------------------------------------------

    @property
    def _seconds(self) -> float:
        """How long nodes are waited for."""
        longest = self.config.round_timeout
        return self.config.start_timeout or (longest if self._own else min(longest, MAX_START))

    @property
    def _announced(self) -> int:
        """How many clients there are, as the operator or the user's own nodes say; 0 where nobody has said it."""
        if self.config.clients or self._keys:
            return self.config.clients or self._numbers[-1] + 1
        return max((member.clients for member in self.roster if self._own), default=0)

    def _check_numbers(self) -> None:
        clients, quorum, listed = self.config.clients, self.config.start_clients, len(self._numbers)
        if not (self._own or self._keys or clients or quorum):
            raise ConfigError(
                "a deployment does not learn from its nodes how many clients there are: set clients, start-clients "
                "or node-keys"
            )
        if self._keys and (most := max(clients, quorum)) > listed:
            raise ConfigError(f"clients = {most}: more than the {listed} in node-keys")

    def _may_begin(self) -> bool:
        """Return whether the run may begin without waiting any longer."""
        here, config = len(self.roster), self.config
        if self._own:
            return self._all_have_answered() and 0 < self._announced <= here + len(self._refused())
        if 0 < config.start_clients <= here and self._drawn(1) >= config.min_clients:
            return True
        if 0 < (config.clients or len(self._numbers)) <= here:
            return True
        failed = {known.client_id for known in self._nodes.values() if known.refusal and not known.asked}
        return self._keys is not None and {*self.roster.client_ids(), *failed}.issuperset(self._numbers)

    def _check_own(self) -> None:
        """Refuse to begin where the user's own clients cannot take part: each of ``clients``, or all there are.

        Raises
        ------
        FederationError
            The first reason; without the client's name where it is that of all, as of a file that all of them read.
        """
        if not self._own or (not self.config.clients and len(self.roster)):
            return
        if reasons := [refusal.reason for refusal in self._refused()]:
            raise self._first_of(reasons)

    def _first_of(self, reasons: Sequence[str]) -> FederationError:
        """Return the first of some clients' reasons; without the client's name where it is that of all there are."""
        causes = {reason.partition(f", {REGISTRATION}: ")[2] for reason in reasons}
        shared = len(causes) == 1 < len(reasons) and not len(self.roster)
        return FederationError(causes.pop() or reasons[0] if shared else reasons[0])

    def _check_enough(self) -> None:
        """Refuse to begin with too few clients.

        Raises
        ------
        FederationError
            Names the key that asks for more, and why some were refused.
        """
        here, drawn, config = len(self.roster), self._drawn(1), self.config
        few = f", of whom a round draws {drawn}" if drawn < here else ""
        wanted = {"start-clients": (config.start_clients, here), "min-clients": (config.min_clients, drawn)}
        for key, (least, count) in wanted.items():
            if count < least:
                reasons = [refusal.reason for refusal in self._refused()[:3]]
                raise FederationError("; ".join([f"{key} = {least}, but there are {here} clients{few}", *reasons]))

    def _missing(self) -> str:
        """Say in words who is not here yet."""
        numbers, here = self._numbers or range(self._announced), self.roster.client_ids()
        if not numbers:
            return f"{len(here)} clients are here"
        missing = listed([number for number in numbers if number not in here])
        return f"{len(here)} of {self.config.clients or len(numbers)} clients are here; missing: client {missing}"

    # --- nodes -----------------------------------------------------------------------------------

    def _looks(self, check: Check | None) -> Iterator[list[Failure]]:
        """Take nodes in again and again until the time is up; yield each time which were refused."""
        deadline = time.monotonic() + self._seconds
        while True:
            over = time.monotonic() > deadline or is_stopped(self.grid)
            self._drop_departed(self._update())
            self._ask()
            yield [*self._refusals(check, over=over)]
            if over:
                return
            time.sleep(max(self._exchange.poll, 0.1))

    def _look_meanwhile(self) -> None:
        """In a deployment, ask nodes that have come or restarted during a round, and collect answers."""
        if not self._own and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + NEWCOMERS
            self._update()
            self._ask()

    def _update(self) -> Collection[int]:
        """Look which nodes are online; forget those that have left or restarted, and add new ones."""
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
                self._nodes[node] = Node(since, client_id)
        for node in self._nodes.keys() - online.keys():
            del self._nodes[node]
        return online.keys()

    def _drop_departed(self, online: Collection[int]) -> None:
        """Remove clients whose nodes have left from the roster; before the start, those that have restarted, too."""
        self._exchange.forget_late(online)
        for member in list(self.roster):
            if member.node not in online or not (self.clients or self._nodes[member.node].here):
                self.roster.remove(member.node)
                if self.clients:
                    self._note(member, "its node has left")

    def _ask(self) -> None:
        """Ask nodes that are new, or were refused a while ago, to register, and receive the answers that have come."""
        now, queries = time.monotonic(), list[Message]()
        for node, known in sorted(self._nodes.items()):
            if known.asked or known.answer or known.here or now < known.at + RETRY:
                continue
            known.at = now
            if self._keys and known.client_id < 0:
                known.answer = "its key is not in node-keys"
            else:
                queries.append(self._query(node))
                known.asked = queries[-1].metadata
        if queries:
            self.grid.push_messages(queries)
        asked = {known.asked.message_id: node for node, known in self._nodes.items() if known.asked}
        while asked and (replies := list(self.grid.pull_messages(asked.keys()))):
            for reply in replies:
                node = asked.pop(reply.metadata.reply_to_message_id, -1)
                if node in self._nodes and (query := self._nodes[node].asked):
                    self._nodes[node].answer, self._nodes[node].asked = misaddressed(reply, query) or reply, None
                    self._exchange.answers_again(node)

    def _query(self, node: int) -> Message:
        """Return a message that asks a node to register."""
        content = RecordDict()
        if self._origin is not None:
            content[CONFIG] = ConfigRecord({RUN: str(self._origin.run), ROUND: self._origin.round})
        message = Message(content, node, MessageType.QUERY)
        message.metadata.ttl = max(message.metadata.ttl, self.config.round_timeout)
        return message

    def _all_have_answered(self) -> bool:
        return not any(known.asked and not known.refusal for known in self._nodes.values())

    def _refusals(self, check: Check | None, *, over: bool) -> Iterator[Failure]:
        """Take in the nodes that have answered, or refuse them; refuse those that have been silent for long.

        A silent node is refused until it answers. The user's own have time until it is over.
        """
        since = inf if over else -inf if self._own else time.monotonic() - SILENCE
        for node, known in sorted(self._nodes.items()):
            answer, known.answer = known.answer, None
            if answer is None and not (known.asked and not known.refusal and known.at <= since):
                continue
            try:
                if answer is None:
                    raise FederationError(f"node {node}: {SILENT}")
                self.roster.remove(node)
                self._admit(_member(answer, node, own=self._own), check)
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

    def _drawn(self, round: int, busy: Collection[int] = ()) -> int:
        """Return how many clients a round draws of those that are here, without busy ones."""
        clients = self.clients or self._announced or len(self.roster)
        return sum(member.node not in busy for member in draw(self.roster, self.config, clients, round))

    def _is_enough(self, round: int) -> bool:
        """Return whether a round draws ``min-clients`` clients that are not busy."""
        return self._drawn(round, self._exchange.overdue()) >= self.config.min_clients

    def _admit(self, member: Member, check: Check | None) -> None:
        """Put a client on the roster.

        Raises
        ------
        FederationError
            It cannot be the client that it says it is, its number is taken, or it does not fit the first client.
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
        if self.clients:
            self._number_of[member.node] = member.client_id
            self._log_versions([member])
        if self._is_behind(member):
            has = f"with its state of round {member.round}" if member.round else "without its state"
            trained = self.roster.trained[member.client_id]
            self._note(member, f"comes {has}, but it has trained until round {trained}: see state-dir")

    def _false_claim(self, member: Member) -> str:
        """Return why a node cannot be the client that it says it is; empty: it can."""
        number, listed = member.client_id, self._nodes[member.node].client_id
        before, shared = self._number_of.get(member.node, number), self.roster.shared_rows(member)
        if self._keys and number != listed:
            return f"its key is that of client {listed} in node-keys"
        if not (self._own or self._keys) and 0 < self.config.clients <= number:
            return f"there are {self.config.clients} clients, with numbers from 0: see partition-id and clients"
        if number != before:
            return f"in this run it has been client {before}"
        if member.public != shared:
            return (
                f"with {member.public} public samples, and that client has shared {shared} in this run: start it with "
                "the data, the seed and the public-fraction that it had; if another node has taken its number, list "
                "its key in node-keys and begin a new run"
            )
        return ""

    def _is_behind(self, member: Member) -> bool:
        return 0 <= member.round < self.roster.trained.get(member.client_id, 0)

    def _note(self, member: Member, what: str) -> None:
        self._noted.append(Failure(member.client_id, REGISTRATION, f"{member}: {what}", member.node))

    def _log_versions(self, members: Iterable[Member]) -> None:
        """Log in one line which clients run other versions than the server; ``clients.json`` has the versions."""
        here = installed()
        if others := [member.client_id for member in members if member.versions != here]:
            log(
                WARNING,
                "other versions than the server's, see clients.json, and bits may differ: client %s",
                listed(others),
            )


def _member(reply: Message | str, node: int, *, own: bool) -> Member:
    """Read a registration, or raise a FederationError that says why there is none.

    If all nodes are the user's `own`, a client's name for itself is enough.
    """
    if isinstance(reply, str):
        raise FederationError(f"node {node}: {reply}")
    if reply.has_error():
        line = reason(reply, node, own=own)
        named = line.removeprefix(f"node {node}: ")
        raise FederationError(named if own and named.startswith("client ") else line)
    return Member.from_reply(reply)
