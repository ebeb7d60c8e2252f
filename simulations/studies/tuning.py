"""A method's own best settings: a few runs with other values, judged by validation samples alone.

Values are proposed by Optuna's tree-structured Parzen estimator. The first trial has the values as they are, if they
are among those to be tried, so that tuning finds nothing worse by its own measure. Test samples have no say.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import floor, isfinite, log10
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from hetfl_flwr.algorithms import chosen, resolve
from hetfl_flwr.common.errors import ConfigError, FederationError, HetflError
from hetfl_flwr.common.errors import unknown as no_such
from hetfl_flwr.common.files import replace_file
from hetfl_flwr.config import RunConfig, Value, parse_value, to_toml
from hetfl_flwr.runs.figures.tables import NOTHING, byte_size, percent, table_of
from hetfl_flwr.runs.schema import read_rounds, read_summary
from simulations.studies.backends.backend import Backend
from simulations.studies.jobs import Job
from simulations.studies.sweeps import jobs, run_jobs

BEST_FILE, TRIALS_FILE = "best.toml", "tuning.json"
"""Files that a tuning leaves beside its runs: the settings to run with, and all that was tried."""

WIDE = 30.0
"""A value is tried from so many times less to so many times more than it is, where nobody says otherwise."""

INSIDE = 1e-3
"""By such a part of it, an open bound of a number is kept away from."""

DIGITS = 3
"""Of a value that is tried."""

BATCH = 5
"""Trials that are proposed at a time, so that what is tried depends on no number of workers; the first by chance."""

ATTEMPTS = 20
"""How often other values are asked for where these have been tried, which few values there are may bring about."""

LEARNING_RATE = "learning-rate"

UNTUNED = ("seed", "algorithm", "output-dir", "resume")
"""Keys that say which runs these are, and no settings."""


@dataclass(frozen=True)
class Between:
    """Numbers from one to another, both among them; on a logarithmic scale if all are above 0."""

    low: float
    high: float
    whole: bool = False

    def draw(self, trial: Any, key: str) -> Value:
        """Return the value that a trial of Optuna is to have."""
        log = self.low > 0
        if self.whole:
            return int(trial.suggest_int(key, int(self.low), int(self.high), log=log))
        value = float(trial.suggest_float(key, self.low, self.high, log=log))
        return min(max(_shortened(value), self.low), self.high)


@dataclass(frozen=True)
class Among:
    """Some values."""

    values: tuple[Value, ...]

    def draw(self, trial: Any, key: str) -> Value:
        """Return the value that a trial of Optuna is to have."""
        value: Value = trial.suggest_categorical(key, list(self.values))
        return value


Space = Mapping[str, Between | Among]
"""What is tried, by config key."""


@dataclass(frozen=True)
class Trial:
    """Settings that were tried.

    Parameters
    ----------
    values : dict
        By config key.
    validation : float or None
        The mean over clients of the accuracy on their validation samples in the last round, then over seeds; None if a
        run of it has failed.
    accuracy : float or None
        The same on test samples, which nothing goes by.
    payload, seconds : float
        What all of its runs have cost: bytes up and down, and seconds.
    """

    values: dict[str, Value]
    validation: float | None
    accuracy: float | None
    payload: float
    seconds: float


@dataclass(frozen=True)
class Tuning:
    """All that was tried, in this order, and what was found."""

    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The first of those with the best validation accuracy."""
        return max(
            (trial for trial in self.trials if trial.validation is not None), key=lambda trial: trial.validation or 0.0
        )


def parse_space(texts: Sequence[str]) -> dict[str, Between | Among]:
    """Read what is to be tried: ``key=low:high`` or ``key=value,value``, a text for each key.

    Raises
    ------
    ConfigError
        A text is neither, names a key twice, or a range is empty.

    Examples
    --------
    >>> parse_space(["learning-rate=0.001:0.1", "local-epochs=1:5", "optimizer=sgd,adam"])["local-epochs"]
    Between(low=1, high=5, whole=True)
    """
    found: dict[str, Between | Among] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not key or not equals or not values.strip():
            raise ConfigError(f"--over {text!r}: expected key=low:high or key=value,value")
        if key in found:
            raise ConfigError(f"--over {text!r}: {key} is there twice")
        found[key] = _space(text, values)
    return found


