"""How arrays travel: as .npy files in Flower's records, in full or half precision; nothing is ever unpickled."""

import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from io import BytesIO
from math import prod
from typing import Any, NamedTuple

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
    arrays = {}
    for one in spec.arrays:
        array = _decode(record[one.name], one.halved() if half else one, where)
        arrays[one.name] = one.widened(array) if half else array
    return spec.check_named(arrays, where)


def from_record(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Unwrap arrays that this process itself has wrapped; what came over the wire goes through `decode`."""
    return {name: _array(array.data) for name, array in record.items()}


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
    beginning = _beginning(data)
    shape, by_columns, dtype = _header(beginning)
    if spec is not None:
        spec.check_form(dtype, shape, where)
    content, expected = len(data) - len(beginning), prod(shape) * dtype.itemsize
    if content != expected:
        raise ValueError(f"{content} bytes follow the header, expected {expected}")
    values = np.frombuffer(data, dtype, offset=len(beginning)).copy()
    return values.reshape(shape, order="F" if by_columns else "C")


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
    return sum(_content_bytes(array.data) for array in _arrays_of(message))


def payload_numbers(message: Message) -> int:
    """Return how many numbers a message's arrays hold, as they came, whatever the precision of each."""
    return sum(_content_numbers(array.data) for array in _arrays_of(message))


def wire_bytes(message: Message) -> int:
    """Return the bytes of a whole message as Flower serialises it: payload, array headers, records, metadata.

    What its arrays take is arithmetic: see `arrays_wire_bytes`.
    """
    with no_object_id_recompute():
        content = message.content if message.has_content() else {}
        records = [(name, record) for name, record in content.items() if isinstance(record, ArrayRecord)]
        if len(records) != 1:
            return _serialised(message)
        name, record = records[0]
        try:
            files = {one: _File.of(array) for one, array in record.items()}
            arrays = _record_bytes(files)
        except TypeError:  # a forged dtype or shape
            return _serialised(message)
        content[name] = NOTHING
        try:
            return _serialised(message) - _record_bytes({}) + arrays
        finally:
            content[name] = record


def arrays_wire_bytes(arrays: Arrays) -> int:
    """Return the bytes of named arrays in a message as Flower serialises them, with the record that holds them.

    Flower (1.41) sends a record of names, a record of each array, and the arrays' files in chunks, each with a header
    in front. Of equal records or chunks it sends one.
    """
    forms = tuple([(name, one.dtype, one.shape) for name, one in arrays.items()])
    ends = {one.reshape(-1)[-2:].tobytes() for one in arrays.values()}
    if len(ends) == len(arrays) and all(one.nbytes < LARGEST_CHUNK // 2 for one in arrays.values()):
        return _distinct_bytes(forms)
    return _record_bytes({name: _File.written(one) for name, one in arrays.items()})


@lru_cache(maxsize=1024)
def _distinct_bytes(forms: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]) -> int:
    """Return the bytes of arrays of which no two are equal, and none is large: they depend on their forms alone."""
    files = {name: _File.written(np.broadcast_to(np.zeros((), dtype), shape)) for name, dtype, shape in forms}
    return _record_bytes({name: one._replace(end=name.encode()) for name, one in files.items()})


class _File(NamedTuple):
    """An array as Flower sends it: what it says of itself, and the length, end and content of its file."""

    dtype: str
    shape: tuple[int, ...]
    stype: str
    length: int
    end: bytes
    content: Callable[[], bytes]

    @classmethod
    def of(cls, array: Array) -> "_File":
        data = array.data
        return cls(array.dtype, tuple(array.shape), array.stype, len(data), bytes(data[-16:]), partial(bytes, data))

    @classmethod
    def written(cls, array: NDArray[Any]) -> "_File":
        """Return the file of an array that has not been written."""
        head, end = _npy_head(array.dtype, array.shape), array.reshape(-1)[-2:].tobytes()
        content = partial(_file, head, array)
        return cls(str(array.dtype), array.shape, SType.NUMPY, len(head) + array.nbytes, end, content)

    def chunks(self) -> list[tuple[int, bytes, Callable[[], bytes]]]:
        """Return the length, end and content of each chunk."""
        if self.length <= LARGEST_CHUNK:
            return [(self.length, self.end, self.content)] if self.length else []
        content = self.content()
        parts = [content[start : start + LARGEST_CHUNK] for start in range(0, self.length, LARGEST_CHUNK)]
        return [(len(part), part[-len(self.end) :], partial(bytes, part)) for part in parts]


def _record_bytes(files: Mapping[str, _File]) -> int:
    """Return the bytes of a record of arrays, and of all in it, each once."""
    chunks = {name: one.chunks() for name, one in files.items()}
    alike = Counter(chunk[:2] for parts in chunks.values() for chunk in parts)
    objects, arrays = dict[object, int](), set[object]()
    for name, one in files.items():
        parts = [(size, end if alike[size, end] == 1 else content()) for size, end, content in chunks[name]]
        objects |= {part: _framed("ArrayChunk", 0, part[0]) for part in parts}
        distinct = list(dict.fromkeys(parts))
        order = tuple(map(distinct.index, parts)) if len(parts) > 1 else (0,) * len(parts)
        array = (one.dtype, one.shape, one.stype, *parts)
        objects[array] = _framed("Array", len(distinct), _array_body(one.dtype, one.shape, one.stype, order))
        arrays.add(array)
    return sum(objects.values()) + _framed("ArrayRecord", len(arrays), _record_body(tuple(files)))


def _framed(kind: str, children: int, body: int) -> int:
    """Return the length of an object: its kind, the ids of its children, and the length of its body, before that."""
    return len(kind) + 1 + max(65 * children - 1, 0) + 1 + len(str(body)) + 1 + body


@lru_cache(maxsize=1024)
def _array_body(dtype: str, shape: tuple[int, ...], stype: str, order: tuple[int, ...]) -> int:
    return len(json.dumps({"dtype": dtype, "shape": shape, "stype": stype, "arraychunk_ids": order}))


@lru_cache(maxsize=1024)
def _record_body(names: tuple[str, ...]) -> int:
    return len(json.dumps(dict.fromkeys(names, "0" * 64)))


def _file(head: bytes, array: NDArray[Any]) -> bytes:
    return head + array.tobytes()


def _serialised(sent: Message) -> int:
    return sum(len(part.deflate()) for part in get_all_nested_objects(sent).values())


def _arrays_of(message: Message) -> list[Array]:
    records = message.content.array_records.values() if message.has_content() else ()
    return [array for record in records for array in record.values()]


def _content_numbers(npy: bytes) -> int:
    """Return how many numbers follow the header of the .npy format; 0 of what `decode` will refuse."""
    try:
        return _content_bytes(npy) // _header(_beginning(npy))[2].itemsize
    except Exception:  # NumPy raises many kinds, and a forged file may provoke any of them
        return 0


def _content_bytes(npy: bytes) -> int:
    """Return the length of what follows the header of the .npy format, version 1; whatever it is, never an error."""
    return max(len(npy) - 10 - int.from_bytes(npy[8:10], "little"), 0)
