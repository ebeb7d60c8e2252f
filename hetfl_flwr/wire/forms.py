"""Arrays and numbers by reference, and what their bytes in a message depend on."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.wire.spec import Arrays


def frozen(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return arrays that nobody changes any more: read-only, in C order, and no views of what somebody may change."""
    kept = {}
    for name, one in arrays.items():
        array = np.asarray(one)
        flags = array.flags
        if (flags.writeable and not (flags.owndata and flags.c_contiguous)) or not flags.c_contiguous:
            array = np.array(array, order="C")
        array.flags.writeable = False
        kept[name] = array
    return kept


def sizes(values: Mapping[Any, Any]) -> tuple[object, ...]:
    """Return what the bytes of named numbers, or of lists of them, in a message depend on."""
    return (
        *values,
        *[
            "f"
            if isinstance(one, float)
            else (2 * one if one >= 0 else -2 * one - 1).bit_length()  # as protobuf writes it
            if isinstance(one, int)
            else sizes(dict(enumerate(one)))
            if isinstance(one, list)
            else repr(one)
            for one in values.values()
        ],
    )
