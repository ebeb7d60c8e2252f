"""Encode and decode arrays: .npy files in Flower's records, in full or half precision, never pickles."""

import warnings
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
"""Maximum size of an .npy header in bytes."""

MAX_FORMS = 10_000
_known_bytes: dict[tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...], int] = {}
"""Cache of wire bytes by names, dtypes and shapes, for arrays without equal chunks."""

HALF_LIMIT = float(np.finfo(np.float16).max)
"""The largest number in half precision: 65504."""


def to_record(arrays: Arrays) -> ArrayRecord:
    """Wrap named arrays for Flower; raise ValueError for object dtypes."""
    return ArrayRecord({name: _wrapped(np.asarray(array)) for name, array in arrays.items()})


def _wrapped(array: NDArray[Any]) -> Array:
    """Return an Array that equals ``Array(array)``: an .npy file."""
    if array.dtype.hasobject:
        raise ValueError(f"arrays of dtype {array.dtype} cannot be sent")
    return Array(str(array.dtype), array.shape, SType.NUMPY, _npy_head(array.dtype, array.shape) + array.tobytes())


@lru_cache(maxsize=1024)
def _npy_head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    file = BytesIO()
    npy.write_array_header_1_0(file, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
    return file.getvalue()


def decode(spec: PayloadSpec, record: ArrayRecord, where: str, *, half: bool = False) -> dict[str, NDArray[Any]]:
    """Decode a received record, and check dtypes, shapes and sizes before the content.

    `where` is the sender, for error messages. With `half`, the record must be in half precision; arrays are returned in
    their declared dtypes. Raises PayloadError as `PayloadSpec.check_named`, and decodes nothing larger than declared.
    """
    spec.check_names(record, where)
    arrays = {}
    for one in spec.arrays:
        array = _decode(record[one.name], one.halved() if half else one, where)
        arrays[one.name] = one.widened(array) if half else array
    return spec.check_named(arrays, where)


def from_record(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Unwrap arrays that this process has wrapped; for received arrays, use `decode`."""
    return {name: _array(array.data) for name, array in record.items()}


def _decode(array: Array, spec: ArraySpec, where: str) -> NDArray[Any]:
    named = f"{where}: array '{spec.name}'"
    if array.stype != SType.NUMPY:
        raise PayloadError(f"{named} is serialized as '{array.stype}', expected '{SType.NUMPY}'")
    try:
        return _array(array.data, spec, where)
    except PayloadError:
        raise
    except Exception as error:  # a forged file may cause any of NumPy's errors
        raise PayloadError(f"{named} cannot be read: {str(error).splitlines()[0] if str(error) else error!r}") from None


def _array(data: bytes, spec: ArraySpec | None = None, where: str = "") -> NDArray[Any]:
    """Read an .npy file; check dtype, shape and length against the declaration before allocating memory."""
    beginning = _head_of(data)
    shape, by_columns, dtype = _header(beginning)
    if spec is not None:
        spec.check_form(dtype, shape, where)
    content, expected = len(data) - len(beginning), prod(shape) * dtype.itemsize
    if content != expected:
        raise ValueError(f"{content} bytes follow the header, expected {expected}")
    values = np.frombuffer(data, dtype, offset=len(beginning)).copy()
    return values.reshape(shape, order="F" if by_columns else "C")


def _head_of(data: bytes) -> bytes:
    """Return an .npy file up to the end of its header."""
    return data[: 10 + int.from_bytes(data[8:10], "little")]


@lru_cache(maxsize=1024)
def _header(beginning: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an .npy file; cached, as headers repeat and take NumPy longer than most arrays."""
    file = BytesIO(beginning)
    version = npy.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"version {version} of the .npy format, expected (1, 0)")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # instead of repairing malformed headers
        header: tuple[tuple[int, ...], bool, np.dtype[Any]] = npy.read_array_header_1_0(
            file, max_header_size=NPY_HEADER
        )
    return header


def halved(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Convert float32 arrays to float16, clipped to `HALF_LIMIT`; return other arrays unchanged.

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
    """Convert arrays from half precision to their declared dtypes; raise PayloadError if they are not as `halved`."""
    spec.check_names(arrays, where)
    for one in spec.arrays:
        one.halved().check_form(arrays[one.name].dtype, arrays[one.name].shape, where)
    return {one.name: one.widened(arrays[one.name]) for one in spec.arrays}


def check_halves(arrays: Arrays, where: str) -> None:
    """Raise PayloadError if `halved` would clip a client's numbers."""
    for name, array in arrays.items():
        if array.dtype == np.float32 and np.abs(array).max(initial=0.0) > HALF_LIMIT:
            raise PayloadError(
                f"{where}: array '{name}' has values beyond {HALF_LIMIT:g}, the largest number in half precision: "
                "set payload-precision = 'full'"
            )


def payload_bytes(message: Message) -> int:
    """Return the bytes of a message's arrays alone, as received and as papers count them."""
    return sum(_content_bytes(array.data) for array in _arrays_of(message))


def payload_numbers(message: Message) -> int:
    """Return the number of elements in a message's arrays, regardless of precision."""
    return sum(_content_numbers(array.data) for array in _arrays_of(message))


def arrays_wire_bytes(arrays: Arrays) -> int:
    """Return the bytes of a record of named arrays as Flower serializes it.

    They depend only on names, dtypes and shapes, and are computed once for each combination, unless arrays have equal
    chunks: Flower sends equal chunks only once.
    """
    forms = tuple([(name, one.dtype, one.shape) for name, one in arrays.items()])
    sizes = [one.nbytes for one in arrays.values()]
    if len({*sizes}) < len(sizes) or max(sizes, default=0) >= LARGEST_CHUNK // 2:
        chunks = [chunk for one in arrays.values() for chunk in _chunks(one)]
        if len({*chunks}) < len(chunks):  # some chunks may be equal
            return wire_bytes(to_record(arrays))
    if forms not in _known_bytes:
        if len(_known_bytes) >= MAX_FORMS:
            _known_bytes.clear()
        _known_bytes[forms] = wire_bytes(to_record(arrays))
    return _known_bytes[forms]


def _chunks(array: NDArray[Any]) -> list[tuple[int, bytes]]:
    """Return the length and the last bytes of each chunk of a sent array; unequal chunks mostly differ in them."""
    if array.nbytes < LARGEST_CHUNK // 2:
        return [(array.nbytes, array.reshape(-1)[-2:].tobytes())]
    data, head = array.reshape(-1).view(np.uint8), len(_npy_head(array.dtype, array.shape))
    stops = [*range(LARGEST_CHUNK - head, data.size, LARGEST_CHUNK), data.size]
    lengths = [LARGEST_CHUNK] * (len(stops) - 1) + [(data.size + head - 1) % LARGEST_CHUNK + 1]
    return [(length, data[stop - 16 : stop].tobytes()) for length, stop in zip(lengths, stops, strict=True)]


def wire_bytes(sent: Message | ArrayRecord) -> int:
    """Return the bytes of a message or a record as Flower serializes it: payload, headers, records and metadata."""
    with no_object_id_recompute():
        return sum(len(part.deflate()) for part in get_all_nested_objects(sent).values())


def _arrays_of(message: Message) -> list[Array]:
    records = message.content.array_records.values() if message.has_content() else ()
    return [array for record in records for array in record.values()]


def _content_numbers(npy: bytes) -> int:
    """Return the number of elements that follow an .npy header; 0 if `decode` will reject the header."""
    try:
        return _content_bytes(npy) // _header(_head_of(npy))[2].itemsize
    except Exception:  # a forged file may cause any of NumPy's errors
        return 0


def _content_bytes(npy: bytes) -> int:
    """Return how many bytes follow an .npy header of version 1; never raises."""
    return max(len(npy) - 10 - int.from_bytes(npy[8:10], "little"), 0)
