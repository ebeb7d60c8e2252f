"""The config of a run folder: ``config.toml``, and what of it may differ when the run goes on.

Its first line, a comment, names the run and a checksum of the rest, so that a file that was changed by hand, or is of
another run, is noticed. What holds is what the checkpoints say of the config; where they name a key otherwise than the
file does, the run is not gone on with, or, where the key may change, this is said.
"""

import re
from collections.abc import Mapping
from hashlib import blake2b
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

_MARK = re.compile(rb"# run ([0-9]{1,20}), checksum ([0-9a-f]{32})\n")

KeptConfig = Mapping[str, Value]
"""A config as a checkpoint has it: keys and values."""


def settings_file(config: RunConfig, begun: int | None) -> bytes:
    """Write ``config.toml``, of a run that was begun under an id."""
    content = to_toml(lasting(config)).encode()
    return f"# run {begun}, checksum {_checksum(begun, content)}\n".encode() + content


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
    """Return the id under which a folder's run was begun; None where ``config.toml`` does not say, or was changed."""
    content = (folder / CONFIG_FILE).read_bytes()
    found = _MARK.match(content)
    return int(found[1]) if found and _fits(found, content) else None


def changed_by_hand(folder: Path, kept: KeptConfig) -> list[str]:
    """Return the keys, with both values, that ``config.toml`` has otherwise than the checkpoint, if it was changed."""
    content = (folder / CONFIG_FILE).read_bytes()
    found = _MARK.match(content)
    if found and _fits(found, content):
        return []
    return [f"{key} = {ours!r}, and was {theirs!r}" for key, ours, theirs in _differing(config_of(folder), kept)]


def check_unchanged(folder: Path, config: RunConfig) -> None:
    """Refuse to go on with the run in a folder under another config.

    Raises
    ------
    ConfigError
        Names a key that differs, and both values; or the file, and what is wrong in it.
    """
    before = resolved_config_of(folder).to_flat()
    for key, value in config.to_flat().items():
        if before.get(key) != value and not _may_change(key, before.get(key), value):
            raise ConfigError(
                f"{folder} was run with {key} = {before.get(key)!r}, not {value!r}: "
                "only rounds, checkpoint-every, track, callbacks, node-keys, accept-loss, how to start and where "
                "folders lie may change on resume"
            )


def unlike(folder: Path, kept: KeptConfig) -> str:
    """Say in what ``config.toml`` differs from a checkpoint's config, in keys that may not; nothing if it does not.

    Keys that the checkpoint does not know, of a later version, count as they are today.
    """
    config = config_of(folder)
    differing = [one for one in _differing(config, kept) if not _may_change(*one)]
    return ", ".join(f"{key} = {ours!r}, and {theirs!r} in the checkpoint" for key, ours, theirs in differing[:3])


def _may_change(key: str, one: object, other: object) -> bool:
    """Say whether a key may have one value where it had the other."""
    return key in CHANGEABLE or (key in FOLDERS and is_folder(str(one)) and is_folder(str(other)))


def _differing(config: RunConfig, kept: Mapping[str, Value]) -> list[tuple[str, object, object]]:
    """Return the keys of a checkpoint's config that another has otherwise, with that one's value and its own."""
    here = config.to_flat()
    return [(key, here.get(key), value) for key, value in kept.items() if key not in PASSING and here.get(key) != value]


def _fits(mark: re.Match[bytes], content: bytes) -> bool:
    return mark[2].decode() == _checksum(int(mark[1]), content[mark.end() :])


def _checksum(begun: int | None, content: bytes) -> str:
    return blake2b(f"{begun}\n".encode() + content, digest_size=16).hexdigest()
