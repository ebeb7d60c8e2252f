"""Step one: a data set opened, from files, a folder or the hub: which columns count, which rows have a label."""

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

from hetfl_flwr.data.folders import (
    CALLED_FILE,
    EXPECTED,
    NAMES_FILE,
    Listing,
    is_folder,
    local_folder,
    names_of,
    own_file,
    own_folder,
    signals_folder,
)
from hetfl_flwr.data.frame import Frame
from hetfl_flwr.data.reading import Reading, parse_classes
from hetfl_flwr.data.roles import Kind, check_spelling, columns_called, is_between, is_nameless, is_text, roles
from hetfl_flwr.data.rows import NO_LABEL, Part, left, notes_on, numbered, parts_of, read_file, read_files, reason
from hetfl_flwr.data.signals import read_signals
from hetfl_flwr.errors import DataError, HetflError

if TYPE_CHECKING:
    from hetfl_flwr.data.catalogue import DatasetEntry

_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves in its folder
_CONVERTED = "refs/convert/parquet"  # where the hub keeps a copy of what only a script could read


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
        Of each split that was read from files of rows: these, in the order of their rows.
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


@dataclass(frozen=True)
class _Found:
    """What messages call a data set; its splits; name and rows of each file read by itself; what was done unasked."""

    place: str
    splits: dict[str, Frame]
    files: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    parts: Mapping[str, Sequence[Part]] = field(default_factory=dict)


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
    found = _found(dataset, reading, entry)
    found = found if entry else _without_nameless(found, reading)
    place = found.place
    label, kind, inputs = roles(place, found.splits, reading)
    splits: dict[str, Frame] = {name: found.splits[name] for name in ("train", "test") if name in found.splits}
    unused = tuple(f"split '{name}' of {place} is not used" for name in found.splits if name not in splits)
    if entry and entry.without:
        kept = {name: ~np.isin(data[label].to_numpy(), entry.without) for name, data in splits.items()}
        splits = {name: data.take(np.flatnonzero(kept[name])) for name, data in splits.items()}
    for name, data in splits.items():
        if not len(data):
            raise DataError(f"split '{name}' of {place} is empty: take it away, or put rows into it")
        if kind == "image":
            _check_images(place, data, inputs[0])
    source = Source(
        place,
        splits,
        kind,
        inputs,
        label,
        reading,
        values=entry.values or tuple(range(entry.spec.classes)) if entry else (),
        notes=(*found.notes, *unused),
        files=found.files,
        parts=found.parts,
    )
    return _labelled(source, () if entry else _no_labels(reading))


def _no_labels(reading: Reading) -> list[str]:
    said = {label for _, label in parse_classes(reading.classes)}
    return [word for word in (*NO_LABEL, *reading.missing) if word not in said]


def check_place(dataset: str, data_dir: str, entry: "DatasetEntry | None") -> None:
    """Refuse a data set whose files are not where they are to be; what is on the hub is not looked for.

    Raises
    ------
    DataError
        They are not there.
    """
    if not is_folder(dataset):
        _folder_below(dataset, data_dir, entry)
    elif own_file(dataset) is None:
        Listing.of(own_folder(dataset)) if not signals_folder(own_folder(dataset)) else None


def _found(dataset: str, reading: Reading, entry: "DatasetEntry | None") -> _Found:
    """Return the splits of a data set, of which the catalogue may know where it lies."""
    if is_folder(dataset):
        return _own(dataset, reading)
    if folder := _folder_below(dataset, reading.data_dir, entry):
        return _in_folder(folder, replace(reading, by_file=False))
    if reading.by_file:
        raise DataError(f"partition 'files': {dataset} is of the hub: give a folder of your own, such as ./wards")
    return _Found(dataset, _from_hub(dataset, dataset))


