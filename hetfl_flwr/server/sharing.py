"""The sharing of public samples: collected from each client once, and sent to the clients that lack them."""

from collections.abc import Iterable, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.data import Samples
from hetfl_flwr.data.scaling import scaled_alone
from hetfl_flwr.server.exchange import Exchange, Outcome
from hetfl_flwr.server.guard import ROWS_FACTOR, Guard, measure_rows
from hetfl_flwr.server.member import Member, Sharing
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.wire.messages import POOL, SHARE, STAGES
from hetfl_flwr.wire.spec import Arrays, frozen

NOTHING: Arrays = {}
"""The download in a request for samples, which has no arrays."""

PUBLIC = "public"
"""The first word of the names of shared samples in a checkpoint."""


class SampleSharing:
    """Shares public samples, and records which client holds whose samples.

    The samples that clients have shared are in ``public_samples`` of the exchange's roster. `sharing` is None for
    algorithms without public samples.
    """

    def __init__(self, exchange: Exchange, sharing: Sharing | None) -> None:
        self._exchange, self._roster, self._sharing, self._config = exchange, exchange.roster, sharing, exchange.config
        self.guard = Guard(ROWS_FACTOR if self._config.outlier_factor else 0.0)
        self._received: dict[int, tuple[Member, set[int]]] = {}  # a node that registers again has another Member

    def share(self) -> Outcome:
        """Collect public samples from clients that have not shared theirs, and send each client those that it lacks.

        After the first call, there is nothing to do until a client joins. Clients for which this fails are in the
        outcome's failures, and `holding` excludes them.
        """
        result = Outcome()
        if self._sharing is not None:
            result.add(self._collected(labelled=self._sharing.labelled))
            if self._sharing.to_clients:
                result.add(self._distributed())
        return result

    def hold(self) -> Arrays:
        """Return, as ``public CLIENT NAME``, shared samples with noise; others are shared again on resume."""
        shared = self._roster.public_samples if self._config.public_noise_multiplier else {}
        return {f"{PUBLIC} {one} {name}": array for one, block in shared.items() for name, array in block.items()}

    def restore(self, held: Arrays) -> None:
        """Restore the samples that `hold` returned among these arrays, so that no client adds other noise to them.

        With ``accept-loss``, clients share their samples again: they may be others.
        """
        blocks = dict[int, dict[str, NDArray[Any]]]()
        for key, array in held.items():
            if key.startswith(PUBLIC) and not self._config.accept_loss:
                _, client_id, name = key.split(" ")
                blocks.setdefault(int(client_id), {})[name] = array
        self._roster.public_samples = {client_id: frozen(block) for client_id, block in blocks.items()}
        self.guard.newest = {client_id: measure_rows(block["inputs"]) for client_id, block in blocks.items()}

    def holding(self, members: Iterable[Member]) -> list[Member]:
        """Return the members that have shared their samples and, if required, hold the samples of all."""
        if self._sharing is None:
            return list(members)
        shared = [member for member in members if member.client_id in self._roster.public_samples]
        return [member for member in shared if not (self._sharing.to_clients and self._lacks(member))]

    def _collected(self, *, labelled: bool) -> Outcome:
        known, guard = self._roster.public_samples, self.guard
        asked = [(member, NOTHING) for member in self._roster if member.client_id not in known]
        collected = self._exchange.ask(SHARE, labelled, asked)
        came = {reply.client_id: reply.arrays for reply in collected.replies}
        guard.keep({member.client_id for member in self._roster})
        far = guard.reject_outliers({client_id: measure_rows(block["inputs"]) for client_id, block in came.items()})
        for member, _ in asked:
            if why := far.get(member.client_id):
                line = f"{member}: {why}: its public samples are refused; outlier-factor = 0 lets them pass"
                collected.fail(member, STAGES[SHARE], line)
                del came[member.client_id]
            elif member.client_id in came:
                self._note(member, {member.client_id})
        if came:
            self._roster.public_samples = dict(sorted({**known, **came}.items()))
        return collected

    def _distributed(self) -> Outcome:
        lacking = {member: frozenset(self._lacks(member)) for member in self._roster}
        blocks: dict[frozenset[int], Arrays] = {}
        for client_ids in lacking.values():
            if client_ids not in blocks:
                blocks[client_ids] = self._block(client_ids)
        downloads = [(member, blocks[client_ids]) for member, client_ids in lacking.items() if client_ids]
        sent = self._exchange.ask(POOL, 0, downloads)
        answered = {reply.client_id for reply in sent.replies}
        for member, client_ids in lacking.items():
            if member.client_id in answered:
                self._note(member, client_ids)
        return sent

    def _note(self, member: Member, client_ids: Set[int]) -> None:
        """Note whose samples a client holds since it has answered."""
        self._received[member.node] = member, self._holds(member) | client_ids

    def _block(self, client_ids: Iterable[int]) -> Arrays:
        """Return the samples of some clients in the form of a download."""
        shared = self._roster.public_samples
        return {f"{name}.{one}": array for one in sorted(client_ids) for name, array in shared[one].items()}

    def _lacks(self, member: Member) -> set[int]:
        return set(self._roster.public_samples) - self._holds(member)

    def _holds(self, member: Member) -> set[int]:
        """Return the ids of the clients whose samples a client holds, as it has registered or answered since."""
        known, client_ids = self._received.get(member.node, (None, set()))
        return client_ids if known is member else {*member.holds}


class PublicSamples:
    """The public samples of all clients in the federation, scaled as models expect them.

    Parameters
    ----------
    roster : Roster
        The clients. The number of shared samples may grow from round to round.
    normalize : str
        The value of ``normalize`` in the run config.
    """

    def __init__(self, roster: Roster, normalize: str) -> None:
        self._roster, self._normalize = roster, normalize
        self._made: tuple[tuple[int, ...], Samples] | None = None

    def all(self) -> Samples:
        """Return the samples of all clients that have shared any, in the order of client ids."""
        shared = self._roster.public_samples
        if self._made is None or self._made[0] != tuple(shared):
            inputs = np.concatenate([block["inputs"] for block in shared.values()])
            self._made = tuple(shared), scaled_alone(inputs, next(iter(self._roster)).spec, self._normalize)
        return self._made[1]
