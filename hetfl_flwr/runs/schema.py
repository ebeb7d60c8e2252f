"""The files of a run folder: their names, what stands in them, and how what is damaged is judged.

Who writes them and who reads them goes by this module. ``config.toml`` is `hetfl_flwr.config`'s. Accuracies are
fractions in [0, 1].
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Annotated, Any, NotRequired, Self, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    FiniteFloat,
    PlainSerializer,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 only

from hetfl_flwr.common.files import as_json, read_file
from hetfl_flwr.common.notices import warn
from hetfl_flwr.errors import RunFolderError
from hetfl_flwr.server.messaging.failure import Failure
from hetfl_flwr.text import LONGEST_NAME, printable

T = TypeVar("T")

CONFIG_FILE, RESUME_FILE, ROUNDS_FILE, SUMMARY_FILE, CLIENTS_FILE = (
    "config.toml",
    "resume.toml",
    "rounds.jsonl",
    "summary.json",
    "clients.json",
)
NOTES_FILE = "notes.txt"
"""What was done with the data that nobody has asked for, a line each; missing where there is nothing to say."""

UPLOADS_FILE = "upload-counts.safetensors"
"""How many uploads clients were asked for, where those of a run that was killed cannot be made again alike, as their
noise was drawn from entropy."""

KEPT_UPLOADS = "uploads"
"""Folder of what clients were sent and have uploaded, a file a round; there with ``keep-uploads``."""

CHECKPOINTS, SERVER_STATE_FILE = "checkpoint", "knowledge.safetensors"
RUN_FILES = (
    CONFIG_FILE,
    RESUME_FILE,
    ROUNDS_FILE,
    SUMMARY_FILE,
    CLIENTS_FILE,
    NOTES_FILE,
    UPLOADS_FILE,
    KEPT_UPLOADS,
    CHECKPOINTS,
    SERVER_STATE_FILE,
)
"""What a run folder holds that is the run's own."""


def check_no_run_file(path: Path) -> Path:
    """Refuse to write something else over a file of a run, or into the checkpoints of one.

    Raises
    ------
    RunFolderError
        It would.
    """
    for place in dict.fromkeys((path.absolute(), Path(os.path.realpath(path)))):
        for folder in place.parents:
            if place.relative_to(folder).parts[0] in RUN_FILES and _is_run_folder(folder):
                raise RunFolderError(f"{path} belongs to the run in {folder}: give another file or folder")
    return path


def _is_run_folder(folder: Path) -> bool:
    """Say whether a folder holds a run, and not just a ``config.toml`` of somebody's own."""
    if (folder / ROUNDS_FILE).is_file() or any((folder / CHECKPOINTS).glob(f"round-*/{SERVER_STATE_FILE}")):
        return True
    return (folder / CONFIG_FILE).is_file() and any((folder / name).is_file() for name in RUN_FILES[1:])


def _whole(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Let whole numbers that a message can hold stay whole."""
    return value if type(value) is int and abs(value) < 2**64 else check(value)


Count = Annotated[int, Field(ge=0, le=2**53)]
"""A number of rounds, samples or bytes."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[FiniteFloat, Field(ge=0, le=1e18)]
Number = Annotated[FiniteFloat, WrapValidator(_whole)]
"""What a client has measured."""
Epsilon = Annotated[
    float, Field(ge=0), BeforeValidator(lambda value: inf if value == as_json(inf) else value), PlainSerializer(as_json)
]
"""May be infinite: in the file, the text ``Infinity``."""
Client = Annotated[int, Field(ge=0, lt=10**9)]
ClientKey = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,8})$")]
"""A number of a client, or of a round, as a key of JSON."""


class Quality(TypedDict):
    """How well models tell classes apart beyond accuracy: of one client, or means over clients.

    None: nobody has measured it. ``majority`` is the accuracy of always predicting the class that most of a client's
    training samples have.
    """

    balanced_accuracy: Fraction | None
    macro_f1: Fraction | None
    auc: Fraction | None
    majority: Fraction | None


QUALITIES = tuple(Quality.__annotations__)


class PerClass(TypedDict, total=False):
    """What a client has measured class by class: recalls, None for a class without test samples; numbers of classes.

    ``untested`` are classes that it trains on and has no test sample of, ``unpredicted`` those that it has test samples
    of and predicts for none.
    """

    recall: list[Fraction | None]
    untested: list[Count]
    unpredicted: list[Count]


