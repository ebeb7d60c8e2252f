"""Files that know when they are damaged: safetensors blobs that hold a digest of all their other bytes.

The digest is part of the JSON text in the blob's metadata, so that the file stays plain safetensors. It is written over
`BLANK`, which must be the first value of that JSON object, under the key ``digest``.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any

from hetfl_flwr.common.errors import DamagedError


def read_file(path: Path) -> bytes:
    """Return what a file holds. Nothing is waited for that another program is to write.

    Raises
    ------
    FileNotFoundError
        There is none.
    OSError
        It cannot be read, is no plain file, or is larger than this process's memory.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no file")
    try:
        return path.read_bytes()
    except MemoryError:
        raise OSError(errno.EFBIG, "it is larger than the memory here") from None


def read_sealed(path: Path) -> bytes:
    """Return a blob that is as it was written. One whose size is not what its beginning says is not read at all.

    Raises
    ------
    OSError
        As `read_file`.
    DamagedError
        It is not as it was written.
    """
    check_size(path)
    blob = read_file(path)
    check_seal(blob)
    return blob


def check_size(path: Path) -> None:
    """Look at the beginning of a large file, which says how large a blob is.

    Raises
    ------
    OSError
        It cannot be read.
    DamagedError
        It has another size.
    """
    state = path.stat()
    if stat.S_ISREG(state.st_mode) and state.st_size > LARGE and state.st_size != _declared_size(path):
        raise DamagedError("its size does not fit")


def _declared_size(path: Path) -> int | None:
    """Return how large a safetensors file says that it is; None where its beginning cannot be read."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            tensors = json.loads(file.read(size)) if size <= LARGEST_HEADER else {}
            ends = [int(one["data_offsets"][1]) for name, one in tensors.items() if name != "__metadata__"]
            return 8 + size + max(ends)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            return None


LARGE = 2**24
"""Bytes above which a look at a file's beginning saves time where the file is damaged."""

LARGEST_HEADER = 10**8
"""Bytes of a safetensors file's header, at most."""

BLANK = "0" * 64
"""What stands for the digest while it is computed."""

_FIELD = re.compile(rb'\\"digest\\": \\"([0-9a-f]{64})\\"')
_HEAD = 512
"""Bytes from the beginning of a blob within which its digest lies."""


def header(name: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata of a blob that is to be sealed: under a name, values that JSON can hold."""
    return {name: json.dumps({"digest": BLANK, **values}, allow_nan=False)}


def read_header(blob: bytes, name: str) -> dict[str, Any]:
    """Return what `header` has put into a blob; whether the blob is as it was written is for `check_seal` to say.

    Raises
    ------
    DamagedError
        There is none.
    """
    size = int.from_bytes(blob[:8], "little")
    try:
        found = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"][name])
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DamagedError("its header cannot be read")
    return found


def seal(blob: bytes) -> bytes:
    """Return a blob with its digest in place of `BLANK`."""
    found = _found(blob)
    view = memoryview(blob)
    return b"".join((view[: found.start(1)], _digest(blob, found).encode(), view[found.end(1) :]))


def check_seal(blob: bytes) -> str:
    """Return the digest of a blob that is as it was written.

    Raises
    ------
    DamagedError
        It is not.
    """
    found = _found(blob)
    if _digest(blob, found) != found[1].decode():
        raise DamagedError("its checksum does not fit")
    return found[1].decode()


def is_sealed(blob: bytes) -> bool:
    """Say whether a blob names a digest."""
    return _FIELD.search(blob, 0, _HEAD) is not None


def digest_in(path: Path) -> str:
    """Return the digest that a file names, which costs no more than a look at its beginning."""
    with path.open("rb") as file:
        return _found(file.read(_HEAD))[1].decode()


def _found(blob: bytes) -> re.Match[bytes]:
    found = _FIELD.search(blob, 0, _HEAD)
    if found is None:
        raise DamagedError("it has no checksum")
    return found


def _digest(blob: bytes, found: re.Match[bytes]) -> str:
    view, digest = memoryview(blob), blake2b(digest_size=len(BLANK) // 2)
    for part in (view[: found.start(1)], BLANK.encode(), view[found.end(1) :]):
        digest.update(part)
    return digest.hexdigest()


def replace_file(path: Path, content: bytes) -> None:
    """Write a file through a temporary one beside it: flushed to disk, then renamed.

    Temporary files of processes that were killed while they wrote this one are removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        for remains in path.parent.glob(f".{path.name}.*"):  # before the file is there: else nobody may write it again
            if remains != temporary:
                remains.unlink(missing_ok=True)
        temporary.replace(path)
        with suppress(OSError):  # the name, too, where the file system can
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


def as_json(number: float) -> float | str:
    """Return a number as JSON can hold it: one that is not finite is a text, which `float` reads.

    Examples
    --------
    >>> as_json(0.5), as_json(float("inf")), as_json(float("-inf")), as_json(float("nan"))
    (0.5, 'Infinity', '-Infinity', 'NaN')
    """
    return "NaN" if number != number else {inf: "Infinity", -inf: "-Infinity"}.get(number, number)
