"""The backends that a command line can name."""

from collections.abc import Callable

from hetfl_flwr.common.errors import ConfigError, unknown
from simulations.studies.backends.backend import Backend
from simulations.studies.backends.cluster import RayBackend
from simulations.studies.backends.local import LocalBackend

BACKENDS: dict[str, Callable[[int], Backend]] = {"local": LocalBackend, "ray": RayBackend}
"""By name, what makes one with so many runs at a time: processes of this machine, or a Ray cluster."""


def backend(on: str, workers: int) -> Backend:
    """Return a backend by its name.

    Raises
    ------
    ConfigError
        There is none of this name.

    Examples
    --------
    >>> backend("local", 2)
    LocalBackend(workers=2)
    """
    if on not in BACKENDS:
        raise ConfigError(f"--on: {unknown('backend', on, BACKENDS)}")
    return BACKENDS[on](workers)