def _folder_below(dataset: str, data_dir: str, entry: "DatasetEntry | None") -> Path | None:
    """Return the folder below ``data-dir`` that holds a data set; None where there is no ``data-dir``."""
    origin, form = (entry.origin, entry.form or EXPECTED) if entry else ("", EXPECTED)
    if not data_dir:
        if origin:
            raise DataError(
                f"{dataset} is not on the hub: get it from {origin}, put it into a folder <data-dir>/{dataset} as "
                f"{form}, and set data-dir"
            )
        return None
    if folder := local_folder(dataset, data_dir):
        return folder
    raise DataError(
        f"data-dir '{data_dir}' holds no {dataset}: expected in '{Path(data_dir, dataset)}' {form}; "
        + (f"get it from {origin}" if origin else "or leave data-dir empty to download it")
    )


def _own(dataset: str, reading: Reading) -> _Found:
    """Return the splits of a file or a folder of one's own, called as it was given from Python, if it was."""
    given = called_in_python(Path(dataset))
    file = own_file(dataset)
    if file is not None:
        return _read_rows({"train": [file]}, f"'{dataset}'", reading, given)
    folder = own_folder(dataset)
    if not given:
        return _in_folder(folder, reading)
    try:
        return replace(_in_folder(folder, reading, given), place=given[""])
    except HetflError as error:
        text = str(error)
        for name, said in sorted(given.items(), reverse=True):
            text = text.replace(f"'{folder / name}'", said)
        raise type(error)(text) from error


def _in_folder(folder: Path, reading: Reading, given: Mapping[str, str] | None = None) -> _Found:
    called = f"'{folder}'"
    if signals := signals_folder(folder):
        return _Found(called, read_signals(signals))
    listing = Listing.of(folder)
    if any((folder / name).exists() for name in _SAVED):
        return _Found(called, _saved(called, folder))
    if listing.holds_images:
        found = _images(called, listing, reading)
    elif reading.by_file:
        files, notes = listing.owned()
        found = _read_rows({"train": files}, called, reading, given or {})
        found = replace(found, notes=(*notes, *found.notes))
    else:
        by_split, notes = listing.by_split()
        found = _read_rows(by_split, called, reading, given or {})
        found = replace(found, notes=(*found.notes, *(notes if not reading.id_column else ())))
    return replace(found, notes=(*found.notes, *listing.notes))


def _read_rows(files: Mapping[str, Sequence[Path]], called: str, reading: Reading, given: Mapping[str, str]) -> _Found:
    """Read the files of rows of all splits: a column has one type in all of them."""
    paths = [path for of_split in files.values() for path in of_split]
    data, read = read_files(paths, reading)
    splits, parts, first = dict[str, Frame](), dict[str, list[Part]](), 0
    names = owner_names(paths) if reading.by_file else {path: path.name for path in paths}
    for split, of_split in files.items():
        own = [file for file in read if file.path in {*of_split}]
        rows = sum(file.table.num_rows for file in own)
        splits[split] = data.rows(first, rows)
        parts[split] = parts_of(own, [file.sheet or names[file.path] for file in own], given)
        first += rows
    owners = tuple((file.sheet or names[file.path], file.table.num_rows) for file in read) if reading.by_file else ()
    return _Found(called, splits, owners, notes_on(read), parts)


def owner_names(files: Sequence[Path]) -> dict[Path, str]:
    """Return whose each file is: by the file that says so beside them, else by its own name."""
    said = _said(files[0].parent / NAMES_FILE)
    return {path: said[path.name] for path in files} if said else names_of(files)


def called_in_python(folder: Path) -> dict[str, str]:
    """Return what the files of a folder were called when they were given from Python; nothing where they were not."""
    return _said(folder / CALLED_FILE)


