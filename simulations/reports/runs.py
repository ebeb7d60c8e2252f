"""Read run folders, and group runs that differ only in their seed. Accuracies are fractions in [0, 1]."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 only

from hetfl_flwr.common.notices import option, warn
from hetfl_flwr.config import HOW_RUN, KEYS, RunConfig, Value, read_toml
from hetfl_flwr.data.folders import dataset_called
from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.runs.record import (
    CLIENTS_FILE,
    CONFIG_FILE,
    ROUNDS_FILE,
    SUMMARY_FILE,
    ClientRecord,
    Count,
    Round,
    Summary,
    client_of,
    figures_of,
    first_problem,
    read_clients,
    read_rounds,
    read_summary,
    summary_of,
)
from hetfl_flwr.text import printable

if TYPE_CHECKING:
    import pandas as pd

POOLED = "pooled"
"""The method name of local training on the data of all clients together."""

INCIDENTAL = {"seed", *(key for key, field in KEYS.items() if HOW_RUN in field.metadata)}
"""Config keys that may differ between runs of the same settings."""


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
    """The content of one run folder.

    `config` is flat (``fedhe.alpha``) and has the defaults of keys that are newer than the run, `rounds` ascend, and
    `clients` are ordered by partition. If ``summary.json`` or ``clients.json`` is missing because the run is active
    or was killed, `summary` or `clients` are computed from the rounds. `damage` says which lines of ``rounds.jsonl``
    were skipped, and why.
    """

    folder: Path
    name: str
    config: dict[str, Value]
    rounds: list[Round]
    summary: Summary
    clients: list[ClientRecord]
    damage: str = ""

    @property
    def unfinished(self) -> str:
        """How far a run that has not ended has come, such as ``2 of 3 rounds``; "" if it has ended."""
        reached, planned = self.summary["rounds"], self.config["rounds"]
        return "" if reached == planned else f"{reached} of {planned} rounds"


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed, with a label that no other group has."""

    label: str
    runs: tuple[Run, ...]

    def values(self, key: str) -> list[Any]:
        """Return a value of each run's ``summary.json``, None if missing."""
        return [run.summary.get(key) for run in self.runs]

    def mean(self, key: str) -> float | None:
        """Return the mean of one value of the summaries over runs; None if no run has it."""
        return mean_of(self.values(key))

    def both_ways(self, what: Literal["bytes", "wire"]) -> float:
        """Return payload or wire bytes of all clients, up + down, as the mean over runs."""
        return fmean(map(sum, zip(self.values(f"{what}_up"), self.values(f"{what}_down"), strict=True)))


def load_run(folder: Path, on_damage: Callable[[str], object] = warn) -> Run:
    """Read the folder of a run that has ended, is still active, or was killed.

    Only ``config.toml`` is required. Damaged lines of ``rounds.jsonl`` are skipped and passed to `on_damage` after
    everything else has been read; a last line that a kill cut short is skipped silently. Raises RunFolderError if the
    folder is missing or holds no run, if a file is broken, or if the files do not belong together.
    """
    config, damage = _load_config(folder), list[str]()
    summary, clients = read_summary(folder), read_clients(folder)
    rounds = read_rounds(folder, damage.append)  # last: while a run is active, they are ahead of its summary
    if summary and (differs := _mismatch(summary, config, None if damage else rounds, clients)):
        remedy = f"restore this run's own files, or delete {SUMMARY_FILE} and {CLIENTS_FILE} to read it from its rounds"
        raise RunFolderError(f"{folder}: files of two runs, or lines are missing: {differs} differ; {remedy}")
    carries = config.get(f"{config['algorithm']}.mode") == "async"
    if clients is None:
        there = {client for _, client, _ in client_scores(rounds)}
        clients = [client_of(rounds, client, carries=carries) for client in there]
    clients.sort(key=lambda client: client["partition"])
    for line in damage:
        on_damage(line)
    behind = summary if summary and rounds and summary["rounds"] < rounds[-1].round else None
    if behind:  # the run is active, or was killed after its last checkpoint
        clients = [_since(client, client_of(rounds, client["partition"], carries=carries)) for client in clients]
    if summary is None or behind:
        epsilon = inf if config.get("noise-multiplier") else None  # uploads after the last checkpoint are not counted
        for client in clients:
            client["epsilon"] = epsilon
        accuracies = {client["partition"]: client["accuracy"] for client in clients}
        count = int(config.get("clients", 0)) or len(clients)
        summary = summary_of(
            rounds,
            clients,
            algorithm=config["algorithm"],
            dataset=dataset_called(str(config["dataset"])),
            clients=count,
            rounds=rounds[-1].round if rounds else 0,
            seed=config["seed"],
            accuracy_per_client=[accuracies.get(client) for client in range(count)],
            epsilon=epsilon,
            versions={},
        )
        summary = behind | _known(summary) if behind else summary  # type: ignore[assignment]
    return Run(folder, printable(folder.resolve().name), config, rounds, summary, clients, "".join(damage))


