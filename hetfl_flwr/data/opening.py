"""Open a data set from files, a folder or the hub: choose its columns and keep the rows with a label."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from logging import CRITICAL, ERROR, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hetfl_flwr.data.arrays import read_signals
from hetfl_flwr.data.columns import MISSING, TEXT, are_missing
from hetfl_flwr.data.folders import (
    EXPECTED,
    GIVEN_FILE,
    Listing,
    is_folder,
    local_folder,
    names_of,
    own_place,
    signals_folder,
    split_called,
)
from hetfl_flwr.data.frame import Frame
from hetfl_flwr.data.memo import Memo
from hetfl_flwr.data.pivot import parse_pivot, pivoted
from hetfl_flwr.data.reading import Reading, parse_classes
from hetfl_flwr.data.roles import (
    Kind,
    check_lacking,
    check_spelling,
    columns_called,
    is_between,
    is_text,
    is_unnamed,
    roles,
)
from hetfl_flwr.data.rows import joined, notes_on, read_file, reason, with_folders
from hetfl_flwr.data.spec import Column
from hetfl_flwr.errors import DataError

if TYPE_CHECKING:
    from hetfl_flwr.data.catalogue import DatasetEntry

_SAVED = ("dataset_dict.json", "state.json")  # written by `save_to_disk`
_USED = ("train", "test")
_CONVERTED = "refs/convert/parquet"  # the hub's Parquet copies of data sets that need a script


@dataclass(frozen=True, eq=False)
class Source(Memo):
    """An opened data set that is not decoded yet.

    Parameters
    ----------
    place : str
        The hub id or folder that it came from, for messages.
    frame : Frame
        The N rows with a label: the training split, then the test split if there is one.
    train_files : int
        How many of the frame's files belong to the training split.
    kind : {"image", "series", "text", "table"}
        The kind of the inputs.
    inputs : tuple of str
        The image, text or series column, or all columns of a table in their order, except label, domain and id.
    label : str
        The label column.
    reading : Reading
        How this data set is read; columns that the catalogue knows are filled in.
    values : tuple of str or int
        Label values in class order if the catalogue declares them, else empty.
    notes : tuple of str
        How the data set was interpreted, except for what the run config sets.
    owners : tuple of str
        The owner of each file of the frame if each file has one, else empty.
    channels : tuple of str
        The names of the channels of series from a long table, else empty.
    unnamed : mapping
        Columns without a name that are left out, and why.
    columns : tuple of Column
        The columns of time and value of a long table, else empty.
    """

    place: str
    frame: Frame
    train_files: int
    kind: Kind
    inputs: tuple[str, ...]
    label: str
    reading: Reading
    values: tuple[str | int, ...] = ()
    notes: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    unnamed: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()

    def __len__(self) -> int:
        """Return N, the number of rows of all splits."""
        return len(self.frame)

    @property
    def is_catalogued(self) -> bool:
        """Whether the data set is from the catalogue, so that its columns are used as they are."""
        return bool(self.values)

    @cached_property
    def train_rows(self) -> int:
        """The number of rows of the training split."""
        return int(np.count_nonzero(self.frame.in_file < self.train_files))

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows of each split that is not empty."""
        counts = {"train": self.train_rows, "test": len(self) - self.train_rows}
        return {split: count for split, count in counts.items() if count}

    @cached_property
    def digest(self) -> str:
        """A digest of all inputs."""
        return blake2b(repr([*map(self.frame.digest, self.inputs)]).encode(), digest_size=16).hexdigest()

    def mixed_types(self, name: str) -> str:
        """Name a training file with only numbers in a column and one with words; empty if no two files differ so."""
        frame, cells = self.frame, self.frame[name]
        if not is_text(cells.type):
            return ""
        kinds = cells.is_valid(), pc.match_substring_regex(cells, r"^[+-]?[\d.,]+$").fill_null(False)
        counts = (np.bincount(frame.in_file[one.to_numpy()], minlength=len(frame.files)) for one in kinds)
        filled, alike = (one[: self.train_files] for one in counts)
        both = (filled > 0) & (alike == filled), alike < filled
        numbers, words = ([frame.files[file] for file in np.flatnonzero(of_kind)] for of_kind in both)
        return f"numbers in {numbers[0]} and words in {words[0]}" if numbers and words else ""


