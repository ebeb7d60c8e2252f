"""Arrays of NumPy in an .npz file as rows: each array is a column, by its name; Python objects are never read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hetfl_flwr.errors import DataError


def npz_table(path: Path) -> pa.Table:
    """Return the rows of an .npz file, as `table_of` does.

    Raises
    ------
    DataError
        If it is none, or holds what `table_of` refuses or an array of objects.
    """
    if not is_zipfile(path):
        raise DataError(f"'{path}' is no .npz file, or damaged: write it with numpy.savez")
    arrays = dict[str, npt.NDArray[Any]]()
    with np.load(path, allow_pickle=False) as file:
        for name in file.files:
            try:
                arrays[name] = file[name]
            except ValueError as error:
                raise DataError(
                    f"array {name!r} of '{path}' cannot be read: save numbers or texts, no Python objects ({error})"
                ) from None
    return table_of(arrays, f"'{path}'")


def table_of(arrays: Mapping[str, npt.NDArray[Any]], place: str) -> pa.Table:
    """Return arrays as columns of a table, row i of each together.

    An array (N,) is a column of cells, (N, L) one of lists, (N, A, L) one of lists of lists; of (N, 1) the ones do not
    count.

    Parameters
    ----------
    arrays : mapping
        By the names of the columns.
    place : str
        What messages call it.

    Raises
    ------
    DataError
        If there is no array, an empty one, or they differ in their number of rows.
    """
    shapes = [array.shape for array in arrays.values()]
    if len({shape[:1] for shape in shapes}) != 1 or any(not shape or 0 in shape for shape in shapes):
        said = ", ".join(f"{name!r} of shape {array.shape}" for name, array in arrays.items()) or "no array"
        raise DataError(f"{place} holds {said}: expected inputs and labels, such as x and y, all with as many rows")
    return pa.table({name: _column(array) for name, array in arrays.items()})


def _column(array: npt.NDArray[Any]) -> pa.Array:
    """Return an array as cells, lists, or lists of lists."""
    shape = array.shape[:1] if array.shape[1:] == (1,) else array.shape
    values = np.ascontiguousarray(array).reshape(-1)
    if values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8):
        values = values.astype(np.float32 if values.dtype.itemsize < 4 else np.float64)
    column = pa.array(values.astype(values.dtype.newbyteorder("="), copy=False))
    for length in shape[:0:-1]:
        column = pa.FixedSizeListArray.from_arrays(column, length)
    return column
