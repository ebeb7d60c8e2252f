"""Run folders read back: what was run, what each round and client came to, and runs of the same settings as a group.

A run that has no ``summary.json`` yet, or was killed before it, is read from the rounds it reached.
Accuracies are fractions in [0, 1].
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal, NoReturn, NotRequired, TypeVar

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 only

from hetfl_flwr.common.notices import warn
from hetfl_flwr.config import Value, read_toml
from hetfl_flwr.data.folders import dataset_called
from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.runs.record import (
    CONFIG_FILE,
    ClientRecord,
    Count,
    Round,
    Summary,
    client_of,
    first_problem,
    read_clients,
    read_rounds,
    read_summary,
    summary_of,
)

T = TypeVar("T")
POOLED = "pooled"
"""What a run of local training with the rows of all clients is called."""

INCIDENTAL = {
    *("seed", "data-dir", "output-dir", "state-dir", "state-keep", "device", "threads", "checkpoint-every", "resume"),
    *("accept-loss", "round-timeout", "track", "costs", "callbacks", "keep-uploads"),
}
"""Config keys in which runs of the same settings may differ."""


_Settings = TypedDict(
    "_Settings",
    {
        "algorithm": str,
        "dataset": str,
        "rounds": Count,
        "seed": Count,
        "clients": NotRequired[Annotated[int, Field(ge=0, le=1_000_000)]],
        "noise-multiplier": NotRequired[Annotated[FiniteFloat, Field(ge=0)]],
    },
)
_CONFIG = TypeAdapter(_Settings)


@dataclass(frozen=True)
class Run:
    """One run folder, read.

    `config` is flat (``fedhe.alpha``), `rounds` ascend, and `clients` are ordered by partition. Where ``summary.json``
    or ``clients.json`` is missing, since the run is going on or was killed, `summary` or `clients` have what the rounds
    tell. `damage` says which lines of ``rounds.jsonl`` are left out, and why.
    """

    folder: Path
    name: str
    config: dict[str, Value]
    rounds: list[Round]
    summary: Summary
    clients: list[ClientRecord]
    damage: str = ""


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed, and the name that tells them from the other groups."""

    label: str
    runs: tuple[Run, ...]

    def values(self, figure: Callable[[Summary], T]) -> list[T]:
        """Return one figure of each run."""
        return [figure(run.summary) for run in self.runs]


def load_run(folder: Path, tell: Callable[[str], object] = warn) -> Run:
    """Read a run folder, of a run that has ended, is still going on, or was killed.

    Parameters
    ----------
    folder : Path
        A folder with ``config.toml`` and, as far as the run got, ``rounds.jsonl``, ``clients.json`` and
        ``summary.json``. A damaged line of ``rounds.jsonl`` is left out, and `tell` is told; a last one that a kill cut
        short, without a word.
    tell : callable
        What is given the line about damage, once all else has been read; by default it goes to standard error.

    Raises
    ------
    RunFolderError
        One line, for a folder that is missing or holds no run, or for a broken file.
    """
    config = _load_config(folder)
    damage = list[str]()
    rounds = read_rounds(folder, damage.append)
    clients, summary = read_clients(folder), read_summary(folder)
    if clients is None:
        clients = [client_of(rounds, client) for client in {client for _, client, _ in client_scores(rounds)}]
    clients.sort(key=lambda client: client["partition"])
    for line in damage:
        tell(line)
    if summary is None:
        summary = _so_far(config, rounds, clients)
    return Run(folder, folder.resolve().name, config, rounds, summary, clients, "".join(damage))


def _load_config(folder: Path) -> dict[str, Value]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        inner = sorted(item.parent for item in folder.glob(f"*/{CONFIG_FILE}"))
        hint = f"name a run in it, such as {inner[0]}" if inner else "name a folder that `hetfl run` wrote"
        raise RunFolderError(f"{folder}: holds no run (no {CONFIG_FILE}); {hint}")
    try:
        config = read_toml(path)
        _CONFIG.validate_python(config, strict=True)
    except ConfigError as error:
        _broken(str(error), "mend it")
    except ValidationError as error:
        _broken(f"{path}: {first_problem(error)}", "mend it")
    return config


