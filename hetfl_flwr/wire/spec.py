"""The wire: everything that leaves a client or the server is a payload declared here, and checked on receipt.

A payload is a set of named arrays with declared shapes and dtypes. A receiver checks names, count, shape, dtype,
range and finiteness before use; nothing is ever unpickled. Shape letters: B batch, C classes, D feature width, K
clients, R alignment samples.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from math import inf, prod
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from numpy.lib import format as npy
from numpy.typing import NDArray

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import PayloadError
from hetfl_flwr.flower import SType, get_all_nested_objects, no_object_id_recompute

Arrays = Mapping[str, NDArray[Any]]
"""Named arrays, in the order of their declaration."""

NPY_HEADER = 1024
"""More bytes than the header of any array declared here takes in the .npy format."""

SIMPLEX_TOLERANCE = 1e-4
"""How far from 1 the sum of a distribution may be: the rounding of float32 over thousands of classes stays below."""


HALF_TOLERANCE = 1e-3
"""The same for a distribution in half precision, which rounds each value by up to one part in 2048."""

HALF_LIMIT = float(np.finfo(np.float16).max)
"""The largest number that half precision has: 65504."""

LEARNT_LIMIT = 1e6
"""Logits and weights of a larger magnitude have diverged: in a sum or a mean they drown the others or overflow."""

STATISTIC_LIMIT = 1e18
"""Running statistics of a larger magnitude are nobody's: the squares of those up to here fit into float32."""

TRAINED_SIZE = 10.0
"""Root mean square that logits and representations of trained models reach; those of new ones stay below 1."""

COUNTER_LIMIT = 2**53
"""Integer buffers, such as counters of steps, of a larger magnitude are nobody's: float64 holds all up to here."""


@dataclass(frozen=True)
class Dim:
    """A size that only the sender knows.

    Parameters
    ----------
    letter : str
        Its name. In one payload, equal letters are equal sizes.
    most : int
        Largest size that is accepted; 0 is always accepted.
    """

    letter: str
    most: int

    def __repr__(self) -> str:
        """Return how errors call it."""
        return f"{self.letter} <= {self.most}"


