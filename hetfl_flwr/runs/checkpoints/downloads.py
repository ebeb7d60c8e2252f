"""What clients are measured with, as a checkpoint keeps it: arrays that several are sent, or the server has, once."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.wire.spec import Arrays

PREFIX = "sent to clients: "
"""How the names of arrays begin that are none of the server state's."""

Names = Mapping[str, Mapping[str, str]]
"""By client id, as JSON can hold it, and by the name of an array in its download: the name under which it is kept."""


def pooled(state: Arrays, downloads: Iterable[tuple[int, Arrays]]) -> tuple[dict[str, NDArray[Any]], Names]:
    """Return the arrays to be kept beside a server state, and where each client's are.

    Examples
    --------
    >>> state = {"mean": np.ones(3)}
    >>> pool, names = pooled(state, [(0, {"mean": np.ones(3)}), (1, {"part": np.ones(2)}), (2, {"part": np.ones(2)})])
    >>> list(pool), names["0"]["mean"], names["2"]["part"]
    (['sent to clients: 0'], 'mean', 'sent to clients: 0')
    """
    keys = {_bits(array): name for name, array in state.items()}
    seen = {id(array): (array, name) for name, array in state.items()}  # held, so that an id stays its own
    pool: dict[str, NDArray[Any]] = {}
    names: dict[str, dict[str, str]] = {}
    for client_id, download in downloads:
        own = names.setdefault(str(client_id), {})
        for name, array in download.items():
            if id(array) not in seen:
                key = keys.setdefault(_bits(array), f"{PREFIX}{len(pool)}")
                if key.startswith(PREFIX):
                    pool.setdefault(key, array)
                seen[id(array)] = array, key
            own[name] = seen[id(array)][1]
    return pool, names


def _bits(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.str, array.shape, blake2b(np.ascontiguousarray(array).data, digest_size=32).digest()
