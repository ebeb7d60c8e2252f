"""The clients as the server knows them: who they are, and whether an algorithm can work with them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal, TypeVar

from flwr.app import ConfigRecord, Message
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from hetfl_flwr.common.errors import FederationError
from hetfl_flwr.common.text import LONGEST_NAME
from hetfl_flwr.common.versions import PACKAGES
from hetfl_flwr.data import DataSpec
from hetfl_flwr.models import network_of
from hetfl_flwr.models.bounds import MOST_NUMBERS
from hetfl_flwr.wire.messages import MEMBER
from hetfl_flwr.wire.naming import MOST_NAMES, called
from hetfl_flwr.wire.samples import MOST_SHARED
from hetfl_flwr.wire.spec import Arrays

T = TypeVar("T")

MOST_CLIENTS = 1_000_000
"""More clients than a federation has."""

MOST_ROWS = 2**40
"""More samples than a client has."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected printable characters")
    return text


def _bounded(shape: tuple[int, ...]) -> tuple[int, ...]:
    if prod(shape) > MOST_NUMBERS:
        raise ValueError(f"expected at most {MOST_NUMBERS} numbers")
    return shape


Text = Annotated[str, Field(max_length=200), AfterValidator(_printable)]
"""One line of a stranger."""

Name = Annotated[Text, Field(max_length=LONGEST_NAME)]
"""What a stranger calls itself; empty: nothing."""

Names = Annotated[tuple[Text, ...], Field(max_length=MOST_NAMES)]
"""Names of a stranger's classes or columns, or their digests."""

MOST_NOTES, LONGEST_NOTE = 200, 600
"""Lines that a client says of its data, and characters of one, at most."""

Note = Annotated[str, Field(max_length=LONGEST_NOTE), AfterValidator(_printable)]
"""A line that a stranger says of its data."""

Rows = Annotated[int, Field(strict=True, ge=0, le=MOST_ROWS)]
"""A number of samples."""