def _space(text: str, values: str) -> "Between | Among":
    """Return a range, where both ends are numbers, or the values of a list."""
    named = [one.strip() for one in values.split(",")]
    if not all(named):
        raise ConfigError(f"--over {text!r}: a value is empty")
    if len(named) > 1 or ":" not in values:
        return Among(tuple(map(parse_value, named)))
    return _between(text, values)


def _between(text: str, values: str) -> Between:
    ends = [parse_value(end) for end in values.split(":")]
    if len(ends) != 2 or any(isinstance(end, bool) or not isinstance(end, int | float) for end in ends):
        raise ConfigError(f"--over {text!r}: expected two numbers, low:high")
    low, high = (float(end) if isinstance(end, float) else int(end) for end in ends)
    if not isfinite(low) or not isfinite(high) or low >= high:
        raise ConfigError(f"--over {text!r}: no number is between {low} and {high}")
    return Between(low, high, whole=isinstance(low, int) and isinstance(high, int))


def usual_space(config: RunConfig) -> dict[str, Between | Among]:
    """Return what is tried where nobody says: the learning rate and the method's own first weight, each widely.

    The first weight is the one that the client's side names in ``tuned``; where it names none, the first option of the
    client's side, then of the server's, that is a fraction or a factor above 0 by default. A method may have none.
    """
    space: dict[str, Between | Among] = {LEARNING_RATE: _around(config.learning_rate, 0.0, float("inf"))}
    algorithm = chosen(config)
    named = getattr(algorithm.client, "tuned", None)
    for side in (algorithm.client, algorithm.strategy):
        for name, (default, low, high) in _weights(side).items():
            if named is not None and name != named.replace("_", "-"):
                continue
            key = f"{config.algorithm}.{name}"
            value = config.options.get(key, default)
            if isinstance(value, int | float) and value > 0:
                return space | {key: _around(float(value), low, high)}
    return space


def _weights(side: type[Any]) -> dict[str, tuple[float, float, float]]:
    """Return the options of a side that are fractions or factors: default, least and largest value."""
    from inspect import Parameter, signature

    found = {}
    for name, one in signature(side, eval_str=True).parameters.items():
        if one.kind is Parameter.KEYWORD_ONLY and isinstance(one.default, float):
            forms = [one.annotation, *get_args(one.annotation)]  # of a union, each of what it may be
            fields = [field for form in forms for field in getattr(form, "__metadata__", ())]
            limits = [limit for field in fields for limit in _limits(field)]
            lows = [_bound(at, "ge", "gt", 1 + INSIDE) for at in limits]
            highs = [_bound(at, "le", "lt", 1 - INSIDE) for at in limits]
            found[name.replace("_", "-")] = (
                one.default,
                max([0.0, *(low for low in lows if low is not None)]),
                min([float("inf"), *(high for high in highs if high is not None)]),
            )
    return found


def _bound(limit: object, closed: str, open_: str, within: float) -> float | None:
    """Return a bound of a number that a field's limit says; of an open one, a number a little within it."""
    if (value := getattr(limit, closed, None)) is not None:
        return float(value)
    value = getattr(limit, open_, None)
    return None if value is None else float(value) * within


def _limits(field: Any) -> Sequence[object]:
    return getattr(field, "metadata", None) or [field]


def _around(value: float, low: float, high: float) -> Between:
    return Between(max(_shortened(value / WIDE), low), min(_shortened(value * WIDE), high))


def _shortened(value: float) -> float:
    return round(value, DIGITS - 1 - floor(log10(abs(value)))) if value else 0.0