def _said(path: Path) -> dict[str, str]:
    try:
        return {str(name): str(said) for name, said in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _images(called: str, listing: Listing, reading: Reading) -> _Found:
    """Return images in one folder a class, those of one owner after those of another where each has files."""
    owners = listing.image_owners(wanted=reading.by_file)
    if reading.by_file:
        paths = sorted(listing.images, key=lambda path: (owners[path], path))
        counts = tuple(sorted(Counter(owners.values()).items()))
        return _Found(called, _image_frames(called, listing, {"train": paths}), counts)
    by_split = listing.images_by_split()
    notes: tuple[str, ...] = ()
    if owners and len(by_split) == 1:
        named = listing.shown([Path(listing.folder, one) for one in sorted({*owners.values()})])
        notes = (f"images of {called} in {named} are put together: partition=files has a client for each",)
    frames = _image_frames(called, listing, by_split)
    if not reading.label_column and any(len(names) == 1 for one in frames.values() for names in one.classes.values()):
        raise DataError(f"{called} holds images of fewer than two classes: put them into one folder a class")
    return _Found(called, frames, notes=notes)


def _image_frames(called: str, listing: Listing, splits: Mapping[str, Sequence[Path]]) -> dict[str, Frame]:
    """Return paths of images, their classes, and what a file ``metadata`` says of them."""
    names = sorted({path.parent.name for paths in splits.values() for path in paths})
    check_spelling(f"folders of classes of {called}", names, "call both alike")
    tables = [(file.parent, read_file(file)[0].table.to_pylist()) for file in listing.rows]
    told = {folder / str(row.get("file_name")): row for folder, table in tables for row in table}
    said = dict.fromkeys(name for row in told.values() for name in row if name != "file_name")
    frames = {}
    for split, paths in splits.items():
        rows = [told.get(path, {}) for path in paths]
        classes = {"label": [names.index(path.parent.name) for path in paths]} if "label" not in said else {}
        columns = {"image": [*map(str, paths)], **classes, **{name: [row.get(name) for row in rows] for name in said}}
        frames[split] = Frame(pa.table(columns), dict.fromkeys(classes, (*names,)), frozenset(["image"]))
    return frames


def _saved(called: str, folder: Path) -> dict[str, Frame]:
    from datasets.load import load_from_disk

    getLogger("datasets").setLevel(CRITICAL)  # of what it raises, too, and with the whole path
    try:
        return _frames(_quietly(load_from_disk, str(folder)))
    except Exception as error:
        raise DataError(f"cannot read the data set in {called}: {reason(error)}") from error


def _from_hub(hub_id: str, called: str) -> dict[str, Frame]:
    from datasets.load import load_dataset

    getLogger("huggingface_hub").setLevel(ERROR)  # of its retries: what they come to is said in one line
    try:
        try:
            data: Any = _quietly(load_dataset, hub_id)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            data = load_dataset(hub_id, revision=_CONVERTED)
    except Exception as error:
        raise DataError(
            f"cannot load {called} from the hub ({reason(error)}): check name and connection, or put "
            f"a copy in the hub's layout into a folder <data-dir>/{called} and set data-dir"
        ) from error
    return _frames(data)


def _quietly(read: Callable[..., Any], *arguments: Any) -> Any:
    """Return what the datasets library reads, without bars of progress where nobody looks at them."""
    from datasets.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    return read(*arguments)


def _frames(data: Any) -> dict[str, Frame]:
    splits = data if isinstance(data, dict) else {"train": data}
    return {name: Frame.of_dataset(split) for name, split in splits.items()}


def _check_images(place: str, data: Frame, column: str) -> None:
    """Refuse a column of inputs that holds neither images nor bytes or paths of such."""
    kind = data[column].type
    holds = (pa.types.is_binary, pa.types.is_large_binary, is_text)
    if column not in data.images and not any(one(kind) for one in holds):
        raise DataError(f"column '{column}' of {place} holds no images: set image-column to one that does")


def _without_nameless(found: _Found, reading: Reading) -> _Found:
    """Leave out columns without a name that are empty, or hold the names of rows, unless a key names them."""
    splits = found.splits
    names = dict.fromkeys(name for data in splits.values() for name in data.names if is_nameless(name))
    unnamed = [name for name in names if name not in reading.named]
    empty = [name for name in unnamed if all(_is_blank(data, name) for data in splits.values())]
    rows = [name for name in unnamed if name not in empty and not is_between(name)]
    notes = found.notes
    if empty:
        notes += (f"{columns_called(empty)} of {found.place}, without name and cells: left out",)
    if rows:
        notes += (
            f"{columns_called(rows)} of {found.place}, names of the rows: left out; give it a name, or name it in "
            "numeric-columns or categorical-columns, to learn from it",
        )
    gone = {*empty, *rows}
    kept = {split: data.without([name for name in data.names if name in gone]) for split, data in splits.items()}
    return replace(found, splits=kept, notes=notes)


def _is_blank(data: Frame, name: str) -> bool:
    return name not in data or data[name].null_count == len(data)


def _labelled(source: Source, unknown: Sequence[str]) -> Source:
    """Leave out the rows without a label: those of a missing one, or of a text that says that there is none."""
    place, label = source.place, source.label
    rows, notes = dict[str, npt.NDArray[np.int64]](), list[str]()
    for split, data in source.splits.items():
        without = _missing(data[label], unknown)
        if without.all():
            several = len(source.splits) > 1
            where, way_out = (
                (f"split '{split}' of ", "take the split away") if several else ("", "name another label-column")
            )
            raise DataError(f"no row of {where}{place} has any {label}: fill it in, or {way_out}")
        if without.any():
            first, *more = np.flatnonzero(without)
            number, file = numbered(source.parts.get(split, ()), int(first))
            which = f"row {number}" + (f" of {file}" if file else "") + (f" and {len(more)} more" if more else "")
            found = data[label].filter(pa.array(without)).drop_null()
            words = (
                ", ".join(repr(text) for text in found.unique().to_pylist() if text.strip())
                if is_text(found.type)
                else ""
            )
            notes.append(
                f"{without.sum()} of {len(data)} rows of split '{split}' of {place} have no {label} ({which}): left out"
                + f"; if {words} is a class, name all of them in classes" * bool(words)
            )
            rows[split] = np.flatnonzero(~without)
    splits = {split: data.take(rows[split]) if split in rows else data for split, data in source.splits.items()}
    notes += _gone(source, rows)
    files = left(source.files, rows)
    return replace(source, splits=splits, rows=rows, notes=(*source.notes, *notes), files=files)


def _gone(source: Source, rows: Mapping[str, npt.NDArray[np.int64]]) -> list[str]:
    """Name each file, or owner, none of whose rows has a label: it is gone with them."""
    if "train" not in rows:
        return []
    gone: list[tuple[str, int]] = []
    if source.files:
        what, way_out = "file", "fill it in, or take the file away"
        pairs = zip(source.files, left(source.files, rows), strict=True)
        gone += [(name, count) for (name, count), (_, kept) in pairs if not kept]
    elif source.reading.id_column:
        what, way_out = "owner", "fill it in, or the owner is no client"
        owners = source.splits["train"][source.reading.id_column]
        there = set(owners.take(rows["train"]).to_pylist())
        counts = Counter(owners.drop_null().to_pylist())
        gone += [(str(owner), count) for owner, count in counts.items() if owner not in there]
    return [
        f"{what} {name!r} of {source.place} is left out: none of its {count} rows has any {source.label}; {way_out}"
        for name, count in gone
    ]


def _missing(found: pa.ChunkedArray, unknown: Sequence[str]) -> npt.NDArray[np.bool_]:
    missing = found.is_null(nan_is_null=True)
    if is_text(found.type) or pa.types.is_integer(found.type) or pa.types.is_floating(found.type):
        texts = pc.utf8_trim_whitespace(found.cast(pa.large_string()))
        missing = pc.or_(missing, pc.is_in(texts, value_set=pa.array(["", *unknown], pa.large_string())))
    without: npt.NDArray[np.bool_] = missing.to_numpy()
    return without
