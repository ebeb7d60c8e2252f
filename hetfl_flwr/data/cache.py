"""Decoded data sets on disk: made once, then mapped into the memory of every process that wants them."""

import os
import shutil
from collections.abc import Callable, Iterable
from errno import ENOSPC
from hashlib import sha256
from logging import getLogger
from math import prod
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt

from hetfl_flwr.errors import DataError

SMALL = 16 * 2**20
"""Bytes up to which an array is simply held in memory."""

_SHARE = 0.5  # of the machine's memory that one array may take
_VERSION = 1  # of what is written for equal keys

_LOGGER = getLogger(__name__)

Batches = Callable[[], Iterable[npt.NDArray[Any]]]


def kept(
    key: tuple[object, ...], shape: tuple[int, ...], dtype: type[np.generic], batches: Batches
) -> npt.NDArray[Any]:
    """Return an array made of batches, from the cache if it has it.

    A large one lies in a file of the cache folder of the datasets library, which all processes map: it is in memory
    once a machine, and read only as far as it is used. What is written to the array stays in this process.

    Parameters
    ----------
    key : tuple
        What the batches depend on; its ``repr`` is the same in every process.
    shape : tuple of int
        Shape of the whole array.
    dtype : type
        Its type.
    batches : callable
        Makes its parts, along the first axis, from the beginning; called where no file has them yet.
    """
    kind = np.dtype(dtype)
    if prod(shape) * kind.itemsize > SMALL:
        path = cache_folder() / f"{sha256(repr((_VERSION, key, shape, kind.str)).encode()).hexdigest()}.npy"
        try:
            if (mapped := _mapped(path, shape, kind)) is None:
                _write(path, shape, kind, batches)
                mapped = _mapped(path, shape, kind)
            if mapped is not None:
                return mapped
        except OSError as error:
            _LOGGER.warning("decoded data are held in memory: %s cannot be written (%s)", path.parent, error.strerror)
    check_fits(shape, kind.itemsize, "set image-size or text-length lower")
    array, start = np.empty(shape, kind), 0
    for batch in batches():
        array[start : start + len(batch)] = batch
        start += len(batch)
    return array


def cache_folder() -> Path:
    """Return where the files lie."""
    from datasets import config

    return Path(config.HF_DATASETS_CACHE) / "hetfl-decoded"


def _mapped(path: Path, shape: tuple[int, ...], kind: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Return a file's array, or None if the file is absent, cut short or another's."""
    try:
        array = np.lib.format.open_memmap(path, mode="c")
    except (OSError, ValueError):
        return None
    return array if array.shape == shape and array.dtype == kind else None


def _write(path: Path, shape: tuple[int, ...], kind: np.dtype[Any], batches: Batches) -> None:
    """Write a file through a temporary one, so that concurrent writers leave an intact file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if prod(shape) * kind.itemsize > shutil.disk_usage(path.parent).free:  # before hours are spent on it
        raise OSError(ENOSPC, os.strerror(ENOSPC), str(path.parent))
    with NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        try:
            np.lib.format.write_array_header_1_0(file, {"descr": kind.str, "fortran_order": False, "shape": shape})
            for batch in batches():
                file.write(np.ascontiguousarray(batch, kind).data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def check_fits(shape: tuple[int, ...], itemsize: int, remedy: str) -> None:
    """Refuse an array that this machine cannot hold.

    Parameters
    ----------
    shape : tuple of int
        Its shape, samples first.
    itemsize : int
        Bytes of a value.
    remedy : str
        What makes it smaller.
    """
    needed, there = prod(shape) * itemsize, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > _SHARE * there:
        raise DataError(
            f"{shape[0]} samples of shape {shape[1:]} need {needed / 1e9:,.1f} GB, and this machine has "
            f"{there / 1e9:,.1f} GB of memory: {remedy}"
        )