class Search:
    """The search for one method's settings: it proposes some to be tried, is told what they came to, and proposes more.

    Parameters
    ----------
    base : mapping
        Config keys of all runs.
    space : mapping
        What is tried; the first trial has the values of `base`, if these are in it.
    out : Path
        Folder of the run folders, and of `BEST_FILE` and `TRIALS_FILE`.
    trials : int
        How many settings, 1 or more; no more than there are.
    seeds : sequence of int
        The runs of each.

    Raises
    ------
    ConfigError
        A key or value is wrong, or clients have no validation samples.
    """

    def __init__(
        self, base: Mapping[str, Value], space: Space, out: Path, trials: int, seeds: Sequence[int] = (0,)
    ) -> None:
        config = resolve(RunConfig.from_flat(dict(base)))
        if config.validation_fraction == 0:
            raise ConfigError("validation-fraction = 0: settings are judged by validation samples: set it above 0")
        flat = config.to_flat()
        if fixed := [key for key in space if key in UNTUNED]:
            raise ConfigError(f"--over: {fixed[0]} cannot be tuned")
        if unknown := [key for key in space if key not in flat]:
            raise ConfigError(f"--over: {no_such('config key', unknown[0], flat)}")
        self._base, self._space, self._out, self._trials, self._seeds = base, space, out, trials, list(seeds)
        self._usual: dict[str, Value] = {key: flat[key] for key in space}
        self._first = [self._usual] if all(_holds(space[key], value) for key, value in self._usual.items()) else []
        self._study, self._done, self._asked = _study(), list[Trial](), list[tuple[Any, dict[str, Value], list[Job]]]()
        if self._first:
            self._study.enqueue_trial(self._usual)

    def propose(self) -> list[list[Job]]:
        """Return the runs of the settings that are to be tried next, a list for each; none if the search is over."""
        count = min(BATCH, self._trials - len(self._done))
        proposed = self._proposed(count) if count else []
        self._asked = [
            (trial, values, jobs({**self._base, **values}, {**_alone(values), "seed": self._seeds}, self._out))
            for trial, values in proposed
        ]
        return [several for _, _, several in self._asked]

    def take(self, failed: Mapping[Path, str]) -> None:
        """Judge the runs that were proposed last, of which some may have failed: why, by folder."""
        for trial, values, several in self._asked:
            one = _judged(values, several, failed)
            self._done.append(one)
            self._study.tell(trial, -1.0 if one.validation is None else one.validation)

    def found(self, failed: Mapping[Path, str]) -> Tuning:
        """Write down what was found, and return it.

        Raises
        ------
        HetflError
            No trial has ended.
        """
        if all(one.validation is None for one in self._done):
            own = [why for folder, why in failed.items() if folder.is_relative_to(self._out.expanduser().resolve())]
            raise HetflError(f"no trial has ended: {next(iter(own), 'nothing was found')}")
        found = Tuning(tuple(self._done))
        self._out.mkdir(parents=True, exist_ok=True)
        replace_file(self._out / BEST_FILE, to_toml({**self._base, **found.best.values}).encode())
        held = {"trials": [asdict(one) for one in self._done], "best": asdict(found.best), "seeds": self._seeds}
        replace_file(self._out / TRIALS_FILE, (json.dumps(held, indent=1, allow_nan=False) + "\n").encode())
        return found

    def _proposed(self, count: int) -> list[tuple[Any, dict[str, Value]]]:
        """Return trials of Optuna and their values, none of them twice; fewer where the space has no others left."""
        import optuna

        found: list[tuple[Any, dict[str, Value]]] = []
        for _ in range(count + ATTEMPTS):
            trial = self._study.ask()
            values = {key: one.draw(trial, key) for key, one in self._space.items()}
            if self._first:
                values = self._first.pop()  # as they are, not as they are shortened
            if values in [*(one.values for one in self._done), *(known for _, known in found)]:
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                found.append((trial, values))
            if len(found) == count:
                break
        return found


