"""The config of a run with nothing left to guess: the one place where what a user leaves open is settled."""

from functools import cache
from pathlib import Path

from hetfl_flwr.common.notices import warn
from hetfl_flwr.config import BUNDLED, DEFAULT_CLIENTS, MAX_CLIENTS, RunConfig, Value
from hetfl_flwr.data import absolute, most_clients
from hetfl_flwr.data.domains import own_data_sets
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.methods import resolve
from hetfl_flwr.runs.results import new_folder

NOT_POOLED = "pooled = true: a node has rows of its own alone; those of all are put together in simulations only"

MANY_OWNERS = 100
"""Owners above which a run that names no number of clients says how many it has."""


def resolved(config: RunConfig, engine: str) -> RunConfig:
    """Return a config as it holds; one that leaves nothing open comes back itself.

    Settled are the data set of simulated clients, the run folder, the algorithm's own keys, ``models`` and ``width``;
    in the local engine also the number of clients, and all paths, which are absolute.

    Parameters
    ----------
    config : RunConfig
        What the user has said.
    engine : str
        ``local``, ``simulation`` or ``deployment``.

    Raises
    ------
    ConfigError
        As `hetfl_flwr.methods.resolve`; or a deployment is to put rows of its nodes together.
    """
    if engine == "deployment" and config.pooled:
        raise ConfigError(NOT_POOLED)
    named = config.dataset if engine == "deployment" else config.dataset or BUNDLED
    settled: dict[str, Value] = {"dataset": absolute(named) if engine == "local" else named}
    if engine == "local":
        settled["clients"] = config.clients or default_clients(config)
        for key, value in (("data-dir", config.data_dir), ("state-dir", config.state_dir)):
            settled[key] = str(Path(value).expanduser().resolve()) if value else ""
    config = _with(config, settled)
    return resolve(_with(config, {"output-dir": str(new_folder(config))}))


def default_clients(config: RunConfig) -> int:
    """Return the number of clients of a local run that names none.

    It is that of the owners of its rows, or else of the folders and files that it lists, or else 10. Very many owners
    give a warning: the column may not be one of owners.

    Raises
    ------
    ConfigError
        If there are more owners than a run has clients.
    DataError
        If the data cannot be read to count them.
    """
    owners = most_clients(config.with_data().split(1))
    if owners > MAX_CLIENTS:
        raise ConfigError(
            f"partition '{config.partition}': {owners} owners, more than {MAX_CLIENTS} clients: set clients, each of "
            "which then has several owners"
        )
    if owners > MANY_OWNERS:
        _say_many(config.partition, owners)
    return owners or own_data_sets(config.dataset) or DEFAULT_CLIENTS


@cache
def _say_many(partition: str, owners: int) -> None:
    """Say once a process how many clients there are."""
    warn(f"partition '{partition}' has {owners} owners, each of them a client: fewer clients, such as 20, merge owners")


def _with(config: RunConfig, values: dict[str, Value]) -> RunConfig:
    flat = config.to_flat()
    changed = {key: value for key, value in values.items() if flat[key] != value}
    return config.with_values(changed) if changed else config
