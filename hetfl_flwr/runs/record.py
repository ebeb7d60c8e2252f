"""Names, schemas, readers and writers of the files in a run folder.

``config.toml`` is handled by `hetfl_flwr.config`. Accuracies are fractions in [0, 1].
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from math import inf
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, NotRequired, TypeVar, cast

from pydantic import (
    AfterValidator,
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
from typing_extensions import TypedDict  # pydantic accepts typing.TypedDict only from Python 3.12

from hetfl_flwr.common.files import as_json, read_file
from hetfl_flwr.common.notices import option, warn
from hetfl_flwr.errors import Failure, RunFolderError
from hetfl_flwr.text import LONGEST_NAME, printable
from hetfl_flwr.wire.cost_metrics import COST_METRICS, together

T = TypeVar("T")

CONFIG_FILE = "config.toml"
RESUME_FILE = "resume.toml"
ROUNDS_FILE = "rounds.jsonl"
SUMMARY_FILE = "summary.json"
CLIENTS_FILE = "clients.json"
NOTES_FILE = "notes.txt"
"""Notes on how data were interpreted, one per line; missing if there are none."""

UPLOADS_FILE = "upload-counts.safetensors"
"""The number of uploads requested from each client, if the noise on them is drawn from system entropy."""

KEPT_UPLOADS = "uploads"
"""Folder of the clients' downloads and uploads, one file per round; written with ``keep-uploads``."""

CHECKPOINTS = "checkpoint"
SERVER_STATE_FILE = "knowledge.safetensors"
RUN_FILES = {
    *(CONFIG_FILE, RESUME_FILE, ROUNDS_FILE, SUMMARY_FILE, CLIENTS_FILE, NOTES_FILE),
    *(UPLOADS_FILE, KEPT_UPLOADS, CHECKPOINTS, SERVER_STATE_FILE),
}
"""Files and folders in a run folder that belong to the run."""


def _whole(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Keep integers that fit in a message as integers."""
    return value if type(value) is int and abs(value) < 2**64 else check(value)


Count = Annotated[int, Field(ge=0, le=2**53)]
"""A number of rounds, samples or bytes."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[FiniteFloat, Field(ge=0, le=1e18)]
Number = Annotated[FiniteFloat, WrapValidator(_whole)]
"""A metric reported by a client."""
Epsilon = Annotated[
    float, Field(ge=0), BeforeValidator(lambda value: inf if value == as_json(inf) else value), PlainSerializer(as_json)
]
"""May be infinite, which the file spells as the string ``Infinity``."""
Client = Annotated[int, Field(ge=0, lt=10**9)]
Text = Annotated[str, AfterValidator(printable)]
"""A text without control characters, which the file may hold."""
ClientKey = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,8})$")]
"""A client id as a JSON key."""


QUALITIES = ("balanced_accuracy", "macro_f1", "auc", "majority")
"""Metrics besides accuracy, of one client or averaged over clients; None: not measured.

``majority`` is the accuracy of always predicting the most frequent class of a client's training samples."""


class PerClass(TypedDict, total=False):
    """A client's per-class metrics.

    ``recall`` has one entry per class, None for a class without test samples. ``untested`` lists the classes that the
    client trains on but has no test samples of, and ``unpredicted`` the classes that it has test samples of but never
    predicts.
    """

    recall: list[Fraction | None]
    untested: list[Count]
    unpredicted: list[Count]