def tune(
    base: Mapping[str, Value],
    space: Space,
    out: Path,
    console: Console,
    backend: Backend,
    *,
    trials: int = 12,
    seeds: Sequence[int] = (0,),
) -> Tuning:
    """Try settings, write down what was found, and return it.

    Runs that have ended are not repeated: the same call goes on where it was stopped.

    Parameters
    ----------
    base, space, out, trials, seeds
        As in `Search`.
    console : Console
        Where progress is shown.
    backend : Backend
        Where they run, and how many at a time; what is tried does not depend on it.

    Raises
    ------
    HetflError
        A key or value is wrong, clients have no validation samples, or no trial has ended.
    """
    search = Search(base, space, out, trials, seeds)
    return search.found(run_searches([search], backend, console))


def run_searches(searches: Sequence[Search], backend: Backend, console: Console) -> dict[Path, str]:
    """Try what all searches propose, side by side, until none proposes more; return what has failed, by folder."""
    failed = dict[Path, str]()
    while True:
        wanted = [(search, search.propose()) for search in searches]
        if not any(several for _, several in wanted):
            return failed
        failed |= _run([runs for _, several in wanted for runs in several], backend, console)
        for search, _ in wanted:
            search.take(failed)


def _run(wanted: Sequence[Sequence[Job]], backend: Backend, console: Console) -> dict[Path, str]:
    """Run what has not ended, and return what has failed; so have settings that a method refuses."""
    unlike = {job.folder: job for several in wanted for job in several}
    try:
        return run_jobs(list(unlike.values()), backend, console)[1]
    except (ConfigError, FederationError) as error:
        if len(wanted) == 1:
            return dict.fromkeys(unlike, str(error))
    half = len(wanted) // 2
    return _run(wanted[:half], backend, console) | _run(wanted[half:], backend, console)


def _study() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError("tuning needs the package optuna: pip install 'hetfl[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=BATCH)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _alone(values: Mapping[str, Value]) -> dict[str, list[Value]]:
    return {key: [value] for key, value in values.items()}


def _holds(space: Between | Among, value: Value) -> bool:
    if isinstance(space, Among):
        return value in space.values
    return isinstance(value, int | float) and space.low <= value <= space.high


def _judged(values: dict[str, Value], several: Sequence[Job], failed: Mapping[Path, str]) -> Trial:
    ended = [job for job in several if job.folder not in failed]
    summaries = [summary for job in ended if (summary := read_summary(job.folder))]
    validation = [last for job in ended if (last := _last_validation(job.folder)) is not None]
    accuracy = [summary["accuracy"] for summary in summaries if summary["accuracy"] is not None]
    whole = len(validation) == len(several)
    return Trial(
        values,
        fmean(validation) if whole else None,
        fmean(accuracy) if accuracy else None,
        float(sum(summary["bytes_up"] + summary["bytes_down"] for summary in summaries)),
        float(sum(summary["seconds"] for summary in summaries)),
    )


def _last_validation(folder: Path) -> float | None:
    known = [entry.validation_accuracy for _, _, entry in read_rounds(folder)]
    return next((value for value in reversed(known) if value is not None), None)


def tuning_table(found: Tuning) -> Table:
    """Return a row a trial, the best marked."""
    keys = list(found.trials[0].values)
    rows = list(enumerate(found.trials))
    columns: dict[str, Any] = {"trial": lambda row: f"{row[0]}{'*' * (row[1] is found.best)}"}
    columns |= {key: lambda row, key=key: str(row[1].values[key]) for key in keys}
    columns |= {
        "validation %": lambda row: NOTHING if row[1].validation is None else percent(row[1].validation),
        "test %": lambda row: NOTHING if row[1].accuracy is None else percent(row[1].accuracy),
        "payload": lambda row: byte_size(row[1].payload),
        "seconds": lambda row: f"{row[1].seconds:.1f}",
    }
    return table_of("Tuning", columns, rows, words=set(), notes=list(_notes(found)))


def _notes(found: Tuning) -> Iterator[str]:
    yield "*: best by validation samples, in the last round; test samples have no say."
    seconds, payload = (sum(getattr(one, name) for one in found.trials) for name in ("seconds", "payload"))
    yield f"In all: {len(found.trials)} trials, {seconds:.1f} seconds, {byte_size(payload)} of payload."
