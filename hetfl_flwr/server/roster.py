"""The clients of a federation as the server knows them: which are drawn, and whether an algorithm supports them."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import TypeVar

from hetfl_flwr.config import RunConfig, idle_clients, sampled_clients
from hetfl_flwr.errors import FederationError
from hetfl_flwr.models import network_of
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.member import Member
from hetfl_flwr.text import some
from hetfl_flwr.wire.samples import MAX_SHARED
from hetfl_flwr.wire.spec import Arrays

T = TypeVar("T")


class Roster:
    """The current clients, by client id. Grows when one joins late, shrinks when one leaves.

    Attributes
    ----------
    public_samples : dict
        The public samples that clients have shared, by client id, as `hetfl_flwr.wire.samples.public_samples` declares
        them. Those of a client that leaves stay: all clients have them.
    trained : dict
        The round in which each client has trained last, by client id; of a client that has left, too.
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
        """The member that joined first, of those that are here; None where there is none."""
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
        """Return how many public samples a client has shared; before it has shared them, how many it has."""
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
        self._shared(_form, "inputs of the same shape", unlike_columns(list(self)))
        self._check_names(_unlike_inputs)
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
            Whether it averages the bodies alone: then the heads, and the classes, may differ.

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
        """Return what all clients have in common, or refuse them and name what each has; there must be a client."""
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

    ``nonparticipating-fraction``, rounded, of the clients never train.

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


def unlike_columns(members: Sequence[Member]) -> str:
    """Return a note where two clients' columns differ, as after a misspelt name; else an empty text."""
    named = [(member, member.input_digests, member.input_names) for member in members if not member.vocabulary]
    return _unlike(
        "column",
        named,
        "write them alike where they mean the same, list a category's values for all, as in "
        'categorical-columns="city:Bonn|Oslo", or name the columns in ignore-columns',
    )


def _unlike_inputs(members: Sequence[Member]) -> str:
    words = {member.input_digests: member.vocabulary for member in members if member.vocabulary}
    if len(words) > 1:
        return f"clients number their words differently: set vocabulary = 'hashed:{max(words.values())}'"
    return unlike_columns(members)


def _unlike_classes(members: Sequence[Member]) -> str:
    """Return a note where two clients name their classes differently; else an empty text."""
    named = [(member, member.class_digests, member.class_names) for member in members]
    return _unlike("class", named, "set classes = 'NAME,NAME,...' to the same names in the same order on each")


def _unlike(kind: str, named: Sequence[tuple[Member, Sequence[str], Sequence[str]]], way_out: str) -> str:
    """Return how the first client that differs from client 0 names its classes or columns; empty: none differs."""
    found = dict[Sequence[str], tuple[Member, Sequence[str], Sequence[str]]]()
    for its in named:
        found.setdefault(its[1], its)
    found.pop((), None)
    if len(found) < 2:
        return ""
    one, other, *_ = found.values()
    plural = {"class": "classes", "column": "columns"}[kind]
    said = []
    for (member, digests, names), theirs in ((one, other[1]), (other, one[1])):
        alone = [number for number, digest in enumerate(digests) if digest not in theirs]
        if alone and len(names) == len(digests):
            said.append(f"client {member.client_id} alone has {some([repr(names[n]) for n in alone])}")
        elif alone:
            said.append(f"client {member.client_id} alone has {plural} {some(alone)} (its log says their names)")
    differing = ", and ".join(said) or f"client {other[0].client_id} has them in another order"
    return f"clients have different {plural}: {differing}: {way_out}"


def _form(member: Member) -> str:
    return f"{member.shape} {member.dtype}" + f" of {member.vocabulary} tokens" * (member.vocabulary > 0)
