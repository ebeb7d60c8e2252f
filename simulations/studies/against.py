"""A method beside training alone: the runs of one command line, with the same keys and seeds."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config import RunConfig, Value
from simulations.studies.jobs import Job
from simulations.studies.sweeps import ParameterGrid, jobs

BASELINES: Mapping[str, dict[str, Value]] = {
    "local": {"algorithm": "local", "pooled": False},
    "pooled": {"algorithm": "local", "pooled": True},
}
"""What a method can be run beside, and the keys that make it."""

ALONE: dict[str, Value] = {"projection": "none"}
"""Keys of what clients exchange that training alone refuses."""


def parse_against(text: str) -> list[str]:
    """Return the baselines that a text names.

    Raises
    ------
    ConfigError
        It is none of `BASELINES`, nor a comma list of them.

    Examples
    --------
    >>> parse_against("local,pooled")
    ['local', 'pooled']
    """
    named = [name.strip() for name in text.split(",")]
    for name in named:
        if name not in BASELINES:
            raise ConfigError(f"--against {text!r}: expected {', '.join(BASELINES)} or {','.join(BASELINES)}")
    return list(dict.fromkeys(named))


def jobs_against(chosen: Mapping[str, Value], baselines: list[str], grid: ParameterGrid, out: Path) -> list[Job]:
    """Return the runs of a method, and those of each baseline with the same keys and seeds.

    Models, width and whatever else the method settles are the same for all. Keys of the method's own have no meaning
    for a baseline: runs that differ in nothing else share one.

    Parameters
    ----------
    chosen : mapping
        Config keys of the method.
    baselines : list of str
        Of `BASELINES`.
    grid : mapping
        Values by config key; empty: one run of each.
    out : Path
        Its folders are called by the method and the baselines; in them lie the run folders of a sweep.

    Raises
    ------
    ConfigError
        A key or value is wrong, or the method is one of the baselines.
    """
    for key in ("algorithm", "pooled"):
        if key in grid:
            raise ConfigError(f"{key} cannot be swept with --against, which runs one method beside its baselines")
    config = RunConfig.from_flat(dict(chosen))
    method = "pooled" if config.pooled else config.algorithm
    if method in baselines:
        raise ConfigError(f"--against {method}: that is what is run already; name another method, or another baseline")
    wanted = _called(method, jobs(chosen, grid, out / method))
    found = {job.folder: job for job in wanted}
    for baseline in baselines:
        for job in wanted:
            common = {key: value for key, value in job.settings.items() if "." not in key}
            point = {key: [job.settings[key]] for key in grid if "." not in key}
            for one in _called(baseline, jobs({**common, **ALONE, **BASELINES[baseline]}, point, out / baseline)):
                found.setdefault(one.folder, one)
    return list(found.values())


def _called(method: str, several: list[Job]) -> list[Job]:
    return [replace(job, name=f"{method} {job.name}".strip()) for job in several]
