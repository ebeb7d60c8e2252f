"""Sweeps: one run for every combination of some values of config keys, under one folder."""

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from urllib.parse import quote

from rich.console import Console

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config import RunConfig, Value, parse_value
from simulations.engine.run import process_as_it_was
from simulations.studies.jobs import Backend, Job, run_all

ParameterGrid = Mapping[str, Sequence[Value]]
"""The values of each config key."""

LONGEST = 255
"""Bytes in the name of a folder, on all file systems in use."""

MOST_RUNS = 10_000
"""Runs of a sweep, at most."""

RANGE = re.compile(r"(-?\d+):(-?\d+)")


def parse_grid(text: str) -> dict[str, list[Value]]:
    """Read the values of config keys from one text.

    Keys are set apart by blanks, their values by commas; each is read as that of ``--set`` is, and ``a:b`` stands for
    the integers from a to b - 1. A value with a comma or a blank in it is put in quotes.

    Raises
    ------
    ConfigError
        It is not ``key=value,value key=value``; names a key twice; or a range is empty.

    Examples
    --------
    >>> parse_grid("fedhe.alpha=0,0.5 seed=0:3")
    {'fedhe.alpha': [0, 0.5], 'seed': [0, 1, 2]}
    >>> parse_grid("models='lenet5,mlp',mlp")
    {'models': ['lenet5,mlp', 'mlp']}
    """
    grid: dict[str, list[Value]] = {}
    if not text.strip():
        raise ConfigError("--sweep is empty: expected key=value,value key=value")
    for key, values in _split(text):
        if key in grid:
            raise ConfigError(f"--sweep {text!r}: {key} is there twice")
        grid[key] = [value for each in values for value in _values(each)]
    return grid