@dataclass(frozen=True)
class _Found:
    """The files of a data set by split, each with its name in messages; `owners` has the owner of each file."""

    place: str
    splits: Mapping[str, Sequence[tuple[str, Frame]]]
    notes: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()


def open_source(dataset: str, reading: Reading, entry: "DatasetEntry | None" = None) -> Source:
    """Open a data set by its hub id ``owner/name`` or its folder.

    If there is only one image or class-label column, `reading` need not name it.
    """
    found = _found(dataset, reading, entry)
    pa.default_memory_pool().release_unused()  # return the memory that reading needed
    place, notes, channels, long = found.place, found.notes, tuple[str, ...](), tuple[Column, ...]()
    if "train" not in found.splits:
        raise DataError(f"{place} has no split 'train', only: {', '.join(found.splits)}")
    notes += tuple(f"split '{split}' of {place} is not used" for split in found.splits if split not in _USED)
    train, test = (found.splits.get(split, ()) for split in _USED)
    splits = [(split, *one) for split in _USED for one in found.splits.get(split, ())]
    whole, lacking = joined(
        [(name or f"split '{split}'" * bool(test), frame) for split, name, frame in splits], reading
    )
    unnamed = {} if entry else _unnamed(whole, reading)
    notes += _notes_on(place, unnamed)
    if columns := parse_pivot(reading.pivot):
        check_lacking(lacking, columns)
        whole, channels, long, said = pivoted(whole.without([*unnamed]), place, columns, reading)
        notes += said
        reading = replace(reading, series_column=columns[-1], series_layout="channels-first")
    label, kind, inputs = roles(place, whole.without([*unnamed]), lacking, reading)
    if entry and entry.without:
        whole = whole.take(np.flatnonzero(~np.isin(whole[label].to_numpy(), entry.without)))
    if entry and len(whole) != (complete := entry.train_rows + entry.test_rows):
        notes += (f"{place} has {len(whole):,} samples, and the published data set {complete:,}",)
    in_test = whole.in_file >= len(train)
    for split, there in (("train", not in_test.all()), ("test", in_test.any() or not test)):
        if not there:
            raise DataError(f"split '{split}' of {place} is empty: remove it, or add rows")
    if kind == "image":
        _check_images(place, whole, inputs[0])
    values = entry.values or tuple(range(entry.spec.classes)) if entry else ()
    source = Source(
        place, whole, len(train), kind, inputs, label, reading, values, notes, found.owners, channels, unnamed, long
    )
    declared = {label for _, label in parse_classes(reading.classes)}
    return _labelled(source, () if entry else [*{*MISSING, *reading.missing} - declared])


def _found(dataset: str, reading: Reading, entry: "DatasetEntry | None") -> _Found:
    """Find a data set by its path, below ``data-dir``, or on the hub, and read its splits."""
    if is_folder(dataset):
        return _own(dataset, reading)
    if folder := _folder_below(dataset, reading.data_dir, entry):
        return _in_folder(folder, replace(reading, by_file=False))
    if reading.by_file:
        raise DataError(
            f"partition 'files': {dataset} is from the hub: set dataset to a folder of files, such as ./wards"
        )
    return _whole(dataset, _from_hub(dataset))


def _whole(place: str, splits: Mapping[str, Frame]) -> _Found:
    """Return a data set with one frame for each split."""
    called = {split: replace(frame, files=(f"split '{split}' of {place}",)) for split, frame in splits.items()}
    return _Found(place, {split: [("", frame)] for split, frame in called.items()})


