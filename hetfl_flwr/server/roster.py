"""The clients of a federation as the server knows them, and whether an algorithm can work with them."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import TypeVar

from hetfl_flwr.errors import FederationError
from hetfl_flwr.models import network_of
from hetfl_flwr.server.differences import (
    Kind,
    different_names,
    lacking,
    listed,
    names_of,
)
from hetfl_flwr.server.member import Member
from hetfl_flwr.wire.samples import MOST_SHARED
from hetfl_flwr.wire.spec import Arrays

T = TypeVar("T")


class Roster:
    """The clients that are in the federation now, by client id. Grows when one joins late, shrinks when one leaves.

    Attributes
    ----------
    public_samples : dict
        The public samples that clients have shared, by client id, as `hetfl_flwr.wire.samples.public_samples` declares
        them. Those of a client that leaves stay: everybody knows them.
    trained : dict
        The round in which each client has trained last, by client id; of a client that has left, too.
    changes : int
        How often a member has come or gone.
    """

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self._by_node = {member.node: member for member in members}
        self._nodes = {member.client_id: member.node for member in self._by_node.values()}
        self._ordered: list[Member] | None = None
        self.changes = 0
        self.public_samples: dict[int, Arrays] = {}
        self.trained: dict[int, int] = {}

    def __iter__(self) -> Iterator[Member]:
        """Go through the members by client id."""
        if self._ordered is None:
            self._ordered = sorted(self._by_node.values(), key=lambda member: member.client_id)
        return iter(self._ordered)

    def __len__(self) -> int:
        """Count the members."""
        return len(self._by_node)

    def __contains__(self, node: int) -> bool:
        """Say whether a node is a member."""
        return node in self._by_node

    def client_ids(self) -> Set[int]:
        """Return the members' client ids."""
        return self._nodes.keys()

    def of(self, node: int) -> Member:
        """Return the member behind a node id."""
        return self._by_node[node]

    def add(self, member: Member) -> None:
        """Take in a client, unless its id is taken."""
        other = self._nodes.setdefault(member.client_id, member.node)
        if other != member.node:
            raise FederationError(f"partition-id {member.client_id} is claimed by two nodes, {other} and {member.node}")
        self._by_node[member.node] = member
        self._ordered = None
        self.changes += 1

    def remove(self, node: int) -> None:
        """Forget a client, if its node is a member."""
        member = self._by_node.pop(node, None)
        if member is not None:
            del self._nodes[member.client_id]
            self._ordered = None
            self.changes += 1

    def shared_rows(self, member: Member) -> int:
        """Return how many public samples everybody knows of a client; before it has shared them, those that it has."""
        held = self.public_samples.get(member.client_id)
        return member.public if held is None else len(held["inputs"])

    def as_they_came(self) -> list[Member]:
        """Return the members in the order in which they were taken in."""
        return list(self._by_node.values())

    @property
    def classes(self) -> int:
        """The number of classes that all clients share; they have the same names in the same order, too.

        Raises
        ------
        FederationError
            They do not share one, a class has two names, or there is no client.
        """
        values = self._first_with(lambda member: member.classes)
        if len(values) != 1:
            said = ", ".join(f"{member} has {value}" for value, member in values.items()) or "no client is here"
            raise FederationError(
                f"the clients must have the same number of classes: {said}; if some data lack a class, set classes to "
                "the names of all"
            )
        self._check_same_names("class")
        return next(iter(values))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input that all clients share; those of tables have the same names in the same order, too.

        Raises
        ------
        FederationError
            They do not share one, a column has two names, or there is no client.
        """
        values = self._first_with(lambda member: (member.shape, member.dtype, member.vocabulary))
        if len(values) != 1:
            said = ", ".join(
                f"{member} has {shape} {dtype}" + f" of {tokens} tokens" * (tokens > 0)
                for (shape, dtype, tokens), member in values.items()
            )
            raise FederationError(
                f"the clients must have inputs of the same shape: {said or 'no client is here'}"
                + lacking(list(values.values()))
            )
        self._check_same_names("column")
        return next(iter(values))[0]

    def _check_same_names(self, kind: Kind) -> None:
        """Refuse clients that call a class or a column by another name than the first client does."""
        first, *others = self._first_with(lambda member: names_of(member, kind)[0]).values()
        if others:
            raise FederationError(different_names(kind, first, others[0]))

    def _first_with(self, value: Callable[[Member], T]) -> dict[T, Member]:
        first: dict[T, Member] = {}
        for member in self:
            first.setdefault(value(member), member)
        return first

    def check_sharing(self, algorithm: str, *, labelled: bool = True) -> None:
        """Refuse clients whose public samples cannot be shared: none, too many, or of another shape or class count.

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
        without = [member.client_id for member in self if member.public == 0]
        if without:
            raise FederationError(
                f"{algorithm} needs public samples of each client, but client {listed(without)} has none: "
                "raise public-fraction"
            )
        for member in self:
            if member.public > MOST_SHARED:
                raise FederationError(
                    f"{algorithm} shares at most {MOST_SHARED} public samples of a client, but {member} has "
                    f"{member.public}: lower public-fraction"
                )

    def check_same_width(self, algorithm: str, suggested: int) -> None:
        """Refuse different embedding widths, for an algorithm that averages what depends on them.

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
        """Refuse heterogeneous models, columns or classes, for an algorithm that averages weights.

        Parameters
        ----------
        algorithm : str
            Its name.
        instead : sequence of str
            Names of algorithms for heterogeneous models.
        bodies : bool
            Whether it averages the bodies alone: then the heads, and the classes, may differ.

        Raises
        ------
        FederationError
            Names the clients that differ and the algorithms that would do.
        """
        kinds: dict[str, list[Member]] = {}
        for member in self:
            kinds.setdefault(member.body if bodies else member.weights, []).append(member)
        what, same = ("the weights of bodies", "body") if bodies else ("weights", "model")
        if len(kinds) > 1:
            self._explain(what, algorithm, bodies=bodies)
            said = "; ".join(
                f"{group[0].model} on client {listed([member.client_id for member in group])}"
                for group in kinds.values()
            )
            raise FederationError(
                f"{algorithm} averages {what}, so all clients need the same {same}, but there are {said}. "
                f"Set one, such as models = '{next(iter(self)).model}', "
                f"or take an algorithm for heterogeneous models: {', '.join(instead)}"
            )
        self._check_same_names("column")
        if not bodies:
            self._check_same_names("class")

    def check_same_network(self, algorithm: str) -> None:
        """Refuse models of different networks, for an algorithm that averages parts of one.

        Parameters
        ----------
        algorithm : str
            Its name.

        Raises
        ------
        FederationError
            Names a client of each network.
        """
        first = self._first_with(lambda member: network_of(member.model))
        if len(first) > 1:
            said = "; ".join(f"{network} on client {member.client_id}" for network, member in first.items())
            network = next(iter(first))
            raise FederationError(
                f"{algorithm} averages parts of one network, but there are {said}. Set one of several widths, such as "
                f"models = '{network},{network}@0.5'"
            )

    def public_rows_of_others(self, member: Member) -> int:
        """Return how many public samples all others have shared, which a client may have been brought."""
        others = (block["inputs"] for client_id, block in self.public_samples.items() if client_id != member.client_id)
        return sum(map(len, others))

    def _explain(self, what: str, algorithm: str, *, bodies: bool) -> None:
        """Refuse what makes equal architectures different models: inputs of another shape, or other classes."""
        if len(self._first_with(lambda member: member.model)) > 1:
            return
        try:
            _ = self.shape, (None if bodies else self.classes)
        except FederationError as error:
            raise FederationError(f"{algorithm} averages {what}: {error}") from None
