"""Data sets in the hub's layout, opened: from a local folder or from the hub itself. Nothing is decoded here."""

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape
from logging import CRITICAL, ERROR, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hetfl_flwr.common.errors import DataError, HetflError, private
from hetfl_flwr.data.sources.columns import Columns, Kind, is_text, roles
from hetfl_flwr.data.sources.dialects import common_options, notes_on
from hetfl_flwr.data.sources.files import (
    Part,
    called_in_python,
    csv_features,
    from_files,
    head,
    left,
    numbered,
    parts_of,
    reason,
)
from hetfl_flwr.data.sources.folders import (
    EXPECTED,
    SAVE_AS,
    TABLES,
    check_files,
    check_owners,
    ending,
    files_of_rows,
    holds_images_alone,
    is_folder,
    local_folder,
    own_file,
    own_folder,
    possible_owners,
    signals_folder,
    spreadsheets,
)
from hetfl_flwr.data.sources.headers import check_headers
from hetfl_flwr.data.sources.npz import npz_splits
from hetfl_flwr.data.sources.reading import Reading, parse_classes
from hetfl_flwr.data.sources.signals import read_signals

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets.arrow_dataset import Dataset
    from datasets.builder import DatasetBuilder
    from datasets.features import Features

    from hetfl_flwr.data.sources.catalogue import DatasetEntry

_SHOWN = 5  # names in a note, at most
_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves in its folder
_SPLITS = ("train", "test", "validation", "valid", "val", "dev")  # files so called are parts of one data set
_SHARD = re.compile(r"-\d+-of-\d+\.")  # and so are these
_NAMELESS = re.compile(r"Unnamed: \d+")  # what pandas calls a column whose name is empty
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
    splits: dict[str, "Dataset"]
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

    def training(self, values: "pa.ChunkedArray") -> "pa.ChunkedArray":
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
    from datasets.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    opened = _found(dataset, reading, entry)
    place = opened.place
    found, nameless = (opened.splits, ()) if entry else _without_nameless(place, opened.splits)
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
    said = {label for _, label in parse_classes(reading.classes)}
    unknown = () if entry else tuple(text for text in UNKNOWN if text not in said)
    whole, (splits, rows, notes) = splits, labelled(place, splits, label, opened.parts, unknown)
    notes = (*opened.notes, *nameless, *notes, *_without_labels(place, whole, rows, label, opened.files, reading))
    files = left(opened.files, rows)
    return Source(place, splits, kind, inputs, label, reading, values, rows, notes, files, opened.parts)


def _without_nameless(place: str, splits: dict[str, "Dataset"]) -> tuple[dict[str, "Dataset"], tuple[str, ...]]:
    """Leave out columns without a name and without a cell, as a separator at the end of each row makes them, aloud."""
    names = dict.fromkeys(name for data in splits.values() for name in features_of(data) if _NAMELESS.fullmatch(name))
    empty = [name for name in names if all(_is_blank(data, name) for data in splits.values())]
    if not empty:
        return splits, ()
    kept = {
        split: data.remove_columns([name for name in empty if name in features_of(data)])
        for split, data in splits.items()
    }
    return kept, (f"{_columns_called(empty)} of {place}, without name and cells: left out",)


def _is_blank(data: "Dataset", name: str) -> bool:
    return name not in features_of(data) or cells(data, name).null_count == len(data)


def _columns_called(names: Sequence[str]) -> str:
    return f"column{'s' * (len(names) > 1)} {', '.join(private(repr(name)) for name in names[:_SHOWN])}" + (
        f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    )


UNKNOWN = ("?",)
"""Labels of texts that say that there is none, unless ``classes`` declares them; empty ones do so always."""


def labelled(
    place: str,
    splits: dict[str, "Dataset"],
    label: str,
    parts: Mapping[str, Sequence[Part]] | None = None,
    unknown: Sequence[str] = UNKNOWN,
) -> tuple[dict[str, "Dataset"], dict[str, npt.NDArray[np.int64]], tuple[str, ...]]:
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
        without = _missing(cells(data, label), unknown)
        if without.all():
            raise DataError(f"no row of split '{split}' of {place} has a {label}: fill it in, or take the split away")
        if without.any():
            first, *more = np.flatnonzero(without)
            number, file = numbered((parts or {}).get(split, ()), int(first))
            which = f"row {number}" + (f" of {file}" if file else "") + (f" and {len(more)} more" if more else "")
            notes.append(
                f"{without.sum()} of {len(data)} rows of split '{split}' of {place} have no {label} ({which}): left out"
            )
            rows[split] = np.flatnonzero(~without)
    return (
        {split: data.select(rows[split]) if split in rows else data for split, data in splits.items()},
        rows,
        (*notes,),
    )