@dataclass(frozen=True)
class Member:
    """A client as it has registered. What it says is checked by `from_reply`, which says the ranges.

    Parameters
    ----------
    node : int
        Flower's node id, random in each run.
    client_id, clients : int
        Which client it is, and of how many.
    model : str
        Name of its model. What it is made of stays at home, save for `parameters` and `weights`.
    parameters, width, classes : int
        Trainable numbers, embedding width D and classes C.
    shape : tuple of int
        Shape of one input.
    vocabulary : int
        Different tokens of its texts; 0 where its data are none.
    weights, body : str
        Fingerprint of the names, shapes and dtypes of the model's weights, and of its body's alone: equal for clients
        whose weights, or whose bodies', can be averaged.
    dtype : str
        What its inputs are stored as, such as ``"uint8"``: the form in which public samples travel.
    train, public, validation, test : int
        Numbers of samples; the public ones are among those it trains on.
    round : int
        The round that its saved state is of. 0: it has none; -1: its algorithm keeps nothing.
    holds : tuple of int
        Ids of the clients whose public samples it has been brought.
    dataset : str
        What it calls its data: as the run config does, a name of the catalogue, or ``own``.
    name : str
        What it calls itself: whose data it has, or what its operator says. Empty: nothing. Others may have the same.
    class_digests, input_digests : tuple of str
        Digests of the names of its classes and, of a table, of its inputs, in order; or one digest of all of them
        where they are many. See `hetfl_flwr.wire.naming`. Of texts whose words are numbered by the data, one of the
        words.
    class_names, input_names : tuple of str
        The names themselves; empty where they stay on the node.
    owners : int
        How many owners its rows have, where ``partition`` goes by owners; else 0.
    notes : tuple of str
        What was done with its data that nobody has asked for, a line each; empty where names stay on the node.
    hetfl, flwr, torch : str
        Versions of these packages where it runs.
    """

    node: int
    client_id: Annotated[int, Field(strict=True, ge=0, lt=MOST_CLIENTS)]
    clients: Annotated[int, Field(strict=True, ge=1, le=MOST_CLIENTS)]
    model: Annotated[Text, Field(min_length=1)]
    parameters: Annotated[int, Field(strict=True, ge=0, le=2**40)]
    width: Annotated[int, Field(strict=True, ge=1, le=2**20)]
    classes: Annotated[int, Field(strict=True, ge=1, le=100_000)]
    shape: Annotated[
        tuple[Annotated[int, Field(strict=True, ge=1, le=MOST_NUMBERS)], ...],
        Field(min_length=1, max_length=8),
        AfterValidator(_bounded),
    ]
    vocabulary: Annotated[int, Field(strict=True, ge=0, le=2**31)]
    weights: Text
    body: Text
    dtype: Annotated[str, Field(pattern="^(u?int(8|16|32|64)|float(16|32|64)|bool)$")]
    train: Rows
    public: Rows
    validation: Rows
    test: Rows
    round: Annotated[int, Field(strict=True, ge=-1, le=2**53)]
    holds: Annotated[
        tuple[Annotated[int, Field(strict=True, ge=0, lt=MOST_CLIENTS)], ...], Field(max_length=MOST_CLIENTS)
    ]
    dataset: Text
    name: Name
    class_digests: Names
    class_names: Names
    input_digests: Names
    input_names: Names
    owners: Rows
    notes: Annotated[tuple[Note, ...], Field(max_length=MOST_NOTES)]
    hetfl: Text
    flwr: Text
    torch: Text

    @property
    def versions(self) -> dict[str, str]:
        """The versions of `hetfl_flwr.common.versions.PACKAGES` where it runs."""
        return {package: getattr(self, package) for package in PACKAGES}

    @property
    def rows(self) -> int:
        """How many samples it has."""
        return self.train + self.validation + self.test

    @property
    def spec(self) -> DataSpec:
        """What its model fits."""
        return DataSpec(self.shape, self.classes, self.vocabulary)

    def to_record(self) -> ConfigRecord:
        """Write the registration."""
        return ConfigRecord(
            {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in vars(self).items()
                if name != "node"
            }
        )

    @classmethod
    def from_reply(cls, reply: Message) -> "Member":
        """Read the registration.

        Raises
        ------
        FederationError
            A field is missing, has another type, is out of range or contradicts another.
        """
        node = reply.metadata.src_node_id
        try:
            member = _MEMBERS.validate_python({**reply.content.config_records[MEMBER], "node": node})
        except KeyError:
            raise FederationError(f"node {node}: {_STRANGE}") from None
        except ValidationError as error:
            raise FederationError(f"node {node}: {_wrong(error)}") from None
        if member.client_id >= member.clients:
            raise FederationError(f"node {node}: client_id = {member.client_id} of {member.clients} clients")
        if member.public > member.train:
            raise FederationError(f"node {node}: public = {member.public} of train = {member.train} samples")
        return member

    def __str__(self) -> str:
        """Return how messages call it."""
        return called(self.client_id, self.name, self.model)


_MEMBERS = TypeAdapter(Member)

_STRANGE = "not a registration reply; does it run another version of this app?"


def _wrong(error: ValidationError) -> str:
    """Return what is wrong with a registration, without what it says itself."""
    first = error.errors(include_input=False, include_url=False)[0]
    field = str(first["loc"][0])
    if first["type"] == "missing":
        return _STRANGE
    return f"{field} is no valid {field} of a client: {first['msg'].removeprefix('Value error, ').lower()}"


@dataclass(frozen=True)
class Sharing:
    """What an algorithm needs of the clients' public samples; exchanged once, before the first round.

    Parameters
    ----------
    labelled : bool
        Whether their labels travel too.
    to_clients : bool
        Whether each client is sent the rows of all others; False: they stay with the server.
    """

    labelled: bool = True
    to_clients: bool = True


