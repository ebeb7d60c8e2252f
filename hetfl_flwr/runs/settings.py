"""The config of a run folder: ``config.toml``, and what of it may differ when the run goes on.

Its first line, a comment, names the run, so that a checkpoint of another run is noticed. Where a checkpoint has another
value of a key that may not change, the run does not go on.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from hetfl_flwr.algorithms import resolve
from hetfl_flwr.common.errors import ConfigError, RunFolderError
from hetfl_flwr.config import RunConfig, Value, read_toml, to_toml
from hetfl_flwr.data.sources.folders import is_folder
from hetfl_flwr.runs.schema import CHECKPOINTS, CONFIG_FILE

CHANGEABLE = (
    *("rounds", "checkpoint-every", "track", "callbacks", "accept-loss", "resume", "output-dir"),
    *("start-clients", "start-timeout", "node-keys"),
)
"""Config keys that may differ when a run goes on."""

FOLDERS = ("dataset", "data-dir", "state-dir")
"""Config keys that may name another folder when a run goes on: whether the data are the same is seen from the data."""

PASSING: Mapping[str, Value] = {"resume": False, "accept-loss": False, "output-dir": ""}
"""Keys of one process of a run: a run folder holds these values."""

_MARK = re.compile(rb"# run ([0-9]{1,20})\n")

KeptConfig = Mapping[str, Value]
"""A config as a checkpoint has it: keys and values."""


def settings_file(config: RunConfig, begun: int) -> bytes:
    """Write ``config.toml``, of a run that was begun under an id."""
    return f"# run {begun}\n{to_toml(lasting(config))}".encode()


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
        lost = f": it has checkpoints, but no {CONFIG_FILE}" if (folder / CHECKPOINTS).exists() else ""
        raise RunFolderError(f"{folder} holds no run to resume{lost}")
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


def begun_as(folder: Path) -> int | None:
    """Return the id under which a folder's run was begun; None where ``config.toml`` does not name it."""
    found = _MARK.match((folder / CONFIG_FILE).read_bytes())
    return int(found[1]) if found else None


def check_unchanged(folder: Path, config: RunConfig) -> None:
    """Refuse to go on with the run in a folder under another config.

    Raises
    ------
    ConfigError
        Names a key that differs, and both values; or the file, and what is wrong in it.
    """
    before, now = resolved_config_of(folder).to_flat(), config.to_flat()
    for key in _differing(before, now):
        raise ConfigError(
            f"{folder} was run with {key} = {before.get(key)!r}, not {now[key]!r}: only rounds, checkpoint-every, "
            "track, callbacks, node-keys, accept-loss, how to start and where folders lie may change on resume"
        )


def unlike(folder: Path, kept: KeptConfig) -> str:
    """Return in what ``config.toml`` differs from a checkpoint's config, in keys that may not; empty: in nothing.

    Keys that the checkpoint does not have count as equal.
    """
    here = config_of(folder).to_flat()
    differing = _differing(here, kept)
    return ", ".join(f"{key} = {here.get(key)!r}, and {kept[key]!r} in the checkpoint" for key in differing[:3])


def _differing(one: KeptConfig, other: KeptConfig) -> list[str]:
    """Return the keys of a config that have another value in another one, and may not when the run goes on."""
    return [key for key in other if one.get(key) != other[key] and not _may_change(key, one.get(key), other[key])]


def _may_change(key: str, one: object, other: object) -> bool:
    return key in CHANGEABLE or (key in FOLDERS and is_folder(str(one)) and is_folder(str(other)))