def _folder_below(dataset: str, data_dir: str, entry: "DatasetEntry | None") -> Path | None:
    """Return the folder below ``data-dir`` that holds a data set; None if ``data-dir`` is not set."""
    origin, form = (entry.origin, entry.form or EXPECTED) if entry else ("", EXPECTED)
    if not data_dir:
        if origin:
            raise DataError(
                f"{dataset} is not on the hub: download it from {origin}, put it into the folder <data-dir>/{dataset} "
                f"as {form}, and set data-dir"
            )
        return None
    if folder := local_folder(dataset, data_dir):
        return folder
    raise DataError(
        f"data-dir '{data_dir}' holds no {dataset}: expected in '{Path(data_dir, dataset)}' {form}; "
        + (f"download it from {origin}" if origin else "or leave data-dir empty to download it")
    )


def _own(dataset: str, reading: Reading) -> _Found:
    """Read the splits of a local file or folder."""
    place = own_place(dataset)
    return _read_rows({"train": [place]}, f"'{dataset}'", reading) if place.is_file() else _in_folder(place, reading)


def _in_folder(folder: Path, reading: Reading) -> _Found:
    given = given_in_python(folder)
    called, _ = given.get("", (f"'{folder}'", ""))
    if signals := signals_folder(folder):
        return _whole(called, read_signals(signals))
    listing = Listing.of(folder)
    if any((folder / name).exists() for name in _SAVED):
        return _whole(called, _saved(called, folder))
    if listing.holds_images:
        found = _images(called, listing, reading)
    else:
        files, notes = listing.by_split(reading.by_file)
        found = _read_rows(files, called, reading, folder, given)
        found = replace(found, notes=(*found.notes, *(notes if not reading.id_column else ())))
    return replace(found, notes=(*found.notes, *listing.notes))


def _read_rows(
    files: Mapping[str, Sequence[Path]],
    called: str,
    reading: Reading,
    root: Path | None = None,
    given: Mapping[str, tuple[str, str]] | None = None,
) -> _Found:
    """Read the row files of all splits; the sheets of a single spreadsheet give splits as the files of a folder do."""
    paths = [path for of_split in files.values() for path in of_split]
    names, owners = {path: f"'{path}'" for path in paths}, names_of(paths)
    if given:
        names, owners = ({path: given[path.name][part] for path in paths} for part in (0, 1))
    alone = {of_split[0] for of_split in files.values() if len(of_split) == 1}
    parts, read = dict[Path, list[Path]](), dict[Path, tuple[str, str, Frame]]()
    for path in paths:
        for title, one in read_file(path, reading, names[path]):
            frame = with_folders(one, path, root)
            owner = title or (owners[path] if reading.by_file else path.name)
            name = f"file {owner!r}" * (path not in alone or bool(title))
            if given:  # rows of data in Python count from 0
                name, frame = names[path] * (names[path] != called), replace(frame, row=frame.numbers - 1)
            read[path / title] = owner, name, frame
            parts.setdefault(path, []).append(path / title)
    notes = notes_on(frame for _, _, frame in read.values())
    if len(paths) == 1 and len(read) > 1 and not reading.by_file:
        by_split, said = Listing(paths[0], (*read,)).by_split()
        notes += () if reading.id_column else said
    else:
        by_split = {split: [key for path in own for key in parts[path]] for split, own in files.items()}
    splits = {split: [read[key][1:] for key in own] for split, own in by_split.items()}
    return _Found(called, splits, notes, tuple(owner for owner, *_ in read.values()) if reading.by_file else ())