def _split(text: str) -> list[tuple[str, list[str]]]:
    """Return the keys and their values: signs that stand in quotes are part of a value, all others are signs."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=",=")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise ConfigError(f"--sweep {text!r}: {str(error).lower()}") from None
    found: list[tuple[str, list[str]]] = []
    while words:
        if len(words) < 3 or words[1] != "=" or "," in (words[0], words[2]):
            raise ConfigError(f"--sweep {text!r}: expected key=value,value key=value, at '{''.join(words[:3])}'")
        key, _, value, *words = words
        found.append((key, [value]))
        while len(words) > 1 and words[0] == ",":
            found[-1][1].append(words[1])
            words = words[2:]
    return found


def _values(text: str) -> list[Value]:
    bounds = RANGE.fullmatch(text)
    if not bounds:
        return [parse_value(text)]
    start, end = parse_value(bounds[1]), parse_value(bounds[2])
    if not isinstance(start, int) or not isinstance(end, int):
        raise ConfigError(f"--sweep: {text} is no range of integers")
    if end <= start:
        raise ConfigError(f"--sweep: {text} is an empty range: a:b is the integers from a to b - 1")
    if end - start > MOST_RUNS:
        raise ConfigError(f"--sweep: {text} is a range of {end - start} integers, more than {MOST_RUNS}")
    return list(range(start, end))


def run_sweep(
    base: Mapping[str, Value], grid: ParameterGrid, out: Path, backend: Backend, console: Console
) -> tuple[list[Path], dict[Path, str]]:
    """Run every combination that has not ended yet, once all of them are found to be right.

    Parameters
    ----------
    base : mapping
        Config keys of all runs.
    grid : mapping
        Values by config key; these go before `base`.
    out : Path
        Folder of the run folders, which are called by their values: ``fedhe.alpha=0.5,seed=0``.
    backend : Backend
        Where they run, and how many at a time.
    console : Console
        Where progress is shown, and what goes wrong.

    Returns
    -------
    folders : list of Path
        The run folders, the values of the last key changing fastest.
    failed : dict
        Why a run has not ended, by its folder.

    Raises
    ------
    HetflError
        Something is wrong with one of them; none has been run.
    """
    return run_jobs(jobs(base, grid, out), backend, console)


def run_jobs(wanted: Sequence[Job], backend: Backend, console: Console) -> tuple[list[Path], dict[Path, str]]:
    """Run what has not ended yet, once all of it is found to be right; returns and raises as `run_sweep`."""
    check(wanted)
    return [job.folder for job in wanted], run_all(wanted, backend, console)


def jobs(base: Mapping[str, Value], grid: ParameterGrid, out: Path) -> list[Job]:
    """Return the runs of a sweep, nothing in their settings left to guess.

    Raises
    ------
    ConfigError
        A key or value is wrong, or a value is there twice.
    """
    if (runs := prod(map(len, grid.values()))) > MOST_RUNS:
        raise ConfigError(f"a sweep of {runs} runs: at most {MOST_RUNS} can be made at once")
    for key, values in grid.items():
        if key in ("output-dir", "resume"):
            raise ConfigError(f"{key} cannot be swept: each run has a folder of its own, and goes on by itself")
        if not values:
            raise ConfigError(f"{key} has no value to sweep over")
        if twice := [value for number, value in enumerate(values) if value in values[:number]]:
            raise ConfigError(f"{key} = {twice[0]!r} is swept over twice")
    return [_job({**base, **dict(zip(grid, point, strict=True))}, list(grid), out) for point in product(*grid.values())]


def _job(settings: dict[str, Value], swept: Sequence[str], out: Path) -> Job:
    RunConfig.from_flat(settings)  # values that no config may have, a folder cannot have in its name either
    name = ",".join(f"{key}={_written(settings[key])}" for key in swept)
    if len(name) > LONGEST:
        raise ConfigError(f"{name[:40]}... is too long for the name of a folder: sweep over fewer keys at once")
    from hetfl_flwr.runs.resolution import resolved

    folder = (out / name).expanduser().resolve()
    config = resolved(RunConfig.from_flat({**settings, "output-dir": str(folder), "resume": False}), "local")
    flat = config.to_flat()
    return Job(name, folder, {key: value for key, value in flat.items() if key != "output-dir"})


def _written(value: Value) -> str:
    """Return a value as part of a folder's name: different values are written differently.

    Examples
    --------
    >>> _written("lenet5,mlp"), _written(0.0), _written(True), _written("./photos")
    ('lenet5+mlp', '0', 'true', '.%2Fphotos')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return quote(str(value), safe=":").replace("%2C", "+")


def check(wanted: Sequence[Job]) -> None:
    """Check that each run that has not ended can: its folder has none of other settings, and its clients fit together.

    Clients are built once for all runs that differ in their seed alone.

    Raises
    ------
    HetflError
        One of them cannot.
    """
    from hetfl_flwr.runs.settings import check_unchanged, resolved_config_of

    left = [job for job in wanted if not job.finished]
    for job in left:
        if (job.folder / "config.toml").exists():
            before = resolved_config_of(job.folder).to_flat()
            check_unchanged(job.folder, before, RunConfig.from_flat(job.settings))
    alike: dict[tuple[object, ...], Job] = {}
    for job in left:
        alike.setdefault(tuple((key, value) for key, value in job.settings.items() if key != "seed"), job)
    with process_as_it_was(log=False, bars=False):
        for job in alike.values():
            _assemble(job)


def _assemble(job: Job) -> None:
    """Do what is done before round 1, and keep nothing of it."""
    from hetfl_flwr.algorithms import build_strategy
    from hetfl_flwr.runs.callbacks import own_callbacks
    from hetfl_flwr.server.federation import Federation
    from simulations.engine.grid import LocalGrid

    config = RunConfig.from_flat({**job.settings, "state-dir": ""})
    own_callbacks(config)
    with LocalGrid(config.to_flat(), config.clients, run=1) as grid:
        federation = Federation(grid, config)
        federation.assemble()
        build_strategy(config).prepare(federation.roster, config)
