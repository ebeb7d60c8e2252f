"""A client's registration, and an algorithm's requirements for public samples."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Annotated, Any

from flwr.app import ConfigRecord, Message
from pydantic import AfterValidator, FailFast, Field, TypeAdapter, ValidationError

from hetfl_flwr.common.versions import PACKAGES
from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import FederationError
from hetfl_flwr.models.bounds import MAX_NUMBERS
from hetfl_flwr.text import LONGEST_NAME
from hetfl_flwr.wire.messages import MEMBER
from hetfl_flwr.wire.naming import MAX_NAMES, called

MAX_CLIENTS = 1_000_000
"""Maximum number of clients in a federation."""

MAX_ROWS = 2**40
"""Maximum number of samples of a client."""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected printable characters")
    return text


def _bounded(shape: tuple[int, ...]) -> tuple[int, ...]:
    if prod(shape) > MAX_NUMBERS:
        raise ValueError(f"expected at most {MAX_NUMBERS} numbers")
    return shape


Text = Annotated[str, Field(max_length=200), AfterValidator(_printable)]
"""One line of text from a node."""

Version = Annotated[str, Field(max_length=50, pattern=r"^[\w.+!-]*$")]
"""A package version, which the server's messages quote."""

Name = Annotated[Text, Field(max_length=LONGEST_NAME)]
"""A name that a node sets for itself; empty: none."""

Names = Annotated[tuple[Text, ...], Field(max_length=MAX_NAMES), FailFast()]
"""Names of a node's classes or columns, or their digests."""

MAX_NOTES, LONGEST_NOTE = 200, 600
"""Maximum number of a client's notes on its data, and maximum length of each in characters."""

Note = Annotated[str, Field(max_length=LONGEST_NOTE), AfterValidator(_printable)]
"""A node's note on its data."""

Rows = Annotated[int, Field(strict=True, ge=0, le=MAX_ROWS)]
"""A number of samples."""


@dataclass(frozen=True, slots=True)
class Member:
    """A client's registration. `from_reply` checks the ranges, which the annotations of the fields give.

    Parameters
    ----------
    node : int
        Flower's node id, random in each run.
    client_id, clients : int
        The client's id, and the number of clients it expects.
    model : str
        Name of its model. The architecture stays on the node, except for `parameters` and `weights`.
    parameters, width, classes : int
        Number of trainable parameters, embedding width D and number of classes C.
    shape : tuple of int
        Shape of one input.
    vocabulary : int
        Number of distinct tokens in its texts; 0 for other data.
    weights, body : str
        Fingerprint of the names, shapes and dtypes of the weights of the model, and of its body: equal for clients
        whose weights, or whose bodies' weights, can be averaged.
    dtype : str
        The dtype of its stored inputs, such as ``"uint8"``, in which public samples are sent.
    train, public, validation, test : int
        Numbers of samples; the public samples are included in the training samples.
    round : int
        The round of its saved state. 0: it has no state; -1: its algorithm keeps no state.
    holds : tuple of int
        Ids of the clients whose public samples it holds.
    dataset : str
        The name of its data: as in the run config, a name from the catalogue, or ``own``.
    name : str
        Its name: the owner of its data, or set by the operator of the node. Empty: none. Not unique.
    class_digests, input_digests : tuple of str
        Digests of the names of its classes and of the columns of a table, in order, or one digest for many names; for
        texts with a vocabulary from the data, one digest of the words. See `hetfl_flwr.wire.naming`.
    class_names, input_names : tuple of str
        The names in plain text; empty where they stay on the node.
    owners : int
        Number of owners of its rows, if ``partition`` splits by owners; else 0.
    notes : tuple of str
        Notes on how its data were interpreted, one line each; empty where names stay on the node.
    hetfl, flwr, torch, numpy : str
        Package versions on the node.
    """

    node: int
    client_id: Annotated[int, Field(strict=True, ge=0, lt=MAX_CLIENTS)]
    clients: Annotated[int, Field(strict=True, ge=1, le=MAX_CLIENTS)]
    model: Annotated[Text, Field(min_length=1, pattern=r"^[\w.:@/+-]+$")]
    parameters: Annotated[int, Field(strict=True, ge=0, le=2**40)]
    width: Annotated[int, Field(strict=True, ge=1, le=2**20)]
    classes: Annotated[int, Field(strict=True, ge=1, le=100_000)]
    shape: Annotated[
        tuple[Annotated[int, Field(strict=True, ge=1, le=MAX_NUMBERS)], ...],
        Field(min_length=1, max_length=8),
        FailFast(),
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
        tuple[Annotated[int, Field(strict=True, ge=0, lt=MAX_CLIENTS)], ...],
        Field(max_length=MAX_CLIENTS),
        FailFast(),
    ]
    dataset: Text
    name: Name
    class_digests: Names
    class_names: Names
    input_digests: Names
    input_names: Names
    owners: Rows
    notes: Annotated[tuple[Note, ...], Field(max_length=MAX_NOTES), FailFast()]
    hetfl: Version
    flwr: Version
    torch: Version
    numpy: Version

    @property
    def versions(self) -> dict[str, str]:
        """The client's versions of the packages in `hetfl_flwr.common.versions.PACKAGES`."""
        return {package: getattr(self, package) for package in PACKAGES}

    @property
    def rows(self) -> int:
        """The number of its training, validation and test samples."""
        return self.train + self.validation + self.test

    @property
    def spec(self) -> DataSpec:
        """The shape of its data."""
        return DataSpec(self.shape, self.classes, self.vocabulary)

    def values(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to_record(self) -> ConfigRecord:
        """Return the registration as a record, without the node id."""
        return ConfigRecord(
            {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in self.values().items()
                if name != "node"
            }
        )

    @classmethod
    def from_reply(cls, reply: Message) -> "Member":
        """Read a registration.

        Raises
        ------
        FederationError
            A field is missing, has another type, is out of range or contradicts another.
        """
        node = reply.metadata.src_node_id
        if MEMBER not in reply.content.config_records:
            raise FederationError(f"node {node}: {_STRANGE}")
        return cls.checked({**reply.content.config_records[MEMBER], "node": node}, node)

    @classmethod
    def checked(cls, values: Mapping[str, object], node: int) -> "Member":
        """Return the registration of a node with these values; raises the same errors as `from_reply`."""
        try:
            member = _MEMBERS.validate_python(values)
        except ValidationError as error:
            raise FederationError(f"node {node}: {_wrong(error)}") from None
        if member.client_id >= member.clients:
            raise FederationError(f"node {node}: client_id = {member.client_id}, but clients = {member.clients}")
        return member

    def __str__(self) -> str:
        """Return the client's name in messages."""
        return called(self.client_id, self.name, self.model)


_MEMBERS = TypeAdapter(Member)

_STRANGE = "not a registration reply; does it run another version of this app?"


def _wrong(error: ValidationError) -> str:
    """Return what is wrong with a registration, without quoting it."""
    first = error.errors(include_input=False, include_url=False)[0]
    field = str(first["loc"][0])
    if first["type"] == "missing":
        return _STRANGE
    return f"{field} is not a valid {field} of a client: {first['msg'].removeprefix('Value error, ').lower()}"


@dataclass(frozen=True)
class Sharing:
    """How an algorithm shares the clients' public samples, once, before the first round.

    Parameters
    ----------
    labelled : bool
        Whether labels are shared too. Default: True.
    to_clients : bool
        Whether each client receives the samples of all other clients. False: they stay on the server. Default: True.
    """

    labelled: bool = True
    to_clients: bool = True