@dataclass
class Round:
    """One line of ``rounds.jsonl``. Round 0 is the sharing of public samples, if any, and the first evaluation.

    Accuracies are means over the clients: on their own test samples (`accuracy`) and validation samples. That of the
    model that all clients share (`global_accuracy`) is weighted by their numbers of test samples. Where the data has
    domains, `acc` is the accuracy on all domains, `bwt` on the client's own domain and `fwt` on the other domains.
    None: not measured in this round. ``clock`` is simulated time in seconds, set where ``client-seconds`` or a
    simulated link is configured. `QUALITIES` are means over the clients, and ``classes`` has each client's per-class
    metrics. ``failures`` are replies that did not arrive or were refused. Valid uploads that the server leaves out are
    not failures, since they may come from honest clients: ``outliers`` are those that the guard left out,
    ``not_averaged`` the clients whose uploads a robust average excluded, in part or in full.

    ``clients`` has the metrics of each client's evaluation and training. If it trained several times, its costs and
    ``samples-seen`` are sums, its memory is the maximum, and ``train-loss`` and so on are those of the last time.
    """

    round: Count
    seconds: Seconds
    accuracy: Fraction | None = None
    global_accuracy: Fraction | None = None
    validation_accuracy: Fraction | None = None
    acc: Fraction | None = None
    bwt: Fraction | None = None
    fwt: Fraction | None = None
    clock: Seconds | None = None
    numbers_up: Count = 0
    numbers_down: Count = 0
    bytes_up: Count = 0
    bytes_down: Count = 0
    wire_up: Count = 0
    wire_down: Count = 0
    evaluation_wire: Count = 0
    clients: dict[ClientKey, dict[str, Number]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    balanced_accuracy: Fraction | None = None
    macro_f1: Fraction | None = None
    auc: Fraction | None = None
    majority: Fraction | None = None
    classes: dict[ClientKey, PerClass] = field(default_factory=dict)
    outliers: list[Failure] = field(default_factory=list)
    not_averaged: list[Client] = field(default_factory=list)

    @property
    def left_out(self) -> int:
        """The number of uploads that the guard or a robust average has left out."""
        return len(self.outliers) + len(self.not_averaged)


class ClientRecord(TypedDict):
    """One client of ``clients.json``; None where a value is unknown or does not apply.

    ``partition`` is the client id, under Flower's name for it. ``name`` is unique among the clients.
    ``accuracy_before`` and ``accuracy`` are on the client's own test samples, at the first and at the last evaluation.
    ``recall`` maps each class with test samples to its recall, by class name, or by label where the names stay on the
    node. ``untested`` and ``unpredicted`` are as in `PerClass`, by name. ``class_names`` are the names of all of its
    classes in label order, unless they stay on the node.
    """

    partition: Client
    name: str | None
    model: Text | None
    dataset: Text | None
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


def resume_command(folder: Path, engine: str | None, algorithm: str) -> str:
    """Return the command that resumes a run; ``NAME`` stands for the SuperLink's name in Flower's config.toml.

    For a local run that was started in Python, it is the call.
    """
    if engine == "local":
        return option(
            f"hetfl run {algorithm} --out {quote(str(folder))} --resume",
            f"run({algorithm!r}, out={str(folder)!r}, resume=True)",
        )
    file = quote(str(folder / RESUME_FILE))
    if engine == "deployment":
        return f"flwr run . NAME --stream --run-config {file}"
    return f"flwr run . --run-config {file}"


def name_of(client: ClientRecord) -> str:
    """Return a client's name as one printable line; empty if it has none."""
    return printable(" ".join((client.get("name") or "").split()), 2 * LONGEST_NAME)


class Summary(TypedDict):
    """The contents of ``summary.json``; None where a figure is unknown or does not apply.

    Sums are over the lines of ``rounds.jsonl``, which lacks the lines of `lost_rounds`; ``left_out`` is the sum of
    `Round.left_out`. ``costs`` of training are also
    summed over the clients, except memory in bytes, which is the maximum. ``recall`` maps each class name to the mean
    recall over the clients that have test samples of the class. ``versions`` is what the bits of a result depend on
    besides the settings (see `hetfl_flwr.common.versions.environment`), with ``threads`` and ``device`` from the run
    config. ``data`` has, with the local engine, the digest of local files (see `hetfl_flwr.runs.settings.data_of`), the
    newest last if it was continued with others. ``earlier_versions`` are the versions that a resumed run used before.
    ``warnings`` are findings on the clients' data that can distort the results, one line each, such as a column that
    one client names differently.
    """

    algorithm: Text
    dataset: Text
    clients: Count
    rounds: Count
    seed: Count
    engine: Text | None
    accuracy: Fraction | None
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
    left_out: NotRequired[Count]
    balanced_accuracy: Fraction | None
    macro_f1: Fraction | None
    auc: Fraction | None
    majority: Fraction | None
    costs: NotRequired[dict[str, Number]]
    accuracy_per_client: list[Fraction | None]
    epsilon: Epsilon | None
    noise_source: str | None
    versions: dict[str, str]
    data: NotRequired[list[Text]]
    lost_rounds: NotRequired[list[Count]]
    earlier_versions: NotRequired[list[dict[str, str]]]
    recall: NotRequired[dict[str, Fraction]]
    warnings: NotRequired[list[str]]


_ROUND, _SUMMARY = TypeAdapter(Round), TypeAdapter(Summary)
_CLIENT, _CLIENTS = TypeAdapter(ClientRecord), TypeAdapter(list[ClientRecord])


# --- figures -------------------------------------------------------------------------------------


def last_evaluated(rounds: Sequence[Round]) -> Round | None:
    """Return the last round with an accuracy, or None."""
    return next((entry for entry in reversed(rounds) if entry.accuracy is not None), None)


def figures_of(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the part of a `Summary` that is computed from the rounds: the last accuracies, and sums."""
    last = last_evaluated(rounds)
    validated = [entry.validation_accuracy for entry in rounds if entry.validation_accuracy is not None]
    costs, sums = total_costs(rounds), ("bytes_up", "bytes_down", "wire_up", "wire_down")
    means = ("accuracy", "acc", "bwt", "fwt", "global_accuracy", *QUALITIES)
    return {
        **{name: getattr(last, name, None) for name in means},
        "best_validation_accuracy": max(validated, default=None),
        **{name: sum(getattr(entry, name) for entry in rounds) for name in sums},
        "seconds": round(sum(entry.seconds for entry in rounds), 3),
        "failures": sum(len(entry.failures) for entry in rounds),
        "left_out": sum(entry.left_out for entry in rounds),
        **({"costs": costs} if costs else {}),
    }


def summary_of(rounds: Sequence[Round], clients: Iterable[ClientRecord], /, **known: Any) -> Summary:
    """Return a `Summary` of rounds, clients and other known values; all other figures are None."""
    measured = [(client["accuracy"], client.get("recall")) for client in clients]
    accuracies = [accuracy for accuracy, _ in measured]
    found = dict.fromkeys(Summary.__required_keys__) | figures_of(rounds) | {"accuracy_per_client": accuracies} | known
    if recall := mean_recall(recall for _, recall in measured):
        found["recall"] = recall
    ordered: Any = {name: found[name] for name in Summary.__annotations__ if name in found}
    return cast(Summary, ordered)


def client_of(
    rounds: Sequence[Round], client: int, names: Sequence[str] = (), /, *, carries: bool = False, **known: Any
) -> ClientRecord:
    """Return a client's `ClientRecord` from the rounds and other known values; all other entries are None.

    `names` are the client's class names, as in `named_classes`. Its last metrics are those of the last evaluated round
    or, if metrics of earlier rounds stay valid (`carries`), of the last round that has its accuracy.
    """
    first, last = next((entry for entry in rounds if not entry.round), None), last_evaluated(rounds)
    if carries:
        own = (entry for entry in reversed(rounds) if "accuracy" in entry.clients.get(str(client), {}))
        last = next((entry for entry in own if entry.accuracy is not None), last)
    before, after = (entry.clients.get(str(client), {}) if entry else {} for entry in (first, last))
    found: Any = {
        **dict.fromkeys(ClientRecord.__annotations__),
        "partition": client,
        "accuracy_before": before.get("accuracy"),
        "accuracy": after.get("accuracy"),
        **{name: after.get(name.replace("_", "-")) for name in QUALITIES},
        **named_classes(last, client, names),
        **known,
    }
    return cast(ClientRecord, found)


def total_costs(rounds: Iterable[Round]) -> dict[str, float]:
    """Return the training costs of all clients together, by name.

    They are combined by `hetfl_flwr.wire.cost_metrics.together`.
    """
    found: dict[str, list[float]] = {}
    for entry in rounds:
        for own in entry.clients.values():
            for name in COST_METRICS:
                if name in own:
                    found.setdefault(name, []).append(own[name])
    return {name: together(name, values) for name, values in found.items()}


def named_classes(entry: Round | None, client: int, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return one client's per-class metrics in a round, by class name.

    Labels replace the names where the number of names differs from the number of classes or two names are the same.
    """
    own = entry.classes.get(str(client), PerClass()) if entry else PerClass()
    if (recall := own.get("recall")) is None:
        return {"recall": None, "untested": None, "unpredicted": None}
    called = list(names) if len(set(names)) == len(recall) == len(names) else list(map(str, range(len(recall))))
    return {
        "recall": {name: value for name, value in zip(called, recall, strict=True) if value is not None},
        "untested": [called[label] for label in own.get("untested", []) if label < len(called)],
        "unpredicted": [called[label] for label in own.get("unpredicted", []) if label < len(called)],
    }


def mean_recall(recalls: Iterable[Mapping[str, float] | None]) -> dict[str, float]:
    """Return the mean recall of each class, by name, over the clients that have test samples of it."""
    found: dict[str, list[float]] = {}
    for own in recalls:
        for name, value in (own or {}).items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


# --- writing -------------------------------------------------------------------------------------


def round_line(entry: Round) -> bytes:
    """Return a line of ``rounds.jsonl``, without the newline."""
    return json.dumps(_ROUND.dump_python(entry, by_alias=True), allow_nan=False).encode()


def summary_file(summary: Summary) -> bytes:
    """Return the contents of ``summary.json``."""
    return (json.dumps(_SUMMARY.dump_python(summary), indent=1, allow_nan=False) + "\n").encode()


def clients_file(clients: Iterable[ClientRecord]) -> Iterator[bytes]:
    """Yield the contents of ``clients.json``, one client per line."""
    for number, one in enumerate(clients):
        yield (b",\n" if number else b"[\n") + json.dumps(_CLIENT.dump_python(one), allow_nan=False).encode()
    yield b"\n]\n"


# --- reading -------------------------------------------------------------------------------------


def read_rounds(folder: Path, tell: Callable[[str], object] = warn) -> list[Round]:
    """Read the rounds of a run folder; an empty list if the file is missing.

    Lines that are damaged or out of order are skipped, and `tell` is called with a message about the first of them, by
    default a warning on standard error. An incomplete last line, which a killed process leaves, is skipped silently.
    Raises `RunFolderError` if the file cannot be read.
    """
    path, rounds, damaged = folder / ROUNDS_FILE, list[Round](), dict[int, str]()
    for number, line in enumerate(BytesIO(_content(path) or b""), start=1):
        try:
            entry = _ROUND.validate_json(line.removesuffix(b"\n"), strict=True)
        except ValidationError as error:
            if line.endswith(b"\n"):
                damaged[number] = first_problem(error).replace("line 1 column", "column")
            continue
        if rounds and entry.round <= rounds[-1].round:
            damaged[number] = f"round {entry.round} after {rounds[-1].round}"
        else:
            rounds.append(entry)
    for number, why in list(damaged.items())[:1]:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        tell(f"{path}, line {number}{more} is damaged and left out: {why}")
    return rounds


def rounds_written(folder: Path) -> int:
    """Count the rounds in a run folder, without round 0, quickly: the lines are not parsed."""
    path = folder / ROUNDS_FILE
    return max(path.read_bytes().count(b"\n") - 1, 0) if path.is_file() else 0


def read_summary(folder: Path) -> Summary | None:
    """Read ``summary.json``; None if it is missing.

    Raises `RunFolderError`, which names the key, if the file cannot be read or does not match `Summary`.
    """
    return _read_json(folder / SUMMARY_FILE, _SUMMARY)


def read_clients(folder: Path) -> list[ClientRecord] | None:
    """Read ``clients.json``; None if it is missing. Raises the same errors as `read_summary`."""
    return _read_json(folder / CLIENTS_FILE, _CLIENTS)


def read_notes(folder: Path) -> list[str]:
    """Return the lines of a run folder's ``notes.txt``; an empty list if it is missing."""
    return (_content(folder / NOTES_FILE) or b"").decode(errors="replace").splitlines()


def first_problem(error: ValidationError) -> str:
    """Return the first problem and its location as one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    place, said = ".".join(str(part) for part in first["loc"]), first["msg"].removeprefix("Value error, ")
    return printable(" ".join((f"{place}: {said}" if place else said).split()))


def _read_json(path: Path, kind: TypeAdapter[T]) -> T | None:
    if (content := _content(path)) is None:
        return None
    try:
        return kind.validate_json(content, strict=True)
    except ValidationError as error:
        remedy = "fix it, or delete it: the run is then reported from its rounds"
        raise RunFolderError(f"{path}: {first_problem(error)}; {remedy}") from None


def _content(path: Path) -> bytes | None:
    """Return the contents of a file, or None if it is missing."""
    try:
        return read_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from None


def check_no_run_file(path: Path) -> Path:
    """Return `path`; raise `RunFolderError` if it is a file of a run or lies in the checkpoints of one."""
    for place in (path.absolute(), Path(os.path.realpath(path))):
        for folder in place.parents:
            own = [name for name in RUN_FILES if (folder / name).exists()]
            holds_run = ROUNDS_FILE in own or CHECKPOINTS in own or (CONFIG_FILE in own and len(own) > 1)
            if holds_run and place.relative_to(folder).parts[0] in RUN_FILES:
                raise RunFolderError(f"{path} belongs to the run in {folder}: choose another file or folder")
    return path