@dataclass
class Round:
    """One line of ``rounds.jsonl``. Round 0 is the sharing of public samples, if any, and the first evaluation.

    Accuracies are means over the clients: on their own test and validation samples; of the model all share
    (`global_accuracy`); where the data has domains, over all of them (`acc`), on the own (`bwt`) and on the others
    (`fwt`). None: not measured in this round. ``clock`` is simulated time in seconds, where
    ``client-seconds`` or a simulated link is set. As `Quality` says, means over the clients; ``classes`` is
    what those have measured class by class. ``not_averaged`` are the clients of whose uploads a robust average has left
    something out: it does so in each round, also where nobody lies, so they are no failures.
    """

    round: Count
    seconds: Seconds
    accuracy: Fraction | None
    global_accuracy: Fraction | None
    validation_accuracy: Fraction | None
    acc: Fraction | None
    bwt: Fraction | None
    fwt: Fraction | None
    clock: Seconds | None
    numbers_up: Count
    numbers_down: Count
    bytes_up: Count
    bytes_down: Count
    wire_up: Count
    wire_down: Count
    evaluation_wire: Count
    clients: dict[ClientKey, dict[str, Number]]
    failures: list[Failure]
    balanced_accuracy: Fraction | None = None
    macro_f1: Fraction | None = None
    auc: Fraction | None = None
    majority: Fraction | None = None
    classes: dict[ClientKey, PerClass] = field(default_factory=dict)
    not_averaged: list[Client] = field(default_factory=list)

    @classmethod
    def blank(cls, round: int, seconds: float, **known: Any) -> Self:
        """Return a round in which nothing was measured and nothing sent, but for what is known."""
        measured = dict.fromkeys(
            ("accuracy", "global_accuracy", "validation_accuracy", "acc", "bwt", "fwt", "clock"), None
        )
        sent = ("numbers_up", "numbers_down", "bytes_up", "bytes_down", "wire_up", "wire_down", "evaluation_wire")
        rest: dict[str, Any] = {**measured, **dict.fromkeys(sent, 0), "clients": {}, "failures": []}
        return cls(round, seconds, **(rest | known))


class ClientRecord(TypedDict):
    """One client of ``clients.json``; None where it is not known, or has no meaning.

    ``partition`` is the client id, under the name that Flower has for it. ``name`` is the client's own, where it has
    one, and no other client's. A client's accuracies are on its own test
    samples, at the first evaluation and at the last. ``recall`` is that of each class with test samples, by its name,
    or by its number where the names stay on the node; ``untested`` and ``unpredicted`` are as in `PerClass`, by name.
    ``class_names`` are those of all of its classes in their order, unless they stay on the node.
    """

    partition: Client
    name: str | None
    model: str | None
    dataset: str | None
    owners: Count | None
    parameters: Count | None
    train: Count | None
    validation: Count | None
    test: Count | None
    accuracy_before: Fraction | None
    accuracy: Fraction | None
    bytes_up: Count | None
    bytes_down: Count | None
    versions: dict[str, str] | None
    uploads: Count | None
    epsilon: Epsilon | None
    balanced_accuracy: Fraction | None
    macro_f1: Fraction | None
    auc: Fraction | None
    majority: Fraction | None
    recall: dict[str, Fraction] | None
    untested: list[str] | None
    unpredicted: list[str] | None
    class_names: list[str] | None


def name_of(client: ClientRecord) -> str:
    """Return a client's name in one line; empty where it has none."""
    return printable(" ".join((client.get("name") or "").split()), 2 * LONGEST_NAME)


class Summary(TypedDict):
    """The contents of ``summary.json``; None where a figure has no meaning or is not known.

    Bytes, seconds and failures are summed over the lines of ``rounds.jsonl``, without `lost_rounds`, whose lines are
    lost. So are the `costs` of training, over the clients as well; of bytes of memory they are the largest.
    ``recall`` is that of each class, by name, the mean over the clients that have test samples of it. ``versions`` is
    what the bits of a result depend on beside the settings: see `hetfl_flwr.common.versions.environment`; ``threads``
    and ``device`` are the run config's. ``earlier_versions`` are those that a resumed run was made with before.
    """

    algorithm: str
    dataset: str
    clients: Count
    rounds: Count
    seed: Count
    engine: str | None
    accuracy: Fraction | None
    accuracy_per_client: list[Fraction | None]
    acc: Fraction | None
    bwt: Fraction | None
    fwt: Fraction | None
    global_accuracy: Fraction | None
    best_validation_accuracy: Fraction | None
    bytes_up: Count
    bytes_down: Count
    wire_up: Count
    wire_down: Count
    seconds: Seconds
    failures: Count
    epsilon: Epsilon | None
    noise_source: str | None
    versions: dict[str, str]
    balanced_accuracy: Fraction | None
    macro_f1: Fraction | None
    auc: Fraction | None
    majority: Fraction | None
    lost_rounds: NotRequired[list[Count]]
    earlier_versions: NotRequired[list[dict[str, str]]]
    costs: NotRequired[dict[str, Number]]
    recall: NotRequired[dict[str, Fraction]]