@dataclass(frozen=True)
class ArraySpec:
    """One declared array.

    Parameters
    ----------
    name : str
        Its key on the wire.
    shape : tuple of int or Dim
        Its exact shape, save for sizes that only the sender knows; ``()`` is a scalar.
    dtype : str
        Its exact NumPy dtype, such as ``"float32"``.
    minimum, maximum : float, optional
        Smallest and largest value allowed, such as 0 for counts. None: any finite value.
    sums_to_one : bool
        Each row is a probability distribution: no value below 0, and a sum of 1 within `SIMPLEX_TOLERANCE`.
    nonzero : bool
        Not all of its values may be 0.
    sensitive : bool
        Of integers: whether they are counted from private data. Clipping and noise apply to them as to all
        floating-point numbers, and where there is clipping only whether there are any leaves the client: 1 or 0.
    update : bool
        Whether it is what became of the array of that name and shape that the server has sent, such as weights: then
        the size of the change counts for `hetfl_flwr.server.guard.Guard`, not its own.
    usual : float
        Size that honest clients may reach when others are far below it, because their models or their progress differ:
        up to there `hetfl_flwr.server.guard.Guard` lets any pass. Of an update there is none.
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

    @property
    def is_amount(self) -> bool:
        """Whether it holds amounts, whose size says something: no probabilities, numbers of rows or yes and no."""
        kind = np.dtype(self.dtype).kind
        whole = kind in "iu" and self.maximum in (None, COUNTER_LIMIT)
        return whole or (kind == "f" and not self.sums_to_one and self.maximum != 1)

    def halved(self) -> "ArraySpec":
        """Return how this array travels in half precision: float32 as float16, any other as it is."""
        return replace(self, dtype="float16") if self.dtype == "float32" else self

    def widened(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array that came in half precision in its declared dtype; distributions sum to 1 again."""
        wide: NDArray[Any] = array.astype(self.dtype, copy=False)
        if not self.sums_to_one:
            return wide
        sums = wide.sum(-1, keepdims=True, dtype=np.float64)
        rounded = np.abs(sums - 1) <= HALF_TOLERANCE  # what is farther off was none before: `check` refuses it
        return np.where(rounded, wide / np.where(rounded, sums, 1.0), wide).astype(self.dtype)

    def check(self, array: NDArray[Any], where: str) -> None:
        """Raise `PayloadError` if an array is not what is declared here."""
        named = f"{where}: array '{self.name}'"
        if not isinstance(array, np.ndarray):
            raise PayloadError(f"{named} is no array but {type(array).__name__}")
        self.check_form(array.dtype, array.shape, where)
        if not np.isfinite(array).all():
            raise PayloadError(f"{named} has values that are not finite")
        if array.size:
            self._check_values(array, named)

    def check_form(self, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> None:
        """Raise `PayloadError` if dtype or shape of an array are not what is declared here."""
        named = f"{where}: array '{self.name}'"
        if dtype != np.dtype(self.dtype):
            raise PayloadError(f"{named} has dtype {dtype}, expected {self.dtype}")
        if not self._fits(shape):
            raise PayloadError(f"{named} has shape {shape}, expected {self.shape}")

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            size <= expected.most if isinstance(expected, Dim) else size == expected
            for size, expected in zip(shape, self.shape, strict=True)
        )

    def _check_values(self, array: NDArray[Any], named: str) -> None:
        if self.minimum is not None and array.min() < self.minimum:
            raise PayloadError(f"{named} has values below {self.minimum:g}")
        if self.maximum is not None and array.max() > self.maximum:
            raise PayloadError(f"{named} has values above {self.maximum:g}")
        if self.sums_to_one:
            if array.min() < 0:
                raise PayloadError(f"{named} has values below 0")
            furthest = float(np.abs(array.sum(-1, dtype=np.float64) - 1).max())
            if furthest > SIMPLEX_TOLERANCE:
                raise PayloadError(f"{named} has rows that do not sum to 1 (off by {furthest:.2g})")
        if self.nonzero and not array.any():
            raise PayloadError(f"{named} is all zero")

    @property
    def nbytes(self) -> int:
        """Size in bytes, without any header; with a `Dim` in the shape, the largest size that is accepted."""
        sizes = (size.most if isinstance(size, Dim) else size for size in self.shape)
        return prod(sizes) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class PayloadSpec:
    """A declared payload: its arrays, in order."""

    arrays: tuple[ArraySpec, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, in order."""
        return tuple(spec.name for spec in self.arrays)

    @property
    def nbytes(self) -> int:
        """Size in bytes of the arrays alone: what the papers count. With a `Dim` in a shape, the largest accepted."""
        return sum(spec.nbytes for spec in self.arrays)

    def __add__(self, other: "PayloadSpec") -> "PayloadSpec":
        """Return the payload that has the arrays of both, these first."""
        return PayloadSpec(self.arrays + other.arrays)

    def check(self, arrays: Sequence[NDArray[Any]], where: str) -> dict[str, NDArray[Any]]:
        """Return the arrays by name after checking each.

        Parameters
        ----------
        arrays : sequence of arrays
            In the declared order.
        where : str
            Who sent them, for the error.

        Raises
        ------
        PayloadError
            Names sender, array, what was expected and what came.
        """
        if len(arrays) != len(self.arrays):
            raise PayloadError(
                f"{where}: {len(arrays)} arrays, expected {len(self.arrays)}: {', '.join(self.names) or 'none'}"
            )
        for spec, array in zip(self.arrays, arrays, strict=True):
            spec.check(array, where)
        self._check_sizes(arrays, where)
        return dict(zip(self.names, arrays, strict=True))

    def _check_sizes(self, arrays: Sequence[NDArray[Any]], where: str) -> None:
        """Refuse sizes of the same letter that differ."""
        known: dict[str, tuple[str, int]] = {}
        for spec, array in zip(self.arrays, arrays, strict=True):
            for expected, size in zip(spec.shape, array.shape, strict=True):
                if not isinstance(expected, Dim):
                    continue
                first, other = known.setdefault(expected.letter, (spec.name, size))
                if size != other:
                    raise PayloadError(
                        f"{where}: array '{spec.name}' has {expected.letter} = {size}, "
                        f"array '{first}' has {expected.letter} = {other}"
                    )

    def decode(self, record: ArrayRecord, where: str, *, half: bool = False) -> dict[str, NDArray[Any]]:
        """Check a received record, first by what it declares and by its size, then by its content.

        Parameters
        ----------
        record : ArrayRecord
            What came.
        where : str
            Who sent it, for the error.
        half : bool
            Whether it must have come in half precision. What is returned has the declared dtypes all the same.

        Raises
        ------
        PayloadError
            As `check`; nothing larger than declared is decoded.
        """
        self._check_names(record, where)
        if not half:
            return self.check([_decode(record[spec.name], spec, where) for spec in self.arrays], where)
        came = [spec.widened(_decode(record[spec.name], spec.halved(), where)) for spec in self.arrays]
        return self.check(came, where)

    def check_named(self, arrays: Arrays, where: str) -> dict[str, NDArray[Any]]:
        """Check named arrays that are about to be sent, as the receiver will: names and order too."""
        self._check_names(arrays, where)
        return self.check(list(arrays.values()), where)

    def _check_names(self, names: Iterable[str], where: str) -> None:
        if tuple(names) != self.names:
            raise PayloadError(
                f"{where}: arrays {', '.join(names) or 'none'}, expected {', '.join(self.names) or 'none'}"
            )


def _decode(array: Array, spec: ArraySpec, where: str) -> NDArray[Any]:
    named = f"{where}: array '{spec.name}'"
    if array.stype != SType.NUMPY:
        raise PayloadError(f"{named} is serialised as '{array.stype}', expected '{SType.NUMPY}'")
    if len(array.data) > spec.nbytes + NPY_HEADER:
        raise PayloadError(f"{named} takes {len(array.data)} bytes, expected {spec.nbytes}")
    try:
        return _array(array.data, spec, where)
    except PayloadError:
        raise
    except Exception as error:  # NumPy raises many kinds, and a forged file may provoke any of them
        raise PayloadError(f"{named} cannot be read: {str(error).splitlines()[0] if str(error) else error!r}") from None


def _array(data: bytes, spec: ArraySpec | None = None, where: str = "") -> NDArray[Any]:
    """Read a .npy file; refuse one of another dtype, shape or length than declared before memory is set aside."""
    start = 10 + int.from_bytes(data[8:10], "little")
    shape, by_columns, dtype = _header(data[:start])
    if spec is not None:
        spec.check_form(dtype, shape, where)
    content, expected = len(data) - start, prod(shape) * dtype.itemsize
    if content != expected:
        raise ValueError(f"{content} bytes follow the header, expected {expected}")
    values = np.frombuffer(data, dtype, offset=start).copy()
    return values.reshape(shape, order="F" if by_columns else "C")


@lru_cache(maxsize=1024)
def _header(beginning: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a .npy file. NumPy takes longer for it than for most payloads, and they repeat."""
    file = BytesIO(beginning)
    version = npy.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"version {version} of the .npy format, expected (1, 0)")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of headers that NumPy would mend
        header: tuple[tuple[int, ...], bool, np.dtype[Any]] = npy.read_array_header_1_0(
            file, max_header_size=NPY_HEADER
        )
    return header


