"""The places that a command line can name."""

from collections.abc import Callable, Mapping

from hetfl_flwr.common.errors import ConfigError, unknown
from simulations.studies.places.cluster import Cluster
from simulations.studies.places.here import Here
from simulations.studies.places.place import Place

PLACES: Mapping[str, Callable[[int], Place]] = {"here": Here, "ray": Cluster}
"""By name, what makes one with so many runs at a time: processes of this machine, or a Ray cluster."""


def place(on: str, workers: int) -> Place:
    """Return a place by its name.

    Raises
    ------
    ConfigError
        There is none of this name.

    Examples
    --------
    >>> place("here", 2)
    Here(workers=2)
    """
    if on not in PLACES:
        raise ConfigError(f"--on: {unknown('place', on, PLACES)}")
    return PLACES[on](workers)