_ROUND = TypeAdapter(Round)
_SUMMARY = TypeAdapter(Summary)
_CLIENTS = TypeAdapter(list[ClientRecord])


def round_line(entry: Round) -> bytes:
    """Write a line of ``rounds.jsonl``, without its end."""
    return json.dumps(_ROUND.dump_python(entry, by_alias=True), allow_nan=False).encode()


def summary_file(summary: Summary) -> bytes:
    """Write ``summary.json``."""
    return _file(_SUMMARY.dump_python(summary))


def clients_file(clients: Sequence[ClientRecord]) -> bytes:
    """Write ``clients.json``."""
    return _file(_CLIENTS.dump_python(list(clients)))


def read_rounds(folder: Path, tell: Callable[[str], object] = warn) -> Iterator[tuple[int, bytes, Round]]:
    """Go through the rounds of a run folder: the number of the line, the line and the round.

    Damaged lines are left out, and at the end `tell` is given one line that names their places and what is wrong with
    the first; by default it goes to standard error. Without a word go a file that is not there, and a last line that a
    kill has cut short.

    Raises
    ------
    RunFolderError
        The file cannot be read.
    """
    path, damaged, why = folder / ROUNDS_FILE, list[int](), ""
    for number, line in enumerate(_lines(path), start=1):
        whole = line.removesuffix(b"\n")
        try:
            yield number, whole, _ROUND.validate_json(whole, strict=True)
        except ValidationError as error:
            if whole != line:
                why = why or first_problem(error).replace("line 1 column", "column")
                damaged.append(number)
    if len(damaged) == 1:
        tell(f"{path}, line {damaged[0]} is damaged and left out: {why}")
    elif damaged:
        first, more = ", ".join(map(str, damaged[:5])), f" and {len(damaged) - 5} more" * (len(damaged) > 5)
        tell(f"{path}, lines {first}{more} are damaged and left out; line {damaged[0]}: {why}")


def _lines(path: Path) -> Iterator[bytes]:
    """Go through the lines of a file, each with its end if it has one."""
    if not path.exists():
        return
    if not path.is_file():
        raise RunFolderError(f"{path} is no file")
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from None


def rounds_written(folder: Path) -> int:
    """Return how many rounds a run folder has, round 0 left out, at a glance: damage is not looked for."""
    path = folder / ROUNDS_FILE
    return max(path.read_bytes().count(b"\n") - 1, 0) if path.is_file() else 0


def read_summary(folder: Path) -> Summary | None:
    """Read ``summary.json``; None where there is none.

    Raises
    ------
    RunFolderError
        It cannot be read, or is not as `Summary` says: names the key.
    """
    return _read_json(folder / SUMMARY_FILE, _SUMMARY)


def read_clients(folder: Path) -> list[ClientRecord] | None:
    """Read ``clients.json``; None where there is none. Raises as `read_summary`."""
    return _read_json(folder / CLIENTS_FILE, _CLIENTS)


def first_problem(error: ValidationError) -> str:
    """Return in a line what is wrong first, and where."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return printable(" ".join((f"{place}: {first['msg']}" if place else first["msg"]).split()))


def _file(values: Mapping[str, Any] | Sequence[Any]) -> bytes:
    return (json.dumps(values, indent=1, allow_nan=False) + "\n").encode()


def _read_json(path: Path, kind: TypeAdapter[T]) -> T | None:
    content = _content(path)
    if content is None:
        return None
    try:
        return kind.validate_json(content, strict=True)
    except ValidationError as error:
        remedy = "mend it, or delete it to have the run reported from its rounds"
        raise RunFolderError(f"{path}: {first_problem(error)}; {remedy}") from None


def read_notes(folder: Path) -> list[str]:
    """Return the lines of a run folder's ``notes.txt``; none where there is no such file."""
    path = folder / NOTES_FILE
    return path.read_text("utf-8", errors="replace").splitlines() if path.is_file() else []


def _content(path: Path) -> bytes | None:
    """Return what a file holds; None where there is none. Nothing is waited for that another program is to write."""
    try:
        if path.exists() and not path.is_file():
            raise RunFolderError(f"{path} is no file")
        return read_file(path) if path.exists() else None
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from None
