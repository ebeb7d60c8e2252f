"""Data sets in the hub's layout, opened: from a local folder or from the hub itself. Nothing is decoded here."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import CRITICAL, ERROR, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hetfl_flwr.data.sources.columns import Columns, Kind, roles
from hetfl_flwr.data.sources.files import csv_features, from_files, head, left, reason
from hetfl_flwr.data.sources.folders import (
    EXPECTED,
    check_files,
    check_headers,
    files_of_rows,
    holds_images_alone,
    is_folder,
    local_folder,
    own_file,
    own_folder,
)
from hetfl_flwr.data.sources.reading import Reading
from hetfl_flwr.errors import DataError, HetflError, private

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets.arrow_dataset import Dataset
    from datasets.builder import DatasetBuilder
    from datasets.features import Features

    from hetfl_flwr.data.sources.catalogue import DatasetEntry

_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves in its folder
_NO_DATA = re.compile(r'Instruction "(\w+)" corresponds to no data!')  # what the library says of a split of no rows
_CONVERTED = "refs/convert/parquet"  # where the hub keeps a copy of what only a script could read


@dataclass(frozen=True, eq=False)
class Source:
    """An opened data set of which nothing is decoded yet.

    Parameters
    ----------
    place : str
        Hub id or folder it came from, for messages: `private` unless it is the catalogue's.
    splits : dict
        "train", and "test" where it has one, in this order; neither is empty, and all columns named here are in both.
    kind : {"image", "text", "table"}
        What an input is.
    inputs : tuple of str
        The image column, the text column, or all columns of a table save label, domain and id, in their order.
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
    """

    place: str
    splits: dict[str, "Dataset"]
    kind: Kind
    inputs: tuple[str, ...]
    label: str
    reading: Reading
    values: tuple[str | int, ...] = ()
    rows: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: tuple[tuple[str, int], ...] = ()

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

    def training(self, values: "pa.ChunkedArray") -> "pa.ChunkedArray":
        """Return the cells of the training split of a column of all rows."""
        return values.slice(0, self.train_rows)

    def place_of(self, row: int) -> tuple[str, int]:
        """Return the split of a row, 0..N-1, counted through the splits, and its number in the file."""
        split, row = ("train", row) if row < self.train_rows else ("test", row - self.train_rows)
        return split, int(self.rows[split][row]) if split in self.rows else row

    def where(self, row: int) -> str:
        """Return how messages call a row, 0..N-1, counted through the splits."""
        split, row = self.place_of(row)
        return f"{row} of split '{split}' of {self.place}"

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
        If an image column and a text column are named.
    DataError
        If it cannot be found or read, has no training split or an empty split, or lacks the columns.
    """
    from datasets.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    opened = _found(dataset, reading, entry)
    place, found, files = opened.place, opened.splits, opened.files
    label, kind, inputs = roles(place, {name: features_of(data) for name, data in found.items()}, reading)
    splits: dict[str, Dataset] = {name: _plain(found[name]) for name in ("train", "test") if name in found}
    if entry and entry.without:
        splits = {name: _without(data, label, entry.without) for name, data in splits.items()}
    for name, data in splits.items():
        if not len(data):
            raise DataError(f"split '{name}' of {place} is empty: take it away, or put rows into it")
    if kind == "image":
        splits = {name: _as_images(place, data, inputs[0]) for name, data in splits.items()}
    values = entry.values or tuple(range(entry.spec.classes)) if entry else ()
    splits, rows, notes = labelled(place, splits, label)
    files = left(files, rows)
    return Source(place, splits, kind, inputs, label, reading, values, rows, (*opened.notes, *notes), files)