def _mismatch(
    summary: Summary,
    config: Mapping[str, Value],
    rounds: Sequence[Round] | None,
    clients: Sequence[ClientRecord] | None,
) -> str:
    """Return the first entry of a summary that another file of its folder contradicts; "" if there is none.

    Sums of floats are not compared: their last digits depend on the version of Python.
    """
    entries: list[tuple[str, Any, str]] = [(key, config[key], CONFIG_FILE) for key in ("algorithm", "seed")]
    entries.append(("rounds", min(summary["rounds"], int(config["rounds"])), CONFIG_FILE))
    if rounds is not None:
        until = [one for one in rounds if one.round <= summary["rounds"]]
        figures = figures_of(until)
        entries.append(("rounds", len(until) + len(summary.get("lost_rounds", [])) - 1, ROUNDS_FILE))
        entries += [(key, figures[key], ROUNDS_FILE) for key in figures if key not in ("seconds", "costs")]
        if clients is not None and len(until) == len(rounds):  # else the clients can be of a later checkpoint
            entries.append(("clients", len(clients), CLIENTS_FILE))
            entries.append(("accuracy_per_client", [client["accuracy"] for client in clients], CLIENTS_FILE))
    differing = ((key, file) for key, value, file in entries if summary.get(key, value) != value)
    return next((f"{key} in {SUMMARY_FILE} and in {file}" for key, file in differing), "")


def _since(client: ClientRecord, newer: ClientRecord) -> ClientRecord:
    """Return a client of a checkpoint with its metrics since then; its uploads and bytes since then are not known."""
    unknown = dict.fromkeys(("uploads", "bytes_up", "bytes_down"))
    return client | _known(newer) | unknown  # type: ignore[return-value]


def _known(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if value not in (None, {}, [])}


def _load_config(folder: Path) -> dict[str, Value]:
    path = folder / CONFIG_FILE
    if not path.is_file() and (folder / ROUNDS_FILE).is_file():
        single = option("with --resume", "with resume=True")
        remedy = f"repeat the command of its sweep (of a single run, {single}) to restore it, or delete the folder"
        raise RunFolderError(f"{folder}: {CONFIG_FILE} is missing; {remedy}")
    if not path.is_file():
        inner = sorted(one.parent for below in ("*", "*/*") for one in folder.glob(f"{below}/{CONFIG_FILE}"))
        hint = f"name a run in it, such as {inner[0]}" if inner else "name a folder that `hetfl run` wrote"
        raise RunFolderError(f"{folder}: holds no run (no {CONFIG_FILE}); {hint}")
    try:
        config = read_toml(path)
        _CONFIG.validate_python(config, strict=True)
    except (ConfigError, ValidationError) as error:
        said = str(error) if isinstance(error, ConfigError) else f"{path}: {first_problem(error)}"
        raise RunFolderError(" ".join(f"{said}; fix it".split())) from None
    return RunConfig().to_flat() | config


def client_scores(rounds: Iterable[Round]) -> list[tuple[int, int, float]]:
    """Return the known accuracies of clients as (round, client id, accuracy), by round."""
    return [
        (record.round, int(key), accuracy)
        for record in rounds
        for key, score in record.clients.items()
        if (accuracy := score.get("accuracy")) is not None
    ]


def known(values: Iterable[float | None]) -> list[float]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    return fmean(there) if (there := known(values)) else None


def best_accuracy(run: Run) -> float | None:
    """Return the highest mean test accuracy of any round; None if no round was evaluated."""
    return max(known(record.accuracy for record in run.rounds), default=None)


def selected_accuracy(run: Run) -> float | None:
    """Return the mean test accuracy of the first round with the highest validation accuracy; None if no round has both.

    Unlike `best_accuracy`, it does not choose the round by the test samples.
    """
    validated = [one for one in run.rounds if None not in (one.validation_accuracy, one.accuracy)]
    best = max(validated, key=lambda one: one.validation_accuracy or 0.0, default=None)
    return None if best is None else best.accuracy


def spent(run: Run, target: float, what: Literal["payload", "clock"]) -> float | None:
    """Return the payload bytes (up + down) or simulated seconds until the mean accuracy reached `target`.

    None if the run never reached it or has no clock.
    """
    reached = curve(run).query("accuracy >= @target")[what].dropna()
    return None if reached.empty else float(reached.iloc[0])


def curve(run: Run) -> "pd.DataFrame":
    """Return a row for each evaluated ``round`` with its ``accuracy``.

    ``payload`` is the bytes (up + down) sent so far, ``clock`` the simulated seconds, NaN in a run without a clock.
    """
    import pandas as pd

    rows = [(one.round, one.accuracy, one.bytes_up + one.bytes_down, one.clock) for one in run.rounds]
    frame = pd.DataFrame(rows, columns=["round", "accuracy", "payload", "clock"], dtype=float)
    return frame.assign(payload=frame.payload.cumsum()).dropna(subset="accuracy")


