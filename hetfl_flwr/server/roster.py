"""The clients of a federation as known to the server: which are drawn, and whether an algorithm supports them."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set, Sized
from typing import TypeVar

from hetfl_flwr.config import RunConfig, idle_clients, sampled_clients
from hetfl_flwr.errors import FederationError
from hetfl_flwr.models import network_of
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.member import Member
from hetfl_flwr.text import some
from hetfl_flwr.wire.naming import called
from hetfl_flwr.wire.samples import MAX_SHARED
from hetfl_flwr.wire.spec import Arrays

T = TypeVar("T")


class Roster:
    """The current clients, by client id. It grows when a client joins late, and shrinks when one leaves.

    Attributes
    ----------
    public_samples : dict
        The public samples that clients have shared, by client id, as `hetfl_flwr.wire.samples.public_samples` declares
        them. Those of a client that leaves stay: all clients have them.
    trained : dict
        The last round in which each client has trained, by client id, including clients that have left.
    changes : int
        How often a member has joined or left.
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
        """Return whether a node is a member."""
        return node in self._by_node

    @property
    def first(self) -> Member | None:
        """The current member that joined first; None if there is none."""
        return next(iter(self._by_node.values()), None)

    def client_ids(self) -> Set[int]:
        """Return the members' client ids."""
        return self._nodes.keys()

    def of(self, node: int) -> Member:
        """Return the member behind a node id."""
        return self._by_node[node]

    def add(self, member: Member) -> None:
        """Add a client, unless its id is taken."""
        other = self._nodes.setdefault(member.client_id, member.node)
        if other != member.node:
            raise FederationError(f"partition-id {member.client_id} is claimed by two nodes, {other} and {member.node}")
        self._by_node[member.node] = member
        self._ordered = None
        self.changes += 1

    def remove(self, node: int) -> None:
        """Remove a client, if its node is a member."""
        member = self._by_node.pop(node, None)
        if member is not None:
            del self._nodes[member.client_id]
            self._ordered = None
            self.changes += 1

    def shared_rows(self, member: Member) -> int:
        """Return how many public samples a client has shared or, before it has shared them, how many it has."""
        held = self.public_samples.get(member.client_id)
        return member.public if held is None else len(held["inputs"])

    def public_rows_of_others(self, member: Member) -> int:
        """Return how many public samples all others have shared, which a client may have received."""
        others = (block["inputs"] for client_id, block in self.public_samples.items() if client_id != member.client_id)
        return sum(map(len, others))

    @property
    def classes(self) -> int:
        """The number of classes that all clients share; they have the same names in the same order, too.

        Raises
        ------
        FederationError
            The numbers differ, a class has two names, or there is no client.
        """
        way_out = "if some data lack a class, set classes to the names of all"
        classes = self._shared(lambda member: member.classes, "the same number of classes", way_out)
        self._check_names(_unlike_classes)
        return classes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input that all clients share; those of tables have the same names in the same order, too.

        Raises
        ------
        FederationError
            The shapes differ, a column has two names, or there is no client.
        """
        self._shared(_form, "inputs of the same shape", _unlike_columns(list(self)))
        self._check_names(_unlike_inputs)
        return next(iter(self)).shape

    def check_sharing(self, algorithm: str, *, labelled: bool = True) -> None:
        """Refuse clients whose public samples cannot be shared: none, too many, or with another shape or class count.

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
        wrong = [member for member in self if not 0 < member.public <= MAX_SHARED]
        if wrong:
            raise FederationError(
                f"{algorithm} needs public samples of each client, {MAX_SHARED} at most, but "
                f"client {some([member.client_id for member in wrong])} has {wrong[0].public}: change public-fraction"
            )

    def check_same_width(self, algorithm: str, suggested: int) -> None:
        """Refuse different embedding widths, for an algorithm that averages what depends on them.

        Parameters
        ----------
        algorithm : str
            Its name.
        suggested : int
            A width that all models support.

        Raises
        ------
        FederationError
            Names the clients that differ.
        """
        way_out = f"{algorithm} averages embeddings: set width, such as width = {suggested}"
        self._shared(lambda member: member.width, "the same embedding width", way_out)

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
        one = network_of(self.first.model) if self.first else "NAME"
        way_out = f"{algorithm} averages parts of one: set several widths, such as models = '{one},{one}@0.5'"
        self._shared(lambda member: network_of(member.model), "the same network", way_out)

    def check_same_weights(self, algorithm: str, instead: Sequence[str], *, bodies: bool = False) -> None:
        """Refuse heterogeneous models, columns or classes, for an algorithm that averages weights.

        Parameters
        ----------
        algorithm : str
            Its name.
        instead : sequence of str
            Names of algorithms for heterogeneous models.
        bodies : bool
            Whether it averages only the bodies; heads and classes may then differ.

        Raises
        ------
        FederationError
            Names the clients that differ and the algorithms that support them.
        """
        weights = {member.body if bodies else member.weights for member in self}
        if len(weights) > 1 and len({member.model for member in self}) == 1:  # then the data make the difference
            _ = self.shape, (None if bodies else self.classes)
        way_out = (
            f"{algorithm} averages weights: set one model, such as models = '{next(iter(self)).model}', "
            f"or take an algorithm for heterogeneous models: {', '.join(instead)}"
        )
        if bodies:
            self._shared(lambda member: member.body, "the same body", way_out, lambda member: member.model)
        else:
            self._shared(lambda member: member.weights, "the same model", way_out, lambda member: member.model)
            self._check_names(_unlike_classes)
        self._check_names(_unlike_inputs)

    def _shared(
        self, value: Callable[[Member], T], what: str, way_out: str, said: Callable[[Member], object] | None = None
    ) -> T:
        """Return what all clients, at least one, have in common, or refuse them and name what each has."""
        groups: dict[T, list[Member]] = {}
        for member in self:
            groups.setdefault(value(member), []).append(member)
        if len(groups) == 1:
            return next(iter(groups))
        found = "; ".join(
            f"client {some([one.client_id for one in group])} has {(said or value)(group[0])}"
            for group in groups.values()
        )
        raise FederationError(f"clients need {what}: {found or 'no client is here'}" + f"; {way_out}" * bool(way_out))

    def _check_names(self, unlike: Callable[[Sequence[Member]], str]) -> None:
        """Refuse clients whose name of a class or a column differs from the first client's."""
        if said := unlike(list(self)):
            raise FederationError(said)


