"""What clients are measured with, as a checkpoint keeps it: arrays that several are sent, or the server has, once."""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.wire.spec import Arrays

PREFIX = "sent to clients: "
"""How the names of arrays begin that are none of the server state's."""


class Download(TypedDict):
    """Clients that are sent the same to measure with."""

    clients: list[int]
    arrays: dict[str, str]
    """By the name of an array in their download: the name under which the checkpoint has it."""


def pooled(state: Arrays, downloads: Iterable[tuple[int, Arrays]]) -> tuple[dict[str, NDArray[Any]], list[Download]]:
    """Return the arrays to be kept beside a server state, and who is sent which.

    Examples
    --------
    >>> state = {"mean": np.ones(3)}
    >>> one, other = {"part": np.ones(2)}, {"part": np.zeros(2)}
    >>> pool, sent = pooled(state, [(0, {"mean": np.ones(3)}), (1, one), (2, other), (3, {"part": np.ones(2)})])
    >>> list(pool)
    ['sent to clients: 0', 'sent to clients: 1']
    >>> [alike["clients"] for alike in sent], sent[1]["arrays"]
    ([[0], [1, 3], [2]], {'part': 'sent to clients: 0'})
    """
    keys = {_bits(array): name for name, array in state.items()}
    seen = {id(array): (array, name) for name, array in state.items()}  # held, so that an id stays its own
    pool: dict[str, NDArray[Any]] = {}
    alike: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for client_id, download in downloads:
        own: dict[str, str] = {}
        for name, array in download.items():
            if id(array) not in seen:
                key = keys.setdefault(_bits(array), f"{PREFIX}{len(pool)}")
                if key.startswith(PREFIX):
                    pool.setdefault(key, array)
                seen[id(array)] = array, key
            own[name] = seen[id(array)][1]
        alike.setdefault(tuple(own.items()), []).append(client_id)
    return pool, [{"clients": clients, "arrays": dict(own)} for own, clients in alike.items()]


def _bits(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.str, array.shape, blake2b(np.ascontiguousarray(array).data, digest_size=32).digest()