MOST_LACKING = 5
"""Classes that a message names."""


class Roster:
    """The clients that are in the federation now, by client id. Grows when one joins late, shrinks when one leaves.

    Attributes
    ----------
    public_samples : dict
        The public samples that clients have shared, by client id, as `hetfl_flwr.wire.samples.public_samples` declares
        them. Those of a client that leaves stay: everybody knows them.
    trained : dict
        The round in which each client has trained last, by client id; of a client that has left, too.
    """

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self._by_node = {member.node: member for member in members}
        self._nodes = {member.client_id: member.node for member in self._by_node.values()}
        self._ordered: list[Member] | None = None
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

    def remove(self, node: int) -> None:
        """Forget a client, if its node is a member."""
        member = self._by_node.pop(node, None)
        if member is not None:
            del self._nodes[member.client_id]
            self._ordered = None

    def shared_rows(self, member: Member) -> int:
        """Return how many public samples everybody knows of a client; before it has shared them, those that it has."""
        held = self.public_samples.get(member.client_id)
        return member.public if held is None else len(held["inputs"])

    def majority(self, check: Callable[["Roster"], object]) -> list[Member]:
        """Return those, more than half of the members, who get on with one another; nobody where there are none such.

        Parameters
        ----------
        check : callable
            Raises FederationError for members that do not get on.
        """

        def get_on(*members: Member) -> bool:
            try:
                check(Roster(members))
            except FederationError:
                return False
            return True

        left = list(self)
        while 2 * len(left) > len(self):  # else none of those left can be in a majority
            group = [member for member in self if member is left[0] or get_on(left[0], member)]
            if 2 * len(group) > len(self) and get_on(*group):
                return group
            tried = {member.node for member in group}
            left = [member for member in left if member.node not in tried]
        return []

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
            line = f"the clients must have the same number of classes: {said}"
            raise FederationError(line + _way_to_equal_classes([*values.values()]))
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
                + _lacking(list(values.values()))
            )
        self._check_same_names("column")
        return next(iter(values))[0]

    def _check_same_names(self, kind: Literal["class", "column"]) -> None:
        """Refuse clients that call a class or a column by another name than the first client does."""
        first, *others = self._first_with(lambda member: _names(member, kind)[0]).values()
        if others:
            raise FederationError(_different_names(kind, first, others[0]))

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
                f"{algorithm} needs public samples of each client, but client {_listed(without)} has none: "
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
                f"{group[0].model} on client {_listed([member.client_id for member in group])}"
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

    def check_same_weights_by_name(self, algorithm: str) -> None:
        """Refuse different weights under one model's name, for an algorithm that averages those of equal models.

        Parameters
        ----------
        algorithm : str
            Its name.

        Raises
        ------
        FederationError
            Names two clients that differ.
        """
        first: dict[str, Member] = {}
        for member in self:
            known = first.setdefault(member.model, member)
            if member.weights != known.weights:
                raise FederationError(
                    f"{algorithm} averages the weights of equal models, but those of {known} and {member} differ in "
                    "names, shapes or types; does one run other code?"
                )

    def _explain(self, what: str, algorithm: str, *, bodies: bool) -> None:
        """Refuse what makes equal architectures different models: inputs of another shape, or other classes."""
        if len(self._first_with(lambda member: member.model)) > 1:
            return
        try:
            _ = self.shape, (None if bodies else self.classes)
        except FederationError as error:
            raise FederationError(f"{algorithm} averages {what}: {error}") from None