def labelled(
    place: str, splits: dict[str, "Dataset"], label: str
) -> tuple[dict[str, "Dataset"], dict[str, npt.NDArray[np.int64]], tuple[str, ...]]:
    """Leave out the rows without a label.

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
        without = _missing(cells(data, label))
        if without.all():
            raise DataError(f"no row of split '{split}' of {place} has a {label}: fill it in, or take the split away")
        if without.any():
            first, *more = np.flatnonzero(without)
            which = f"row {first}" + (f" and {len(more)} more" if more else "")
            notes.append(
                f"{without.sum()} of {len(data)} rows of split '{split}' of {place} have no {label} ({which}): left out"
            )
            rows[split] = np.flatnonzero(~without)
    return (
        {split: data.select(rows[split]) if split in rows else data for split, data in splits.items()},
        rows,
        (*notes,),
    )


def _missing(found: "pa.ChunkedArray") -> npt.NDArray[np.bool_]:
    import pyarrow as pa
    import pyarrow.compute as pc

    missing = found.is_null(nan_is_null=True)
    if pa.types.is_string(found.type) or pa.types.is_large_string(found.type):
        missing = pc.or_kleene(missing, pc.equal(pc.utf8_trim_whitespace(found), "")).fill_null(True)
    without: npt.NDArray[np.bool_] = missing.to_numpy()
    return without


def cells(data: "Dataset", column: str) -> "pa.ChunkedArray":
    """Return one column of a split."""
    table: pa.Table = data.select_columns(column).with_format("arrow")[:]
    return table[column]


def features_of(data: "Dataset") -> "Features":
    """Return the features of a split, which are not to be changed: each `Dataset.features` is a copy of all of them."""
    features: Features = data.info.features
    return features


def _plain(data: "Dataset") -> "Dataset":
    """Return a split that gives cells as they are, without a copy of what describes it where it does so already."""
    return data if data.format["type"] is None else data.with_format(None)


class _Found(NamedTuple):
    """What messages call a data set; its splits; name and rows of each file read by itself; what was done unasked."""

    place: str
    splits: dict[str, "Dataset"]
    files: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


def _found(dataset: str, reading: Reading, entry: "DatasetEntry | None") -> _Found:
    origin, called = (entry.origin, dataset) if entry else ("", private(dataset))
    if is_folder(dataset):
        return _from_own(dataset, reading)
    if not reading.data_dir:
        if origin:
            raise DataError(
                f"{dataset} is not on the hub: get it from {origin}, put it into a folder <data-dir>/{dataset} as "
                f"{EXPECTED}, and set data-dir"
            )
        if reading.by_file:
            raise DataError(f"partition 'files': {called} is of the hub: give a folder of your own, such as ./wards")
        return _Found(called, _from_hub(dataset, called))
    folder = local_folder(dataset, reading.data_dir)
    if folder is None:
        raise DataError(
            f"data-dir '{private(reading.data_dir)}' holds no {called}: expected in "
            f"'{private(Path(reading.data_dir, dataset))}' {EXPECTED}; "
            + (f"get it from {origin}" if origin else "or leave data-dir empty to download it")
        )
    return _from_folder(folder, reading)


def _from_own(dataset: str, reading: Reading) -> _Found:
    file = own_file(dataset)
    if file is None and not reading.by_file:
        return _from_folder(own_folder(dataset), reading)
    called = f"'{private(dataset)}'"
    files, others = ([file], []) if file else files_of_rows(own_folder(dataset))
    notes = [f"files of rows in folders below {called} are left out: {_shown(others, Path(dataset))}"] if others else []
    _quiet()
    data, owners = from_files(files, called, reading)
    return _Found(called, {"train": data}, owners if reading.by_file else (), (*notes,))


def _shown(files: Sequence[Path], folder: Path, most: int = 5) -> str:
    named = ", ".join(private(file.relative_to(folder)) for file in files[:most])
    return named + (f" and {len(files) - most} more" if len(files) > most else "")


def _from_folder(folder: Path, reading: Reading) -> _Found:
    from datasets.load import load_dataset, load_dataset_builder, load_from_disk

    images, called = holds_images_alone(folder), f"'{private(folder)}'"
    check_files(folder)
    _quiet()
    try:
        if any((folder / name).exists() for name in _SAVED):
            data: Any = load_from_disk(str(folder))
        else:
            headers: Mapping[Path, Sequence[str]] = {}
            if not images:
                builder = load_dataset_builder(str(folder))
                files = {str(split): [*map(Path, names)] for split, names in (builder.config.data_files or {}).items()}
                headers = check_headers([file for split in files.values() for file in split], reading.ignored)
                if columns := _columns(builder, files, headers):
                    roles(called, columns, reading)
            data = load_dataset("imagefolder", data_dir=str(folder)) if images else _rows(folder, headers)
    except HetflError:
        raise
    except Exception as error:
        why = reason(error)
        if empty := _NO_DATA.fullmatch(why):
            raise DataError(f"split '{empty[1]}' of {called} is empty: take it away, or put rows into it") from error
        raise DataError(f"cannot read the data set in {called}: {private(why)}") from error
    splits = dict(data) if isinstance(data, dict) else {"train": data}
    if images and not reading.label_column and any("label" not in features_of(split) for split in splits.values()):
        raise DataError(f"{called} holds images of fewer than two classes: put them into one folder a class")
    return _Found(called, splits)


def _quiet() -> None:
    getLogger("datasets").setLevel(CRITICAL)  # of what it raises, too, and with the whole path


def _rows(folder: Path, headers: Mapping[Path, Sequence[str]]) -> Any:
    """Read files of rows; where one part of a csv file holds numbers and another one texts, all of that is texts."""
    import datasets.features
    from datasets.load import load_dataset

    try:
        return load_dataset(str(folder))
    except Exception:
        tables = [path for path in headers if path.suffix.lower() == ".csv"]
        features = csv_features(tables) if len(tables) == len(headers) else None
        if not features:
            raise
        of_columns: Any = datasets.features.Features
        return load_dataset(str(folder), features=of_columns(features))


def _columns(
    builder: "DatasetBuilder", files: Mapping[str, Sequence[Path]], headers: Mapping[Path, Sequence[str]]
) -> dict[str, Columns]:
    """Return the columns of each split, as far as the heads of its files tell them; nothing if one does not."""
    if builder.info.features is not None:
        return dict.fromkeys(files, builder.info.features)
    found = {split: head(builder.config, paths[0], headers) for split, paths in files.items()}
    return {split: columns for split, columns in found.items() if columns} if all(found.values()) else {}


def _from_hub(hub_id: str, called: str) -> dict[str, "Dataset"]:
    from datasets.load import load_dataset

    getLogger("huggingface_hub").setLevel(ERROR)  # of its retries: what they come to is said in one line
    try:
        try:
            data: Any = load_dataset(hub_id)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            data = load_dataset(hub_id, revision=_CONVERTED)
    except Exception as error:
        raise DataError(
            f"cannot load {called} from the hub ({private(reason(error))}): check name and connection, or put "
            f"a copy in the hub's layout into a folder <data-dir>/{called} and set data-dir"
        ) from error
    return dict(data)


def _as_images(place: str, data: "Dataset", column: str) -> "Dataset":
    """Return a split whose column is decoded as images; bytes and paths of files are, too."""
    from datasets.features import Image, Value

    feature = features_of(data)[column]
    if isinstance(feature, Image):
        return data
    if not isinstance(feature, Value) or feature.dtype not in ("binary", "large_binary", "string", "large_string"):
        raise DataError(f"column '{column}' of {place} holds no images: set image-column to one that does")
    images: Dataset = data.cast_column(column, Image())
    return images


def _without(data: "Dataset", label: str, values: tuple[str | int, ...]) -> "Dataset":
    dropped = np.isin(cells(data, label).to_numpy(), values)
    return data.select(np.flatnonzero(~dropped)) if dropped.any() else data
