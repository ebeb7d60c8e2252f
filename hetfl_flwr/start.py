"""The start of a federation: how many clients there are to be, who is missing, and when it may begin."""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from logging import WARNING
from math import inf

from flwr.supercore import log

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import FederationError
from hetfl_flwr.roster import Member, Roster
from hetfl_flwr.run_files import Failure

LONGEST_START = 600.0
"""Seconds that the start of a deployment waits for nodes, where neither key says less."""

PATIENCE = 30.0
"""Seconds that the start waits for others where all nodes that are here have been refused."""

FIRST_REPORT = 10.0
"""Seconds until the log says again who is missing; each time, twice as many as before."""

_CLIENT = re.compile(r"(?:node \d+: )?client (\d{1,9})\b")


class Start:
    """Decides when a federation begins. What nodes say of themselves counts as far as most of them say it.

    Parameters
    ----------
    config : RunConfig
        The run.
    roster : Roster
        Who has registered so far.
    fixed : bool
        Whether all nodes there will ever be are the user's own and here, as in the local engine and the simulation:
        then all are heard before the start, and one that cannot take part is the user's mistake.

    Attributes
    ----------
    refused : dict of int to Failure
        Nodes that were not taken in.
    """

    def __init__(self, config: RunConfig, roster: Roster, *, fixed: bool) -> None:
        self.config = config
        self.roster = roster
        self.fixed = fixed
        self.refused: dict[int, Failure] = {}
        self._hopeless_since = inf

    @property
    def seconds(self) -> float:
        """How long to wait for nodes."""
        if self.config.start_timeout or self.fixed:
            return self.config.start_timeout or self.config.round_timeout
        return min(self.config.round_timeout, LONGEST_START)

    @property
    def fewest(self) -> int:
        """With how many clients the run may begin at all."""
        return max(self.config.min_clients, self.config.start_clients)

    def announced(self, pending: int = 0) -> int | None:
        """Return how many clients there are, as more than half of the nodes say; None where that many do not agree.

        Parameters
        ----------
        pending : int
            Nodes that have not said anything yet.
        """
        votes = Counter(member.partitions for member in self.roster).most_common(1)
        return next((number for number, count in votes if 2 * count > len(self.roster) + pending), None)

    def may_begin(self, pending: int) -> bool:
        """Say whether there is nobody left to wait for."""
        wanted = self.config.clients or self.announced(pending)
        if self.fixed:
            return not pending and wanted is not None and len(self.roster) + len(self.refused) >= wanted
        here = self._here(pending)
        if self.config.start_clients and len(here) >= self.fewest:
            return True
        if wanted is None:
            return False
        return len(here if self.config.clients else here | self._failed(wanted)) >= wanted

    def hopeless(self, pending: int, now: float) -> bool:
        """Say whether for `PATIENCE` seconds all that are here have been refused, as by a mistake in the run config."""
        if pending or len(self.roster) or not self.refused:
            self._hopeless_since = inf
            return False
        self._hopeless_since = min(self._hopeless_since, now)
        return now - self._hopeless_since > PATIENCE

    def refuse(self, failure: Failure) -> None:
        """Leave a node out, and say so where others go on meanwhile."""
        self.refused[failure.node] = failure
        if not self.fixed:
            log(WARNING, "not taken in: %s", failure.reason)

    def check_refused(self) -> None:
        """Refuse to begin where the user's own clients cannot take part: each of ``clients``, or all there are.

        Raises
        ------
        FederationError
            The first reason.
        """
        if self.fixed and self.refused and (self.config.clients or not len(self.roster)):
            raise FederationError(next(iter(self.refused.values())).reason)

    def check_enough(self) -> None:
        """Refuse to begin with too few clients.

        Raises
        ------
        FederationError
            Names the key that asks for more, and why some were not taken in.
        """
        if len(self.roster) < self.fewest:
            key = "min-clients" if self.config.min_clients == self.fewest else "start-clients"
            reasons = [failure.reason for _, failure in sorted(self.refused.items())]
            more = [f"{len(reasons) - 3} more were refused"] if len(reasons) > 3 else []
            raise FederationError(
                "; ".join([f"{key} = {self.fewest}, but there are {len(self.roster)} clients", *reasons[:3], *more])
            )

    def missing(self, pending: int = 0) -> str:
        """Say in words who is not here yet."""
        limit = self._limit(pending)
        if not limit:
            said = _said(self.roster)
            return f"the nodes do not agree on how many there are: {said}" if said else "no client is here"
        here = self._here(pending)
        count = limit - len(here)
        numbers = ", ".join(map(str, islice((number for number in range(limit) if number not in here), 5)))
        more = f" and {count - 5} more" if count > 5 else ""
        return f"{len(here)} of {limit} clients are here; missing: client {numbers}{more}"

    def disagreeing(self) -> Iterable[tuple[Member, int]]:
        """Go through the clients that say another number than most, with the number that most say."""
        announced = self.announced()
        if announced is not None:
            yield from ((member, announced) for member in self.roster if member.partitions != announced)

    def _limit(self, pending: int) -> int:
        """Return a number that all clients' own are below; 0 where nothing says one."""
        return max(self.config.clients, self.announced(pending) or 0)

    def _here(self, pending: int) -> set[int]:
        limit = self._limit(pending)
        return {member.partition for member in self.roster if not limit or member.partition < limit}

    def _failed(self, wanted: int) -> set[int]:
        """Return the clients that have said, or are known by their keys, to be those that cannot take part."""
        numbers = set()
        for failure in self.refused.values():
            found = _CLIENT.match(failure.reason)
            numbers.add(failure.partition if failure.partition >= 0 or not found else int(found[1]))
        return {number for number in numbers if 0 <= number < wanted}


def _said(roster: Roster) -> str:
    first: dict[int, Member] = {}
    for member in roster:
        first.setdefault(member.partitions, member)
    return ", ".join(f"{member} says {number}" for number, member in islice(first.items(), 3))
