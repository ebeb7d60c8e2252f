"""Sweeps: all combinations of values of config keys, and a method with its baselines."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from urllib.parse import quote

from hetfl_flwr.common.notices import option
from hetfl_flwr.config import RunConfig, Value, parse_value
from hetfl_flwr.errors import ConfigError, RunFolderError
from simulations.engine.run import process_as_it_was
from simulations.studies.jobs import Job

ParameterGrid = Mapping[str, Sequence[Value]]
"""The values of each config key."""

LONGEST = 255
"""Maximum number of bytes in the name of a folder."""

MAX_RUNS = 10_000
"""Maximum number of runs of a sweep."""

RANGE = re.compile(r"(-?\d{1,18}):(-?\d{1,18})")

BASELINES: Mapping[str, dict[str, Value]] = {
    "local": {"algorithm": "local", "pooled": False},
    "pooled": {"algorithm": "local", "pooled": True},
}
"""The baselines of a method, and their keys."""

ALONE: dict[str, Value] = {"projection": "none", "keep-uploads": False}
"""Keys of the exchange, which local training does not accept."""


def parse_grid(text: str) -> dict[str, list[Value]]:
    """Parse the values of config keys from one text.

    Keys are separated by spaces, and their values by commas. Each value is parsed as by ``--set``; ``a:b`` stands for
    the integers from a to b - 1. Quote a value that contains a comma or a space. Raises `ConfigError` if the text is
    not ``key=value,value key=value`` or names a key twice, or if a range is empty.

    Examples
    --------
    >>> parse_grid("fedhe.alpha=0,0.5 seed=0:3")
    {'fedhe.alpha': [0, 0.5], 'seed': [0, 1, 2]}
    >>> parse_grid("models='lenet5,mlp',mlp")
    {'models': ['lenet5,mlp', 'mlp']}
    """
    if not text.strip():
        raise ConfigError("--sweep is empty: expected key=value,value key=value")
    found: dict[str, list[Value]] = {}
    for key, texts in split("--sweep", text).items():
        found[key] = []
        for one in texts:
            if bounds := RANGE.fullmatch(one):
                values = range(int(bounds[1]), int(bounds[2]))
                if not 0 < len(values) <= MAX_RUNS:
                    raise ConfigError(f"--sweep: {one}: a:b is 1 to {MAX_RUNS} integers, from a to b - 1")
                found[key] += values
            else:
                found[key].append(parse_value(one))
    return found


def split(option: str, text: str) -> dict[str, list[str]]:
    """Return the keys in an option's text and their values; commas and spaces in quotes are part of a value.

    Raises `ConfigError` if the text is not ``key=value,value key=value``, or names a key twice.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=",=")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: {str(error).lower()}") from None
    found: dict[str, list[str]] = {}
    while words:
        if len(words) < 3 or words[1] != "=" or "," in (words[0], words[2]):
            raise ConfigError(f"{option} {text!r}: expected key=value,value key=value, at '{''.join(words[:3])}'")
        key, _, value, *words = words
        if key in found:
            raise ConfigError(f"{option} {text!r}: {key} is given twice")
        found[key] = [value]
        while len(words) > 1 and words[0] == ",":
            found[key].append(words[1])
            words = words[2:]
    return found


def jobs(base: Mapping[str, Value], grid: ParameterGrid, out: Path) -> list[Job]:
    """Return the runs of all combinations, with complete settings; the values of the last key vary fastest.

    Each run has a folder in `out` that is named after its values: ``fedhe.alpha=0.5,seed=0``. Raises `ConfigError` if
    a key or value is invalid, or a value is given twice.
    """
    from hetfl_flwr.runs.settings import resolved

    if (runs := prod(map(len, grid.values()))) > MAX_RUNS:
        raise ConfigError(f"a sweep of {runs} runs: at most {MAX_RUNS} are allowed")
    for key, values in grid.items():
        if key in ("output-dir", "resume"):
            raise ConfigError(f"{key} cannot be swept: each run has its own folder, and continues automatically")
        if not values:
            raise ConfigError(f"{key} has no value to sweep over")
        if twice := [value for number, value in enumerate(values) if value in values[:number]]:
            raise ConfigError(f"{key} = {twice[0]!r} is swept over twice")
    found = list[Job]()
    for point in product(*grid.values()):
        settings = {**base, **dict(zip(grid, point, strict=True))}
        RunConfig.from_flat(settings)  # values that no config may have, a folder cannot have in its name either
        name = ",".join(f"{key}={_written(value)}" for key, value in zip(grid, point, strict=True))
        if len(name) > LONGEST:
            raise ConfigError(f"{name[:40]}... is too long for the name of a folder: sweep over fewer keys at once")
        folder = (out / name).expanduser().resolve()
        config = resolved(RunConfig.from_flat({**settings, "output-dir": str(folder), "resume": False}), "local")
        flat = config.to_flat()
        found.append(Job(name, folder, {key: value for key, value in flat.items() if key != "output-dir"}))
    return found


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


