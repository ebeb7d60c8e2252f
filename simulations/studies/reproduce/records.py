"""The runs of a recipe, and a file of their figures that outlives the run folders."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil, inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import Annotated, Generic, TypeVar

from filelock import FileLock
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from hetfl_flwr.common.files import read_file, replace_file, writing
from hetfl_flwr.common.versions import OPTIONAL, PACKAGES
from hetfl_flwr.config import Value
from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.runs.record import Client, Count, Fraction, first_problem
from hetfl_flwr.wire.messages import SEEN
from simulations.reports.estimates import ACCURACY
from simulations.reports.runs import Run, load_run
from simulations.studies.jobs import Job
from simulations.studies.reproduce.keys import ALL_CLIENTS, CLIENTS, NUMBERS, PAYLOAD, check_value, is_reported
from simulations.studies.reproduce.recipe import Cell, Recipe, Settings, Word

POINTS = 500
"""Maximum number of points kept of a curve, more than a picture can show."""

OVER = " over round"
"""Ending of the name of a curve, after its key."""

Course = tuple[list[Count], list[float]]
"""Rounds, and the values reported in them."""

NAMED = (*PACKAGES, "processor", "threads", "device")
"""The parts of an environment that a report names."""

UNKNOWN = "versions not recorded"

MOVE = "move it away, or name another --results"
"""The way out where a file or folder of results cannot be read or written."""

Key = tuple[str | int, ...]
"""What identifies a line of a file."""


def in_order(settings: Mapping[str, Value]) -> str:
    """Return settings as a text that does not depend on their order."""
    return json.dumps(settings, sort_keys=True, allow_nan=False)


def jobs(cells: Sequence[Cell], folder: Path) -> list[Job]:
    """Return the runs of some cells, ordered by seed; the folders are ``CELL/seed-N``."""
    return [
        Job(f"{cell.name}, seed {seed}", folder / cell.folder / f"seed-{seed}", {**cell.settings, "seed": seed})
        for seed in range(max((cell.seeds for cell in cells), default=0))
        for cell in cells
        if seed < cell.seeds
    ]


class Line(BaseModel):
    """A line of a JSON Lines file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @property
    def key(self) -> Key:
        """What identifies it: of lines with the same key, a file has one."""
        raise NotImplementedError


L = TypeVar("L", bound=Line)


def read_lines(path: Path | None, kind: type[L]) -> list[L]:
    """Read a JSON Lines file; an empty list if it does not exist.

    Raises a `RunFolderError` if it cannot be read, or a line is not valid.
    """
    found, earlier = list[L](), dict[Key, int]()
    try:
        for line in read_file(path).splitlines() if path is not None else []:
            one = kind.model_validate_json(line)
            if one.key in earlier:
                raise ConfigError(f"the same cell and settings as in line {earlier[one.key]}")
            found.append(one)
            earlier[one.key] = len(found)
    except FileNotFoundError:
        pass
    except (ValidationError, ConfigError) as error:
        problem = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise RunFolderError(
            f"{path}, line {len(found) + 1}: {problem.replace('line 1 column', 'column')}; delete the line: what it "
            "records is read again from the folder under --out, or run again if that is gone"
        ) from None
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}; {MOVE}") from None
    return found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let no other process write a file, in a folder that is made if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.stem}.lock")):  # `replace_file` removes others that begin with path.name
        yield


class Kept(Generic[L]):
    """Lines by their keys, stored in a file if there is a path. Lines with other keys are kept."""

    kind: type[L]

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lines = dict[Key, L]()
        self.read()

    def add(self, line: L) -> None:
        """Add a line, and write the file, including what other processes have added in the meantime.

        Raises `RunFolderError` if the file cannot be written.
        """
        if self._path is None:
            self._hold(line)
            return
        with writing(self._path, way_out=MOVE), _locked(self._path):
            self.read()
            self._hold(line)
            lines = (self._lines[key].model_dump_json(exclude_defaults=True) for key in sorted(self._lines))
            replace_file(self._path, "".join(f"{one}\n" for one in lines).encode())

    def read(self) -> None:
        """Read what other processes have added to the file."""
        for one in read_lines(self._path, self.kind):
            self._hold(one)

    def _hold(self, line: L) -> None:
        self._lines[line.key] = line