def _broken(what: str, remedy: str) -> NoReturn:
    raise RunFolderError(" ".join(f"{what}; {remedy}".split())) from None


def client_scores(rounds: Iterable[Round]) -> list[tuple[int, int, float]]:
    """Return what is known of the clients' accuracies: (round, client id, accuracy), by round."""
    return [
        (record.round, int(key), accuracy)
        for record in rounds
        for key, score in record.clients.items()
        if (accuracy := score.get("accuracy")) is not None
    ]


def _so_far(config: Mapping[str, Value], rounds: Sequence[Round], clients: Sequence[ClientRecord]) -> Summary:
    """Return the summary of a run that has none yet."""
    accuracies = {client["partition"]: client["accuracy"] for client in clients}
    count = int(config.get("clients", 0)) or len(clients)
    return summary_of(
        rounds,
        clients,
        algorithm=config["algorithm"],
        dataset=dataset_called(str(config["dataset"])),
        clients=count,
        rounds=rounds[-1].round if rounds else 0,
        seed=config["seed"],
        accuracy_per_client=[accuracies.get(client) for client in range(count)],
        versions={},
    )


def known(values: Iterable[float | None]) -> list[float]:
    """Return the values that are there."""
    return [value for value in values if value is not None]


def mean_of(runs: Iterable[Run], key: str) -> float | None:
    """Return the mean over runs of a figure of ``summary.json``; None where none has it."""
    values = [run.summary.get(key) for run in runs]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return fmean(numbers) if numbers else None


def best_accuracy(run: Run) -> float | None:
    """Return the highest mean accuracy of any evaluated round, or None where there is no such round."""
    return max(known(record.accuracy for record in run.rounds), default=None)


def selected_accuracy(run: Run) -> float | None:
    """Return the mean accuracy of the round with the highest one on validation samples, of several the first.

    None where no round has both. Unlike `best_accuracy`, it does not choose by the test samples that it is of.
    """
    validated = [
        (record.validation_accuracy, record.accuracy)
        for record in run.rounds
        if record.validation_accuracy is not None and record.accuracy is not None
    ]
    return max(validated, key=lambda pair: pair[0])[1] if validated else None


def spent(run: Run, target: float, what: Literal["payload", "clock"]) -> float | None:
    """Return what a run had spent when its mean accuracy reached `target`; None for never, or without a clock.

    That is payload bytes (up + down), or simulated seconds.
    """
    payload = 0
    for record in run.rounds:
        payload += record.bytes_up + record.bytes_down
        if record.accuracy is not None and record.accuracy >= target:
            return payload if what == "payload" else record.clock
    return None


def method_of(run: Run) -> str:
    """Return what people call a run's method: its algorithm, or `POOLED` where all data were in one place."""
    return POOLED if run.config.get("pooled") is True else str(run.config["algorithm"])


def run_folders(named: Iterable[Path]) -> list[Path]:
    """Return run folders: those named, and in the place of a folder that is none all that lie in it, by name.

    So the folder of a sweep stands for its runs, and that of ``hetfl reproduce`` for those of its tables. A folder that
    is there twice counts once; one without any run is returned, for `load_run` to say so.
    """
    found: dict[Path, Path] = {}
    for folder in named:
        for inner in [folder] if (folder / CONFIG_FILE).is_file() else _inner(folder) or [folder]:
            found.setdefault(inner.resolve(), inner)
    return list(found.values())


FIGURES = (
    *("accuracy", "balanced_accuracy", "macro_f1", "auc", "majority", "global_accuracy", "acc", "bwt", "fwt"),
    *("bytes_up", "bytes_down", "seconds", "failures", "epsilon"),
)
"""What is told of a run among others."""


