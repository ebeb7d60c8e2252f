"""The clients of a federation as the server knows them: who is drawn, and whether an algorithm can work with them."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Literal, TypeVar

from hetfl_flwr.config import RunConfig, idle_clients, sampled_clients
from hetfl_flwr.errors import FederationError
from hetfl_flwr.models import network_of
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.member import Member
from hetfl_flwr.wire.naming import called
from hetfl_flwr.wire.samples import MOST_SHARED
from hetfl_flwr.wire.spec import Arrays

T = TypeVar("T")

Kind = Literal["class", "column"]
"""What has a name that clients must agree on."""

_REMEDIES = {
    "class": "give all the same names in the same order, or set classes = 'NAME,NAME,...' on each",
    "column": "give all tables the same columns, with the same categories, in the same order; see ignore-columns",
}


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

    @property
    def first(self) -> Member | None:
        """The member that was taken in before all others that are here; None where nobody is."""
        return next(iter(self._by_node.values()), None)

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

    def public_rows_of_others(self, member: Member) -> int:
        """Return how many public samples all others have shared, which a client may have been brought."""
        others = (block["inputs"] for client_id, block in self.public_samples.items() if client_id != member.client_id)
        return sum(map(len, others))

    @property
    def classes(self) -> int:
        """The number of classes that all clients share; they have the same names in the same order, too.

        Raises
        ------
        FederationError
            They do not share one, a class has two names, or there is no client.
        """
        found = self._first_with(lambda member: member.classes)
        way_out = "if some data lack a class, set classes to the names of all"
        self._check_one(found, "the clients must have the same number of classes", way_out)
        self._check_same_names("class")
        return next(iter(found))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input that all clients share; those of tables have the same names in the same order, too.

        Raises
        ------
        FederationError
            They do not share one, a column has two names, or there is no client.
        """
        found = self._first_with(_form)
        unlike = unlike_columns([*found.values()])
        self._check_one(found, "the clients must have inputs of the same shape", unlike)
        self._check_same_names("column")
        return next(iter(self)).shape

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
        wrong = [member for member in self if not 0 < member.public <= MOST_SHARED]
        if wrong:
            raise FederationError(
                f"{algorithm} needs public samples of each client, {MOST_SHARED} at most, but "
                f"client {listed([member.client_id for member in wrong])} has {wrong[0].public}: change public-fraction"
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
        way_out = f"set width, such as width = {suggested}, or give models an equal width"
        found = self._first_with(lambda member: member.width)
        self._check_one(found, f"{algorithm} needs the same embedding width of all clients", way_out)

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
        found = self._first_with(lambda member: network_of(member.model))
        one = next(iter(found), "NAME")
        way_out = f"set one of several widths, such as models = '{one},{one}@0.5'"
        self._check_one(found, f"{algorithm} averages parts of one network", way_out)

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
            if (
                len({member.model for member in self}) == 1
            ):  # inputs of another shape, or other classes, make the difference
                _ = self.shape, (None if bodies else self.classes)
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

    def _first_with(self, value: Callable[[Member], T]) -> dict[T, Member]:
        first: dict[T, Member] = {}
        for member in self:
            first.setdefault(value(member), member)
        return first

    def _check_one(self, found: dict[T, Member], need: str, way_out: str) -> None:
        """Refuse clients that do not have one value in common."""
        if len(found) != 1:
            said = ", ".join(f"{member} has {value}" for value, member in found.items()) or "no client is here"
            raise FederationError("; ".join(filter(None, (f"{need}: {said}", way_out))))

    def _check_same_names(self, kind: Kind) -> None:
        """Refuse clients that call a class or a column by another name than the first client does."""
        first, *others = self._first_with(lambda member: _names_of(member, kind)[0]).values()
        if others:
            raise FederationError(f"{_different_names(kind, first, others[0])}: {_REMEDIES[kind]}")


def draw(members: Iterable[Member], config: RunConfig, clients: int, round: int) -> list[Member]:
    """Draw the clients of a round: ``fraction`` of those that may train, rounded up, by the run's own generator.

    All may train but ``nonparticipating-fraction``, rounded, of the clients.

    Parameters
    ----------
    members : iterable of Member
        All clients that are here.
    config : RunConfig
        The run.
    clients : int
        How many clients the federation has, whether they are here or not: the same in all rounds.
    round : int
        The round, from 1.
    """
    here = list(members)
    if config.nonparticipating_fraction:
        absent = generator(config.seed, "absent").permutation(clients)
        idle = set(absent[: idle_clients(config.nonparticipating_fraction, clients)].tolist())
        here = [member for member in here if member.client_id not in idle]
    return _sampled(here, config.fraction, config.seed, round, "draw")


def draw_to_evaluate(members: Iterable[Member], config: RunConfig, round: int) -> list[Member]:
    """Draw the clients that are evaluated after a round: ``evaluate-fraction`` of all, rounded up; of the last, all.

    Parameters
    ----------
    members : iterable of Member
        All clients that are here.
    config : RunConfig
        The run.
    round : int
        The round; 0: before any training.
    """
    fraction = 1.0 if round == config.rounds else config.evaluate_fraction
    return _sampled(list(members), fraction, config.seed, round, "evaluate")


def _sampled(members: list[Member], fraction: float, seed: int, round: int, purpose: str) -> list[Member]:
    count = sampled_clients(fraction, len(members))
    if count == len(members):
        return members
    chosen = generator(seed, round, purpose).choice(len(members), count, replace=False)
    return [members[index] for index in sorted(chosen)]


def listed(numbers: Sequence[int]) -> str:
    """Return numbers in a line: the first five, and how many more."""
    return ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")


def unlike_columns(members: Sequence[Member]) -> str:
    """Return a note where two clients have different columns, as a misspelt name makes them; else nothing."""
    for member in members[1:]:
        first, ours, theirs = members[0], members[0].input_digests, member.input_digests
        if min(len(ours), len(theirs)) < 2 or first.vocabulary or member.vocabulary:
            continue
        pairs = ((first, {*ours} - {*theirs}), (member, {*theirs} - {*ours}))
        if said := [f"client {one.client_id} alone has {_columns(one, beyond)}" for one, beyond in pairs if beyond]:
            way_out = "write them alike where they mean the same, or name them in ignore-columns"
            return f"clients have different columns: {', and '.join(said)}: {way_out}"
    return ""


def _columns(member: Member, digests: set[str]) -> str:
    """Return what some of a client's columns are called."""
    numbers = [number for number, digest in enumerate(member.input_digests) if digest in digests]
    if len(member.input_names) != len(member.input_digests):
        return f"columns {listed(numbers)} (its log says their names)"
    more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
    return ", ".join(f"'{member.input_names[number]}'" for number in numbers[:5]) + more


def _names_of(member: Member, kind: Kind) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return digests and names of a client's classes or columns."""
    if kind == "class":
        return member.class_digests, member.class_names
    return member.input_digests, member.input_names


def _different_names(kind: Kind, first: Member, other: Member) -> str:
    """Return in a line what two clients call by different names."""
    (digests, names), (their_digests, their_names) = _names_of(first, kind), _names_of(other, kind)
    here, there = (called(member.client_id, member.name) for member in (first, other))
    if kind == "column" and first.vocabulary:
        return (
            f"{here} and {there} have other words for the same tokens, for vocabulary = 'shared:{first.vocabulary}' "
            f"numbers the words of each data set by itself: set vocabulary = 'hashed:{first.vocabulary}'"
        )
    differing = [number for number, pair in enumerate(zip(digests, their_digests, strict=False)) if pair[0] != pair[1]]
    if not differing or len(digests) != len(their_digests) or len(digests) == 1:
        return f"{here} and {there} have different names of {'classes' if kind == 'class' else 'columns'}"
    if (number := differing[0]) < min(len(names), len(their_names)):
        return f"{here}'s {kind} {number} is '{names[number]}', {there}'s is '{their_names[number]}'"
    return f"{here}'s {kind} {number} has another name than {there}'s (each node's log says its own)"


def _form(member: Member) -> str:
    return f"{member.shape} {member.dtype}" + f" of {member.vocabulary} tokens" * (member.vocabulary > 0)
