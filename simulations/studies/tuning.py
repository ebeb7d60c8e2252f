"""Tuning: search for the best settings of a method, by validation accuracy alone.

`search` tries values that Optuna's tree-structured Parzen estimator proposes, `search_in_turn` multiples of one key
after the other. The first trial has the current values, if they are in the space, so that tuning finds nothing worse by
its own measure. Proposals depend only on the results so far, so a stopped search can continue from the run folders.
Test samples are not used.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from inspect import Parameter, signature
from itertools import chain
from math import floor, inf, isfinite, log10
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from hetfl_flwr.common.files import replace_file
from hetfl_flwr.config import RunConfig, Value, parse_value, to_toml
from hetfl_flwr.errors import ConfigError, FederationError, HetflError, RunFolderError, unknown
from hetfl_flwr.methods import chosen, find, resolve
from hetfl_flwr.runs.lock import FolderLock
from hetfl_flwr.runs.record import read_rounds, read_summary
from simulations.reports.layout import NOTHING, byte_size, percent, table_of
from simulations.studies.jobs import Backend, Failed, Job, run_all
from simulations.studies.sweeps import check, jobs, split

BEST_FILE, TRIALS_FILE = "best.toml", "tuning.json"
"""Files of a tuning: the best settings, and all trials."""

WIDE = 30.0
"""Default factor of the range around a value, down and up."""

INSIDE = 1e-3
"""Distance from an open bound, as a fraction of it."""

DIGITS = 3
"""Significant digits of tried values."""

BATCH = 5
"""Trials that are proposed at a time, whatever the number of workers.

The first batch is random, each key with its own stream, so that methods with and without a weight of their own try the
same learning rates.
"""

ATTEMPTS = 20
"""Maximum number of requests for other values when all proposed ones have been tried."""

LEARNING_RATE = "learning-rate"

UNTUNED = ("seed", "algorithm", "output-dir", "resume")
"""Keys that identify the runs, and are not settings."""

Distribution = Any
"""A distribution of Optuna, which may not be installed."""

Space = Mapping[str, Distribution]
"""What is tried, by config key."""


@dataclass(frozen=True)
class Trial:
    """A trial: the values that were tried, by config key, and the results and costs of its runs, one for each seed.

    `validation` and `accuracy` are means over clients in the last round, then over seeds, on validation and test
    samples; None if a run has failed or lost a client. `payload` are bytes up and down.
    """

    values: dict[str, Value]
    validation: float | None
    accuracy: float | None
    payload: float
    seconds: float


@dataclass(frozen=True)
class Tuning:
    """All trials in order, and the best."""

    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The first trial with the best validation accuracy."""
        return max(self.trials, key=lambda trial: -1.0 if trial.validation is None else trial.validation)

    @property
    def payload(self) -> float:
        """Bytes up and down of all trials."""
        return sum(one.payload for one in self.trials)

    @property
    def seconds(self) -> float:
        """Seconds of all trials."""
        return sum(one.seconds for one in self.trials)


def parse_space(texts: Sequence[str]) -> dict[str, Distribution]:
    """Parse a search space: ``key=low:high`` or ``key=value,value``, one text per key.

    Raises `ConfigError` if a text has another form or names a key twice, or if a range is empty.

    Examples
    --------
    >>> parse_space(["learning-rate=0.001:0.1", "local-epochs=1:5", "optimizer=sgd,adam"])["local-epochs"]
    IntDistribution(high=5, log=True, low=1, step=1)
    """
    return {key: _distribution(key, values) for key, values in split("--over", " ".join(texts)).items()}


def _distribution(key: str, values: Sequence[str]) -> Distribution:
    if len(values) > 1 or ":" not in values[0]:
        return _optuna().distributions.CategoricalDistribution(tuple(map(parse_value, values)))
    ends = [end for end in map(parse_value, values[0].split(":")) if isinstance(end, int | float)]
    whole = len(ends) == 2 and values[0].count(":") == 1 and bool not in map(type, ends)
    if not whole or not all(map(isfinite, ends)) or ends[0] >= ends[1]:
        raise ConfigError(f"--over: {key} = {values[0]}: expected two numbers, low:high")
    return _between(*ends)


