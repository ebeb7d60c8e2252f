"""How arrays travel: as .npy files in Flower's records, in full or half precision; nothing is ever unpickled."""

import warnings
from collections import Counter
from functools import lru_cache
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from numpy.lib import format as npy
from numpy.typing import NDArray

from hetfl_flwr.common.flower import LARGEST_CHUNK, SType, get_all_nested_objects, no_object_id_recompute
from hetfl_flwr.errors import PayloadError
from hetfl_flwr.wire.spec import Arrays, ArraySpec, PayloadSpec

NPY_HEADER = 1024
"""More bytes than the header of any array declared here takes in the .npy format."""

NOTHING = ArrayRecord()
MOST_SIZES = 1000
_SIZES: dict[int, int] = {}
"""Bytes on the wire by `_kind`, beyond those of no arrays."""

HALF_LIMIT = float(np.finfo(np.float16).max)
"""The largest number that half precision has: 65504."""


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


def decode(spec: PayloadSpec, record: ArrayRecord, where: str, *, half: bool = False) -> dict[str, NDArray[Any]]:
    """Check a received record, first by what it declares and by its size, then by its content.

    Parameters
    ----------
    spec : PayloadSpec
        What is expected.
    record : ArrayRecord
        What came.
    where : str
        Who sent it, for the error.
    half : bool
        Whether it must have come in half precision. What is returned has the declared dtypes all the same.

    Raises
    ------
    PayloadError
        As `PayloadSpec.check`; nothing larger than declared is decoded.
    """
    spec.check_names(record, where)
    if not half:
        return spec.check([_decode(record[one.name], one, where) for one in spec.arrays], where)
    return spec.check([one.widened(_decode(record[one.name], one.halved(), where)) for one in spec.arrays], where)


def from_record(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Unwrap arrays that this process itself has wrapped; what came over the wire goes through `decode`."""
    return {name: _array(array.data) for name, array in record.items()}


def _decode(array: Array, spec: ArraySpec, where: str) -> NDArray[Any]:
    named = f"{where}: array '{spec.name}'"
    if array.stype != SType.NUMPY:
        raise PayloadError(f"{named} is serialised as '{array.stype}', expected '{SType.NUMPY}'")
    if len(array.data) > spec.nbytes + NPY_HEADER:
        _check_header(array.data, spec, where)
        raise PayloadError(f"{named} takes {len(array.data)} bytes, expected {spec.nbytes}")
    try:
        return _array(array.data, spec, where)
    except PayloadError:
        raise
    except Exception as error:  # NumPy raises many kinds, and a forged file may provoke any of them
        raise PayloadError(f"{named} cannot be read: {str(error).splitlines()[0] if str(error) else error!r}") from None


def _array(data: bytes, spec: ArraySpec | None = None, where: str = "") -> NDArray[Any]:
    """Read a .npy file; refuse one of another dtype, shape or length than declared before memory is set aside."""
    beginning = _beginning(data)
    shape, by_columns, dtype = _header(beginning)
    if spec is not None:
        spec.check_form(dtype, shape, where)
    content, expected = len(data) - len(beginning), prod(shape) * dtype.itemsize
    if content != expected:
        raise ValueError(f"{content} bytes follow the header, expected {expected}")
    values = np.frombuffer(data, dtype, offset=len(beginning)).copy()
    return values.reshape(shape, order="F" if by_columns else "C")


def _check_header(data: bytes, spec: ArraySpec, where: str) -> None:
    """Refuse a .npy file whose header can be read and says another dtype or shape than declared."""
    try:
        shape, _, dtype = _header(_beginning(data))
    except Exception:  # as in `_decode`
        return
    spec.check_form(dtype, shape, where)


def _beginning(data: bytes) -> bytes:
    """Return a .npy file up to the end of its header."""
    return data[: 10 + int.from_bytes(data[8:10], "little")]


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


def widened(spec: PayloadSpec, arrays: Arrays, where: str) -> dict[str, NDArray[Any]]:
    """Return arrays that came in half precision in the declared dtypes; others than `halved` are a `PayloadError`."""
    spec.check_names(arrays, where)
    for one in spec.arrays:
        one.halved().check_form(arrays[one.name].dtype, arrays[one.name].shape, where)
    return {one.name: one.widened(arrays[one.name]) for one in spec.arrays}


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


def wire_bytes(message: Message) -> int:
    """Return the bytes of a whole message as Flower serialises it: payload, array headers, records, metadata.

    What its arrays take depends on their names, types and shapes alone, and is found out once for all that are alike;
    but of equal arrays Flower sends one.
    """
    with no_object_id_recompute():
        content = message.content if message.has_content() else {}
        records = [(name, record) for name, record in content.items() if isinstance(record, ArrayRecord)]
        if len(records) != 1 or (kind := _kind(records[0][1])) is None:
            return _serialised(message)
        name, record = records[0]
        if kind not in _SIZES:
            if len(_SIZES) >= MOST_SIZES:
                _SIZES.clear()
            _SIZES[kind] = _serialised(record) - _serialised(NOTHING)
        content[name] = NOTHING
        try:
            return _serialised(message) + _SIZES[kind]
        finally:
            content[name] = record


def _serialised(sent: Message | ArrayRecord) -> int:
    return sum(len(part.deflate()) for part in get_all_nested_objects(sent).values())


def _kind(record: ArrayRecord) -> int | None:
    """Return a hash of what arrays take their bytes by; None where the numbers matter, too: some may be equal."""
    lengths = Counter(len(array.data) for array in record.values())
    twins = [array.data for array in record.values() if lengths[len(array.data)] > 1]
    if len({*twins}) < len(twins) or any(length > LARGEST_CHUNK for length in lengths):
        return None
    return hash(tuple(f"{name}|{one.dtype}|{one.shape}|{one.stype}|{len(one.data)}" for name, one in record.items()))


def _content_numbers(npy: bytes) -> int:
    """Return how many numbers follow the header of the .npy format; 0 of what `decode` will refuse."""
    try:
        return _content_bytes(npy) // _header(npy[: 10 + int.from_bytes(npy[8:10], "little")])[2].itemsize
    except Exception:  # NumPy raises many kinds, and a forged file may provoke any of them
        return 0


def _content_bytes(npy: bytes) -> int:
    """Return the length of what follows the header of the .npy format, version 1; whatever it is, never an error."""
    return max(len(npy) - 10 - int.from_bytes(npy[8:10], "little"), 0)