EMPTY = PayloadSpec()
"""The payload of whoever has nothing to say."""


def seeds(rows: int | Dim, spec: DataSpec, dtype: str, *, labelled: bool) -> PayloadSpec:
    """Public rows as they are stored, (N, *shape), and with `labelled` their labels (N,)."""
    inputs = _stored("inputs", rows, spec, dtype)
    labels = ArraySpec("labels", (rows,), "int64", minimum=0, maximum=spec.classes - 1)
    return PayloadSpec((inputs, labels) if labelled else (inputs,))


def class_logits(classes: int) -> PayloadSpec:
    """Average logits of each class and the number of samples behind them: (C, C) and (C,)."""
    return PayloadSpec(
        (
            _learnt("logits", (classes, classes)),
            ArraySpec("counts", (classes,), "int64", minimum=0, sensitive=True, usual=inf),  # no mean is weighted
        )
    )


def known_class_logits(classes: int) -> PayloadSpec:
    """Average logits of each class and whether any are known for it: (C, C) and (C,)."""
    return PayloadSpec((ArraySpec("logits", (classes, classes), "float32"), ArraySpec("known", (classes,), "bool")))


def public_consensus(pool: int, classes: int) -> PayloadSpec:
    """Mean logits on some rows of a pool, (R, C), the rows' numbers, (R,), and those of the rows to answer, (A,)."""
    rows, asked = Dim("R", pool), Dim("A", pool)
    return PayloadSpec(
        (
            ArraySpec("digested", (rows,), "int32", minimum=0, maximum=pool - 1),
            ArraySpec("consensus", (rows, classes), "float32"),
            ArraySpec("asked", (asked,), "int32", minimum=0, maximum=pool - 1),
        )
    )


def public_logits(rows: int | Dim, classes: int) -> PayloadSpec:
    """Logits on public rows, in the order in which they were asked for: (A, C)."""
    return PayloadSpec((_learnt("logits", (rows, classes)),))


def _learnt(name: str, shape: tuple[int | Dim, ...]) -> ArraySpec:
    return ArraySpec(name, shape, "float32", minimum=-LEARNT_LIMIT, maximum=LEARNT_LIMIT)


