"""Rows of a data set as an Arrow table, with the file and the row number that each row comes from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from datasets.arrow_dataset import Dataset

IntArray = npt.NDArray[np.int64]

_AT_ONCE = 1000  # how many rows are hashed at a time


@dataclass(frozen=True, eq=False)
class Frame:
    """Rows of one or more files.

    Parameters
    ----------
    table : Table
        The columns. Columns of a text file hold texts without spaces around them, and null for empty cells.
    classes : mapping
        The class names of each column of class labels.
    images : frozenset of str
        The columns that are declared as images.
    files : tuple of str
        The names of the files in messages; messages do not name files if this, or the name, is empty.
    file, row : ndarray, optional
        (N,) int64: the index of each row's file, and its number in that file, from 1; None: the first file, 1, 2, ...
    notes : tuple of str
        Notes on how a file was read.

    Examples
    --------
    >>> frame = Frame(pa.table({"age": [30, 40], "sick": [0, 1]}), {"sick": ("no", "yes")})
    >>> len(frame), frame.names, frame.take(np.array([1]))["age"].to_pylist()
    (2, ('age', 'sick'), [40])
    """

    table: pa.Table
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    images: frozenset[str] = frozenset()
    files: tuple[str, ...] = ()
    file: IntArray | None = None
    row: IntArray | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: pa.Table) -> "Frame":
        """Return a frame for a table, with the features that the datasets library wrote into its schema."""
        said = _declared(table.schema)
        classes = {name: tuple(one["names"]) for name, one in said.items() if one["_type"] == "ClassLabel"}
        images = frozenset(name for name, one in said.items() if one["_type"] == "Image")
        return cls(pa.table([*map(_plain, table.columns)], names=table.column_names), classes, images)

    @classmethod
    def of_dataset(cls, data: "Dataset") -> "Frame":
        """Return a frame for a split of the datasets library."""
        table: pa.Table = data.with_format("arrow")[:]
        return cls.of(table.replace_schema_metadata(data.info.features.arrow_schema.metadata))

    def __len__(self) -> int:
        """Return N, the number of rows."""
        return int(self.table.num_rows)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a column with this name."""
        return name in self._known

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        """Return the cells of a column."""
        return self.table[name]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return (*self.table.column_names,)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.names)

    @property
    def in_file(self) -> IntArray:
        """The index (N,) of each row's file."""
        return np.zeros(len(self), np.int64) if self.file is None else self.file

    @property
    def numbers(self) -> IntArray:
        """The number (N,) of each row in its file, from 1."""
        return np.arange(1, len(self) + 1) if self.row is None else self.row

    def where(self, row: int) -> str:
        """Describe row 0..N-1 for messages: its number in its file, and the name of the file."""
        number, file = row + 1 if self.row is None else self.row[row], self.files and self.files[self.in_file[row]]
        return f"{number} of {file}" if file else str(number)

    def rows_said(self, rows: npt.NDArray[np.bool_]) -> str:
        """Describe the rows of a mask, which may cover only the first rows: the first, and how many more."""
        more = int(rows.sum()) - 1
        return f"row {self.where(int(rows.argmax()))}" + f" and {more} more" * (more > 0)

    def take(self, rows: IntArray) -> "Frame":
        """Return some rows."""
        table = self.table.take(pa.array(rows))
        return replace(self, table=table, file=self.in_file[rows], row=self.numbers[rows])

    def having(self, columns: Mapping[str, pa.ChunkedArray]) -> "Frame":
        """Return the rows with some columns replaced."""
        names = self.table.column_names
        cells = [columns.get(name, own) for name, own in zip(names, self.table.columns, strict=True)]
        return replace(self, table=pa.table(cells, names=names))

    def without(self, names: Sequence[str]) -> "Frame":
        """Return the rows without some columns."""
        dropped = [name for name in names if name in self]
        return replace(self, table=self.table.drop_columns(dropped)) if dropped else self

    def digest(self, name: str) -> str:
        """Return a digest of the cells of a column, which is the same in every process."""
        found = blake2b(str(self[name].type).encode(), digest_size=16)
        for batch in self.table.select([name]).to_batches(max_chunksize=_AT_ONCE):
            found.update(batch.serialize())
        return found.hexdigest()


def _declared(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Return the features, such as class labels and images, that the datasets library wrote into a schema."""
    try:
        said = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: one for name, one in said.items() if isinstance(one, dict) and isinstance(one.get("_type"), str)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_run_end_encoded(column.type):
        return pa.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], column.type.value_type)
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