def _checked_figures(figures: dict[str, float | None]) -> dict[str, float | None]:
    for key, value in figures.items():
        if value is not None:
            check_value(key, value)
    return figures


def _checked_courses(courses: dict[str, Course]) -> dict[str, Course]:
    for name, (rounds, values) in courses.items():
        if len(rounds) != len(values):
            raise ValueError(f"{name}: {len(rounds)} rounds and {len(values)} values")
        for value in values:
            check_value(name.removesuffix(OVER), value)
    return courses


Versions = dict[str, Word]


class Record(Line):
    """The figures of a run that tables and pictures need.

    Parameters
    ----------
    cell : str
        Row and column, as the name of a folder.
    seed : int
        The seed of the run.
    settings : dict
        Its config keys in the recipe; other keys had their defaults.
    versions : list of dict
        Its environment, as ``versions`` of its summary without optional packages; several if it was resumed in
        another one.
    figures : dict
        By key of the measure, in the units of the run, with nine digits; None if the run has no such figure.
    courses : dict
        Curves of pictures by name, such as "accuracy over round", with nine digits.
    data : list of str
        The digest of its data, as in its summary.
    clients : dict
        Each client's final accuracy, a fraction with six digits.
    failures : int
        Uploads and evaluations that did not arrive or were refused, as in its summary.
    """

    cell: str
    seed: Count
    settings: Settings
    versions: list[Versions]
    figures: Annotated[dict[str, float | None], AfterValidator(_checked_figures)]
    courses: Annotated[dict[str, Course], AfterValidator(_checked_courses)] = {}
    clients: dict[Client, Fraction] = {}
    data: list[str] = []
    failures: Count = 0

    @property
    def key(self) -> Key:
        """The cell, the seed and the settings."""
        return self.cell, self.seed, in_order(self.settings)


class Records(Kept[Record]):
    """Records of finished runs."""

    kind = Record

    def get(self, job: Job, recipe: Recipe) -> Record | None:
        """Return the record of a run, or None if none has its settings and all that the recipe needs."""
        found = self._lines.get((job.folder.parent.name, int(job.settings["seed"]), in_order(job.asked)))
        if found is None or (not found.clients and recipe.compares_clients):
            return None
        asked = {*recipe.keys, *map(course_name, recipe.figure.drawn)}
        return found if asked <= found.figures.keys() | found.courses.keys() else None

    def take(self, job: Job, recipe: Recipe) -> None:
        """Record a finished run."""
        self.add(record(job, recipe))

    def _hold(self, line: Record) -> None:
        """Hold a record, with what other recipes needed from the same run."""
        before = self._lines.get(line.key)
        if before is not None and (before.versions, before.data) == (line.versions, line.data):
            names = ("figures", "courses", "clients")
            line = line.model_copy(update={name: getattr(before, name) | getattr(line, name) for name in names})
        self._lines[line.key] = line


def record(job: Job, recipe: Recipe) -> Record:
    """Return what a recipe needs from a finished run; raises a `RunFolderError` if a line of it is damaged."""

    def refuse(line: str) -> None:
        raise RunFolderError(f"{line}; restore it, or delete {job.folder} and run it again")

    run = load_run(job.folder, refuse)
    summary = run.summary
    accuracies = {client["partition"]: ACCURACY.of(client) for client in run.clients}
    return Record(
        cell=job.folder.parent.name,
        seed=int(job.settings["seed"]),
        settings=job.asked,
        versions=[_without_optional(one) for one in (*summary.get("earlier_versions", []), summary["versions"])],
        figures={key: None if (one := measured(run, key)) is None else _short(one) for key in recipe.keys},
        courses={course_name(y): _thinned(course(run, y)) for y in recipe.figure.drawn},
        clients={client: _short(value, 6) for client, value in accuracies.items() if value is not None},
        data=summary.get("data", []),
        failures=summary["failures"],
    )


def _without_optional(environment: Mapping[str, str]) -> Versions:
    return {name: value for name, value in environment.items() if name not in OPTIONAL}


