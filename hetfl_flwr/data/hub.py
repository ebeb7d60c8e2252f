"""Data sets opened: which columns count, and which rows have a label. Nothing is decoded here."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hetfl_flwr.data.finding import found_splits
from hetfl_flwr.data.frame import Frame
from hetfl_flwr.data.reading import Reading, parse_classes
from hetfl_flwr.data.roles import Kind, columns_called, is_between, is_nameless, is_text, roles
from hetfl_flwr.data.rows import NO_LABEL, Part, left, numbered
from hetfl_flwr.errors import DataError

if TYPE_CHECKING:
    from hetfl_flwr.data.catalogue import DatasetEntry


@dataclass(frozen=True, eq=False)
class Source:
    """An opened data set of which nothing is decoded yet.

    Parameters
    ----------
    place : str
        Hub id or folder it came from, for messages.
    splits : dict
        "train", and "test" where it has one, in this order; neither is empty, and all columns named here are in both.
    kind : {"image", "series", "text", "table"}
        What an input is.
    inputs : tuple of str
        The image column, the text column, the column of series, or all columns of a table save label, domain and id, in
        their order.
    label : str
        The column that is to be learnt.
    reading : Reading
        How it is read: of one data set, the catalogue's columns filled in.
    values : tuple of str or int
        Label values in class order where the catalogue declares them, else empty.
    rows : dict
        Of each split that has lost rows, (N,) int64: which rows of the file those are that are left.
    notes : tuple of str
        What was done when it was opened that nobody has asked for.
    files : tuple of (str, int)
        Name and rows of each file where it is read file by file, in the order of the rows; else empty.
    parts : dict
        Of each split that was read from csv files, or file by file: the files, in the order of their rows.
    """

    place: str
    splits: dict[str, Frame]
    kind: Kind
    inputs: tuple[str, ...]
    label: str
    reading: Reading
    values: tuple[str | int, ...] = ()
    rows: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: tuple[tuple[str, int], ...] = ()
    parts: Mapping[str, Sequence[Part]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return N, the number of rows of all splits."""
        return sum(map(len, self.splits.values()))

    @property
    def is_catalogued(self) -> bool:
        """Whether it is a data set of the catalogue, whose columns are taken as they are."""
        return bool(self.values)

    @property
    def train_rows(self) -> int:
        """How many of the N rows are the training split."""
        return len(self.splits["train"])

    @cached_property
    def digest(self) -> str:
        """A digest of all inputs."""
        parts = [data.digest(name) for data in self.splits.values() for name in self.inputs]
        return blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def training(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the cells of the training split of a column of all rows."""
        return values.slice(0, self.train_rows)

    def place_of(self, row: int) -> tuple[str, int, str]:
        """Return where people find a row, 0..N-1, counted through the splits.

        Returns
        -------
        split : str
            Its split.
        number : int
            Which row it is in its file, or else in the split: the first is 1, and so is the header of a csv file; 0 in
            what was given from Python.
        file : str
            What the file is called; empty where its split is one file, or not read from files.
        """
        split, row = ("train", row) if row < self.train_rows else ("test", row - self.train_rows)
        row = int(self.rows[split][row]) if split in self.rows else row
        return split, *numbered(self.parts.get(split, ()), row)

    def where(self, row: int) -> str:
        """Return how messages call a row, 0..N-1, counted through the splits."""
        split, number, file = self.place_of(row)
        if file.startswith(self.place):
            return f"{number} of {file}"
        return f"{number} of {file or f'split {split!r}'} of {self.place}"

    def rows_said(self, rows: npt.NDArray[np.bool_]) -> str:
        """Return how messages call some of the first rows, (N,): the first, and how many more."""
        first, *more = np.flatnonzero(rows)
        split, row, file = self.place_of(int(first))
        among = f" of {file}" if file else f" of split '{split}'" * (len(self.splits) > 1)
        return f"row {row}{among}" + (f" and {len(more)} more" if more else "")

    def where_in(self, split: str, row: int) -> str:
        """Return how messages call a row of a split."""
        return self.where(row + self.train_rows * (split != "train"))


def open_source(dataset: str, reading: Reading, entry: "DatasetEntry | None" = None) -> Source:
    """Open a data set.

    Parameters
    ----------
    dataset : str
        A hub id ``owner/name``, or a folder.
    reading : Reading
        Where it lies and which columns count; the only image and the only class-label column need no name.
    entry : DatasetEntry, optional
        What the catalogue knows of it.

    Raises
    ------
    ConfigError
        If the columns of two kinds of input are named.
    DataError
        If it cannot be found or read, has no training split or an empty split, or lacks the columns.
    """
    opened = found_splits(dataset, reading, entry)
    place = opened.place
    found, nameless = (opened.splits, ()) if entry else _without_nameless(place, opened.splits, reading)
    label, kind, inputs = roles(place, found, reading)
    splits: dict[str, Frame] = {name: found[name] for name in ("train", "test") if name in found}
    if entry and entry.without:
        splits = {name: _without(data, label, entry.without) for name, data in splits.items()}
    for name, data in splits.items():
        if not len(data):
            raise DataError(f"split '{name}' of {place} is empty: take it away, or put rows into it")
    if kind == "image":
        for data in splits.values():
            _check_images(place, data, inputs[0])
    values = entry.values or tuple(range(entry.spec.classes)) if entry else ()
    said = {label for _, label in parse_classes(reading.classes)}
    unknown = () if entry else tuple(text for text in NO_LABEL if text not in said)
    whole, (splits, rows, notes) = splits, labelled(place, splits, label, opened.parts, unknown)
    unused = [f"split '{name}' of {place} is not used" for name in found if name not in splits]
    notes = (
        *opened.notes,
        *nameless,
        *unused,
        *notes,
        *_without_labels(place, whole, rows, label, opened.files, reading),
    )
    files = left(opened.files, rows)
    return Source(place, splits, kind, inputs, label, reading, values, rows, notes, files, opened.parts)


def _without_nameless(
    place: str, splits: dict[str, Frame], reading: Reading
) -> tuple[dict[str, Frame], tuple[str, ...]]:
    """Leave out columns without a name that are empty, or hold the names of rows, unless a key names them."""
    names = dict.fromkeys(name for data in splits.values() for name in data.names if is_nameless(name))
    unnamed = [name for name in names if name not in reading.named]
    empty = [name for name in unnamed if all(_is_blank(data, name) for data in splits.values())]
    rows = [name for name in unnamed if name not in empty and not is_between(name)]
    notes = []
    if empty:
        notes.append(f"{columns_called(empty)} of {place}, without name and cells: left out")
    if rows:
        notes.append(
            f"{columns_called(rows)} of {place}, names of the rows: left out; give it a name, or name it in "
            "numeric-columns or categorical-columns, to learn from it"
        )
    if not notes:
        return splits, ()
    gone = {*empty, *rows}
    kept = {split: data.without([name for name in data.names if name in gone]) for split, data in splits.items()}
    return kept, (*notes,)


def _is_blank(data: Frame, name: str) -> bool:
    return name not in data or data[name].null_count == len(data)


def labelled(
    place: str,
    splits: dict[str, Frame],
    label: str,
    parts: Mapping[str, Sequence[Part]] | None = None,
    unknown: Sequence[str] = NO_LABEL,
) -> tuple[dict[str, Frame], dict[str, npt.NDArray[np.int64]], tuple[str, ...]]:
    """Leave out the rows without a label.

    Parameters
    ----------
    place : str
        What messages call the data set.
    splits : dict
        All rows.
    label : str
        The column.
    parts : mapping, optional
        The files of each split.
    unknown : sequence of str
        Texts that say that there is no label.

    Returns
    -------
    splits : dict
        With the other rows.
    rows : dict
        Of each split that has lost rows, the numbers of those that are left.
    notes : tuple of str
        How many were left out.

    Raises
    ------
    DataError
        If no row of a split has a label.
    """
    rows, notes = dict[str, npt.NDArray[np.int64]](), list[str]()
    for split, data in splits.items():
        without = _missing(data[label], unknown)
        if without.all():
            where, way_out = (
                (f"split '{split}' of ", "take the split away")
                if len(splits) > 1
                else ("", "name another label-column")
            )
            raise DataError(f"no row of {where}{place} has any {label}: fill it in, or {way_out}")
        if without.any():
            first, *more = np.flatnonzero(without)
            number, file = numbered((parts or {}).get(split, ()), int(first))
            which = f"row {number}" + (f" of {file}" if file else "") + (f" and {len(more)} more" if more else "")
            words = _words(data[label], without)
            notes.append(
                f"{without.sum()} of {len(data)} rows of split '{split}' of {place} have no {label} ({which}): left out"
                + f"; if {words} is a class, name all of them in classes" * bool(words)
            )
            rows[split] = np.flatnonzero(~without)
    return (
        {split: data.take(rows[split]) if split in rows else data for split, data in splits.items()},
        rows,
        (*notes,),
    )


def _without_labels(
    place: str,
    splits: Mapping[str, Frame],
    rows: Mapping[str, npt.NDArray[np.int64]],
    label: str,
    files: Sequence[tuple[str, int]],
    reading: Reading,
) -> list[str]:
    """Name each file, or owner, none of whose rows has a label: it is gone with them."""
    if "train" not in rows or not (files or reading.id_column):
        return []
    gone: list[tuple[str, int]] = []
    if files:
        what, way_out = "file", "fill it in, or take the file away"
        gone += [(name, count) for (name, count), (_, kept) in zip(files, left(files, rows), strict=True) if not kept]
    else:
        what, way_out = "owner", "fill it in, or the owner is no client"
        owners = splits["train"][reading.id_column]
        there = set(owners.take(rows["train"]).to_pylist())
        counts = Counter(owners.drop_null().to_pylist())
        gone += [(str(owner), count) for owner, count in counts.items() if owner not in there]
    return [
        f"{what} {name!r} of {place} is left out: none of its {count} rows has any {label}; {way_out}"
        for name, count in gone
    ]


def _words(found: pa.ChunkedArray, rows: npt.NDArray[np.bool_]) -> str:
    """Return what stands in some cells, if they are texts and not all empty."""
    there = found.filter(rows).drop_null().unique().to_pylist() if is_text(found.type) else []
    return ", ".join(repr(text) for text in there if text.strip())


def _missing(found: pa.ChunkedArray, unknown: Sequence[str]) -> npt.NDArray[np.bool_]:
    missing = found.is_null(nan_is_null=True)
    if is_text(found.type):
        texts = pc.utf8_trim_whitespace(found.cast(pa.large_string()))
        missing = pc.or_(missing, pc.is_in(texts, value_set=pa.array(["", *unknown], pa.large_string())))
    without: npt.NDArray[np.bool_] = missing.to_numpy()
    return without


def _check_images(place: str, data: Frame, column: str) -> None:
    """Refuse a column of inputs that holds neither images nor bytes or paths of such."""
    kind = data[column].type
    holds = (pa.types.is_binary, pa.types.is_large_binary, is_text)
    if column not in data.images and not any(one(kind) for one in holds):
        raise DataError(f"column '{column}' of {place} holds no images: set image-column to one that does")


def _without(data: Frame, label: str, values: tuple[str | int, ...]) -> Frame:
    dropped = np.isin(data[label].to_numpy(), values)
    return data.take(np.flatnonzero(~dropped)) if dropped.any() else data
