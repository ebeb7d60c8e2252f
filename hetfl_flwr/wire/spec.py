"""Payload specifications: named arrays with declared shapes, dtypes and ranges, checked on receipt.

The algorithm declares everything that leaves a client or the server. A receiver checks names,
count, shape, dtype, range and finiteness before use. Shape letters: B batch, C classes, D feature width, K clients,
R alignment samples.
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
"""How far from 1 the sum of a distribution may be: the rounding of float32 over thousands of classes stays below."""

HALF_TOLERANCE = 1e-3
"""The same for a distribution in half precision, which rounds each value by up to one part in 2048."""

LEARNT_LIMIT = 1e6
"""Logits and weights of a larger magnitude have diverged: in a sum or a mean they dominate the others or overflow."""

STATISTIC_LIMIT = 1e18
"""Running statistics of a larger magnitude are rejected: the squares of those up to here fit into float32."""

TRAINED_SIZE = 10.0
"""Root mean square that logits and representations of trained models reach; that of new ones is below 1."""

MAX_INTERNED = 1000
"""Size of a process's cache of declarations."""

MAX_FORMS = 1000
"""Size of a declaration's cache of dtypes and shapes."""

COUNTER_LIMIT = 2**53
"""Integer buffers, such as counters of steps, of a larger magnitude are rejected: float64 holds all up to here."""


@dataclass(frozen=True)
class Dim:
    """A dimension whose size only the sender knows.

    Parameters
    ----------
    letter : str
        Its name. In one payload, equal letters are equal sizes.
    most : int
        Largest accepted size; 0 is always accepted.
    step : int
        Sizes are multiples of it: 1, or `most` for 0 or all.
    """

    letter: str
    most: int
    step: int = 1

    def __repr__(self) -> str:
        """Return its name in errors."""
        return f"{self.letter} <= {self.most}" if self.step == 1 else f"{self.letter} 0 or {self.most}"

    def takes(self, size: int) -> bool:
        """Return whether a size is accepted."""
        return 0 <= size <= self.most and size % self.step == 0


