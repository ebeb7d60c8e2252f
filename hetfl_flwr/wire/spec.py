"""Payload specifications: named arrays with declared shapes, dtypes and ranges, checked on receipt.

The algorithm declares everything that leaves a client or the server. A receiver checks names, count, shapes, dtypes,
ranges and finiteness before use. In shapes, B is the batch, C classes, D feature width, K clients, and R alignment
samples.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from math import inf, prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.errors import PayloadError

_least, _largest = np.minimum.reduce, np.maximum.reduce

T = TypeVar("T")

Arrays = Mapping[str, NDArray[Any]]
"""Named arrays, in the order of their declaration."""

SIMPLEX_TOLERANCE = 1e-4
"""Largest accepted difference of a distribution's sum from 1; float32 rounding over thousands of classes is smaller."""

HALF_TOLERANCE = 1e-3
"""The same for half precision, which rounds each value by up to one part in 2048."""

LEARNT_LIMIT = 1e6
"""Largest accepted magnitude of logits and weights. Larger ones have diverged: they dominate a mean or overflow."""

STATISTIC_LIMIT = 1e18
"""Largest accepted magnitude of running statistics; its square still fits into float32."""

TRAINED_SIZE = 10.0
"""Root mean square that logits and representations of trained models reach. Before training it is below 1."""

MAX_INTERNED = 1000
"""Maximum number of declarations in the cache of a process."""

MAX_FORMS = 1000
"""Maximum number of combinations of dtypes and shapes in the cache of a declaration."""

COUNTER_LIMIT = 2**53
"""Largest accepted magnitude of integer buffers, such as step counters: float64 represents all integers up to it."""


@dataclass(frozen=True)
class Dim:
    """A dimension with a size that only the sender knows.

    Parameters
    ----------
    letter : str
        The name of the dimension. In one payload, dimensions with the same letter have the same size.
    most : int
        The largest accepted size. 0 is always accepted.
    step : int
        The size must be a multiple of it: 1, or `most` to accept only 0 and `most`.
    """

    letter: str
    most: int
    step: int = 1

    def __repr__(self) -> str:
        """Return the dimension as error messages show it."""
        return f"{self.letter} <= {self.most}" if self.step == 1 else f"{self.letter} 0 or {self.most}"

    def takes(self, size: int) -> bool:
        """Return whether a size is accepted."""
        return 0 <= size <= self.most and size % self.step == 0


