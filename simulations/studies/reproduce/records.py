"""What a run came to, in a few numbers: read from its folder, or kept in a file that outlives the folder."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import ceil, inf, isfinite
from pathlib import Path
from statistics import fmean

from pydantic import BaseModel, ConfigDict, ValidationError

from hetfl_flwr.common.errors import RunFolderError, unknown
from hetfl_flwr.common.files import replace_file
from hetfl_flwr.common.versions import PACKAGES
from hetfl_flwr.config import Value
from hetfl_flwr.runs.schema import Round
from hetfl_flwr.wire.messages import SEEN
from simulations.reports.estimates import ACCURACY
from simulations.reports.runs import Run, figures, load_run
from simulations.studies.reproduce.recipe import COST, IMPACT, NUMBERS, PAYLOAD, Recipe
from simulations.studies.reproduce.running import Job

CLIENTS = re.compile(r"clients?-(\d+)(?:-(\d+))?")
"""Client P, or clients P to Q, in a measure's key."""

PLACES = ("data-dir", "device", "threads", "checkpoint-every")
"""Keys of where and when things happen, which change bits at most: ``versions`` has device and threads."""

POINTS = 500
"""Of a course that are kept, about: more than a picture shows."""

Course = tuple[list[int], list[float]]
"""Rounds or bytes, and what was reported there."""

NAMED = (*PACKAGES, "processor", "threads", "device")
"""What a table says of the environments of its runs."""

UNKNOWN = "versions not recorded"


