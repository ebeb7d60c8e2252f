"""The sharing of public samples: collected from clients once, and brought to those that lack them."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from hetfl_flwr.server.guard import measure_rows
from hetfl_flwr.server.member import Failure, Member, Sharing
from hetfl_flwr.server.messenger import Messenger
from hetfl_flwr.server.replies import Expected, Outcome
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.wire.codec import to_record
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, LABELLED, POOL, SHARE, STAGES
from hetfl_flwr.wire.samples import MOST_SHARED, public_samples
from hetfl_flwr.wire.spec import PayloadSpec


class SampleSharing:
    """Knows whose public samples the server has, and which client holds whose.

    Parameters
    ----------
    messenger : Messenger
        Reaches the clients.
    roster : Roster
        The clients; its ``public_samples`` are what they have shared.
    """

    def __init__(self, messenger: Messenger, roster: Roster) -> None:
        self._messenger = messenger
        self._roster = roster
        self._brought: dict[int, tuple[Member, set[int]]] = {}  # a node that registers again is another Member

    def share(self, sharing: Sharing | None) -> Outcome:
        """Collect public samples of clients that have not shared theirs yet, and bring each client those it lacks.

        After the first call this costs nothing, until a client joins. Clients that `sharing` could not be done with
        are failures of the exchange; `holding` leaves them out.
        """
        result = Outcome()
        if sharing is None:
            return result
        self._collect(sharing, result)
        if sharing.to_clients:
            self._distribute(result)
        return result

    def holding(self, members: Iterable[Member], sharing: Sharing | None) -> list[Member]:
        """Return those members that have shared their samples, and hold those of all others where they should."""
        if sharing is None:
            return list(members)
        return [
            member
            for member in members
            if member.client_id in self._roster.public_samples and not (sharing.to_clients and self._lacks(member))
        ]

    def _collect(self, sharing: Sharing, result: Outcome) -> None:
        messages = [
            Message(RecordDict({CONFIG: ConfigRecord({LABELLED: sharing.labelled})}), member.node, SHARE)
            for member in self._roster
            if member.client_id not in self._roster.public_samples
        ]

        def declared(member: Member) -> PayloadSpec:
            return public_samples(min(member.public, MOST_SHARED), member.spec, member.dtype, labelled=sharing.labelled)

        collected = self._messenger.exchange(messages, Expected(declared))
        came = {reply.client_id: reply.arrays for reply in collected.replies}
        rows = self._messenger.guards.rows
        rows.keep({member.client_id for member in self._roster})
        far = rows.reject_outliers({client_id: measure_rows(block["inputs"]) for client_id, block in came.items()})
        for member in self._roster:
            if why := far.get(member.client_id):
                collected.failures.append(Failure(member.client_id, STAGES[SHARE], f"{member}: {why}", member.node))
            elif member.client_id in came:
                self._roster.public_samples[member.client_id] = came[member.client_id]
        if came:
            self._roster.public_samples = dict(sorted(self._roster.public_samples.items()))
        result.add(collected)

    def _distribute(self, result: Outcome) -> None:
        lacking = {member.client_id: self._lacks(member) for member in self._roster}
        records: dict[frozenset[int], ArrayRecord] = {}

        def record(client_ids: frozenset[int]) -> ArrayRecord:
            if client_ids not in records:
                records[client_ids] = to_record(
                    {
                        f"{name}.{client_id}": array
                        for client_id in sorted(client_ids)
                        for name, array in self._roster.public_samples[client_id].items()
                    }
                )
            return records[client_ids]

        messages = [
            Message(RecordDict({ARRAYS: record(frozenset(lacking[member.client_id]))}), member.node, POOL)
            for member in self._roster
            if lacking[member.client_id]
        ]
        brought = self._messenger.exchange(messages)
        answered = {reply.client_id for reply in brought.replies}
        for member in self._roster:
            if member.client_id in answered:
                self._brought[member.node] = member, self._was_brought(member) | lacking[member.client_id]
        result.add(brought)

    def _lacks(self, member: Member) -> set[int]:
        return set(self._roster.public_samples) - {member.client_id, *member.holds} - self._was_brought(member)

    def _was_brought(self, member: Member) -> set[int]:
        """Return the ids of those whose samples a client was brought since it has registered."""
        known, client_ids = self._brought.get(member.node, (None, set()))
        return client_ids if known is member else set()
