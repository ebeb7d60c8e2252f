"""What a checkpoint says beside its arrays, and how it is judged before anything of it is used."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 only

from hetfl_flwr.common.errors import DamagedError
from hetfl_flwr.runs.schema import ClientKey, Count, Number, first_problem

_Id = Annotated[int, Field(ge=0, lt=2**64)]
_Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Number = int | float | str
_Size = tuple[_Number, _Number, _Number, Count, _Number, _Number]


class Counted(TypedDict):
    """What goes to and from a client, as `Traffic` has it."""

    numbers_up: Count
    numbers_down: Count
    bytes_up: Count
    bytes_down: Count
    wire_up: Count
    wire_down: Count


class Counts(TypedDict):
    """What is counted of each client so far, and the digests of the lines of ``rounds.jsonl``."""

    traffic: dict[ClientKey, Counted]
    latest: dict[ClientKey, dict[str, Number]]
    samples: dict[ClientKey, Count]
    uploads: dict[ClientKey, int]
    sizes: dict[ClientKey, dict[str, _Size]]
    claims: dict[ClientKey, dict[str, _Size]]
    tests: dict[ClientKey, dict[str, _Size]]
    lines: dict[ClientKey, str]


class Engine(TypedDict):
    """Where the local engine stands between two rounds."""

    clock: Annotated[float, Field(ge=0)]
    sent: Count
    due: list[tuple[float, Count, str, bool]]
    rows: NotRequired[dict[ClientKey, str]]


class Measured(TypedDict):
    """What a client has measured of its model, which has not changed since."""

    metrics: dict[str, Number]
    classes: dict[str, list[Number | None]]


Between = TypedDict(
    "Between",
    {
        "measured": NotRequired[dict[ClientKey, Measured]],
        "engine": NotRequired[Engine],
        "sent": NotRequired[Count],
        "to evaluate": NotRequired[list[Count]],
        "waiting": NotRequired[dict[str, Counted]],
        "came": NotRequired[list[str]],
    },
)
"""What is under way between two rounds."""


class MemberData(TypedDict):
    """What a client has said of its data when it registered."""

    train: Count
    public: Count
    validation: Count
    test: Count
    classes: Count
    shape: list[Count]
    class_names: NotRequired[_Digest]
    input_names: NotRequired[_Digest]


class Sent(TypedDict):
    """What clients are measured with who are sent alike."""

    clients: list[Count]
    arrays: dict[str, str]
    """By the name of an array in their download: the name under which the checkpoint has it."""


Metadata = TypedDict(
    "Metadata",
    {
        "round": Count,
        "run": _Id,
        "begun": NotRequired[_Id | None],
        "config": dict[str, bool | int | float | str],
        "counts": Counts,
        "trained": dict[ClientKey, Count],
        "under way": Between,
        "messages": _Digest | None,
        "clients": dict[ClientKey, _Digest],
        "members": NotRequired[dict[ClientKey, MemberData]],
        "downloads": NotRequired[list[Sent]],
        "versions": NotRequired[list[dict[str, str]]],
    },
)
_METADATA = TypeAdapter(Metadata)


def read_metadata(raw: Mapping[str, Any]) -> Metadata:
    """Return what a checkpoint says, which is as `Metadata` says.

    Raises
    ------
    DamagedError
        It is not: names the first place.
    """
    try:
        metadata = _METADATA.validate_json(json.dumps(raw, allow_nan=False), strict=True)
    except ValidationError as error:
        raise DamagedError(first_problem(error)) from None
    clients, trained = metadata["clients"], metadata["trained"]
    if clients and (without := sorted(trained.keys() - clients.keys())):
        raise DamagedError(f"client {without[0]} has trained, and its state is not named")
    return metadata


def check_messages(metadata: Metadata, messages: Mapping[str, bytes]) -> None:
    """Refuse a checkpoint that names messages, or an engine's place, without having them.

    Raises
    ------
    DamagedError
        Names which.
    """
    between = metadata["under way"]
    wanted = [f"message.{name}" for name in between.get("waiting", {})]
    wanted += [f"reply.{name}" for name in between.get("came", [])]
    if lacking := [name for name in wanted if name not in messages]:
        raise DamagedError(f"{lacking[0]} is not there")
