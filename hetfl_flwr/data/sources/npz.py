"""Arrays of NumPy in an .npz file as rows: each array is a column, by its name; Python objects are never read."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hetfl_flwr.data.sources.folders import TABLES, ending
from hetfl_flwr.errors import DataError

if TYPE_CHECKING:
    from datasets.arrow_dataset import Dataset

Array = npt.NDArray[Any]


def read_npz(path: Path) -> "Dataset":
    """Return the rows of an .npz file: row i of each array together.

    An array (N,) is a column of cells, (N, L) one of lists, (N, A, L) one of lists of lists; of (N, 1) the ones do not
    count.

    Raises
    ------
    DataError
        If it holds no array, an array of objects, or arrays that differ in their number of rows.
    """
    from datasets.arrow_dataset import Dataset

    return Dataset(npz_table(path))


def npz_table(path: Path) -> pa.Table:
    """Return the rows of an .npz file as `read_npz` does, as a table of Arrow."""
    if not is_zipfile(path):
        raise DataError(f"'{path}' is no .npz file, or damaged: write it with numpy.savez")
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: _array(file, name, path) for name in file.files}
    return table_of(arrays, f"'{path}'")


def table_of(arrays: Mapping[str, Array], place: str) -> pa.Table:
    """Return arrays as columns of a table.

    Parameters
    ----------
    arrays : mapping
        By the names of the columns, each with its rows along the first axis.
    place : str
        What messages call it.

    Raises
    ------
    DataError
        As `read_npz` does.
    """
    if not arrays:
        raise DataError(f"{place} holds no array: expected inputs, such as x, and labels, such as y")
    for name, array in arrays.items():
        if not array.ndim or not array.size:
            raise DataError(f"{place}: array {name!r} has shape {array.shape}, which holds nothing")
    (first, one), *others = arrays.items()
    for name, array in others:
        if len(array) != len(one):
            raise DataError(
                f"{place}: array {first!r} has {len(one)} rows, {name!r} has {len(array)}: "
                "each array needs as many as the others"
            )
    return pa.table({name: _column(array) for name, array in arrays.items()})


def npz_splits(folder: Path) -> dict[str, list[Path]]:
    """Return the .npz files of a folder by split, "test" if their names end so; nothing where there is no such file.

    Raises
    ------
    DataError
        If there are files of rows of other kinds beside them.
    """
    rows = sorted(path for path in folder.rglob("*") if ending(path) in TABLES and path.is_file())
    files = [path for path in rows if ending(path) == ".npz"]
    if files and len(files) < len(rows):
        raise DataError(
            f"'{folder}' holds .npz files and other files of rows: put those of one kind into a folder of their own"
        )
    splits: dict[str, list[Path]] = {}
    for path in files:
        splits.setdefault("test" if path.stem.lower().endswith("test") else "train", []).append(path)
    return splits


def _array(file: Any, name: str, path: Path) -> Array:
    try:
        array: Array = file[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise DataError(
            f"array {name!r} of '{path}' holds Python objects, which are not read: save numbers or texts"
        ) from None
    return array


def _column(array: Array) -> pa.Array:
    """Return an array as cells, lists, or lists of lists."""
    shape = array.shape[:1] if array.shape[1:] == (1,) else array.shape
    values = np.ascontiguousarray(array).reshape(-1)
    if values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8):
        values = values.astype(np.float32 if values.dtype.itemsize < 4 else np.float64)
    column = pa.array(values.astype(values.dtype.newbyteorder("="), copy=False))
    for length in shape[:0:-1]:
        column = pa.FixedSizeListArray.from_arrays(column, length)
    return column