def _between(low: float, high: float) -> Distribution:
    kinds = _optuna().distributions
    whole = isinstance(low, int) and isinstance(high, int)
    return (kinds.IntDistribution if whole else kinds.FloatDistribution)(low, high, log=low > 0)


def usual_space(config: RunConfig) -> dict[str, Distribution]:
    """Return the default space: the learning rate and the method's main weight.

    The main weight is the option that the client side's ``tuned`` returns; if it returns None, the first option of the
    client side, then of the server side, that is a fraction or a factor above 0 by default. A method may have none.
    """
    return {key: _between(*_around(*one)) for key, one in _usual(config).items()}


def _usual(config: RunConfig) -> dict[str, tuple[float, float, float]]:
    """Return the value, the smallest and the largest one of the learning rate and of the main weight, by key."""
    rate = {LEARNING_RATE: (config.learning_rate, 0.0, inf)}
    algorithm = chosen(config)
    named = algorithm.client.tuned(config.options)
    for side in (algorithm.client, algorithm.strategy):
        for name, (default, low, high) in _weights(side).items():
            key = f"{config.algorithm}.{name}"
            value = config.options.get(key, default)
            if named in (None, name.replace("-", "_")) and isinstance(value, int | float) and value > 0:
                return rate | {key: (float(value), low, high)}
    return rate


def _weights(side: type[Any]) -> dict[str, tuple[float, float, float]]:
    """Return the default, smallest and largest value of each option of a side that is a fraction or a factor."""
    found = {}
    for name, one in signature(side, eval_str=True).parameters.items():
        if one.kind is Parameter.KEYWORD_ONLY and isinstance(one.default, float):
            schema = TypeAdapter(one.annotation).json_schema()
            low, high = 0.0, inf
            for form in schema.get("anyOf", [schema]):
                low = max(low, form.get("minimum", 0), form.get("exclusiveMinimum", 0) * (1 + INSIDE))
                high = min(high, form.get("maximum", inf), form.get("exclusiveMaximum", inf) * (1 - INSIDE))
            found[name.replace("_", "-")] = one.default, low, high
    return found


def _around(value: float, low: float, high: float) -> tuple[float, float]:
    return max(_shortened(value / WIDE), low), min(_shortened(value * WIDE), high)


def _shortened(value: float) -> float:
    return round(value, DIGITS - 1 - floor(log10(abs(value)))) if value else 0.0


Search = Generator[list[list[Job]], Mapping[Path, Failed], Tuning]
"""Yields the runs of the settings to try next, one list for each; receives why runs have failed, by folder."""


def search(base: Mapping[str, Value], space: Space, out: Path, trials: int, seeds: Sequence[int] = (0,)) -> Search:
    """Search for the best settings of one method; return the results, which are also written to files.

    Parameters
    ----------
    base : mapping
        Config keys of all runs.
    space : mapping
        The values to try, by key; those of `base` come first, if they are included.
    out : Path
        Folder of the run folders, and of `BEST_FILE` and `TRIALS_FILE`.
    trials : int
        The maximum number of settings to try, 1 or more.
    seeds : sequence of int
        The seeds of the runs of each setting.

    Raises
    ------
    ConfigError
        A key or value is invalid, or clients have no validation samples.
    HetflError
        No trial has finished.
    """
    flat, space = _tunable(base, space)
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=BATCH)
    )
    samplers = {key: optuna.samplers.RandomSampler(seed=at) for at, key in enumerate(space)}
    first = {key: flat[key] for key in space}
    left = [first] if all(_holds(one, flat[key]) for key, one in space.items()) else []
    if left:
        study.enqueue_trial(first)
    for _ in range(BATCH - len(left)):
        study.enqueue_trial(
            {key: samplers[key].sample_independent(study, None, key, one) for key, one in space.items()}
        )
    done, reasons = list[Trial](), list[str]()
    while True:
        asked = list[tuple[Any, dict[str, Value], list[Job]]]()
        count = min(BATCH, trials - len(done))
        for _ in range(count + ATTEMPTS):
            if len(asked) == count:
                break
            trial = study.ask(space)
            values = left.pop() if left else {key: _rounded(one, trial.params[key]) for key, one in space.items()}
            if values in [*(one.values for one in done), *(known for _, known, _ in asked)]:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                continue
            grid = {key: [value] for key, value in values.items()} | {"seed": [*seeds]}
            asked.append((trial, values, jobs({**base, **values}, grid, out)))
        if not asked:
            break
        failed = yield [several for _, _, several in asked]
        for trial, values, several in asked:
            reasons += [failed[job.folder].reason for job in several if job.folder in failed]
            done.append(one := _judged(values, several, failed))
            study.tell(trial, -1.0 if one.validation is None else one.validation)
    return _written(base, done, reasons, out, seeds)


