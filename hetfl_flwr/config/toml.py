"""Config keys in TOML files."""

import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config.values import Value, check_values, usable_path

DEEPEST = 32
"""Tables within each other in a TOML file, at most."""

LARGEST_FILE = 2**20
"""Bytes of a TOML file of config keys, at most."""


def read_toml(path: Path) -> dict[str, Value]:
    """Read a TOML file of config keys, tables flattened with dots."""
    flat = dict(flattened(load_toml(path)))
    try:
        check_values(flat)
        return flat
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.marked}") from None


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as it is.

    Raises
    ------
    ConfigError
        It cannot be read, is not TOML, or is nested more deeply than any config is.
    """
    try:
        loaded = tomllib.loads(_read_small(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except RecursionError:
        loaded = None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path}: not TOML: {error}") from None
    if loaded is None or _depth(loaded) > DEEPEST:
        raise ConfigError(f"{path}: its tables or lists are nested too deeply")
    return loaded


def _depth(table: Mapping[str, Any]) -> int:
    """Return how many tables stand within each other, at most one more than is allowed."""
    tables, depth = [table], 0
    while tables and depth <= DEEPEST:
        tables = [inner for outer in tables for inner in outer.values() if isinstance(inner, dict)]
        depth += 1
    return depth


def _read_small(path: Path) -> str:
    """Return the text of a file; nothing is waited for that another program is to write."""
    state = usable_path(str(path)).stat()
    if stat.S_ISDIR(state.st_mode):
        raise ConfigError(f"{path}: is a folder, expected a TOML file")
    if not stat.S_ISREG(state.st_mode):
        raise ConfigError(f"{path}: is a pipe or a device, expected a TOML file")
    if state.st_size > LARGEST_FILE:
        raise ConfigError(f"{path}: is larger than {LARGEST_FILE} bytes, which no file of config keys is")
    return path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark


def flattened(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Go through a table's keys and values, those of inner tables under dotted names."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", item) for inner, item in flattened(value))
        else:
            yield key, value


def to_toml(values: Mapping[str, Value]) -> str:
    """Write flat config keys as TOML, an algorithm's own keys as its table."""
    nested: dict[str, object] = {key: value for key, value in values.items() if "." not in key}
    for key, value in values.items():
        if "." in key:
            table, _, inner = key.rpartition(".")
            nested.setdefault(table, {})[inner] = value  # type: ignore[index]
    return tomli_w.dumps(nested)
