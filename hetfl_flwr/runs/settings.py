"""The config of a run: what its folder and its checkpoints hold of it, and what of it may differ when the run goes on.

``config.toml`` is for people and for what reads a finished run. A run that goes on takes the config of its checkpoint.
"""

from collections.abc import Mapping
from pathlib import Path

from hetfl_flwr.config import RunConfig, Value, read_toml
from hetfl_flwr.data.folders import is_folder
from hetfl_flwr.errors import ConfigError, RunFolderError
from hetfl_flwr.methods import resolve
from hetfl_flwr.runs.schema import CONFIG_FILE

CHANGEABLE = (
    *("rounds", "checkpoint-every", "track", "callbacks", "accept-loss", "resume", "output-dir"),
    *("start-clients", "start-timeout", "node-keys"),
)
"""Config keys that may differ when a run goes on."""

FOLDERS = ("dataset", "data-dir", "state-dir")
"""Config keys that may name another folder when a run goes on: whether the data are the same is seen from the data."""

PASSING: Mapping[str, Value] = {"resume": False, "accept-loss": False, "output-dir": ""}
"""Keys of one process of a run: a run folder holds these values."""

KeptConfig = Mapping[str, Value]
"""A config as a checkpoint has it: keys and values."""


def lasting(config: RunConfig) -> dict[str, Value]:
    """Return the keys and values of a config as a run folder and its checkpoints hold them."""
    return config.with_values(PASSING).to_flat()


def config_of(folder: Path) -> RunConfig:
    """Return the config that a run folder holds.

    Raises
    ------
    RunFolderError
        It holds none.
    ConfigError
        Names the file, and what is wrong in it.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        raise RunFolderError(f"{folder} holds no run: it has no {CONFIG_FILE}")
    values = read_toml(path)
    try:
        return RunConfig.from_flat(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def resolved_config_of(folder: Path) -> RunConfig:
    """Return the config that a run folder holds, with options of its algorithm that came later as they are today.

    Raises
    ------
    RunFolderError, ConfigError
        As `config_of`; or an option is not what it may be.
    """
    config = config_of(folder)
    try:
        return resolve(config)
    except ConfigError as error:
        raise ConfigError(f"{folder / CONFIG_FILE}: {error}") from None


def check_unchanged(folder: Path, kept: KeptConfig, config: RunConfig) -> None:
    """Refuse to go on with the run in a folder under another config than its checkpoint's.

    Keys that the checkpoint does not have count as equal.

    Raises
    ------
    ConfigError
        Names a key that differs, and both values.
    """
    now = config.to_flat()
    for key, before in kept.items():
        moved = key in FOLDERS and is_folder(str(before)) and is_folder(str(now.get(key)))
        if key not in CHANGEABLE and not moved and now.get(key) != before:
            raise ConfigError(
                f"{folder} was run with {key} = {before!r}, not {now.get(key)!r}: only rounds, checkpoint-every, "
                "track, callbacks, node-keys, accept-loss, how to start and where folders lie may change on resume"
            )
