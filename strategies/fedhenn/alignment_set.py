"""The samples that FedHeNN aligns on: R of the clients' public samples, drawn again for each round."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.common.errors import FederationError
from hetfl_flwr.common.seeding import generator
from hetfl_flwr.learning.alignment.similarity import FEWEST_SAMPLES
from hetfl_flwr.server.messaging.member import Sharing
from hetfl_flwr.wire.samples import Numbers, PublicIndex
from hetfl_flwr.wire.spec import Arrays

Shared = Mapping[int, Arrays]
"""The public samples of each client."""


def sharing_of(rad: str) -> Sharing:
    """Return what is needed of public samples, by the way in which alignment sets travel."""
    return Sharing(labelled=False, to_clients=rad == "index")


def draw(shared: Shared, size: int, seed: int, number: int) -> Numbers:
    """Draw an alignment set: the places (R, 2) of its rows."""
    index = PublicIndex.of(shared)
    total = check_enough(len(index))
    return index.places(generator(seed, number, "rad").choice(total, min(size, total), replace=False))


def as_sent(shared: Shared, places: NDArray[np.integer[Any]], rad: str) -> NDArray[Any]:
    """Return an alignment set as it travels: numbers of rows in the pool, or the rows themselves."""
    if rad == "index":
        return PublicIndex.of(shared).numbers(places).astype(np.int32)
    some = next(iter(shared.values()))["inputs"]
    samples = np.empty((len(places), *some.shape[1:]), some.dtype)
    clients, rows = places.T
    for client in np.unique(clients).tolist():
        samples[clients == client] = shared[client]["inputs"][rows[clients == client]]
    return samples


def check_enough(rows: int) -> int:
    """Return a number of public samples.

    Raises
    ------
    FederationError
        They are too few to align on.
    """
    if rows < FEWEST_SAMPLES:
        raise FederationError(
            f"fedhenn aligns on {FEWEST_SAMPLES} public samples or more, but all clients together have {rows}: "
            "raise public-fraction"
        )
    return rows