def numbered_rows(name: str, rows: int | Dim, pool: int) -> PayloadSpec:
    """Rows (R,) of a pool of public rows that sender and receiver both hold, by number."""
    return PayloadSpec((ArraySpec(name, (rows,), "int32", minimum=0, maximum=pool - 1),))


def stored_rows(name: str, rows: int | Dim, spec: DataSpec, dtype: str) -> PayloadSpec:
    """Rows as they are stored, without labels: (R, *shape)."""
    return PayloadSpec((_stored(name, rows, spec, dtype),))


def _stored(name: str, rows: int | Dim, spec: DataSpec, dtype: str) -> ArraySpec:
    tokens = (0, spec.vocabulary - 1) if spec.is_text else (None, None)
    return ArraySpec(name, (rows, *spec.shape), dtype, minimum=tokens[0], maximum=tokens[1])


def kernel_factor(rows: int | Dim, rank: int | Dim) -> PayloadSpec:
    """Factor F (R, r) of a kernel F F^T over R samples."""
    return PayloadSpec((ArraySpec("factor", (rows, rank), "float32"),))


def representations(rows: int | Dim, width: int) -> PayloadSpec:
    """Representations of R samples by a body: (R, D), not all zero."""
    return PayloadSpec((ArraySpec("representations", (rows, width), "float32", nonzero=True, usual=TRAINED_SIZE),))


def linear_head(classes: int, width: int) -> PayloadSpec:
    """Declare a linear head: weight (C, D) and bias (C,), no entry of a magnitude above `LEARNT_LIMIT`."""
    return PayloadSpec(
        (
            replace(_learnt("weight", (classes, width)), usual=0.0),
            replace(_learnt("bias", (classes,)), usual=0.0),
        )
    )


def summed_heads(classes: int, width: int) -> PayloadSpec:
    """Declare the sum of linear heads, (C, D) and (C,), and how many they are, (); 0: none yet."""
    return PayloadSpec(
        (
            ArraySpec("weight", (classes, width), "float32"),
            ArraySpec("bias", (classes,), "float32"),
            ArraySpec("heads", (), "int32", minimum=0),
        )
    )


def whole_state(model: torch.nn.Module) -> PayloadSpec:
    """All entries of a model's state dict: `weights`, and integer buffers such as batch norm's step counters."""
    return PayloadSpec(tuple(_entries(model).values()))


def _entries(model: torch.nn.Module) -> dict[str, ArraySpec]:
    """Declare each entry of a model's state dict: floating-point numbers up to a limit, integers of any size."""
    return {
        name: _entry(name, tensor, LEARNT_LIMIT if isinstance(tensor, torch.nn.Parameter) else STATISTIC_LIMIT)
        for name, tensor in model.state_dict(keep_vars=True).items()
    }


def _entry(name: str, tensor: torch.Tensor, most: float) -> ArraySpec:
    smallest = 0.0 if name.endswith("running_var") else -most
    kind = str(tensor.dtype).removeprefix("torch.")
    least, largest = (smallest, most) if tensor.is_floating_point() else _integers(kind)
    return ArraySpec(name, tuple(tensor.shape), kind, least, largest, update=True)


def _integers(dtype: str) -> tuple[float | None, float | None]:
    """Return the bounds of an integer buffer; narrow dtypes and truth values need none."""
    return (-COUNTER_LIMIT, COUNTER_LIMIT) if dtype == "int64" else (None, None)