@dataclass(frozen=True)
class ArraySpec:
    """The declaration of one array.

    Parameters
    ----------
    name : str
        The key of the array in messages.
    shape : tuple of int or Dim
        The exact shape, except for sizes that only the sender knows; ``()`` is a scalar.
    dtype : str
        The exact NumPy dtype, such as ``"float32"``.
    minimum, maximum : float, optional
        The smallest and largest allowed value, such as 0 for counts. None: any finite value.
    sums_to_one : bool
        Whether each row is a probability distribution: no value below 0, and a sum of 1 within `SIMPLEX_TOLERANCE`.
    nonzero : bool
        Whether an array of zeros is rejected.
    sensitive : bool
        For integers, whether they are counts of private data. Clipping and noise then apply to them as to all
        floating-point numbers, and with clipping the client sends only whether there are any, as 1 or 0.
    update : bool
        Whether it is the new value of the array with the same name and shape that the server has sent, such as
        weights. `hetfl_flwr.server.guard.Guard` then compares the size of the change, not of the array.
    frozen : bool
        Whether it is a weight without ``requires_grad``. Clipping and noise do not apply to it unless it has changed.
    usual : float
        The size that honest clients may reach while others are far below it, because their models or their progress
        differ. `hetfl_flwr.server.guard.Guard` accepts any size up to it. For an update, the guard uses a twentieth of
        the size of what was sent, or of the payload's matrices.
    total : int, optional
        The largest allowed sum of all values, none of which is below 0. None: any sum.
    factors : tuple of str
        The names of two other arrays of the payload. If this array has no rows, its value is their matrix product, and
        `hetfl_flwr.server.guard.Guard` compares the product, never the factors. Default: none.
    """

    name: str
    shape: tuple[int | Dim, ...]
    dtype: str
    minimum: float | None = None
    maximum: float | None = None
    sums_to_one: bool = False
    nonzero: bool = False
    sensitive: bool = False
    update: bool = field(default=False, compare=False, repr=False)
    frozen: bool = field(default=False, compare=False, repr=False)
    usual: float = field(default=1.0, compare=False, repr=False)
    total: int | None = field(default=None, compare=False, repr=False)
    factors: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_amount(self) -> bool:
        """Whether the sizes of its values are comparable: not for probabilities, row numbers or flags."""
        kind = np.dtype(self.dtype).kind
        whole = kind in "iu" and self.maximum in (None, COUNTER_LIMIT)
        return whole or (kind == "f" and not self.sums_to_one and self.maximum != 1)

    def halved(self) -> "ArraySpec":
        """Return the declaration in half precision: float32 becomes float16, and other dtypes do not change."""
        return replace(self, dtype="float16") if self.dtype == "float32" else self

    def widened(self, array: NDArray[Any]) -> NDArray[Any]:
        """Convert an array from half precision to its declared dtype; normalize distributions."""
        wide: NDArray[Any] = array.astype(self.dtype, copy=False)
        if not self.sums_to_one:
            return wide
        sums = wide.sum(-1, keepdims=True, dtype=np.float64)
        rounded = np.abs(sums - 1) <= HALF_TOLERANCE  # other rows were not distributions before: `check` rejects them
        return np.where(rounded, wide / np.where(rounded, sums, 1.0), wide).astype(self.dtype)

    def check(self, array: NDArray[Any], where: str) -> None:
        """Raise `PayloadError` if an array does not match the declaration."""
        PayloadSpec((self,)).check_named({self.name: array}, where)

    def check_form(self, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> None:
        """Raise `PayloadError` if dtype or shape of an array do not match the declaration."""
        if dtype != np.dtype(self.dtype):
            raise PayloadError(f"{where}: array '{self.name}' has dtype {dtype}, expected {self.dtype}")
        fits = len(shape) == len(self.shape) and all(
            expected.takes(size) if isinstance(expected, Dim) else size == expected
            for size, expected in zip(shape, self.shape, strict=True)
        )
        if not fits:
            raise PayloadError(f"{where}: array '{self.name}' has shape {shape}, expected {self.shape}")

    def _check_values(self, array: NDArray[Any], where: str) -> None:
        low, high = self._range
        named = f"{where}: array '{self.name}'"
        if not np.isfinite(array).all():
            raise PayloadError(f"{named} has values that are not finite")
        if array.min() < low:
            raise PayloadError(f"{named} has values below {low:g}")
        if array.max() > high:
            raise PayloadError(f"{named} has values above {high:g}")

    def _check_conditions(self, array: NDArray[Any], where: str) -> None:
        """Raise `PayloadError` if values within their bounds violate a joint condition, such as on their sum."""
        if not array.size:
            return
        if self.sums_to_one:
            furthest = float(np.abs(array.sum(-1, dtype=np.float64) - 1).max())
            if furthest > SIMPLEX_TOLERANCE:
                raise PayloadError(
                    f"{where}: array '{self.name}' has rows that do not sum to 1 (off by {furthest:.2g})"
                )
        if self.total is not None and (total := float(array.sum(dtype=np.float64))) > self.total:
            raise PayloadError(f"{where}: array '{self.name}' adds up to {total:.15g}, expected at most {self.total}")
        if self.nonzero and not array.any():
            raise PayloadError(f"{where}: array '{self.name}' is all zero")

    @cached_property
    def _range(self) -> tuple[float, float]:
        """The smallest and largest allowed value. For floating-point numbers both are finite, which excludes NaN."""
        dtype = np.dtype(self.dtype)
        most = float(np.finfo(dtype).max) if dtype.kind == "f" else inf
        low = (0.0 if self.sums_to_one else -most) if self.minimum is None else self.minimum
        high = most if self.maximum is None else self.maximum
        return low, high

    @property
    def nbytes(self) -> int:
        """Size in bytes without any header; if the shape has a `Dim`, the largest accepted size."""
        sizes = (size.most if isinstance(size, Dim) else size for size in self.shape)
        return prod(sizes) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class PayloadSpec:
    """The declaration of a payload: its arrays, in order."""

    arrays: tuple[ArraySpec, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, in order."""
        return tuple(spec.name for spec in self.arrays)

    @cached_property
    def amounts(self) -> tuple[ArraySpec, ...]:
        """The arrays with `ArraySpec.is_amount`, except factors of others."""
        factors = {name for one in self.arrays for name in one.factors}
        return tuple(one for one in self.arrays if one.is_amount and one.name not in factors)

    @property
    def nbytes(self) -> int:
        """Size in bytes of the arrays alone, as papers count it; if a shape has a `Dim`, the largest accepted size."""
        return sum(spec.nbytes for spec in self.arrays)

    def __add__(self, other: "PayloadSpec") -> "PayloadSpec":
        """Return a payload with the arrays of both, this payload's first."""
        return PayloadSpec(self.arrays + other.arrays)

    def check_named(self, arrays: Arrays, where: str, checked: "PayloadSpec | None" = None) -> dict[str, NDArray[Any]]:
        """Check the names, the order and each of the arrays, and return them as a dict.

        Parameters
        ----------
        arrays : mapping of str to array
            The arrays, in the declared order.
        where : str
            The sender, for error messages.
        checked : PayloadSpec, optional
            The declaration that the arrays have already been checked against. If it equals this one, only
            `ArraySpec.total` is checked.

        Raises
        ------
        PayloadError
            If the arrays do not match the declaration. The message names the sender, the array, and the expected and
            the received value.
        """
        if checked is not None and self._equals_except_total(checked):
            for spec in self._summed:
                spec._check_conditions(arrays[spec.name], where)
            return dict(arrays)
        if tuple(arrays) != self.names:
            self.check_names(arrays, where)
        values = [*arrays.values()]
        forms = tuple([(type(one), getattr(one, "dtype", None), getattr(one, "shape", None)) for one in values])
        if forms not in self._forms:
            self._check_forms(arrays, where)
            if len(self._forms) >= MAX_FORMS:
                self._forms.clear()
            self._forms.add(forms)
        for spec, place, low, high in self._bounded:
            array = values[place]
            if array.size and not (low <= _least(array, None) and (high == inf or _largest(array, None) <= high)):
                spec._check_values(array, where)
        for spec, place in self._conditioned:
            spec._check_conditions(values[place], where)
        return dict(arrays)

    def _check_forms(self, arrays: Arrays, where: str) -> None:
        """Raise `PayloadError` if types, dtypes or shapes differ from the declaration."""
        for spec, array in zip(self.arrays, arrays.values(), strict=True):
            if not isinstance(array, np.ndarray):
                raise PayloadError(f"{where}: array '{spec.name}' is not an array but {type(array).__name__}")
            spec.check_form(array.dtype, array.shape, where)
        known: dict[str, tuple[str, int]] = {}
        for spec, axis, letter in self._dims:  # dimensions with the same letter have the same size
            first, size = known.setdefault(letter, (spec.name, arrays[spec.name].shape[axis]))
            if size != (other := arrays[spec.name].shape[axis]):
                raise PayloadError(
                    f"{where}: array '{spec.name}' has {letter} = {other}, array '{first}' has {letter} = {size}"
                )

    def _equals_except_total(self, other: "PayloadSpec") -> bool:
        """Return whether another declaration is equal, except for `ArraySpec.total`."""
        if self._compared[0] is not other:
            self._compared[:] = other, self == other
        return bool(self._compared[1])

    @cached_property
    def _compared(self) -> list[object]:
        """The last declaration that this one was compared with, and whether they are equal."""
        return [self, True]

    @cached_property
    def _forms(self) -> set[tuple[object, ...]]:
        """Cache of types, dtypes and shapes that match the declaration."""
        return set()

    @cached_property
    def _bounded(self) -> list[tuple[ArraySpec, int, float, float]]:
        """The arrays with bounded values, with their positions and bounds."""
        ranges = [(spec, place, *spec._range) for place, spec in enumerate(self.arrays)]
        return [one for one in ranges if one[2] > -inf or one[3] < inf]

    @cached_property
    def _conditioned(self) -> list[tuple[ArraySpec, int]]:
        """The arrays with conditions beyond bounds, with their positions."""
        every = [(spec, place) for place, spec in enumerate(self.arrays)]
        return [one for one in every if one[0].sums_to_one or one[0].nonzero or one[0].total is not None]

    @cached_property
    def _summed(self) -> list[ArraySpec]:
        return [spec for spec in self.arrays if spec.total is not None]

    @cached_property
    def _dims(self) -> list[tuple[ArraySpec, int, str]]:
        """The dimensions with sizes that only the sender knows: array, axis and letter."""
        return [
            (spec, axis, size.letter)
            for spec in self.arrays
            for axis, size in enumerate(spec.shape)
            if isinstance(size, Dim)
        ]

    def check_names(self, names: Iterable[str], where: str) -> None:
        """Raise `PayloadError` if these are not the names of the arrays, in order."""
        if tuple(names) != self.names:
            raise PayloadError(
                f"{where}: arrays {', '.join(names) or 'none'}, expected {', '.join(self.names) or 'none'}"
            )


_interned: dict[tuple[Any, ...], PayloadSpec] = {}


def interned(spec: PayloadSpec) -> PayloadSpec:
    """Return the same object for equal declarations, so that they share their caches."""
    key = tuple(map(astuple, spec.arrays))
    if key not in _interned and len(_interned) >= MAX_INTERNED:
        _interned.clear()
    return _interned.setdefault(key, spec)


def frozen(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return the arrays as read-only ones in C order, copied if they are views of writable arrays."""
    kept = {}
    for name, one in arrays.items():
        array = np.asarray(one)
        flags = array.flags
        if (flags.writeable and not (flags.owndata and flags.c_contiguous)) or not flags.c_contiguous:
            array = np.array(array, order="C")
        array.flags.writeable = False
        kept[name] = array
    return kept


def prefixed(start: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return arrays with a prefix added to their names, to keep several sets of arrays in one server state.

    Examples
    --------
    >>> list(prefixed("mentee.", {"bias": np.zeros(2)}))
    ['mentee.bias']
    """
    return {f"{start}{name}": array for name, array in arrays.items()}


def under(start: str, arrays: Mapping[str, T]) -> dict[str, T]:
    """Return the arrays with a prefix in their names, and remove the prefix: the inverse of `prefixed`.

    Examples
    --------
    >>> list(under("mentee.", {"mentee.bias": np.zeros(2), "round": np.array(1)}))
    ['bias']
    """
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


EMPTY = PayloadSpec()
"""A payload without arrays."""


def learnt(name: str, shape: tuple[int | Dim, ...], *, usual: float = 1.0) -> ArraySpec:
    """Declare learned values, such as logits or weights: float32, at most `LEARNT_LIMIT` in magnitude.

    Examples
    --------
    >>> PayloadSpec((learnt("logits", (10, 10)),)).nbytes
    400
    >>> learnt("logits", (2,)).check(np.float32([0.5, 1e7]), "client 3")
    Traceback (most recent call last):
        ...
    hetfl_flwr.errors.PayloadError: client 3: array 'logits' has values above 1e+06
    """
    return ArraySpec(name, shape, "float32", minimum=-LEARNT_LIMIT, maximum=LEARNT_LIMIT, usual=usual)


def sample_counts(
    name: str, shape: tuple[int | Dim, ...], *, usual: float = 1.0, total: int | None = None
) -> ArraySpec:
    """Declare counts of private samples: int64, 0 or more, `ArraySpec.sensitive`, with a sum of at most `total`."""
    return ArraySpec(name, shape, "int64", minimum=0, sensitive=True, usual=usual, total=total)


def probabilities(name: str, shape: tuple[int | Dim, ...]) -> ArraySpec:
    """Declare probability distributions, one per row: float32."""
    return ArraySpec(name, shape, "float32", sums_to_one=True)


def fractions(name: str, shape: tuple[int | Dim, ...]) -> ArraySpec:
    """Declare fractions, such as accuracies: float32, from 0 to 1."""
    return ArraySpec(name, shape, "float32", minimum=0, maximum=1)


def row_numbers(name: str, rows: int | Dim, of: int) -> ArraySpec:
    """Declare row numbers (R,) among ``of`` rows that sender and receiver both have: int32, from 0 to ``of - 1``."""
    return ArraySpec(name, (rows,), "int32", minimum=0, maximum=of - 1)