def given_in_python(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the name and the owner of each file of data that was passed in Python; empty for other folders."""
    try:
        said = json.loads((folder / GIVEN_FILE).read_text(encoding="utf-8"))
        return {str(name): (str(called), str(owner)) for name, (called, owner) in said.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _images(called: str, listing: Listing, reading: Reading) -> _Found:
    """Return images from one folder for each class, with the columns of metadata files and with owners."""
    described, notes = listing.described(
        {file: read_file(file, reading)[0][1].table.to_pylist() for file in listing.rows}
    )
    keys = dict.fromkeys(name for row in described.values() for name in row if name != "file_name")
    labelled = (reading.label_column or "label") in keys
    by_split, owners = listing.images_by_split(reading.by_file, labelled)
    names = sorted({path.parent.name for path in listing.images})
    check_spelling(f"folders of classes of {called}", names, "give both the same name")
    whose = sorted({*owners.values()})
    if not labelled:
        notes += _classes_of(called, by_split, owners)
    splits = dict[str, list[tuple[str, Frame]]]()
    for split, paths in by_split.items():
        numbers = {path: number for number, path in enumerate(paths, start=1)}
        parts = [[path for path in paths if owners[path] == owner] for owner in whose] if reading.by_file else [paths]
        splits[split] = []
        for part in parts:
            rows = [described.get(path, {}) for path in part]
            columns = {
                "image": [*map(str, part)],
                **{name: [row.get(name) for row in rows] for name in keys},
            }
            classes = {} if "label" in keys else {"label": (*names,)}
            for name in classes:
                columns[name] = [names.index(path.parent.name) for path in part]
            row = np.array([numbers[path] for path in part])
            splits[split].append(("", Frame(pa.table(columns), classes, frozenset(["image"]), row=row)))
    if whose and not reading.by_file:
        named = listing.shown([Path(listing.folder, one) for one in whose])
        notes += (f"images of {called} in {named} are combined: partition=files gives each its own client",)
    return _Found(called, splits, notes, (*whose,) if reading.by_file else ())


def _classes_of(called: str, by_split: Mapping[str, Sequence[Path]], owners: Mapping[Path, str]) -> tuple[str, ...]:
    """Refuse classes without training images; note folders that may be splits, and owners that share no class."""
    train, *others = ({path.parent.name for path in paths} for paths in by_split.values())
    if len(train) == 1:
        raise DataError(
            f"{called} holds images of fewer than two classes: put the images of each class into its own folder"
        )
    if left := sorted(name for own in others for name in own - train):
        raise DataError(f"{called} has no training image of class {left[0]!r}: add some, or remove the class")
    if {split_called(name)[0] for name in train} >= {"train", "test"}:
        return (f"{called}: 'train' and 'test' are treated as classes; splits need one folder for each class in them",)
    pairs = {(path.parent.name, owner) for path, owner in owners.items()}
    if len({*owners.values()}) > 1 and len(pairs) == len({name for name, _ in pairs}):
        return (f"no two owners in {called} share a class: folders must be OWNER/CLASS, not CLASS/OWNER",)
    return ()


def _saved(called: str, folder: Path) -> dict[str, Frame]:
    from datasets.load import load_from_disk

    getLogger("datasets").setLevel(CRITICAL)  # it also logs what it raises, with the whole path
    try:
        return _frames(_quietly(load_from_disk, str(folder)))
    except Exception as error:
        raise DataError(f"cannot read the data set in {called}: {reason(error)}") from error


def _from_hub(hub_id: str) -> dict[str, Frame]:
    from datasets.load import load_dataset

    getLogger("huggingface_hub").setLevel(ERROR)  # no log of its retries: one line reports the result
    try:
        try:
            data: Any = _quietly(load_dataset, hub_id)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            data = load_dataset(hub_id, revision=_CONVERTED)
    except Exception as error:
        raise DataError(
            f"cannot load {hub_id} from the hub ({reason(error)}): check the name and the connection, or put a copy "
            f"with the hub's layout into the folder <data-dir>/{hub_id} and set data-dir"
        ) from error
    return _frames(data)


def _quietly(read: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the datasets library, with progress bars only in a terminal."""
    from datasets.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    return read(*arguments)


def _frames(data: Any) -> dict[str, Frame]:
    splits = data if isinstance(data, dict) else {"train": data}
    return {name: Frame.of_dataset(split) for name, split in splits.items()}


def _check_images(place: str, frame: Frame, column: str) -> None:
    """Refuse an image column that holds neither images nor their bytes or paths."""
    kind = frame[column].type
    holds = (pa.types.is_binary, pa.types.is_large_binary, is_text)
    if column not in frame.images and not any(one(kind) for one in holds):
        raise DataError(f"column '{column}' of {place} holds no images: set image-column to one that does")


def _unnamed(frame: Frame, reading: Reading) -> dict[str, str]:
    """Return the unnamed columns that no key refers to, and why each is left out: it is empty, or holds row names."""
    unnamed = [name for name in frame.names if is_unnamed(name) and name not in reading.named]
    empty = {name: "unnamed and empty" for name in unnamed if frame[name].null_count == len(frame)}
    return empty | {name: "row names" for name in unnamed if name not in empty and not is_between(name)}


def _notes_on(place: str, unnamed: Mapping[str, str]) -> tuple[str, ...]:
    way_out = "; to learn from it, give it a name, or name it in numeric-columns or categorical-columns"
    columns = {why: [name for name, own in unnamed.items() if own == why] for why in unnamed.values()}
    return tuple(
        f"{columns_called(names)} of {place}, {why}: left out{way_out * why.startswith('row')}"
        for why, names in columns.items()
    )


def _labelled(source: Source, unknown: Sequence[str]) -> Source:
    """Leave out the rows whose label is empty or a marker of missing values."""
    place, label, found = source.place, source.label, source.frame[source.label]
    without = missing_among(found, unknown)
    if not without.any():
        return source
    for split, own in zip(source.rows, np.split(without, [source.train_rows]), strict=False):
        if own.all():
            several = len(source.rows) > 1
            where, way_out = f"split '{split}' of " * several, "remove the split" if several else "name another one"
            raise DataError(
                f"no row of {where}{place} has a value in {label!r} (label-column): fill it in, or {way_out}"
            )
    markers = found.filter(pa.array(without)).drop_null()
    texts = markers.unique().to_pylist() if is_text(markers.type) else []
    words = ", ".join(repr(text) for text in texts if text.strip())
    rows = source.frame.rows_said(without)
    note = (
        f"{without.sum()} of {len(source)} rows of {place} have no label in {label!r} ({rows}): left out"
        + f"; if {words} is a class, list all classes in classes" * bool(words)
    )
    frame = source.frame.take(np.flatnonzero(~without))
    lost = _without_labels(source, without[: source.train_rows])
    return replace(source, frame=frame, notes=(*source.notes, note, *lost))


def _without_labels(source: Source, without: npt.NDArray[np.bool_]) -> list[str]:
    """Note each file or owner that is left out because none of its training rows has a label."""
    column = source.reading.id_column
    if source.owners:
        what, way_out = "file", "fill it in, or remove the file"
        whose: Sequence[object] = [source.owners[file] for file in source.frame.in_file[: len(without)]]
    elif column:
        what, way_out = "owner", "fill it in, or this owner is not a client"
        whose = source.frame[column].slice(0, len(without)).to_pylist()
    else:
        return []
    counts, left = Counter(whose), {one for one, lost in zip(whose, without, strict=True) if not lost}
    why = f"training rows has a value in {source.label!r}; {way_out}"
    return [
        f"{what} {str(name)!r} of {source.place} is left out: none of its {count} {why}"
        for name, count in counts.items()
        if name not in left and name is not None
    ]


def missing_among(found: pa.ChunkedArray, unknown: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return a mask (N,) of the cells that are empty or hold one of the markers of missing values in `unknown`."""
    missing = found.is_null(nan_is_null=True)
    if is_text(found.type) or pa.types.is_integer(found.type) or pa.types.is_floating(found.type):
        cells = pc.utf8_trim_whitespace(found.cast(TEXT)) if is_text(found.type) else found
        missing = pc.or_(missing, are_missing(cells, ["", *unknown]))
    without: npt.NDArray[np.bool_] = missing.to_numpy()
    return without