def state_arrays(model: torch.nn.Module) -> dict[str, NDArray[Any]]:
    """Return copies of the entries that `whole_state` declares."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in model.state_dict().items()}


def teaching_signal(rows: int, public: int, classes: int) -> PayloadSpec:
    """Posteriors on some of a client's public rows, (B, C), the rows' numbers there, (B,), and the accuracy, ()."""
    return PayloadSpec(
        (
            ArraySpec("indices", (rows,), "int32", minimum=0, maximum=public - 1),
            ArraySpec("posteriors", (rows, classes), "float32", sums_to_one=True),
            ArraySpec("accuracy", (), "float32", minimum=0, maximum=1),
        )
    )


def relayed_signals(peers: int, rows: int, classes: int) -> PayloadSpec:
    """Declare the signals of T teachers, one after the other.

    Who they are, the accuracy and the number of rows of each, (T,); the rows' numbers among each teacher's public
    rows, (M,), and the posteriors on them, (M, C). M is the sum of the T numbers of rows.
    """
    teachers, taught = Dim("T", peers), Dim("M", peers * rows)
    return PayloadSpec(
        (
            ArraySpec("teachers", (teachers,), "int32", minimum=0),
            ArraySpec("accuracies", (teachers,), "float32", minimum=0, maximum=1),
            ArraySpec("sizes", (teachers,), "int32", minimum=1, maximum=rows),
            ArraySpec("indices", (taught,), "int32", minimum=0),
            ArraySpec("posteriors", (taught, classes), "float32", sums_to_one=True),
        )
    )


def weights(model: torch.nn.Module) -> PayloadSpec:
    """All floating-point entries of a model's state dict: parameters and running statistics.

    Integer buffers (batch norm's step counters) stay at home: they have no mean.
    """
    state = model.state_dict()
    return PayloadSpec(tuple(spec for name, spec in _entries(model).items() if state[name].is_floating_point()))


def fingerprint(model: torch.nn.Module) -> str:
    """Return the fingerprint of a model's `weights`: equal for models whose weights can be averaged."""
    return sha256(repr(weights(model)).encode()).hexdigest()[:16]


def model_arrays(model: torch.nn.Module) -> dict[str, NDArray[Any]]:
    """Return copies of the entries that `weights` declares."""
    state = model.state_dict()
    return {name: state[name].detach().cpu().numpy().copy() for name in weights(model).names}


def load_model_arrays(model: torch.nn.Module, arrays: Arrays) -> None:
    """Put received arrays into a model; entries of its state dict that are not among them stay as they are."""
    with torch.no_grad():
        state = model.state_dict()
        for name, array in arrays.items():
            state[name].copy_(torch.from_numpy(array))


def to_record(arrays: Arrays) -> ArrayRecord:
    """Wrap named arrays for Flower. No object dtype passes."""
    return ArrayRecord({name: _wrapped(np.asarray(array)) for name, array in arrays.items()})


def _wrapped(array: NDArray[Any]) -> Array:
    """Return what ``Array(array)`` is: a .npy file."""
    if array.dtype.hasobject:
        raise ValueError(f"arrays of dtype {array.dtype} cannot be sent")
    return Array(str(array.dtype), array.shape, SType.NUMPY, _npy_head(array.dtype, array.shape) + array.tobytes())


@lru_cache(maxsize=1024)
def _npy_head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    file = BytesIO()
    npy.write_array_header_1_0(file, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
    return file.getvalue()


def from_record(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Unwrap arrays that this process itself has wrapped; what came over the wire goes through `PayloadSpec.decode`."""
    return {name: _array(array.data) for name, array in record.items()}


def halved(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return arrays as they travel in half precision: float32 as float16, cut off at `HALF_LIMIT`; others as they are.

    Examples
    --------
    >>> halved({"logits": np.float32([0.5, 1e6]), "counts": np.arange(2)})
    {'logits': array([5.00e-01, 6.55e+04], dtype=float16), 'counts': array([0, 1])}
    """
    return {
        name: np.asarray(np.clip(array, -HALF_LIMIT, HALF_LIMIT), np.float16) if array.dtype == np.float32 else array
        for name, array in arrays.items()
    }


def check_halves(arrays: Arrays, where: str) -> None:
    """Raise `PayloadError` where `halved` would cut off a client's numbers."""
    for name, array in arrays.items():
        if array.dtype == np.float32 and np.abs(array).max(initial=0.0) > HALF_LIMIT:
            raise PayloadError(
                f"{where}: array '{name}' has values beyond {HALF_LIMIT:g}, the largest of half precision: "
                "set payload-precision = 'full'"
            )


def payload_bytes(message: Message) -> int:
    """Return the bytes of a message's arrays alone, as they came: what the papers count."""
    if not message.has_content():
        return 0
    return sum(
        _content_bytes(array.data) for record in message.content.array_records.values() for array in record.values()
    )


def payload_numbers(message: Message) -> int:
    """Return how many numbers a message's arrays hold, as they came, whatever the precision of each."""
    if not message.has_content():
        return 0
    return sum(
        _content_numbers(array.data) for record in message.content.array_records.values() for array in record.values()
    )


def _content_numbers(npy: bytes) -> int:
    """Return how many numbers follow the header of the .npy format; 0 of what `PayloadSpec.decode` will refuse."""
    try:
        return _content_bytes(npy) // _header(npy[: 10 + int.from_bytes(npy[8:10], "little")])[2].itemsize
    except Exception:  # NumPy raises many kinds, and a forged file may provoke any of them
        return 0


def _content_bytes(npy: bytes) -> int:
    """Return the length of what follows the header of the .npy format, version 1; whatever it is, never an error."""
    return max(len(npy) - 10 - int.from_bytes(npy[8:10], "little"), 0)


def wire_bytes(message: Message) -> int:
    """Return the bytes of a whole message as Flower serialises it: payload, array headers, records, metadata."""
    with no_object_id_recompute():
        return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())