@dataclass(frozen=True)
class ArraySpec:
    """One declared array.

    Parameters
    ----------
    name : str
        Its key on the wire.
    shape : tuple of int or Dim
        Its exact shape, except for sizes that only the sender knows; ``()`` is a scalar.
    dtype : str
        Its exact NumPy dtype, such as ``"float32"``.
    minimum, maximum : float, optional
        Smallest and largest value allowed, such as 0 for counts. None: any finite value.
    sums_to_one : bool
        Each row is a probability distribution: no value below 0, and a sum of 1 within `SIMPLEX_TOLERANCE`.
    nonzero : bool
        Whether all values 0 are refused.
    sensitive : bool
        Of integers: whether they are counts of private data. Clipping and noise apply to them as to all
        floating-point numbers, and with clipping only 1 or 0 leaves the client: whether there are any.
    update : bool
        Whether it is the new value of the array of that name and shape that the server has sent, such as weights: then
        `hetfl_flwr.server.guard.Guard` compares the size of the change, not its own.
    usual : float
        Size that honest clients may reach while others are far below it, because their models or their progress differ:
        `hetfl_flwr.server.guard.Guard` accepts any size up to it. Of an update it is a twentieth of what was
        sent, or of the payload's matrices.
    total : int, optional
        The largest sum of all values, where none is below 0. None: any.
    factors : tuple of str
        Names of two other arrays of the payload, whose matrix product it is when it has no rows: then
        `hetfl_flwr.server.guard.Guard` compares the product, and never the two. Default: none.
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
    usual: float = field(default=1.0, compare=False, repr=False)
    total: int | None = field(default=None, compare=False, repr=False)
    factors: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_amount(self) -> bool:
        """Whether it holds amounts, whose size is comparable: not probabilities, row numbers or flags."""
        kind = np.dtype(self.dtype).kind
        whole = kind in "iu" and self.maximum in (None, COUNTER_LIMIT)
        return whole or (kind == "f" and not self.sums_to_one and self.maximum != 1)

    def halved(self) -> "ArraySpec":
        """Return this declaration in half precision: float32 as float16, any other unchanged."""
        return replace(self, dtype="float16") if self.dtype == "float32" else self

    def widened(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array from half precision in its declared dtype; distributions are normalised."""
        wide: NDArray[Any] = array.astype(self.dtype, copy=False)
        if not self.sums_to_one:
            return wide
        sums = wide.sum(-1, keepdims=True, dtype=np.float64)
        rounded = np.abs(sums - 1) <= HALF_TOLERANCE  # what is farther off was none before: `check` refuses it
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

    def _check_more(self, array: NDArray[Any], where: str) -> None:
        """Raise `PayloadError` where values within their bounds violate a joint condition, such as their sum."""
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
        """The smallest and largest value. Floating-point numbers are finite: NaN lies between no others."""
        dtype = np.dtype(self.dtype)
        most = float(np.finfo(dtype).max) if dtype.kind == "f" else inf
        low = (0.0 if self.sums_to_one else -most) if self.minimum is None else self.minimum
        high = most if self.maximum is None else self.maximum
        return low, high

    @property
    def nbytes(self) -> int:
        """Size in bytes, without any header; with a `Dim` in the shape, the largest size that is accepted."""
        sizes = (size.most if isinstance(size, Dim) else size for size in self.shape)
        return prod(sizes) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class PayloadSpec:
    """A declared payload: its arrays, in order."""

    arrays: tuple[ArraySpec, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, in order."""
        return tuple(spec.name for spec in self.arrays)

    @cached_property
    def amounts(self) -> tuple[ArraySpec, ...]:
        """The arrays whose sizes are comparable: amounts, except factors of others."""
        factors = {name for one in self.arrays for name in one.factors}
        return tuple(one for one in self.arrays if one.is_amount and one.name not in factors)

    @property
    def nbytes(self) -> int:
        """Size in bytes of the arrays alone: what the papers count. With a `Dim` in a shape, the largest accepted."""
        return sum(spec.nbytes for spec in self.arrays)

    def __add__(self, other: "PayloadSpec") -> "PayloadSpec":
        """Return the payload with the arrays of both, this one's first."""
        return PayloadSpec(self.arrays + other.arrays)

    def check_named(self, arrays: Arrays, where: str, checked: "PayloadSpec | None" = None) -> dict[str, NDArray[Any]]:
        """Return named arrays after checking names, order, and each array.

        Parameters
        ----------
        arrays : mapping of str to array
            In the declared order.
        where : str
            The sender, for the error.
        checked : PayloadSpec, optional
            The declaration by which they have been checked: where it is equal, only largest sums are left to check.

        Raises
        ------
        PayloadError
            Names sender, array, the expected and the received value.
        """
        if checked is not None and self._is_like(checked):
            for spec in self._summed:
                spec._check_more(arrays[spec.name], where)
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
        for spec, place in self._fulfilling:
            spec._check_more(values[place], where)
        return dict(arrays)

    def _check_forms(self, arrays: Arrays, where: str) -> None:
        """Raise `PayloadError` unless types, dtypes and shapes are as declared."""
        for spec, array in zip(self.arrays, arrays.values(), strict=True):
            if not isinstance(array, np.ndarray):
                raise PayloadError(f"{where}: array '{spec.name}' is not an array but {type(array).__name__}")
            spec.check_form(array.dtype, array.shape, where)
        known: dict[str, tuple[str, int]] = {}
        for spec, axis, letter in self._dims:  # sizes of one letter are equal
            first, size = known.setdefault(letter, (spec.name, arrays[spec.name].shape[axis]))
            if size != (other := arrays[spec.name].shape[axis]):
                raise PayloadError(
                    f"{where}: array '{spec.name}' has {letter} = {other}, array '{first}' has {letter} = {size}"
                )

    def _is_like(self, other: "PayloadSpec") -> bool:
        """Return whether another declaration is equal, up to largest sums."""
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
        """The arrays whose values have bounds, with their positions and bounds."""
        ranges = [(spec, place, *spec._range) for place, spec in enumerate(self.arrays)]
        return [one for one in ranges if one[2] > -inf or one[3] < inf]

    @cached_property
    def _fulfilling(self) -> list[tuple[ArraySpec, int]]:
        """The arrays with conditions beyond bounds, with their positions."""
        every = [(spec, place) for place, spec in enumerate(self.arrays)]
        return [one for one in every if one[0].sums_to_one or one[0].nonzero or one[0].total is not None]

    @cached_property
    def _summed(self) -> list[ArraySpec]:
        return [spec for spec in self.arrays if spec.total is not None]

    @cached_property
    def _dims(self) -> list[tuple[ArraySpec, int, str]]:
        """The dimensions whose sizes only the sender knows."""
        return [
            (spec, axis, size.letter)
            for spec in self.arrays
            for axis, size in enumerate(spec.shape)
            if isinstance(size, Dim)
        ]

    def check_names(self, names: Iterable[str], where: str) -> None:
        """Raise `PayloadError` unless these are the names of the arrays, in order."""
        if tuple(names) != self.names:
            raise PayloadError(
                f"{where}: arrays {', '.join(names) or 'none'}, expected {', '.join(self.names) or 'none'}"
            )


_interned: dict[tuple[Any, ...], PayloadSpec] = {}


def interned(spec: PayloadSpec) -> PayloadSpec:
    """Return one object for equal declarations, so that its caches are shared."""
    key = tuple(map(astuple, spec.arrays))
    if key not in _interned and len(_interned) >= MAX_INTERNED:
        _interned.clear()
    return _interned.setdefault(key, spec)


def frozen(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return read-only arrays in C order that are not views of writable ones."""
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
    """Return arrays under longer names, for several sets of them in one server state.

    Examples
    --------
    >>> list(prefixed("mentee.", {"bias": np.zeros(2)}))
    ['mentee.bias']
    """
    return {f"{start}{name}": array for name, array in arrays.items()}


def under(start: str, arrays: Mapping[str, T]) -> dict[str, T]:
    """Return the arrays whose names have a prefix, without it: the inverse of `prefixed`.

    Examples
    --------
    >>> list(under("mentee.", {"mentee.bias": np.zeros(2), "round": np.array(1)}))
    ['bias']
    """
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


EMPTY = PayloadSpec()
"""A payload without arrays."""


def learnt(name: str, shape: tuple[int | Dim, ...], *, usual: float = 1.0) -> ArraySpec:
    """Declare learnt values, such as logits or weights: float32, at most `LEARNT_LIMIT` in magnitude.

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
    """Declare counts of private samples: int64, 0 or more, `ArraySpec.sensitive`, with a largest sum, if any."""
    return ArraySpec(name, shape, "int64", minimum=0, sensitive=True, usual=usual, total=total)


def probabilities(name: str, shape: tuple[int | Dim, ...]) -> ArraySpec:
    """Declare probability distributions, one per row: float32."""
    return ArraySpec(name, shape, "float32", sums_to_one=True)


def fractions(name: str, shape: tuple[int | Dim, ...]) -> ArraySpec:
    """Declare fractions, such as accuracies: float32, from 0 to 1."""
    return ArraySpec(name, shape, "float32", minimum=0, maximum=1)


def row_numbers(name: str, rows: int | Dim, of: int) -> ArraySpec:
    """Declare row numbers (R,) among ``of`` rows that sender and receiver both hold: int32, from 0 to ``of - 1``."""
    return ArraySpec(name, (rows,), "int32", minimum=0, maximum=of - 1)
