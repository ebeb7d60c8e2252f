"""Arrays of NumPy in an .npz file as rows: each array is a column, by its name; Python objects are never read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hetfl_flwr.errors import DataError

Array = npt.NDArray[Any]


def npz_table(path: Path) -> pa.Table:
    """Return the rows of an .npz file: row i of each array together.

    An array (N,) is a column of cells, (N, L) one of lists, (N, A, L) one of lists of lists; of (N, 1) the ones do not
    count.

    Raises
    ------
    DataError
        If it holds no array, an array of objects, or arrays that differ in their number of rows.
    """
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
        As `npz_table` does.
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
