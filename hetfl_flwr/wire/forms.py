"""A declared payload, ready to check many arrays by: what holds for every payload is found out once."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.wire.spec import SIMPLEX_TOLERANCE, Arrays, ArraySpec, PayloadSpec

MAX_FORMS = 1000
"""Forms that a process keeps."""

Shapes = tuple[tuple[int, ...], ...]


class Form:
    """Checks arrays by a declaration, in one pass over each; what is wrong is found out by the declaration itself.

    Parameters
    ----------
    spec : PayloadSpec
        The declaration.

    Attributes
    ----------
    names : tuple of str
        The arrays' names, in order.
    """

    def __init__(self, spec: PayloadSpec) -> None:
        self.spec, self.names = spec, spec.names
        self._fits = [_fits(one) for one in spec.arrays]
        self._dtypes = [np.dtype(one.dtype) for one in spec.arrays]
        self._known: set[Shapes] = set()

    def check(self, arrays: Arrays, where: str) -> None:
        """Raise `PayloadError` unless arrays are as declared, as `PayloadSpec.check_named`."""
        values = arrays.values()
        try:
            shapes, dtypes = tuple([one.shape for one in values]), [one.dtype for one in values]
        except AttributeError:  # no array
            shapes, dtypes = (), []
        if tuple(arrays) != self.names or shapes not in self._known or dtypes != self._dtypes:
            self.spec.check_named(arrays, where)
            self._known.add(shapes)
            return
        for fits, array in zip(self._fits, values, strict=True):
            if fits is not None and not fits(array):
                self.spec.check_named(arrays, where)
                return


_forms: dict[tuple[Any, ...], Form] = {}


def form_of(spec: PayloadSpec) -> Form:
    """Return the form of a declaration, the same for all that ask for the same."""
    key = tuple(map(astuple, spec.arrays))
    if key not in _forms:
        if len(_forms) >= MAX_FORMS:
            _forms.clear()
        _forms[key] = Form(spec)
    return _forms[key]


def _fits(spec: ArraySpec) -> Callable[[NDArray[Any]], bool] | None:
    """Return what says whether an array's values may be as declared; None: all may."""
    floating = np.dtype(spec.dtype).kind == "f"
    limits = spec.minimum, spec.maximum, spec.total
    if not floating and limits == (None, None, None) and not spec.nonzero:
        return None
    most = float(np.finfo(spec.dtype).max) if floating else inf
    low = (0.0 if spec.sums_to_one else -most) if spec.minimum is None else spec.minimum
    high = most if spec.maximum is None else spec.maximum
    least, largest, add = np.minimum.reduce, np.maximum.reduce, np.add.reduce
    total, nonzero, simplex = spec.total, spec.nonzero, spec.sums_to_one

    def fits(array: NDArray[Any]) -> bool:
        if not array.size:
            return True
        flat = array.reshape(-1)
        if not (low <= least(flat) and largest(flat) <= high):  # so it is for NaN
            return False
        if simplex and np.abs(add(array, -1, np.float64) - 1).max() > SIMPLEX_TOLERANCE:
            return False
        if total is not None and float(add(flat, 0, np.float64)) > total:
            return False
        return not nonzero or bool(flat.any())

    return fits


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
