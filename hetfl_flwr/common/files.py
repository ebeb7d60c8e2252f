"""Files on disk: read without waiting for other programs, and replaced in one step."""

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


def replace_file(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file, whole or in parts, through a temporary one in its folder: flushed to disk, then renamed.

    Temporary files of processes that were killed while they wrote this one are removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
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


@contextmanager
def writing(place: object, error: type[HetflError] = RunFolderError, way_out: str = "") -> Iterator[None]:
    """Turn an OSError into one line of an `error`: this file or folder cannot be written, and the way out."""
    try:
        yield
    except OSError as why:
        raise error(f"{place} cannot be written: {why.strerror}" + f"; {way_out}" * bool(way_out)) from None


def check_writable(folder: Path) -> Path:
    """Return the folder that is there, of a folder and those it is to be made in; leave nothing behind.

    Raises
    ------
    OSError
        That folder cannot be written. A link that leads nowhere is no folder, and none can be made in its place.
    """
    there = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    with TemporaryFile(dir=there) as file:
        file.write(b"?")
    return there


def as_json(number: float) -> float | str:
    """Return a number as JSON supports it: one that is not finite is a text, which `float` reads.

    Examples
    --------
    >>> as_json(0.5), as_json(float("inf")), as_json(float("-inf")), as_json(float("nan"))
    (0.5, 'Infinity', '-Infinity', 'NaN')
    """
    return "NaN" if number != number else {inf: "Infinity", -inf: "-Infinity"}.get(number, number)