def _without_labels(
    place: str,
    splits: Mapping[str, "Dataset"],
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
        owners = cells(splits["train"], reading.id_column)
        there = set(owners.take(rows["train"]).to_pylist())
        counts = Counter(owners.drop_null().to_pylist())
        gone += [(str(owner), count) for owner, count in counts.items() if owner not in there]
    return [
        f"{what} {private(repr(name))} of {place} is left out: none of its {count} rows has a {label}; {way_out}"
        for name, count in gone
    ]


def _missing(found: "pa.ChunkedArray", unknown: Sequence[str]) -> npt.NDArray[np.bool_]:
    import pyarrow as pa
    import pyarrow.compute as pc

    missing = found.is_null(nan_is_null=True)
    if is_text(found.type):
        texts = pc.utf8_trim_whitespace(found.cast(pa.large_string()))
        missing = pc.or_(missing, pc.is_in(texts, value_set=pa.array(["", *unknown], pa.large_string())))
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
    parts: Mapping[str, Sequence[Part]] = {}


def _found(dataset: str, reading: Reading, entry: "DatasetEntry | None") -> _Found:
    origin, called = (entry.origin, dataset) if entry else ("", private(dataset))
    if is_folder(dataset):
        return _from_own(dataset, reading)
    if not reading.data_dir:
        if entry and origin:
            raise DataError(
                f"{dataset} is not on the hub: get it from {origin}, put it into a folder <data-dir>/{dataset} as "
                f"{entry.form or EXPECTED}, and set data-dir"
            )
        if reading.by_file:
            raise DataError(f"partition 'files': {called} is of the hub: give a folder of your own, such as ./wards")
        return _Found(called, _from_hub(dataset, called))
    folder = local_folder(dataset, reading.data_dir)
    if folder is None:
        raise DataError(
            f"data-dir '{private(reading.data_dir)}' holds no {called}: expected in "
            f"'{private(Path(reading.data_dir, dataset))}' {(entry and entry.form) or EXPECTED}; "
            + (f"get it from {origin}" if origin else "or leave data-dir empty to download it")
        )
    return _from_folder(folder, reading)


def _from_own(dataset: str, reading: Reading) -> _Found:
    folder = Path(dataset)
    given = called_in_python(folder)
    if not given:
        return _read_own(dataset, reading, {})
    try:
        return _read_own(dataset, reading, given)._replace(place=given[""])
    except HetflError as error:
        text = error.marked
        for name, said in sorted(given.items(), reverse=True):
            text = text.replace(f"'{private(folder / name)}'", said)
        raise type(error)(text) from error


def _read_own(dataset: str, reading: Reading, given: Mapping[str, str]) -> _Found:
    file, folder = own_file(dataset), Path(dataset)
    found = _read_files(dataset, file, reading, given)
    if file is not None:
        return found
    together = () if reading.by_file else (*_put_together(folder, found), *_files_together(folder, found, reading))
    return found._replace(notes=(*found.notes, *together, *_unread(folder)))


def _read_files(dataset: str, file: Path | None, reading: Reading, given: Mapping[str, str]) -> _Found:
    if file is None and not reading.by_file:
        return _from_folder(own_folder(dataset), reading, given)
    if file is None and holds_images_alone(own_folder(dataset)):
        return _by_owner(own_folder(dataset), reading)
    called = f"'{private(dataset)}'"
    files, others = ([file], []) if file else files_of_rows(own_folder(dataset))
    notes = [f"files of rows in folders below {called} are left out: {_shown(others, Path(dataset))}"] if others else []
    _quiet()
    data, owners = from_files(files, called, reading)
    parts = {"train": parts_of(files, owners if reading.by_file else (), given)}
    return _Found(called, {"train": data}, owners if reading.by_file else (), (*notes, *notes_on(files)), parts)


def _shown(files: Sequence[Path], folder: Path, most: int = _SHOWN) -> str:
    named = ", ".join(private(file.relative_to(folder)) for file in files[:most])
    return named + (f" and {len(files) - most} more" if len(files) > most else "")


def _from_folder(folder: Path, reading: Reading, given: Mapping[str, str] | None = None, pattern: str = "") -> _Found:
    from datasets.load import load_dataset_builder, load_from_disk

    images, called = holds_images_alone(folder), f"'{private(folder)}'"
    if arrays := _arrays_in(folder, called, reading):
        return _Found(called, arrays)
    files: dict[str, list[Path]] = {}
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
                tables = [file for split in files.values() for file in split]
                headers = check_headers(tables, reading.ignored)
                if options := common_options(tables):
                    builder = _builder_of(files, options)
                if columns := _columns(builder, files, headers):
                    roles(called, columns, reading)
            data = _images_in(folder, pattern) if images else _rows(builder, files, headers)
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
    parts = {split: parts_of(paths, given=given) for split, paths in files.items()}
    return _Found(called, splits, notes=notes_on([path for paths in files.values() for path in paths]), parts=parts)


def _arrays_in(folder: Path, called: str, reading: Reading) -> dict[str, "Dataset"]:
    """Return the splits of a folder of .npz files, or of one as the UCI archive has it; nothing of any other."""
    if signals := signals_folder(folder):
        return read_signals(signals)
    files = npz_splits(folder)
    if files:
        check_files(folder)
    return {split: from_files(paths, called, reading)[0] for split, paths in files.items()}


def _images_in(folder: Path, pattern: str) -> Any:
    from datasets.load import load_dataset

    if pattern:
        return load_dataset("imagefolder", data_files={"train": pattern})
    return load_dataset("imagefolder", data_dir=str(folder))


def _put_together(folder: Path, found: _Found) -> tuple[str, ...]:
    """Return a note where images are read as those of one that look like those of several owners."""
    owners = possible_owners(folder) if holds_images_alone(folder) and set(found.splits) == {"train"} else []
    if not owners:
        return ()
    named = ", ".join(owners[:_SHOWN]) + (f" and {len(owners) - _SHOWN} more" if len(owners) > _SHOWN else "")
    return (f"images of {found.place} in {private(named)} are put together: partition=files has a client for each",)


def _files_together(folder: Path, found: _Found, reading: Reading) -> tuple[str, ...]:
    """Return a note where several files of rows are read as one table, and nothing says whose rows are whose."""
    files = [path for path in folder.glob("*") if ending(path) in TABLES and path.is_file()]
    parts = [path for path in files if not _SHARD.search(path.name) and path.stem not in _SPLITS]
    if len(parts) < 2 or reading.id_column or any((folder / name).exists() for name in _SAVED):
        return ()
    return (f"rows of {len(parts)} files in {found.place} are put together: partition=files has a client for each",)


def _unread(folder: Path) -> tuple[str, ...]:
    """Return a note where spreadsheets lie beside what is read."""
    left = spreadsheets(folder)
    return (f"not read in '{private(folder)}': {_shown(left, folder)}: {SAVE_AS}",) if left else ()


def _by_owner(folder: Path, reading: Reading) -> _Found:
    """Return images in folders ``OWNER/CLASS``, those of one owner after those of another."""
    import pyarrow.compute as pc

    check_owners(folder)
    found = _from_folder(folder, reading, pattern=f"{escape(str(folder))}/**")
    data = found.splits["train"]
    [column] = [name for name, feature in features_of(data).items() if type(feature).__name__ == "Image"]
    paths = pc.struct_field(data.with_format("arrow")[:][column], "path").to_pylist()
    owners = [Path(path).parent.parent.name for path in paths]
    ordered = sorted(range(len(owners)), key=owners.__getitem__)
    return found._replace(splits={"train": data.select(ordered)}, files=tuple(sorted(Counter(owners).items())))


def _quiet() -> None:
    getLogger("datasets").setLevel(CRITICAL)  # of what it raises, too, and with the whole path


def _builder_of(files: Mapping[str, Sequence[Path]], options: Mapping[str, Any]) -> "DatasetBuilder":
    """Return what reads csv files of splits in a way that must be told."""
    from datasets.load import load_dataset_builder

    names = {split: [escape(str(path)) for path in paths] for split, paths in files.items()}
    return load_dataset_builder("csv", data_files=names, **options)


def _rows(builder: "DatasetBuilder", files: Mapping[str, Sequence[Path]], headers: Mapping[Path, Sequence[str]]) -> Any:
    """Read files of rows; where one part of a csv file holds numbers and another one texts, all of that is texts."""
    import datasets.features

    try:
        builder.download_and_prepare()
    except Exception:
        tables = [path for path in headers if TABLES[ending(path)] == "csv"]
        features = csv_features(tables) if len(tables) == len(headers) else None
        if not features:
            raise
        of_columns: Any = datasets.features.Features
        builder = _builder_of(files, {**common_options(tables), "features": of_columns(features)})
        builder.download_and_prepare()
    return builder.as_dataset()


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
