"""The format of a run's binary files: safetensors with the kind of the file and a checksum of all its bytes.

The metadata of a file is one JSON object under the name of the kind. Its first value is the checksum, which is computed
with `BLANK` in its place. Any program can read the file as plain safetensors.
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
    """The content of a file: JSON values, arrays or tensors in the order in which they were written, and checksum."""

    values: dict[str, Any]
    arrays: dict[str, Any]
    checksum: str


def pack(kind: str, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Encode values and arrays as the content of a file; equal values and arrays give equal bytes."""
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    return sealed(kind, values, contiguous, save)


def sealed(
    kind: str, values: Mapping[str, Any], arrays: Mapping[str, Any], save: Callable[[Any, dict[str, str]], bytes]
) -> bytes:
    """Encode values and arrays as the content of a file, with one of safetensors' `save` functions for the arrays."""
    text = json.dumps({"checksum": BLANK, "layout": LAYOUT, **values, "names": list(arrays)}, allow_nan=False)
    content = save(arrays, {kind: text})
    return content.replace(BLANK.encode(), _checksum(content).encode(), 1)


def unpack(content: bytes, kind: str, load: Callable[[bytes], dict[str, Any]] = load_numpy) -> Blob:
    """Decode what `pack` or `sealed` has returned, with one of safetensors' `load` functions for the arrays.

    Raises DamagedError if the content has changed since it was written, or has another kind or layout.
    """
    values = verified(content, kind)
    try:
        loaded = load(content)
    except SafetensorError:
        raise DamagedError("its arrays cannot be read") from None
    arrays = {name: loaded[name] for name in values.pop("names")}  # safetensors orders them differently
    return Blob(values, arrays, values.pop("checksum"))


def verified(content: bytes, kind: str) -> dict[str, Any]:
    """Return the values of a file, including ``checksum``, without reading its arrays; raise the errors of `unpack`."""
    size = int.from_bytes(content[:8], "little")
    try:
        values: dict[str, Any] = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][kind])
        checksum, layout = str(values["checksum"]), values["layout"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DamagedError("its header cannot be read") from None
    if checksum != _checksum(content.replace(checksum.encode(), BLANK.encode(), 1)):
        raise DamagedError("its checksum does not match")
    if layout != LAYOUT:
        raise DamagedError(f"it has layout {layout}, but this version reads layout {LAYOUT}")
    return values


def read_blob(path: Path, kind: str) -> Blob:
    """Read a file; raise DamagedError with the file's path if it is missing, unreadable or damaged."""
    try:
        return unpack(read_file(path), kind)
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read: {error.strerror}") from None
    except DamagedError as error:
        raise DamagedError(f"{path}: damaged ({error})") from None


def checksum_in(path: Path, kind: str) -> str:
    """Return the checksum stored in a file, without verifying it."""
    with safe_open(path, "numpy") as file:
        return str(json.loads(file.metadata()[kind])["checksum"])


def _checksum(content: bytes) -> str:
    return blake2b(content, digest_size=len(BLANK) // 2).hexdigest()