def differences(runs: Sequence[Run]) -> list[dict[str, object]]:
    """Return a row a run: its name, the config keys in which the runs differ, and its `FIGURES`."""
    keys = dict.fromkeys(key for run in runs for key in run.config if key not in INCIDENTAL or key == "seed")
    differing = [key for key in keys if len({run.config.get(key) for run in runs}) > 1]
    return [
        {"run": run.name}
        | {key: run.config.get(key) for key in differing}
        | {key: value for key, value in run.summary.items() if key in FIGURES}
        for run in runs
    ]


def _inner(folder: Path) -> list[Path]:
    """Return the run folders below a folder; what a run keeps in its own folder is none."""
    inner = []
    for place, folders, files in os.walk(folder):
        if CONFIG_FILE in files:
            inner.append(Path(place))
            folders.clear()
    return sorted(inner, key=_by_number)


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Return a key by which ``seed=10`` comes after ``seed=9``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Put runs of the same settings and other seeds together, in the order given.

    Where a seed comes up again, runs of one folder, such as a sweep's, are a group: counted twice, a seed would make
    the deviation smaller. Groups of the same algorithm carry in their label the settings in which they differ, or else
    the folders.

    Raises
    ------
    RunFolderError
        If there is no run.
    """
    if not runs:
        raise RunFolderError("no run to compare; name at least one run folder")
    alike: dict[frozenset[tuple[str, Value]], list[Run]] = {}
    for run in runs:
        alike.setdefault(frozenset(_settings(run).items()), []).append(run)
    gathered = [group for several in alike.values() for group in _apart(several)]
    labels = _labels(gathered)
    return [Group(label, tuple(group)) for label, group in zip(labels, gathered, strict=True)]


def _apart(runs: Sequence[Run]) -> list[list[Run]]:
    """Return runs of the same settings as groups in none of which a seed comes up twice."""
    seeds = [run.summary["seed"] for run in runs]
    if len(set(seeds)) == len(seeds):
        return [list(runs)]
    groups: dict[tuple[Path, int], list[Run]] = {}
    met = Counter[tuple[Path, int]]()
    for run, seed in zip(runs, seeds, strict=True):
        home = run.folder.resolve().parent
        groups.setdefault((home, met[home, seed]), []).append(run)
        met[home, seed] += 1
    return list(groups.values())


def _settings(run: Run) -> dict[str, Value]:
    shown = run.summary
    learning = {key: value for key, value in run.config.items() if key not in INCIDENTAL}
    return learning | {"clients": shown["clients"]}


def _labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    settings = [_settings(group[0]) for group in groups]
    labels = []
    methods = [method_of(group[0]) for group in groups]
    for method, own in zip(methods, settings, strict=True):
        peers = [other for name, other in zip(methods, settings, strict=True) if name == method]
        differing = [key for key in own if any(peer.get(key) != own[key] for peer in peers)]
        options = ", ".join(f"{key.rpartition('.')[2]} {own[key]}" for key in differing)
        labels.append(f"{method} ({options})" if options else method)
    same = {label: [group for group, other in zip(groups, labels, strict=True) if other == label] for label in labels}
    named = zip(labels, groups, strict=True)
    return [f"{label} [{_place(group, same[label])}]" if len(same[label]) > 1 else label for label, group in named]


def _place(group: Sequence[Run], others: Sequence[Sequence[Run]]) -> str:
    """Return the part of the path that tells the folder of a run, or of runs of several seeds, from those of others."""
    own, folders = _folder(group), [_folder(one) for one in others]
    return os.path.relpath(own, os.path.commonpath(folders)) if folders.count(own) == 1 else group[0].name


def _folder(group: Sequence[Run]) -> Path:
    folder = group[0].folder.resolve()
    return folder if len(group) == 1 else folder.parent