def jobs_against(chosen: Mapping[str, Value], against: str, grid: ParameterGrid, out: Path) -> list[Job]:
    """Return the runs of a method, and those of each baseline with the same keys and seeds.

    Models, width and everything else that the method sets are the same for all. Runs that differ only in the method's
    own keys share one run of a baseline. `chosen` are the method's config keys, `against` is one of `BASELINES` or a
    comma-separated list of them; with an empty `grid`, each has one run. The subfolders of `out` are named after the
    method and the baselines, and contain the run folders. Raises `ConfigError` if a key or value is invalid, there is
    no such baseline, or the method is one of them.
    """
    baselines = dict.fromkeys(name.strip() for name in against.split(","))
    if not baselines.keys() <= BASELINES.keys():
        raise ConfigError(f"--against {against!r}: expected {', '.join(BASELINES)} or {','.join(BASELINES)}")
    for key in ("algorithm", "pooled"):
        if key in grid:
            raise ConfigError(f"{key} cannot be swept with --against, which runs one method and its baselines")
    config = RunConfig.from_flat(dict(chosen))
    method = "pooled" if config.pooled else config.algorithm
    if method in baselines:
        raise ConfigError(f"--against {method}: a method cannot be its own baseline; change one of the two")

    def called(name: str, settings: Mapping[str, Value], values: ParameterGrid) -> list[Job]:
        return [replace(job, name=f"{name} {job.name}".strip()) for job in jobs(settings, values, out / name)]

    wanted = called(method, chosen, grid)
    found = {job.folder: job for job in wanted}
    for baseline in baselines:
        for job in wanted:
            common = {key: value for key, value in job.settings.items() if "." not in key}
            point = {key: [job.settings[key]] for key in grid if "." not in key}
            for one in called(baseline, {**common, **ALONE, **BASELINES[baseline]}, point):
                found.setdefault(one.folder, one)
    return list(found.values())


def check(wanted: Sequence[Job]) -> None:
    """Check that each unfinished run can start; raise a HetflError for the first that cannot.

    A run can start if its folder holds no run with other settings and is not inside the folder of another run, and its
    clients fit together. Clients are built once for runs that differ only in their seed.
    """
    from hetfl_flwr.data import reread
    from hetfl_flwr.methods import build_strategy
    from hetfl_flwr.runs.callbacks import own_callbacks
    from hetfl_flwr.runs.settings import check_unchanged, config_of
    from hetfl_flwr.server.federation import Federation
    from simulations.engine.grid import LocalEngine

    for dataset in {str(job.settings.get("dataset", "")) for job in wanted}:
        reread(dataset)
    left = [job for job in wanted if not job.finished]
    for job in left:
        for above in (job.folder.parent, job.folder.parent.parent):
            if (above / "config.toml").exists():
                raise RunFolderError(f"{above} holds a run: name another folder for several runs")
        if (job.folder / "config.toml").exists():
            before, config = config_of(job.folder), RunConfig.from_flat(job.settings)
            if before.algorithm != config.algorithm:
                other = job.folder.parent / config.algorithm
                raise RunFolderError(
                    f"{job.folder} holds a run of {before.algorithm}, not of {config.algorithm}: name another folder, "
                    f"such as {option(f'--out {shlex.quote(str(other))}', f'out={str(other)!r}')}"
                )
            check_unchanged(job.folder, before.to_flat(), config)
    alike: dict[tuple[object, ...], Job] = {}
    for job in left:
        alike.setdefault(tuple((key, value) for key, value in job.settings.items() if key != "seed"), job)
    with process_as_it_was(log=False, bars=False):
        for job in alike.values():  # do what is done before round 1, and keep nothing of it
            config = RunConfig.from_flat({**job.settings, "state-dir": ""})
            own_callbacks(config)
            with LocalEngine(config, run=1) as grid:
                federation = Federation(grid, config, build_strategy(config))
                federation.registration.assemble()
                federation.strategy.prepare(federation.roster, config)
