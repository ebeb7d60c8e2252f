"""The config of a run: how it is resolved, how its folder stores it, and which keys may change on resume."""

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path

from hetfl_flwr.common.notices import warn
from hetfl_flwr.config import BUNDLED, DEFAULT_CLIENTS, MAX_CLIENTS, RunConfig, Value, read_toml
from hetfl_flwr.data import absolute, most_clients, own_digest
from hetfl_flwr.data.domains import data_sets
from hetfl_flwr.data.folders import dataset_called, is_folder
from hetfl_flwr.data.reading import parse_data_sets
from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.methods import resolve
from hetfl_flwr.runs.record import CONFIG_FILE
from hetfl_flwr.wire.naming import OWN

CHANGEABLE = (
    *("rounds", "checkpoint-every", "track", "callbacks", "accept-loss", "resume", "output-dir"),
    *("start-clients", "start-timeout", "node-keys"),
)
"""Config keys that may change on resume."""

FOLDERS = ("dataset", "data-dir", "state-dir")
"""Config keys that may name another folder on resume: the data themselves show whether they are the same."""

PROCESS_KEYS: Mapping[str, Value] = {"resume": False, "accept_loss": False, "output_dir": ""}
"""Keys that concern one process of a run, with the values that the run folder stores instead."""

NOT_POOLED = "pooled = true: a node has only its own rows, and only simulations can pool rows; set it to false"

MANY_OWNERS = 100
"""Number of owners above which a run without a number of clients warns that each owner becomes a client."""


def resolved(config: RunConfig, engine: str) -> RunConfig:
    """Return a config with all defaults resolved.

    These are the data set of simulated clients, the run folder, the algorithm's own keys, ``models`` and ``width``; in
    the local engine also the number of clients, and all paths become absolute. Raises `ConfigError` as
    `hetfl_flwr.methods.resolve` does, and for ``pooled`` in a deployment.
    """
    if engine == "deployment" and config.pooled:
        raise ConfigError(NOT_POOLED)
    named = config.dataset if engine == "deployment" else config.dataset or BUNDLED
    settled: dict[str, Value] = {"dataset": absolute(named) if engine == "local" else named}
    if engine == "local":
        settled["clients"] = config.clients or default_clients(config)
        for key, value in (("data_dir", config.data_dir), ("state_dir", config.state_dir)):
            settled[key] = str(Path(value).expanduser().resolve()) if value else ""
    settled["output_dir"] = str(new_folder(config.model_copy(update={"dataset": settled["dataset"]})))
    return resolve(config.model_copy(update=settled))


def default_clients(config: RunConfig) -> int:
    """Return the number of clients of a local run that does not set it.

    It is the number of owners of rows, else the number of listed folders and files, else 10. More than `MANY_OWNERS`
    give a warning, because the column may not hold owners. Raises `ConfigError` if there are more owners than a
    run may have clients, and `DataError` if the data cannot be read to count them.
    """
    owners = most_clients(config.with_data().split(1))
    if owners > MAX_CLIENTS:
        raise ConfigError(
            f"partition '{config.partition}': {owners} owners, more than the limit of {MAX_CLIENTS} clients: set "
            "clients; each client then has several owners"
        )
    if owners > MANY_OWNERS:
        _warn_many(config.partition, owners)
    names = parse_data_sets(config.dataset)
    own = len(names) if len(names) > 1 and all(map(is_folder, names)) else 0
    return owners or own or DEFAULT_CLIENTS


@cache
def _warn_many(partition: str, owners: int) -> None:
    """Warn about the number of clients, once per process."""
    warn(f"partition '{partition}': each of {owners} owners is a client; to merge owners, set clients, such as 20")


def new_folder(config: RunConfig) -> Path:
    """Return the run folder that a config names, or a new one under ``runs/`` in the working directory."""
    if config.output_dir:
        return Path(config.output_dir).expanduser().resolve()
    called = dataset_called(config.dataset or OWN).replace("/", "-").replace(" ", "-")
    what = f"{config.algorithm}-{called}".encode()[:150].decode(errors="ignore")
    name = f"{what}-seed{config.seed}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, tries = Path.cwd() / "runs" / name, 1
    while folder.exists():
        tries += 1
        folder = folder.with_name(f"{name}-{tries}")
    return folder


def stored_config(config: RunConfig) -> dict[str, Value]:
    """Return the keys and values of a config as run folders and checkpoints store them."""
    return config.model_copy(update=PROCESS_KEYS).to_flat()


def config_of(folder: Path) -> RunConfig:
    """Return the config in a run folder, with today's defaults for algorithm options that it lacks.

    Raises `RunFolderError` if there is no config, and `ConfigError` if it is invalid.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        raise RunFolderError(f"{folder} holds no run: it has no {CONFIG_FILE}")
    values = read_toml(path)
    try:
        return resolve(RunConfig.from_flat(values))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def data_of(config: RunConfig) -> list[str]:
    """Return a digest of a simulated run's local data sets; none if it has none, or if files of one are gone.

    Data sets that come from the hub or with a library do not change. Raises `ConfigError` or `DataError` if the data
    cannot be read.
    """
    own = [one for one in data_sets(config.dataset, config.reading) if one.is_local] if config.dataset else []
    if not own or not all(one.can_change for one in own):
        return []
    return [own_digest(config.split(config.clients or default_clients(config)))]


def check_unchanged(folder: Path, kept: Mapping[str, Value], config: RunConfig) -> None:
    """Raise a `RunFolderError` if a run is resumed with a different value of a key that must not change.

    Keys that the checkpoint's config lacks count as equal.
    """
    now = config.to_flat()
    for key, before in kept.items():
        moved = key in FOLDERS and is_folder(str(before)) and is_folder(str(now.get(key)))
        if key not in CHANGEABLE and not moved and now.get(key) != before:
            raise RunFolderError(
                f"{folder} was run with {key} = {before!r}, not {now.get(key)!r}: only rounds, checkpoint-every, "
                "track, callbacks, node-keys, accept-loss, start-clients, start-timeout and paths may change on resume"
            )