def search_in_turn(
    base: Mapping[str, Value], factors: Sequence[float], out: Path, seeds: Sequence[int] = (0,)
) -> Search:
    """Multiply the learning rate by each factor, then the method's main weight at the best rate (see `usual_space`).

    All methods try the same learning rates, with the weight in `base`. Raises and writes what `search` does.
    """
    spans = _usual(_judgeable(base))
    values: dict[str, Value] = {key: value for key, (value, _, _) in spans.items()}
    done, reasons = list[Trial](), list[str]()
    for key, (value, low, high) in spans.items():
        near = [values, *({**values, key: min(max(_shortened(value * one), low), high)} for one in factors)]
        left = [one for at, one in enumerate(near) if one not in [*near[:at], *(known.values for known in done)]]
        asked = [
            jobs({**base, **one}, {key: [new] for key, new in one.items()} | {"seed": [*seeds]}, out) for one in left
        ]
        failed = yield asked
        reasons += [failed[job.folder].reason for job in chain(*asked) if job.folder in failed]
        done += [_judged(one, several, failed) for one, several in zip(left, asked, strict=True)]
        values = Tuning(tuple(done)).best.values
    return _written(base, done, reasons, out, seeds)


def _written(
    base: Mapping[str, Value], done: Sequence[Trial], reasons: Sequence[str], out: Path, seeds: Sequence[int]
) -> Tuning:
    """Return finished trials, after writing them and the best settings."""
    found = Tuning(tuple(done))
    if found.best.validation is None:
        raise HetflError(f"no trial has finished: {next(iter(reasons), 'nothing was found')}")
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / BEST_FILE, to_toml({**base, **found.best.values}).encode())
    held = {"trials": [asdict(one) for one in done], "best": asdict(found.best), "seeds": [*seeds]}
    replace_file(out / TRIALS_FILE, (json.dumps(held, indent=1, allow_nan=False) + "\n").encode())
    return found


def _judgeable(base: Mapping[str, Value]) -> RunConfig:
    """Return a config, after checking that there are validation samples."""
    config = resolve(RunConfig.from_flat(dict(base)))
    if config.validation_fraction == 0:
        raise ConfigError("validation-fraction = 0: settings are judged by validation samples: set it above 0")
    return config


def _tunable(base: Mapping[str, Value], space: Space) -> tuple[dict[str, Value], Space]:
    """Return all config keys with their values, and a space after checking that its keys can be tuned.

    A range with whole ends has fractions if its key takes them.
    """
    config, kinds, checked = _judgeable(base), _optuna().distributions, dict[str, Distribution]()
    flat = config.to_flat()
    usual = flat | find(config.algorithm).options
    for key, one in space.items():
        if key in UNTUNED:
            raise ConfigError(f"--over: {key} cannot be tuned")
        if key not in flat:
            raise ConfigError(f"--over: {unknown('config key', key, flat)}")
        for value in getattr(one, "choices", None) or (one.low, one.high):
            RunConfig.from_flat({**base, key: value})
        widened = isinstance(one, kinds.IntDistribution) and isinstance(usual[key], float)
        checked[key] = kinds.FloatDistribution(one.low, one.high, log=one.log) if widened else one
    return flat, checked