def draw(members: Iterable[Member], config: RunConfig, clients: int, round: int) -> list[Member]:
    """Draw the clients of a round: ``fraction`` of those that may train, rounded up, by the run's own generator.

    ``nonparticipating-fraction``, rounded, of the clients never train. `members` are all clients that are here, and
    `clients` is how many the federation has, whether they are here or not: the same in all rounds.
    """
    here = list(members)
    if config.nonparticipating_fraction:
        absent = generator(config.seed, "absent").permutation(clients)
        idle = set(absent[: idle_clients(config.nonparticipating_fraction, clients)].tolist())
        here = [member for member in here if member.client_id not in idle]
    return _sampled(here, config.fraction, config.seed, round, "draw")


def draw_to_evaluate(members: Iterable[Member], config: RunConfig, round: int) -> list[Member]:
    """Draw the clients to evaluate after a round: ``evaluate-fraction`` of all, rounded up; after the last round, all.

    `members` are all clients that are here; round 0 is before any training.
    """
    fraction = 1.0 if round == config.rounds else config.evaluate_fraction
    return _sampled(list(members), fraction, config.seed, round, "evaluate")


def _sampled(members: list[Member], fraction: float, seed: int, round: int, purpose: str) -> list[Member]:
    count = sampled_clients(fraction, len(members))
    if count == len(members):
        return members
    chosen = generator(seed, round, purpose).choice(len(members), count, replace=False)
    return [members[index] for index in sorted(chosen)]


def unlike_columns(members: Sequence[Member]) -> str:
    """Return a note if some clients' columns differ from those of most, as after a misspelled name; else "".

    Clients that have no column in common with most clients have other tasks, and are not named.
    """
    return _unlike_columns(members, related=True)


