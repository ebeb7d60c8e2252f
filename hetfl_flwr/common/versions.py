"""Versions of the packages on which a run's bits depend."""

from functools import cache
from importlib.metadata import version

PACKAGES = ("hetfl", "flwr", "torch")
"""Their names."""


@cache
def installed() -> dict[str, str]:
    """Return the version of each of `PACKAGES` in this process."""
    return {package: version(package) for package in PACKAGES}
