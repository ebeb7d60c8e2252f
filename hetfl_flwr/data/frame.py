"""Columns of one length, as Arrow holds them, and what their file declares them to be."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from datasets.arrow_dataset import Dataset

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""A cell of a column of images: their file, or where it lies."""


@dataclass(frozen=True, eq=False)
class Frame:
    """The rows of a split.

    Parameters
    ----------
    table : Table
        Its columns.
    classes : mapping
        Of each column that holds the numbers of declared classes, their names.
    images : frozenset of str
        Columns declared to hold images.

    Examples
    --------
    >>> frame = Frame(pa.table({"age": [30, 40], "sick": [0, 1]}), {"sick": ("no", "yes")})
    >>> len(frame), frame.names, frame.take(np.array([1]))["age"].to_pylist()
    (2, ('age', 'sick'), [40])
    """

    table: pa.Table
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    images: frozenset[str] = frozenset()

    @classmethod
    def of(cls, table: pa.Table) -> "Frame":
        """Return a table with what the datasets library has written into its schema; cells as their plain types."""
        said = _declared(table.schema)
        classes = {name: tuple(one["names"]) for name, one in said.items() if one["_type"] == "ClassLabel"}
        images = frozenset(name for name, one in said.items() if one["_type"] == "Image")
        plain = {name: _plain(table[place]) for place, name in enumerate(table.column_names)}
        return cls(pa.table(plain), classes, images)

    @classmethod
    def of_dataset(cls, data: "Dataset") -> "Frame":
        """Return a split of the datasets library."""
        table: pa.Table = data.with_format("arrow")[:]
        return cls.of(table.replace_schema_metadata(data.info.features.arrow_schema.metadata))

    def __len__(self) -> int:
        """Return N, the number of rows."""
        return int(self.table.num_rows)

    def __contains__(self, name: object) -> bool:
        """Say whether there is a column."""
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

    def take(self, rows: npt.NDArray[np.int64]) -> "Frame":
        """Return some rows."""
        return replace(self, table=self.table.take(pa.array(rows)))

    def rows(self, first: int, count: int) -> "Frame":
        """Return rows that follow each other."""
        return replace(self, table=self.table.slice(first, count))

    def without(self, names: Sequence[str]) -> "Frame":
        """Return the other columns."""
        return replace(self, table=self.table.drop_columns(list(names))) if names else self

    def digest(self, name: str) -> str:
        """Return a digest of the cells of a column; equal ones have equal digests in every process."""
        sink = _Digest()
        with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), pa.schema([(name, self[name].type)])) as stream:
            for batch in self.table.select([name]).to_batches():
                stream.write_batch(batch)
        return sink.sum.hexdigest()


class _Digest:
    """A file of which nothing is kept but a digest of what is written to it."""

    closed = False

    def __init__(self) -> None:
        self.sum = blake2b(digest_size=16)

    def write(self, data: bytes) -> int:
        self.sum.update(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


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
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