def _short(value: float, digits: int = 9) -> float:
    """Return a value with so many significant digits: a file of a thousand records has to stay below a megabyte."""
    return float(f"{value:.{digits}g}")


def _thinned(whole: Course) -> Course:
    """Return every nth point, the last one included, at most `POINTS`."""
    places, values = whole
    step = ceil(len(places) / POINTS) or 1
    return places[::-step][::-1], [_short(value) for value in values[::-step][::-1]]


def course_name(y: str) -> str:
    """Return the name of a curve in a record."""
    return f"{y}{OVER}"


def measured(run: Run, key: str) -> float | None:
    """Return a figure of a run, or None if it has none or it is not finite."""
    summary = run.summary
    where, _, name = key.rpartition(":")
    if name in NUMBERS:
        counted = [record for record in run.rounds if (record.round == 0) == (where == "before")]
        return getattr(counted[-1], name) / summary["clients"] if counted else None
    if where:
        _, values = course(run, key)
        if where == "best":
            return max(values, default=None)
        last = last_quarter(values) if where == "late" else values[-1:]
        return fmean(last) if last else None
    if name == PAYLOAD:
        return float(summary["bytes_up"] + summary["bytes_down"])
    value = summary[name]  # type: ignore[literal-required]
    return None if value is None or not isfinite(value) else float(value)


def last_quarter(values: Sequence[float]) -> Sequence[float]:
    """Return the last quarter of a curve, both ends included."""
    return values[3 * (len(values) - 1) // 4 :]


def course(run: Run, y: str) -> Course:
    """Return a figure over the rounds that have it.

    If a round has no such figure, it is the mean over the clients that report it; the key can restrict them to some
    clients, or to those that have trained so far.
    """
    where, _, name = y.rpartition(":")
    among = CLIENTS.fullmatch(where)
    first, last = (int(among[1]), int(among[2] or among[1])) if among else (0, inf)
    places, values, trained = [], [], set[str]()
    for record in run.rounds:
        trained |= {client for client, scores in record.clients.items() if SEEN in scores}
        named = [
            float(value)
            for client, scores in record.clients.items()
            if first <= int(client) <= last and (where != "trained" or client in trained)
            if isinstance(value := scores.get(name), int | float)
        ]
        own = vars(record).get(name.replace("-", "_")) if where in ALL_CLIENTS else None
        if named or own is not None:
            places.append(record.round)
            values.append(fmean(named) if own is None else float(own))
    return places, values


def check_reported(name: str, recipe: Recipe, records: Sequence[Record], run: Run) -> None:
    """Raise a `ConfigError` if none of the records has the clients' values that a recipe measures or draws.

    The error names what clients have reported in a run.
    """
    measured = {key: [one.figures[key] for one in records] for key in recipe.keys}
    drawn = {y: [one.courses[course_name(y)][1] for one in records] for y in recipe.figure.drawn}
    for key, values in (measured | drawn).items():
        if is_reported(key) and all(value in (None, []) for value in values):
            clients = {int(client) for one in run.rounds for client in one.clients}
            told = sorted({metric for one in run.rounds for scores in one.clients.values() for metric in scores})
            raise ConfigError(f"{name}: no run has {key}: clients 0 to {max(clients)} report {', '.join(told)}")


def environments(made: Iterable[Iterable[Mapping[str, str]]]) -> list[str]:
    """Describe the environments of runs, each one or more, and how many runs each made if they differ.

    Examples
    --------
    >>> environments([[{"torch": "2.13.0"}], [{"torch": "2.14.1", "threads": "1"}]])
    ['torch 2.13.0 (1 run)', 'torch 2.14.1, threads 1 (1 run)']
    """

    def in_words(one: Mapping[str, str]) -> str:
        return ", ".join(f"{name} {one[name]}" for name in NAMED if name in one) or UNKNOWN

    counts = Counter(" then ".join(dict.fromkeys(map(in_words, one))) or UNKNOWN for one in made)
    several = len(counts) > 1
    return [f"{words} ({runs} run{'s' * (runs > 1)})" if several else words for words, runs in counts.items()]
