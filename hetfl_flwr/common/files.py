"""Read files without waiting for other programs, and replace files atomically."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from tempfile import TemporaryFile

from hetfl_flwr.errors import HetflError, RunFolderError


def read_file(path: Path) -> bytes:
    """Return the content of a file, without waiting for another program to write it.

    Raises FileNotFoundError if there is no such file, and OSError if it cannot be read, is not a regular file, or does
    not fit into memory.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    try:
        return path.read_bytes()
    except MemoryError:
        raise OSError(errno.EFBIG, "it does not fit into memory") from None


def replace_file(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write content, given at once or in parts, to a temporary file, flush it to disk, and rename it to `path`.

    Temporary files that killed processes left behind for this path are removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        for remains in path.parent.glob(f".{path.name}.*"):  # before the rename: this may be the last write
            if remains != temporary:
                remains.unlink(missing_ok=True)
        temporary.replace(path)
        with suppress(OSError):  # flush the new name, too, if the file system supports it
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing(place: object, error: type[HetflError] = RunFolderError, way_out: str = "") -> Iterator[None]:
    """Turn an OSError into one line of an `error`: this file or folder cannot be written, and the way out."""
    try:
        yield
    except OSError as why:
        raise error(f"{place} cannot be written: {why.strerror}" + f"; {way_out}" * bool(way_out)) from None


def check_writable(folder: Path) -> Path:
    """Return the folder or its nearest existing parent after checking that it can be written; leave nothing behind.

    Raises OSError if it cannot be written. A dangling link counts as existing, and cannot be written.
    """
    there = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    with TemporaryFile(dir=there) as file:
        file.write(b"?")
    return there


def as_json(number: float) -> float | str:
    """Return a number in a form that JSON supports: a non-finite number becomes a string that `float` reads.

    Examples
    --------
    >>> as_json(0.5), as_json(float("inf")), as_json(float("-inf")), as_json(float("nan"))
    (0.5, 'Infinity', '-Infinity', 'NaN')
    """
    return "NaN" if number != number else {inf: "Infinity", -inf: "-Infinity"}.get(number, number)