def _names(member: Member, kind: Literal["class", "column"]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return digests and names of a client's classes or columns."""
    if kind == "class":
        return member.class_digests, member.class_names
    return member.input_digests, member.input_names


def _different_names(kind: Literal["class", "column"], first: Member, other: Member) -> str:
    """Return in a line what two clients call by different names, and the way out."""
    (digests, names), (their_digests, their_names) = _names(first, kind), _names(other, kind)
    here, there = (called(member.client_id, member.name) for member in (first, other))
    if kind == "column" and first.vocabulary:
        return (
            f"{here} and {there} have other words for the same tokens, for vocabulary = 'shared:{first.vocabulary}' "
            f"numbers the words of each data set by itself: set vocabulary = 'hashed:{first.vocabulary}'"
        )
    differing = [number for number, pair in enumerate(zip(digests, their_digests, strict=False)) if pair[0] != pair[1]]
    number = differing[0] if differing and len(digests) == len(their_digests) else None
    if number is None or len(digests) == 1:
        said = f"{here} and {there} have different names of {_PLURAL[kind]}"
    elif number < min(len(names), len(their_names)):
        said = f"{here}'s {kind} {number} is '{names[number]}', {there}'s is '{their_names[number]}'"
    else:
        said = f"{here}'s {kind} {number} has another name than {there}'s (each node's log says its own)"
    return f"{said}: {_remedy(kind, names, their_names, there)}"


def _way_to_equal_classes(members: Sequence[Member]) -> str:
    """Return what to write where clients say which classes they have, and that these are not the same."""
    if not members or not all(len(member.class_names) == member.classes for member in members):
        return ""
    names = dict.fromkeys(name for member in members for name in member.class_names)
    if all(name.isdecimal() for name in names):  # numbers, in place of names
        return ""
    lack = {member: [name for name in names if name not in member.class_names] for member in members}
    who, missing = next((member, missing) for member, missing in lack.items() if missing)
    less = ", ".join(repr(name) for name in missing[:MOST_LACKING])
    more = f" and {len(missing) - MOST_LACKING} more" if len(missing) > MOST_LACKING else ""
    return f"; {who} has no class {less}{more}: name all classes, those too that not all data have, with classes"


def _lacking(members: Sequence[Member]) -> str:
    """Return which columns of a table one client has and another lacks, and the way out; empty where nobody knows."""
    first, other = members[0], members[-1]
    ours, theirs = first.input_digests, other.input_digests
    if min(len(ours), len(theirs)) < 2 or first.vocabulary or other.vocabulary:
        return ""
    said = [
        f"client {one.client_id} alone has {_columns_beyond(one, known)}"
        for one, known in ((first, {*theirs}), (other, {*ours}))
        if {*one.input_digests} - known
    ]
    return (
        f"; {', and '.join(said)}: name these in ignore-columns, numeric-columns or categorical-columns on all of them"
        if said
        else ""
    )


def _columns_beyond(member: Member, known: set[str]) -> str:
    """Return what a client's columns are called that are not among some known ones."""
    numbers = [number for number, digest in enumerate(member.input_digests) if digest not in known]
    if len(member.input_names) == len(member.input_digests):
        shown = ", ".join(f"'{member.input_names[number]}'" for number in numbers[:5])
        return shown + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    return f"columns {_listed(numbers)} (its log says their names)"


_PLURAL = {"class": "classes", "column": "columns"}


def _remedy(kind: Literal["class", "column"], names: Sequence[str], others: Sequence[str], there: str) -> str:
    if kind == "column":
        return "give all tables the same columns, with the same categories, in the same order; see ignore-columns"
    if not names or not others:
        return "give all the same names in the same order, or set classes = 'NAME,NAME,...' on each"
    spelt = {name.strip().casefold(): name for name in others}
    if len(spelt) == len(others) and spelt.keys() == {name.strip().casefold() for name in names}:
        same = [(name, spelt[name.strip().casefold()]) for name in names]
        text = ",".join(name if name == theirs else f"{name}:{theirs}" for name, theirs in same)
        how = "order" if set(names) == set(others) else "capitals or blanks"
        return f"they differ in {how} alone: give all the same names, or set classes = '{text}' on {there}"
    union = ",".join(dict.fromkeys([*names[:20], *others[:20]]))
    return f"give all the same names, or set classes = '{union}' on all, of which each may lack some"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
