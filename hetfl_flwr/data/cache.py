"""Cache decoded data sets on disk, and map them into the memory of every process that uses them."""

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
"""Arrays of up to this many bytes are kept in memory instead."""

_SHARE = 0.5  # the share of the machine's memory that one array may use
_VERSION = 1  # to increase if equal keys give other arrays

_LOGGER = getLogger(__name__)

Batches = Callable[[], Iterable[npt.NDArray[Any]]]


def kept(
    key: tuple[object, ...], shape: tuple[int, ...], dtype: type[np.generic], batches: Batches
) -> npt.NDArray[Any]:
    """Return the concatenated batches as one array of the given shape, from the cache if possible.

    A large array is a file in the cache folder of the datasets library, which all processes map: a machine has it in
    memory only once, and reads only the parts in use. Writes to the array stay in this process. `key` is all that the
    batches depend on, and its ``repr`` must be the same in every process. `batches` is called if no file exists.
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
            _LOGGER.warning("decoded data are kept in memory: %s cannot be written (%s)", path.parent, error.strerror)
    check_fits(shape, kind.itemsize, "set image-size or text-length lower")
    array, start = np.empty(shape, kind), 0
    for batch in batches():
        array[start : start + len(batch)] = batch
        start += len(batch)
    return array


def cache_folder() -> Path:
    """Return the folder of the cached files."""
    from datasets import config

    return Path(config.HF_DATASETS_CACHE) / "hetfl-decoded"


def _mapped(path: Path, shape: tuple[int, ...], kind: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Map the array in a file; return None if the file is missing, truncated or not this array."""
    try:
        array = np.lib.format.open_memmap(path, mode="c")
    except (OSError, ValueError):
        return None
    return array if array.shape == shape and array.dtype == kind else None


def _write(path: Path, shape: tuple[int, ...], kind: np.dtype[Any], batches: Batches) -> None:
    """Write a temporary file and rename it, so that the file is intact even with concurrent writers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if prod(shape) * kind.itemsize > shutil.disk_usage(path.parent).free:  # decoding may take hours
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
    """Refuse an array, with samples first, that does not fit into memory; `remedy` tells how to make it smaller."""
    needed, there = prod(shape) * itemsize, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > _SHARE * there:
        raise DataError(
            f"{shape[0]} samples of shape {shape[1:]} need {needed / 1e9:,.1f} GB, and this machine has "
            f"{there / 1e9:,.1f} GB of memory: {remedy}"
        )
