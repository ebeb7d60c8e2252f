"""A declared payload, ready to check many arrays by: what holds for every payload is found out once."""

from collections.abc import Iterable, Mapping
from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.wire.spec import Arrays, PayloadSpec

MAX_FORMS = 1000
"""Forms that a process keeps."""

Shapes = tuple[tuple[int, ...], ...]


class Form:
    """A declaration that many share.

    Parameters
    ----------
    spec : PayloadSpec
        The declaration.
    """

    def __init__(self, spec: PayloadSpec) -> None:
        self.spec = spec

    def check(self, arrays: Arrays, where: str) -> None:
        """Raise `PayloadError` unless arrays are as declared, as `PayloadSpec.check_named`."""
        self.spec.check_named(arrays, where)


_forms: dict[tuple[Any, ...], Form] = {}


def form_of(spec: PayloadSpec) -> Form:
    """Return the form of a declaration, the same for all that ask for the same."""
    key = tuple(map(astuple, spec.arrays))
    if key not in _forms:
        if len(_forms) >= MAX_FORMS:
            _forms.clear()
        _forms[key] = Form(spec)
    return _forms[key]


def twins(arrays: Iterable[NDArray[Any]]) -> tuple[int, ...]:
    """Return, for each array, the position of the first that equals it in dtype, shape and bytes: Flower sends one."""
    found: dict[tuple[Any, ...], int] = {}
    alike: dict[tuple[Any, ...], list[int]] = {}
    every = list(arrays)
    for place, one in enumerate(every):
        alike.setdefault((one.dtype, one.shape), []).append(place)
    if len(alike) == len(every):
        return ()
    first = list(range(len(every)))
    for kind, places in alike.items():
        for place in places if len(places) > 1 else ():
            first[place] = found.setdefault((*kind, every[place].tobytes()), place)
    return tuple(first)


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
