"""Read arrays as tables: .npz files, and the text files of UCI human activity recognition.

Anguita et al., "A Public Domain Dataset for Human Activity Recognition Using Smartphones", ESANN 2013.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hetfl_flwr.data.folders import SIGNALS
from hetfl_flwr.data.frame import Frame
from hetfl_flwr.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame

CHANNELS = tuple(f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
"""The channels in order: body acceleration, angular velocity and total acceleration, each with three axes."""


def npz_table(path: Path) -> pa.Table:
    """Read an .npz file as a table; see `table_of`."""
    if not is_zipfile(path):
        raise DataError(f"'{path}' is not an .npz file, or is damaged: write it with numpy.savez")
    arrays = dict[str, npt.NDArray[Any]]()
    with np.load(path, allow_pickle=False) as file:
        for name in file.files:
            try:
                arrays[name] = file[name]
            except ValueError as error:
                raise DataError(
                    f"array {name!r} of '{path}' cannot be read: save numbers or texts, not Python objects ({error})"
                ) from None
    return table_of(arrays, f"'{path}'")


def table_of(arrays: Mapping[str, npt.NDArray[Any]], place: str) -> pa.Table:
    """Return named arrays as columns of a table.

    An array (N,) or (N, 1) is a column of cells, (N, L) a column of lists, (N, A, L) a column of lists of lists.
    """
    shapes = [array.shape for array in arrays.values()]
    if len({shape[:1] for shape in shapes}) != 1 or any(not shape or 0 in shape for shape in shapes):
        said = ", ".join(f"{name!r} of shape {array.shape}" for name, array in arrays.items()) or "no array"
        raise DataError(
            f"{place} holds {said}: expected inputs and labels, such as x and y, with equal numbers of rows"
        )
    return pa.table({name: _column(array) for name, array in arrays.items()})


def _column(array: npt.NDArray[Any]) -> pa.Array:
    """Return an array as a column of cells, lists, or lists of lists."""
    shape = array.shape[:1] if array.shape[1:] == (1,) else array.shape
    mask = np.ma.getmaskarray(array).reshape(-1) if isinstance(array, np.ma.MaskedArray) else None
    values = np.ascontiguousarray(array).reshape(-1)
    if values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8):
        values = values.astype(np.float32 if values.dtype.itemsize < 4 else np.float64)
    column = pa.array(values.astype(values.dtype.newbyteorder("="), copy=False), mask=mask)
    for length in shape[:0:-1]:
        column = pa.FixedSizeListArray.from_arrays(column, length)
    return column


def read_signals(folder: Path) -> dict[str, Frame]:
    """Return the windows of each split: columns ``signal`` (9 x 128), ``activity`` and ``person``, as in the files."""
    names = _read(folder / "activity_labels.txt").to_numpy()[:, 1]
    splits: dict[str, Frame] = {}
    for split in ("train", "test"):
        here = folder / split
        if here.is_dir():
            signal = [_read(here / SIGNALS / f"{channel}_{split}.txt", np.float32) for channel in CHANNELS]
            if len({channel.shape for channel in signal}) > 1:
                raise DataError(f"the files in '{here / SIGNALS}' differ in rows or length: download them again")
            arrays = {
                "signal": np.stack(signal, axis=1),
                "activity": _read(here / f"y_{split}.txt", np.int64).to_numpy() - 1,
                "person": _read(here / f"subject_{split}.txt", np.int64).to_numpy(),
            }
            splits[split] = Frame(table_of(arrays, f"'{here}'"), {"activity": tuple(map(str.lower, names))})
    return splits


def _read(path: Path, dtype: Any = None) -> "DataFrame":
    """Read the cells of a text file, which are separated by spaces."""
    from pandas import read_csv

    try:
        return read_csv(path, sep=r"\s+", header=None, dtype=dtype)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise DataError(f"cannot read '{path}': {why}") from None