def _unlike_columns(members: Sequence[Member], *, related: bool = False) -> str:
    return _unlike(
        "column",
        [member for member in members if not member.vocabulary],
        lambda member: (member.input_digests, member.input_names),
        "use the same names for the same columns, list a category's values for all, as in "
        'categorical-columns="city:Bonn|Oslo", or name the columns in ignore-columns',
        related=related,
    )


def _unlike_inputs(members: Sequence[Member]) -> str:
    words = {member.input_digests: member.vocabulary for member in members if member.vocabulary}
    if len(words) > 1:
        return f"clients number their words differently: set vocabulary = 'hashed:{max(words.values())}'"
    return _unlike_columns(members)


def _unlike_classes(members: Sequence[Member]) -> str:
    """Return a note if two clients name their classes differently; else an empty text."""
    way_out = "set classes = 'NAME,NAME,...' to the same names in the same order on each"
    return _unlike("class", members, lambda member: (member.class_digests, member.class_names), way_out)


def _unlike(
    kind: str,
    members: Sequence[Member],
    named: Callable[[Member], tuple[Sequence[str], Sequence[str]]],
    way_out: str,
    *,
    related: bool = False,
) -> str:
    """Return how the first client that differs from most names its classes or columns; empty if none differs.

    `named` returns the digests and, where they are shared, the names. With `related`, clients that have no name in
    common with most do not count.
    """
    groups = dict[Sequence[str], list[Member]]()
    for member in members:
        groups.setdefault(named(member)[0], []).append(member)
    groups.pop((), None)
    if not groups:
        return ""
    usual = max(groups.values(), key=len)
    most = {*named(usual[0])[0]}
    others = [one for digests, one in groups.items() if one is not usual and not (related and most.isdisjoint(digests))]
    if not others:
        return ""
    others.sort(key=lambda group: -len(most.symmetric_difference(named(group[0])[0])))
    plural = {"class": "classes", "column": "columns"}[kind]
    differing = _differences(plural, named, others[0], usual)
    more = sum(map(len, others[1:]))
    rest = "" if not more else " (and 1 more client differs)" if more == 1 else f" (and {more} more clients differ)"
    return f"clients have different {plural}: {differing}{rest}: {way_out}"


def _differences(
    plural: str,
    named: Callable[[Member], tuple[Sequence[str], Sequence[str]]],
    one: Sequence[Member],
    other: Sequence[Member],
) -> str:
    """Return which names one group of clients has and another lacks, and which columns have other values."""
    said, values = [], dict[str, None]()
    for group, rest in ((one, other), (other, one)):
        (digests, names), (theirs, their_names) = named(group[0]), named(rest[0])
        lacked = [number for number, digest in enumerate(digests) if digest not in theirs]
        if len(names) < len(digests):
            words = [f"{plural} {some(lacked)} (its log says their names)"] * bool(lacked)
        elif plural == "classes":
            words = [repr(names[number]) for number in lacked]
        else:  # the inputs of a category are called COLUMN=VALUE
            columns = dict.fromkeys(names[number].partition("=")[0] for number in lacked)
            both = columns.keys() & {name.partition("=")[0] for name in their_names}
            values |= dict.fromkeys(repr(column) for column in columns if column in both)
            words = [repr(column) for column in columns if column not in both]
        if words:
            lack = "lacks" if len(rest) == 1 else "lack"
            said.append(f"{_called(group)} {_has(group)} {some(words)}, which {_called(rest)} {lack}")
    if values:
        what = f"column{'s' * (len(values) > 1)} {some([*values])}"
        said.append(f"{what} {_has(values)} other values at {_called(one)} than at {_called(other)}")
    return "; ".join(said) or f"{_called(one)} {_has(one)} them in another order than {_called(other)}"


def _called(members: Sequence[Member]) -> str:
    if len(members) == 1:
        return called(members[0].client_id, members[0].name)
    return f"clients {some([member.client_id for member in members])}"


def _has(several: Sized) -> str:
    return "has" if len(several) == 1 else "have"


def _form(member: Member) -> str:
    return f"{member.shape} {member.dtype}" + f" of {member.vocabulary} tokens" * (member.vocabulary > 0)