class Record(BaseModel):
    """One run, as far as tables and curves ask.

    Parameters
    ----------
    cell : str
        Row and column, as the name of a folder.
    seed : int
        The run's.
    settings : dict
        What its recipe says of it; other keys were as by default.
    versions : list of dict
        What made it, as ``versions`` of its summary; more than one if it was resumed with others.
    figures : dict
        By a measure's key, in the run's own units; None where the run reports no such figure.
    courses : dict
        Of pictures of curves, by what is drawn over what: "accuracy over round".
    clients : dict
        Each client's final accuracy, a fraction, where the recipe compares clients.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cell: str
    seed: int
    settings: dict[str, Value]
    versions: list[dict[str, str]]
    figures: dict[str, float | None]
    courses: dict[str, Course] = {}
    clients: dict[int, float] = {}


class Records:
    """Runs that have ended. Those of other settings than now asked for stay, too.

    Parameters
    ----------
    path : Path or None
        A file with a record a line, which need not be there. None: there is none.

    Raises
    ------
    RunFolderError
        It cannot be read, or a line of it is no record.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._runs: dict[tuple[str, int, str], Record] = {}
        try:
            lines = path.read_text().splitlines() if path is not None and path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from None
        for number, line in enumerate(lines, 1):
            try:
                self.add(Record.model_validate_json(line))
            except ValidationError as error:
                first = error.errors()[0]
                raise RunFolderError(f"{path}, line {number}: no record of a run: {first['msg']}") from None

    def get(self, job: Job, recipe: Recipe) -> Record | None:
        """Return the record of a run, or None if there is none of its settings with all that the recipe asks."""
        record = self._runs.get(_key(job.cell.folder, job.seed, asked(job)))
        if record is None:
            return None
        measured = all(key in record.figures for key in _keys(recipe))
        drawn = all(course_name(recipe, y) in record.courses for y in recipe.figure.drawn)
        compared = bool(record.clients) or not recipe.compares_clients
        return record if measured and drawn and compared else None

    def add(self, record: Record) -> None:
        """Take a run's record; what another recipe has asked of the same run stays with it."""
        key = _key(record.cell, record.seed, record.settings)
        before = self._runs.get(key)
        if before is not None and before.versions == record.versions:
            both = {"figures": before.figures | record.figures, "courses": before.courses | record.courses}
            record = record.model_copy(update={**both, "clients": before.clients | record.clients})
        self._runs[key] = record

    def take(self, job: Job, recipe: Recipe) -> None:
        """Take in a run that has ended, and write the file."""
        self.add(record(job, recipe))
        self.write()

    def write(self) -> None:
        """Write the file, if there is one.

        Raises
        ------
        RunFolderError
            It cannot be written.
        """
        if self._path is None or not self._runs:
            return
        lines = [self._runs[key].model_dump_json(exclude_defaults=True) for key in sorted(self._runs)]
        try:
            replace_file(self._path, "".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            raise RunFolderError(f"{self._path} cannot be written: {error.strerror}") from None


def _key(cell: str, seed: int, settings: Mapping[str, Value]) -> tuple[str, int, str]:
    return cell, seed, json.dumps(settings, sort_keys=True, allow_nan=False)


def record(job: Job, recipe: Recipe) -> Record:
    """Return what a run that has ended came to, as far as the recipe asks."""
    run = load_run(job.folder)
    summary = figures(run)
    return Record(
        cell=job.cell.folder,
        seed=job.seed,
        settings=asked(job),
        versions=[*summary.get("earlier_versions", []), summary["versions"]],
        figures={key: measured(run, key) for key in _keys(recipe)},
        courses={course_name(recipe, y): _thinned(course(run, recipe.figure.x, y)) for y in recipe.figure.drawn},
        clients=_accuracies(run) if recipe.compares_clients else {},
    )


def _keys(recipe: Recipe) -> list[str]:
    """Return the keys of the measures that a run by itself has."""
    return [measure.key for measure in recipe.measures.values() if measure.key not in IMPACT]


def _accuracies(run: Run) -> dict[int, float]:
    found = {client["partition"]: ACCURACY.of(client) for client in run.clients}
    return {client: value for client, value in found.items() if value is not None}


def _thinned(whole: Course) -> Course:
    """Return every nth point, the last among them, so that there are no more than `POINTS`."""
    places, values = whole
    step = ceil(len(places) / POINTS) or 1
    return places[::-step][::-1], values[::-step][::-1]


def course_name(recipe: Recipe, y: str) -> str:
    """Return what the course of a figure is called among those of a record."""
    return f"{y} over {recipe.figure.x}"


def asked(job: Job) -> dict[str, Value]:
    """Return the settings that make a run another run: not where it runs, and not the keys of other algorithms."""
    return {key: value for key, value in job.settings.items() if key not in PLACES and job.concerns(key)}


def measured(run: Run, key: str) -> float | None:
    """Return a figure of a run, or None where it has none, or none that is finite.

    Raises
    ------
    RunFolderError
        No run reports such a figure.
    """
    summary = figures(run)
    where, _, name = key.rpartition(":")
    if name in NUMBERS:
        counted = [record for record in run.rounds if (record.round == 0) == (where == "before")]
        return getattr(counted[-1], name) / summary["clients"] if counted else None
    if where == "trained":
        return _of_trained(run, name)
    if where == COST:
        return summary.get("costs", {}).get(name)
    if where:
        course = [value for record in run.rounds if (value := reported(record, key)) is not None]
        return (max(course) if where == "best" else course[-1]) if course else None
    if name == PAYLOAD:
        return float(summary["bytes_up"] + summary["bytes_down"])
    if name not in summary:
        raise RunFolderError(f"{run.folder}: {unknown('figure', key, summary)}")
    value = summary[name]  # type: ignore[literal-required]
    return None if value is None or not isfinite(value) else float(value)


def reported(record: Round, key: str) -> float | None:
    """Return the mean over clients, all or those that a key names, of what they report in a round."""
    where, _, name = key.rpartition(":")
    among = CLIENTS.fullmatch(where)
    first, last = (int(among[1]), int(among[2] or among[1])) if among else (0, inf)
    return mean((scores for client, scores in record.clients.items() if first <= int(client) <= last), name)


def _of_trained(run: Run, name: str) -> float | None:
    """Return the mean of what clients reported in the last round with any such report, of those that had trained."""
    trained, last = set[str](), None
    for record in run.rounds:
        trained |= {client for client, scores in record.clients.items() if SEEN in scores}
        value = mean((scores for client, scores in record.clients.items() if client in trained), name)
        last = last if value is None else value
    return last


def mean(clients: Iterable[Mapping[str, object]], name: str) -> float | None:
    """Return the mean over clients of what those that report a figure say; None where nobody does."""
    values = [float(value) for client in clients if isinstance(value := client.get(name), int | float)]
    return fmean(values) if values else None


def course(run: Run, x: str, y: str) -> Course:
    """Return one figure over the rounds that report it: of the round, or the mean over clients, all or those named."""
    places, values, sent = [], [], 0
    for record in run.rounds:
        sent += record.bytes_up + record.bytes_down
        value = vars(record).get(y)
        if value is None:
            value = reported(record, y)
        if value is not None:
            places.append(record.round if x == "round" else sent)
            values.append(float(value))
    return places, values


def environments(made: Iterable[Iterable[Mapping[str, str]]]) -> dict[str, int]:
    """Return in words what made a number of runs, and how many of them each has made.

    Parameters
    ----------
    made : iterable of iterables of mappings
        The environments of each run, several where it was resumed in another one.

    Examples
    --------
    >>> environments([[{"torch": "2.13.0"}], [{"torch": "2.14.1", "threads": "1"}], [{"commit": "0123abc"}]])
    {'torch 2.13.0': 1, 'torch 2.14.1, threads 1': 1, 'versions not recorded': 1}
    """
    counts = Counter(" then ".join(dict.fromkeys(map(_in_words, one))) or UNKNOWN for one in made)
    return dict(counts)


def _in_words(one: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {one[name]}" for name in NAMED if name in one) or UNKNOWN