def run_searches(searches: Sequence[Search], backend: Backend, console: Console) -> list[Tuning | HetflError]:
    """Run searches in parallel; return the result of each, or why it failed. Finished runs are not repeated.

    A run that fails because of its settings is a trial; any other failure ends the search.
    """
    found = dict[int, Tuning | HetflError]()
    failed: Any = None  # what a generator is sent first
    while len(found) < len(searches):
        proposed = dict[int, list[list[Job]]]()
        for number, one in enumerate(searches):
            if number not in found:
                try:
                    proposed[number] = one.send(failed)
                except StopIteration as ended:
                    found[number] = ended.value
                except HetflError as error:
                    found[number] = error
        failed = _run([*chain(*proposed.values())], backend, console)
        for number, trials in proposed.items():
            here = [failed[job.folder] for job in chain(*trials) if job.folder in failed]
            if broken := [one.reason for one in here if not one.by_settings]:
                found[number] = HetflError(broken[0])
    return [found[number] for number in range(len(searches))]


def _run(trials: Sequence[Sequence[Job]], backend: Backend, console: Console) -> dict[Path, Failed]:
    """Run the trials whose clients fit together, and return why runs have failed, by folder."""
    failed, right = dict[Path, Failed](), list[Job]()
    for several in trials:
        try:
            check(several)
            right += several
        except HetflError as error:
            failure = Failed(str(error), by_settings=isinstance(error, ConfigError | FederationError))
            failed |= {job.folder: failure for job in several}
            if failure.by_settings:
                console.print(f"{several[0].name}: {error}", markup=False)
    return failed | run_all(right, backend, console)


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
    """Run one `search` in a folder that no other process may use in the meantime, and return its result."""
    out.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(out, 0)
    try:
        [found] = run_searches([search(base, space, out, trials, seeds)], backend, console)
    finally:
        lock.release()
        with suppress(OSError):  # not empty
            out.rmdir()
    if isinstance(found, HetflError):
        raise found
    return found


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError("tuning needs the package optuna: pip install 'hetfl[tune]'") from None
    return optuna


def _holds(one: Distribution, value: Value) -> bool:
    try:
        return bool(one._contains(one.to_internal_repr(value)))
    except ValueError:
        return False


def _rounded(one: Distribution, value: Value) -> Value:
    """Return a value with fewer digits, within its bounds."""
    if isinstance(one, _optuna().distributions.FloatDistribution):
        return float(min(max(_shortened(float(value)), one.low), one.high))
    return value


def _judged(values: dict[str, Value], several: Sequence[Job], failed: Mapping[Path, Failed]) -> Trial:
    ended = [job for job in several if job.folder not in failed]
    summaries = [summary for job in ended if (summary := read_summary(job.folder))]
    validation = [last for job in ended if (last := _last_validation(job)) is not None]
    accuracy = [summary["accuracy"] for summary in summaries if summary["accuracy"] is not None]
    return Trial(
        values,
        fmean(validation) if len(validation) == len(several) else None,
        fmean(accuracy) if len(accuracy) == len(several) else None,
        float(sum(summary["bytes_up"] + summary["bytes_down"] for summary in summaries)),
        float(sum(summary["seconds"] for summary in summaries)),
    )


def _last_validation(job: Job) -> float | None:
    """Return the validation accuracy of a finished run's last round; None if a client that had one has none there."""
    rounds = read_rounds(job.folder)
    if not rounds or rounds[-1].round < job.rounds:
        missing = f"rounds.jsonl does not reach round {job.rounds}"
        raise RunFolderError(f"{job.folder}: {missing}: remove the folder to run it again")
    measured = [{one for one, its in at.clients.items() if "validation-accuracy" in its} for at in rounds]
    return rounds[-1].validation_accuracy if measured[-1] == set().union(*measured) else None


def tuning_table(found: Tuning) -> Table:
    """Return a table with one row per trial; the best one is marked."""
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
    notes = [
        "*: best by validation samples, in the last round; test samples are not used.",
        f"In all: {len(rows)} trials, {found.seconds:.1f} seconds, {byte_size(found.payload)} of payload.",
    ]
    return table_of("Tuning", columns, rows, words=set(), notes=notes)