def method_of(run: Run) -> str:
    """Return the method of a run: its algorithm, or `POOLED` if each client trained on the data of all clients."""
    return POOLED if run.config.get("pooled") is True else str(run.config["algorithm"])


def run_folders(named: Iterable[Path]) -> list[Path]:
    """Return the run folders at or below the named folders, without duplicates, sorted by name within each.

    So the folder of a sweep stands for its runs. A folder without any run is returned too: `load_run` reports it.
    """
    found: dict[Path, Path] = {}
    for folder in named:
        for inner in _inner(folder) or [folder]:
            found.setdefault(inner.resolve(), inner)
    return list(found.values())


def load_runs(named: Iterable[Path], on_damage: Callable[[str], object] = warn) -> list[Run]:
    """Read the runs in `run_folders`; raises the same errors as `load_run`."""
    return [load_run(folder, on_damage) for folder in run_folders(named)]


def _inner(folder: Path) -> list[Path]:
    """Return the run folders at or below a folder; folders inside a run folder are not searched."""
    inner = []
    for place, folders, files in os.walk(folder):
        if {CONFIG_FILE, ROUNDS_FILE} & {*files}:  # `load_run` reports a missing one
            inner.append(Path(place))
            folders.clear()
    return sorted(inner, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that puts ``seed=10`` after ``seed=9``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


FIGURES = (
    *("accuracy", "balanced_accuracy", "macro_f1", "auc", "majority", "global_accuracy", "acc", "bwt", "fwt"),
    *("bytes_up", "bytes_down", "seconds", "failures", "left_out", "epsilon"),
)
"""Values of ``summary.json`` that are compared between runs."""


def differences(runs: Sequence[Run]) -> list[dict[str, object]]:
    """Return a row for each run: its name, the config keys in which the runs differ, and its `FIGURES`."""
    keys = dict.fromkeys(key for run in runs for key in run.config if key not in INCIDENTAL or key == "seed")
    differing = [key for key in keys if len({run.config.get(key) for run in runs}) > 1]
    return [
        {"run": run.name}
        | {key: run.config.get(key) for key in differing}
        | {key: value for key, value in run.summary.items() if key in FIGURES}
        for run in runs
    ]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in their seed, in the order given; raises RunFolderError if there is no run.

    If a seed repeats, runs are grouped by parent folder, such as a sweep's: a seed counted twice would make the
    standard deviation too small. Labels of groups of one algorithm name the settings in which they differ, or else the
    folders.
    """
    if not runs:
        raise RunFolderError("no run to compare; name at least one run folder")
    alike: dict[frozenset[tuple[str, Value]], list[Run]] = {}
    for run in runs:
        alike.setdefault(frozenset(_settings(run).items()), []).append(run)
    groups = [group for several in alike.values() for part in _of_one_data(several) for group in _apart(part)]
    labels = [_label(group[0], [other[0] for other in groups]) for group in groups]
    homes: dict[str, list[Path]] = {}
    for label, group in zip(labels, groups, strict=True):
        homes.setdefault(label, []).append(_home(group))
    return [
        Group(label if len(homes[label]) == 1 else f"{label} [{_place(group, homes[label])}]", tuple(group))
        for label, group in zip(labels, groups, strict=True)
    ]


def _of_one_data(runs: Sequence[Run]) -> list[list[Run]]:
    """Split runs of the same settings by their own data, if these are known of all."""
    parts: dict[str, list[Run]] = {}
    for run in runs:
        parts.setdefault(data_called(run), []).append(run)
    return [list(runs)] if "" in parts else list(parts.values())


def _apart(runs: Sequence[Run]) -> list[list[Run]]:
    """Split runs of the same settings into groups in which no seed repeats."""
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
    learning = {key: value for key, value in run.config.items() if key not in INCIDENTAL}
    return learning | {"clients": run.summary["clients"]}


def data_called(run: Run) -> str:
    """Return the digests of a run's own data, in short; empty if it has none."""
    return " then ".join(digest[:8] for digest in run.summary.get("data", []))


def _label(run: Run, others: Sequence[Run]) -> str:
    """Return a run's method with the settings in which it differs from other runs of that method."""
    own, peers = _settings(run), [_settings(other) for other in others if method_of(other) == method_of(run)]
    differing = [key for key in own if any(peer.get(key) != own[key] for peer in peers)]
    options = ", ".join(f"{key.rpartition('.')[2]} {own[key]}" for key in differing)
    return printable(f"{method_of(run)} ({options})" if options else method_of(run))


def _place(group: Sequence[Run], homes: Sequence[Path]) -> str:
    """Return the part of a group's path that differs from the paths of the other groups."""
    own = _home(group)
    return os.path.relpath(own, os.path.commonpath(homes)) if homes.count(own) == 1 else group[0].name


def _home(group: Sequence[Run]) -> Path:
    folder = group[0].folder.resolve()
    return folder if len(group) == 1 else folder.parent
