"""The sharing of public samples: collected from clients once, and brought to those that lack them."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from hetfl_flwr.server.exchange import Exchange, Expected
from hetfl_flwr.server.failure import Failure
from hetfl_flwr.server.guard import measure_rows
from hetfl_flwr.server.messenger import Messenger
from hetfl_flwr.server.roster import Member, Roster, Sharing
from hetfl_flwr.wire.codec import to_record
from hetfl_flwr.wire.messages import ARRAYS, CONFIG, LABELLED, POOL, SEEDS, STAGES
from hetfl_flwr.wire.samples import public_samples
from hetfl_flwr.wire.spec import PayloadSpec


class SampleSharing:
    """Knows whose public samples the server has, and which client holds whose.

    Parameters
    ----------
    messenger : Messenger
        Reaches the clients.
    roster : Roster
        The clients; its ``seeds`` are what they have shared.
    """

    def __init__(self, messenger: Messenger, roster: Roster) -> None:
        self._messenger = messenger
        self._roster = roster
        self._brought: dict[int, tuple[Member, set[int]]] = {}  # a node that registers again is another Member

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
        """Return those members that have shared their samples, and hold those of all others where they should."""
        if sharing is None:
            return list(members)
        return [
            member
            for member in members
            if member.partition in self._roster.seeds and not (sharing.to_clients and self._lacks(member))
        ]

    def _collect(self, sharing: Sharing, result: Exchange) -> None:
        messages = [
            Message(RecordDict({CONFIG: ConfigRecord({LABELLED: sharing.labelled})}), member.node, SEEDS)
            for member in self._roster
            if member.partition not in self._roster.seeds
        ]

        def declared(member: Member) -> PayloadSpec:
            return public_samples(member.public, member.spec, member.dtype, labelled=sharing.labelled)

        collected = self._messenger.exchange(messages, Expected(declared))
        came = {reply.partition: reply.arrays for reply in collected.replies}
        far = self._messenger.guards.rows.set_aside(
            {partition: measure_rows(rows["inputs"]) for partition, rows in came.items()}
        )
        for member in self._roster:
            if why := far.get(member.partition):
                collected.failures.append(Failure(member.partition, STAGES[SEEDS], f"{member}: {why}", member.node))
            elif member.partition in came:
                self._roster.seeds[member.partition] = came[member.partition]
        self._roster.seeds = dict(sorted(self._roster.seeds.items()))
        result.add(collected)

    def _distribute(self, result: Exchange) -> None:
        lacking = {member.partition: self._lacks(member) for member in self._roster}
        records: dict[frozenset[int], ArrayRecord] = {}

        def record(partitions: frozenset[int]) -> ArrayRecord:
            if partitions not in records:
                records[partitions] = to_record(
                    {
                        f"{name}.{partition}": array
                        for partition in sorted(partitions)
                        for name, array in self._roster.seeds[partition].items()
                    }
                )
            return records[partitions]

        messages = [
            Message(RecordDict({ARRAYS: record(frozenset(lacking[member.partition]))}), member.node, POOL)
            for member in self._roster
            if lacking[member.partition]
        ]
        brought = self._messenger.exchange(messages)
        answered = {reply.partition for reply in brought.replies}
        for member in self._roster:
            if member.partition in answered:
                self._brought[member.node] = member, self._was_brought(member) | lacking[member.partition]
        result.add(brought)

    def _lacks(self, member: Member) -> set[int]:
        return set(self._roster.seeds) - {member.partition, *member.holds} - self._was_brought(member)

    def _was_brought(self, member: Member) -> set[int]:
        """Return the partitions whose samples a client was brought since it has registered."""
        known, partitions = self._brought.get(member.node, (None, set()))
        return partitions if known is member else set()
