"""Rows of a data set: columns of one length as Arrow holds them, and where each row comes from."""

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

_AT_ONCE = 1000  # rows of which a digest is made at a time


@dataclass(frozen=True, eq=False)
class Frame:
    """Rows, of one file or of several.

    Parameters
    ----------
    table : Table
        Its columns. Those of a text file hold texts without blanks around them, null where a cell is empty.
    classes : mapping
        Of each column that holds the numbers of declared classes, their names.
    images : frozenset of str
        Columns declared to hold images.
    files : tuple of str
        What messages call the files that the rows are from; empty, or an empty one: its name says nothing.
    file, row : ndarray, optional
        (N,) int64: which of these files each row is from, and its number there, as people count; None: 1, 2, ...
    notes : tuple of str
        What is not plain about a file, and how it was read.

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
        """Return a table with what the datasets library has written into its schema; cells as their plain types."""
        said = _declared(table.schema)
        classes = {name: tuple(one["names"]) for name, one in said.items() if one["_type"] == "ClassLabel"}
        images = frozenset(name for name, one in said.items() if one["_type"] == "Image")
        return cls(pa.table([*map(_plain, table.columns)], names=table.column_names), classes, images)

    @classmethod
    def of_dataset(cls, data: "Dataset") -> "Frame":
        """Return a split of the datasets library."""
        table: pa.Table = data.with_format("arrow")[:]
        return cls.of(table.replace_schema_metadata(data.info.features.arrow_schema.metadata))

    def __len__(self) -> int:
        """Return N, the number of rows."""
        return int(self.table.num_rows)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a column."""
        return name in self._known

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        """Return the cells of a column."""
        return self.table[name]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in their order."""
        return (*self.table.column_names,)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.names)

    @property
    def in_file(self) -> IntArray:
        """The file (N,) that each row is from."""
        return np.zeros(len(self), np.int64) if self.file is None else self.file

    @property
    def numbers(self) -> IntArray:
        """The number (N,) of each row in its file, as people count."""
        return np.arange(1, len(self) + 1) if self.row is None else self.row

    def where(self, row: int) -> str:
        """Return how messages call a row 0..N-1: its number in its file, as people count, and that file's name."""
        number, file = row + 1 if self.row is None else self.row[row], self.files and self.files[self.in_file[row]]
        return f"{number} of {file}" if file else str(number)

    def rows_said(self, rows: npt.NDArray[np.bool_]) -> str:
        """Return how messages call some of the first rows, (N,): the first, and how many more."""
        more = int(rows.sum()) - 1
        return f"row {self.where(int(rows.argmax()))}" + f" and {more} more" * (more > 0)

    def take(self, rows: IntArray) -> "Frame":
        """Return some rows."""
        table = self.table.take(pa.array(rows))
        return replace(self, table=table, file=self.in_file[rows], row=self.numbers[rows])

    def having(self, columns: Mapping[str, pa.ChunkedArray]) -> "Frame":
        """Return the rows with other cells in some columns."""
        names = self.table.column_names
        cells = [columns.get(name, own) for name, own in zip(names, self.table.columns, strict=True)]
        return replace(self, table=pa.table(cells, names=names))

    def without(self, names: Sequence[str]) -> "Frame":
        """Return the other columns."""
        gone = [name for name in names if name in self]
        return replace(self, table=self.table.drop_columns(gone)) if gone else self

    def digest(self, name: str) -> str:
        """Return a digest of the cells of a column; equal ones have equal digests in every process."""
        found = blake2b(str(self[name].type).encode(), digest_size=16)
        for batch in self.table.select([name]).to_batches(max_chunksize=_AT_ONCE):
            found.update(batch.serialize())
        return found.hexdigest()


def _declared(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Return what the datasets library has written into a schema of columns that are more than their type."""
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
