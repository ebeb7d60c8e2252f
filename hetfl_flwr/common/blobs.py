"""The format of a run's binary files: safetensors, with the file's kind and a checksum of all of its bytes.

The file's metadata is one JSON object under the name of the kind. Its first value is the checksum, which is computed
with `BLANK` in its place, so that any program can read the file as plain safetensors.
"""

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as load_numpy
from safetensors.numpy import save

from hetfl_flwr.common.files import read_file
from hetfl_flwr.errors import DamagedError

LAYOUT = 5
"""Version of the layout of all kinds of files."""

BLANK = "0" * 64
"""Placeholder for the checksum while it is computed."""


class Blob(NamedTuple):
    """The content of a file.

    Parameters
    ----------
    values : dict of str to Any
        Values that JSON supports.
    arrays : dict of str to array
        Arrays or tensors, in the order in which they were written.
    checksum : str
        The checksum of the file.
    """

    values: dict[str, Any]
    arrays: dict[str, Any]
    checksum: str


def pack(kind: str, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the content of a file; equal values and arrays give equal bytes."""
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    return sealed(kind, values, contiguous, save)


def sealed(
    kind: str, values: Mapping[str, Any], arrays: Mapping[str, Any], save: Callable[[Any, dict[str, str]], bytes]
) -> bytes:
    """Return the content of a file whose arrays are serialised by one of safetensors' functions."""
    text = json.dumps({"checksum": BLANK, "layout": LAYOUT, **values, "names": list(arrays)}, allow_nan=False)
    content = save(arrays, {kind: text})
    return content.replace(BLANK.encode(), _checksum(content).encode(), 1)


def unpack(content: bytes, kind: str, load: Callable[[bytes], dict[str, Any]] = load_numpy) -> Blob:
    """Decode the content of a file.

    Parameters
    ----------
    content : bytes
        What `pack` or `sealed` has returned.
    kind : str
        The kind of file that is expected.
    load : callable
        The function of safetensors that reads the arrays.

    Raises
    ------
    DamagedError
        It is not as it was written, or is of another kind or layout.
    """
    values = verified(content, kind)
    try:
        loaded = load(content)
    except SafetensorError:
        raise DamagedError("its arrays cannot be read") from None
    arrays = {name: loaded[name] for name in values.pop("names")}  # safetensors has an order of its own
    return Blob(values, arrays, values.pop("checksum"))


def verified(content: bytes, kind: str) -> dict[str, Any]:
    """Return the values of a file, ``checksum`` among them, without reading its arrays; raises as `unpack`."""
    size = int.from_bytes(content[:8], "little")
    try:
        values: dict[str, Any] = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][kind])
        checksum, layout = str(values["checksum"]), values["layout"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DamagedError("its header cannot be read") from None
    if checksum != _checksum(content.replace(checksum.encode(), BLANK.encode(), 1)):
        raise DamagedError("its checksum does not fit")
    if layout != LAYOUT:
        raise DamagedError(f"it has layout {layout}, and this version reads {LAYOUT}")
    return values


def read_blob(path: Path, kind: str) -> Blob:
    """Read a file.

    Raises
    ------
    DamagedError
        It is missing or cannot be read; or as `unpack`. Names the file.
    """
    try:
        return unpack(read_file(path), kind)
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read: {error.strerror}") from None
    except DamagedError as error:
        raise DamagedError(f"{path}: damaged ({error})") from None


def checksum_in(path: Path, kind: str) -> str:
    """Return the checksum that a file names, without reading its arrays or verifying it."""
    with safe_open(path, "numpy") as file:
        return str(json.loads(file.metadata()[kind])["checksum"])


def _checksum(content: bytes) -> str:
    return blake2b(content, digest_size=len(BLANK) // 2).hexdigest()
