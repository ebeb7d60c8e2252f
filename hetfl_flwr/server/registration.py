"""Client registration: nodes register and are accepted as clients, or refused with a reason."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import INFO, WARNING

from flwr.app import Message

from hetfl_flwr.common.flower import ErrorCode, log
from hetfl_flwr.common.versions import installed
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import FederationError
from hetfl_flwr.server import attendance
from hetfl_flwr.server.attendance import Attendance, Origin, Presence, checked
from hetfl_flwr.server.draw import draw
from hetfl_flwr.server.failure import Failure
from hetfl_flwr.server.grids import is_stopped
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.messenger import BUSY, Messenger
from hetfl_flwr.server.node_keys import NodeKeys
from hetfl_flwr.server.replies import reason
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.server.start import FIRST_REPORT, Start, patience
from hetfl_flwr.wire.messages import REGISTRATION

Check = Callable[[Roster], object]
"""Raises FederationError for a roster that an algorithm cannot work with."""

NEWCOMERS = 5.0
"""Seconds between two checks for new nodes while a round of a deployment is running."""

MAX_NAMED = 20
"""Nodes refused during a wait for others that are named one by one."""

MAX_UNAVAILABLE = 3
"""Times in a row that a node may be unreachable, although it is online, before it is refused."""

MAX_AHEAD = 1_000_000
"""Rounds, or messages of an asynchronous run, that a client's state may be ahead of the server's checkpoint."""


class Registration:
    """Keeps the roster: adds nodes as they register, and removes those that have left.

    Parameters
    ----------
    messenger : Messenger
        Reaches the nodes. While it waits for replies in a deployment, new nodes are asked to register.
    config : RunConfig
        The run.
    roster : Roster
        The clients.
    keys : NodeKeys, optional
        Which key belongs to which client.
    origin : Origin, optional
        The run that this one goes on with.
    own : bool
        Whether all nodes are the user's own, as in the local engine and the simulation.
    """

    def __init__(
        self,
        messenger: Messenger,
        config: RunConfig,
        roster: Roster,
        keys: NodeKeys | None,
        origin: Origin | None,
        *,
        own: bool,
    ) -> None:
        self.config = config
        self.roster = roster
        self._messenger = messenger
        self._keys = keys
        self._origin = origin
        self._own = own
        self._bound = 0 if own or keys else config.clients
        self._number_of: dict[int, int] = {}
        self._founders: list[Member] = []
        self._unavailable = Counter[int]()
        self.clients = 0
        self._noted: list[Failure] = []
        self._next_look = 0.0
        self._attendance = Attendance(messenger.grid, keys, origin, config.round_timeout)
        self._answers: dict[int, Message | str] = {}
        messenger.engaged = self._attendance.asked
        messenger.idle = self._look

    def assemble(self, check: Check | None = None) -> None:
        """Wait for the nodes and register them.

        In the local engine and the simulation all clients are the user's, and one that cannot take part is an error,
        unless ``clients`` is not set and others can. In a deployment such a client is refused.

        Parameters
        ----------
        check : callable, optional
            Raises FederationError for a roster that the algorithm cannot work with. In a deployment, a client that does
            not fit those who registered before is refused.

        Raises
        ------
        ConfigError
            A deployment whose operator does not say how many clients there are.
        FederationError
            Too few nodes within ``start-timeout``, or clients that cannot take part: names them and the reason.
        """
        listed = self._keys.clients if self._keys else ()
        start = Start(self.config, self.roster, fixed=self._own, listed=listed)
        self._wait(start)
        start.check_enough()
        if check is not None:
            self._settle(check, start)
            start.check_enough()
        self._founders = list(self.roster)
        self.clients = start.announced or len(self.roster)
        self._number_of = {member.node: member.client_id for member in self._founders}
        self._noted += start.failures
        self._name_versions(self.roster)
        self._check_origin()

    def _wait(self, start: Start) -> None:
        """Register nodes as they answer, until the run may begin."""
        began = time.monotonic()
        deadline, report, pause = began + start.seconds, began, FIRST_REPORT
        while True:
            present = self._attendance.present()
            self._drop_departed(present, start)
            for refusal in self._attendance.ask(present):
                start.refuse(refusal)
            self._register_answered(present, start, deadline)
            start.check_refused()
            now, pending = time.monotonic(), len(self._attendance.asked())
            self._attendance.name_silent()
            if start.may_begin(pending) or now > deadline:
                break
            if now >= report:
                log(INFO, "waiting for nodes: %s; %.0f s left", start.missing(), deadline - now)
                report, pause = now + pause, 2 * pause
            time.sleep(max(self._messenger.poll, 0.1))
        if not start.may_begin(len(self._attendance.asked())):
            log(WARNING, "waited %.0f s for nodes: %s", now - began, start.missing())
            for node in self._attendance.asked():
                line = f"node {node}: no reply within {start.seconds:g} s"
                start.refused[node] = Failure(present[node].client_id, REGISTRATION, line, node)
        if self._own:
            self._messenger.leave(self._attendance.cancel())

    def _drop_departed(self, present: Mapping[int, Presence], start: Start) -> None:
        """Drop nodes that have left or restarted. Their numbers are free, so refused nodes are asked again."""
        left = self._attendance.left(present)
        if any(node in self.roster for node in left):
            for node in left:
                self.roster.remove(node)
            left |= start.refused.keys()
        for node in left:
            start.refused.pop(node, None)
            self._attendance.forget(node)

    def _register_answered(self, present: Mapping[int, Presence], start: Start, deadline: float) -> None:
        while answers := self._attendance.answered():
            for refusal in self._registered_all(answers, present):
                start.refuse(refusal)
            if time.monotonic() > deadline:
                break

    def _settle(self, check: Check, start: Start) -> None:
        """Refuse, in a deployment, each client that the algorithm cannot work with, together with those before it.

        Raises
        ------
        FederationError
            It cannot work with the user's own clients, or too few are left.
        """
        try:
            check(self.roster)
        except FederationError:
            if self._own:
                raise
            fitting = Roster([])
            for member in self.roster.as_they_came():
                fitting.add(member)
                try:
                    check(fitting)
                except FederationError as error:
                    fitting.remove(member.node)
                    self.roster.remove(member.node)
                    why = f"{member}: does not fit those who came before: {error}"
                    start.refuse(Failure(member.client_id, REGISTRATION, why, member.node))
            if not start.are_enough(self.roster):
                raise

    def notes(self) -> list[Failure]:
        """Return what was noted about clients since the last call."""
        noted, self._noted = self._noted, []
        return noted

    def note(self, losses: Iterable[str]) -> None:
        """Add what was lost when the run went on to the notes."""
        self._noted += [Failure(-1, "resume", loss, 0) for loss in losses]

    def welcome(self, round: int, check: Check | None = None) -> list[Failure]:
        """Drop nodes that left, ask new and restarted ones to register, and return what was noted.

        In a deployment in which a round can ask fewer clients than ``min-clients``, wait for others as at the start.

        Parameters
        ----------
        round : int
            The round before which this is.
        check : callable, optional
            Raises FederationError for a roster that the algorithm cannot work with; a node that causes it is refused.
        """
        present = self._attendance.present()
        if self._own:
            self._messenger.drop_departed(present)
        self._forget_absent(present)
        before = {member.node for member in self.roster}
        failures = (self._query_all if self._own else self._query_on)(present, check)
        if not self._own:
            failures += self._wait_for_others(round, check)
        self._name_versions(member for member in self.roster if member.node not in before)
        return [*self.notes(), *sorted(failures, key=lambda failure: failure.reason)]

    def _query_all(self, present: Mapping[int, Presence], check: Check | None) -> list[Failure]:
        """Ask each node that is new, or has restarted, to register, and wait; return why others were refused."""
        wanted = [
            node
            for node in sorted(present)
            if node not in self.roster or self._attendance.has_restarted(node, present[node])
        ]
        queries = {node: self._attendance.query(node) for node in wanted}
        answers = {
            node: checked(reply, queries[node].metadata) for node, reply in self._messenger.answers([*queries.values()])
        }
        return self._registered_all(answers, present, check)

    def _query_on(self, present: Mapping[int, Presence], check: Check | None) -> list[Failure]:
        """Register nodes that have answered since, and ask others without waiting for their answers.

        Refused nodes are asked once more in each round.
        """
        self._record(present)
        refused = self._registered_all(self._answered(), present, check)
        line = f"no answer to the client registration within {attendance.SILENCE:g} s"
        silent = [
            Failure(present[node].client_id, REGISTRATION, f"node {node}: {line}", node)
            for node in self._attendance.name_silent()
        ]
        self._attendance.forget_others(self.roster)
        refused += self._attendance.ask(present)
        return [*silent, *refused]

    def _record(self, present: Mapping[int, Presence]) -> None:
        """Record which nodes have left or restarted, and what those that have registered since have lost."""
        for node in self._attendance.left(present):
            self._answers.pop(node, None)
        came = self._attendance.answered()
        for node in came:
            self._messenger.answers_again(node)
        self._answers |= came

    def _answered(self) -> dict[int, Message | str]:
        """Return the answers that were received and not processed yet."""
        answers, self._answers = self._answers, {}
        return answers

    def gone(self) -> set[int]:
        """Return nodes that have left, or restarted, since they registered."""
        return self._attendance.gone(self._attendance.present())

    def _wait_for_others(self, round: int, check: Check | None) -> list[Failure]:
        """Register nodes until a round may draw ``min-clients`` of them, or the time is up.

        If a node leaves meanwhile, its number is free, so refused nodes are asked again.
        """
        seconds = patience(self.config, fixed=False)
        deadline, failures = time.monotonic() + seconds, list[Failure]()
        if not self._enough(round):
            here = len(self.roster), self.config.min_clients, seconds
            log(WARNING, "%d clients are online, too few for min-clients = %d: waiting up to %.0f s for others", *here)
        while not self._enough(round) and time.monotonic() < deadline and not is_stopped(self._messenger.grid):
            time.sleep(max(self._messenger.poll, 0.1))
            present = self._attendance.present()
            self._record(present)
            if self._forget_absent(present):
                self._attendance.forget_others(self.roster)
            refused = self._registered_all(self._answered(), present, check)
            failures += [*refused, *self._attendance.ask(present)]
        more = len(failures) - MAX_NAMED
        if more > 0:
            line = f"{more} more nodes were refused while others were waited for"
            failures[MAX_NAMED:] = [Failure(-1, REGISTRATION, line, 0)]
        return failures

    def _enough(self, round: int) -> bool:
        """Return whether a round draws ``min-clients`` clients that are not busy."""
        overdue = self._messenger.overdue()
        free = [one for one in draw(self.roster, self.config, self.clients, round) if one.node not in overdue]
        return len(free) >= self.config.min_clients

    def _forget_absent(self, present: Mapping[int, Presence]) -> bool:
        """Remove nodes that have left from the roster; return whether there were any."""
        absent = [member.node for member in self.roster if member.node not in present]
        for node in absent:
            self._forget(node)
        return bool(absent)

    def _registered_all(
        self, answers: Mapping[int, Message | str], present: Mapping[int, Presence], check: Check | None = None
    ) -> list[Failure]:
        """Register nodes by their answers; return why others were refused."""
        refusals = (self._registered(node, answers[node], present[node], check) for node in sorted(answers))
        return [refusal for refusal in refusals if refusal is not None]

    def _registered(self, node: int, reply: Message | str, presence: Presence, check: Check | None) -> Failure | None:
        """Register a node, or return why it is refused."""
        if reply == BUSY and node in self.roster:
            return None  # restarted, and what it was sent before is not given up yet
        if isinstance(reply, Message) and reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
            self._forget(node)
            self._unavailable[node] += 1
            if self._unavailable[node] > MAX_UNAVAILABLE:
                why = f"node {node}: could not be reached {self._unavailable[node]} times in a row, and is online"
                return Failure(presence.client_id, REGISTRATION, why, node)
            self._attendance.forget(node)
            return None  # where it comes back, it is asked again
        self.roster.remove(node)
        try:
            member = self._identified(node, reply, presence)
            self._take_in(member, check)
        except FederationError as error:
            return Failure(presence.client_id, REGISTRATION, str(error), node)
        self._attendance.remember(node, presence)
        self._unavailable.pop(node, None)
        if self._founders:
            self._number_of[node] = member.client_id
        return None

    def _identified(self, node: int, reply: Message | str, presence: Presence) -> Member:
        """Read a registration and check it against the run.

        Raises
        ------
        FederationError
            It cannot be read, its key is another client's, there is no client of its number, it has been another client
            in this run, its state is of a round that is far from being reached, or its client has shared another number
            of public samples before.
        """
        member = _member(reply, node, own=self._own)
        latest = max([self._origin.sent if self._origin else 0, *self.roster.trained.values()])
        if member.round > latest + MAX_AHEAD:
            raise FederationError(f"node {node}: says that its state is of round {member.round}, after round {latest}")
        if self._keys and member.client_id != presence.client_id:
            raise FederationError(
                f"node {node}: says that it is client {member.client_id}, "
                f"but its key is that of client {presence.client_id} in node-keys"
            )
        if self._bound and member.client_id >= self._bound:
            raise FederationError(_beyond(member, self._bound))
        before = self._number_of.get(node, member.client_id)
        if member.client_id != before:
            raise FederationError(
                f"node {node}: says that it is client {member.client_id}, but in this run it has been client {before}"
            )
        shared = self.roster.shared_rows(member)
        if member.public != shared:
            raise FederationError(
                f"node {node}: says that client {member.client_id} has {member.public} public samples, but it has "
                f"shared {shared} in this run: start it with the data, the seed and the public-fraction that it had; "
                "if another node has taken its number, list its key in node-keys and begin a new run"
            )
        return member

    def _take_in(self, member: Member, check: Check | None) -> None:
        self._fit(member, check)
        if self._is_behind(member):
            has = f"with its state of round {member.round}" if member.round else "without its state"
            self._note(
                member,
                f"comes {has}, but it has trained until round {self.roster.trained[member.client_id]}: see state-dir",
            )

    def _fit(self, member: Member, check: Check | None) -> None:
        """Put a client on the roster, unless its number is taken or it does not fit there.

        Once the run has begun, it also has to fit the clients with which the run began, whether they are connected or
        not.
        """
        self.roster.add(member)
        try:
            if check is not None:
                check(self.roster)
                check(Roster([*self._founders, replace(member, node=-1)]))  # a founder's node may have come back as it
        except FederationError:
            self.roster.remove(member.node)
            raise

    def _is_behind(self, member: Member) -> bool:
        return 0 <= member.round < self.roster.trained.get(member.client_id, 0)

    def _forget(self, node: int) -> None:
        """Remove a node from the roster, if it is there, and note that it has left."""
        if node in self.roster:
            self._note(self.roster.of(node), "its node has left")
            self.roster.remove(node)
            self._attendance.dismiss(node)

    def _name_versions(self, members: Iterable[Member]) -> None:
        """Log in one line which clients run other versions than the server."""
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
        self._noted.append(Failure(member.client_id, REGISTRATION, f"{member}: {what}", member.node))

    def _check_origin(self) -> None:
        before = [member for member in self.roster if self.roster.trained.get(member.client_id)]
        if self._origin is not None and before and all(map(self._is_behind, before)):
            raise FederationError(
                f"no client has its state of run {self._origin.run}: resume needs nodes that were started with "
                "the state-dir that they had"
            )

    def _look(self) -> None:
        """In a deployment, find nodes that have connected, left or restarted meanwhile, and ask them to register."""
        if not self._own and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + NEWCOMERS
            present = self._attendance.present()
            self._record(present)
            self._attendance.ask(present)


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


def _beyond(member: Member, clients: int) -> str:
    return (
        f"node {member.node}: says that it is client {member.client_id}, but there are {clients} clients, with numbers "
        "from 0: see partition-id and clients"
    )
