"""What the groups of keys share."""

from pydantic import BaseModel, ConfigDict, ValidationInfo

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.config.values import usable_path

MOST = 2**31 - 1
"""Largest whole number of a key that has no smaller bound of its own."""

PER_NODE = "per node"
"""Mark of a key that a node may set for itself."""


def kebab(name: str) -> str:
    """Return the name of a key, by that of its attribute."""
    return name.replace("_", "-")


class Keys(BaseModel):
    """Some keys, typed and checked. They are spelled with dashes on the outside, as attributes inside."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=kebab,
        populate_by_name=True,
    )


def checked_path(text: str, info: ValidationInfo) -> str:
    """Return a key's value, which is empty or the name of a file or folder.

    Raises
    ------
    ConfigError
        Names the key.
    """
    try:
        if text:
            usable_path(text)
    except ConfigError as error:
        raise ConfigError(f"{kebab(info.field_name or '')} = {error.marked}") from None
    return text
