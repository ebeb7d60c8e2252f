"""The start of a federation: how many clients it needs, which are missing, and when it may begin."""

from collections.abc import Collection, Iterable
from itertools import islice
from logging import WARNING

from hetfl_flwr.common.flower import log
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, FederationError
from hetfl_flwr.server.draw import draw
from hetfl_flwr.server.failure import Failure
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.wire.messages import REGISTRATION

LONGEST_START = 600.0
"""Seconds that a deployment waits for nodes, at most, unless ``start-timeout`` is set."""

FIRST_REPORT = 10.0
"""Seconds until the log lists missing clients again; each time, twice as many as before."""


class Start:
    """Decides when a federation begins.

    In a deployment the operator says how many clients there are, not the nodes. In the local engine and the simulation
    all nodes are the user's own: without ``clients`` there are as many as they say.

    Parameters
    ----------
    config : RunConfig
        The run.
    roster : Roster
        The clients that have registered so far.
    fixed : bool
        Whether all nodes there will ever be are the user's own and here, as in the local engine and the simulation:
        then all are heard before the start, and one that cannot take part is the user's mistake.
    listed : collection of int
        The clients in ``node-keys``.

    Attributes
    ----------
    refused : dict of int to Failure
        Nodes that were not taken in.

    Raises
    ------
    ConfigError
        A deployment whose operator does not say how many clients there are, or wants more than are listed.
    """

    def __init__(self, config: RunConfig, roster: Roster, *, fixed: bool, listed: Collection[int] = ()) -> None:
        if not (fixed or config.clients or config.start_clients or listed):
            raise ConfigError(
                "a deployment does not learn from its nodes how many clients there are: set clients, start-clients "
                "or node-keys"
            )
        for key, wanted in (("clients", config.clients), ("start-clients", config.start_clients)):
            if listed and wanted > len(listed):
                raise ConfigError(f"{key} = {wanted}: more than the {len(listed)} clients in node-keys")
        self.config = config
        self.roster = roster
        self.fixed = fixed
        self.refused: dict[int, Failure] = {}
        self._listed = bool(listed)
        self._numbers = sorted(listed) or range(config.clients)

    @property
    def seconds(self) -> float:
        """How long to wait for nodes."""
        return patience(self.config, fixed=self.fixed)

    @property
    def fewest(self) -> int:
        """With how many clients the run may begin at all.

        Unless the operator sets ``start-clients``, a deployment begins with more than half of its clients: fewer could
        decide what the others have to fit.
        """
        most = 0 if self.fixed else self._wanted // 2 + 1
        return max(self.config.min_clients, self.config.start_clients or most)

    @property
    def _wanted(self) -> int:
        """How many clients a deployment waits for, where its operator says so."""
        return self.config.clients or len(self._numbers)

    @property
    def announced(self) -> int:
        """How many clients there are, as the operator or the user's own nodes say; 0 where nobody has said it."""
        if self.config.clients or self._listed:
            return self.config.clients or self._numbers[-1] + 1
        return max((member.clients for member in self.roster if self.fixed), default=0)

    def may_begin(self, pending: int) -> bool:
        """Return whether the run may begin without waiting any longer."""
        here = len(self.roster)
        if self.fixed:
            return not pending and 0 < self.announced <= here + len(self.refused)
        if self.config.start_clients and here >= self.fewest and self._draws_enough(self.roster):
            return True
        if self.config.clients and not (self._listed and self.complete):
            return here >= self.config.clients
        return self.complete

    @property
    def complete(self) -> bool:
        """Whether all clients that there are to be are here, or cannot take part."""
        here = {member.client_id for member in self.roster}
        failed = {refusal.client_id for refusal in self.refused.values()}  # -1 of those whose client is not known
        return self.fixed or (bool(self._numbers) and (here | failed).issuperset(self._numbers))

    def refuse(self, refusal: Failure) -> None:
        """Record a refusal, and log it in a deployment."""
        self.refused[refusal.node] = refusal
        if not self.fixed:
            log(WARNING, "not taken in: %s", refusal.reason)

    @property
    def failures(self) -> list[Failure]:
        """Why nodes were refused, by node."""
        return [refusal for _, refusal in sorted(self.refused.items())]

    def check_refused(self) -> None:
        """Refuse to begin where the user's own clients cannot take part: each of ``clients``, or all there are.

        Raises
        ------
        FederationError
            The first reason; without the client's name where it is that of all, as of a file that all of them read.
        """
        if self.fixed and self.refused and (self.config.clients or not len(self.roster)):
            reasons = [refusal.reason for refusal in self.refused.values()]
            causes = {reason.partition(f", {REGISTRATION}: ")[2] for reason in reasons}
            shared = len(causes) == 1 < len(reasons) and not len(self.roster)
            raise FederationError(causes.pop() or reasons[0] if shared else reasons[0])

    def are_enough(self, clients: Roster) -> bool:
        """Say whether the run may begin with these clients, and a round draw ``min-clients`` of them."""
        return len(clients) >= self.fewest and self._draws_enough(clients)

    def _draws_enough(self, clients: Iterable[Member]) -> bool:
        return self._drawn(clients) >= self.config.min_clients

    def _drawn(self, clients: Iterable[Member]) -> int:
        here = list(clients)
        return len(draw(here, self.config, self.announced or len(here), 1))

    def check_enough(self) -> None:
        """Refuse to begin with too few clients.

        Raises
        ------
        FederationError
            Names the key that asks for more, and why some were not taken in.
        """
        if self.are_enough(self.roster):
            return
        demand, few = self._demand(), ""
        if len(self.roster) >= self.fewest:
            drawn = self._drawn(self.roster)
            demand = f"min-clients = {self.config.min_clients}"
            few = f", of whom fraction and nonparticipating-fraction let {drawn} train in a round"
        reasons = [failure.reason for failure in self.failures]
        more = [f"{len(reasons) - 3} more were refused"] if len(reasons) > 3 else []
        said = f"{demand}, but there are {len(self.roster)} clients{few}"
        raise FederationError("; ".join([said, *reasons[:3], *more]))

    def _demand(self) -> str:
        """Say which key demands so many clients."""
        if self.config.min_clients == self.fewest:
            return f"min-clients = {self.fewest}"
        if self.config.start_clients:
            return f"start-clients = {self.fewest}"
        return f"without start-clients a run begins with more than half of its {self._wanted} clients"

    def missing(self) -> str:
        """Say in words who is not here yet."""
        numbers = self._numbers
        if not numbers and not self.fixed:
            return f"{len(self.roster)} of start-clients = {self.config.start_clients} clients are here"
        if not numbers and not (numbers := range(self.announced)):
            return "no client is here"
        here = {member.client_id for member in self.roster}.intersection(numbers)
        wanted = self.config.clients or len(numbers)
        count = len(numbers) - len(here)
        missing = ", ".join(map(str, islice((number for number in numbers if number not in here), 5)))
        more = f" and {count - 5} more" if count > 5 else ""
        some = "" if wanted == len(numbers) else f" {wanted - len(here)} of"
        return f"{len(here)} of {wanted} clients are here; missing:{some} client {missing}{more}"


def patience(config: RunConfig, *, fixed: bool) -> float:
    """Return for how many seconds nodes are waited for."""
    if config.start_timeout or fixed:
        return config.start_timeout or config.round_timeout
    return min(config.round_timeout, LONGEST_START)
