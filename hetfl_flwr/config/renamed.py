"""Config keys that once had another name: the old one still works, with a warning."""

from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.common.notices import warn

T = TypeVar("T")

RENAMED = {
    "own-keys": "algorithm-options",
    "even-tests": "iid-evaluation",
    "absent-fraction": "nonparticipating-fraction",
    "halved-fraction": "half-data-fraction",
}
"""The name of today, by the name of version 0.1.0."""


def renamed(values: Mapping[str, T]) -> dict[str, T]:
    """Return config keys and values with old names replaced; each is warned of once per process.

    Parameters
    ----------
    values : mapping of str to value
        Keys as they were given.

    Returns
    -------
    dict
        The same values under the names of today.

    Raises
    ------
    ConfigError
        A key was given under both of its names.
    """
    for old in RENAMED.keys() & values.keys():
        if RENAMED[old] in values:
            raise ConfigError(f"{old} is the old name of {RENAMED[old]}: both are set; leave {old} out")
        _warn(old)
    return {RENAMED.get(key, key): value for key, value in values.items()}


@cache
def _warn(old: str) -> None:
    warn(f"{old} is now called {RENAMED[old]}; the old name will be removed in the next release")
