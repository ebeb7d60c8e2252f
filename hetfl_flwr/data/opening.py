"""Step one: a data set opened, from files, a folder or the hub: which columns count, which rows have a label."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from hetfl_flwr.data.columns import MISSING, TEXT, as_written, stand_for_none
from hetfl_flwr.data.folders import (
    CALLED_FILE,
    EXPECTED,
    NAMES_FILE,
    Listing,
    is_folder,
    local_folder,
    names_of,
    own_place,
    signals_folder,
)
from hetfl_flwr.data.frame import Frame
from hetfl_flwr.data.pivot import parse_pivot, pivoted
from hetfl_flwr.data.reading import Reading, parse_classes
from hetfl_flwr.data.roles import Kind, check_spelling, columns_called, is_between, is_nameless, is_text, roles
from hetfl_flwr.data.rows import joined, notes_on, read_file, read_files, reason
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
    notes : tuple of str
        What was done when it was opened that nobody has asked for.
    files : tuple of str
        What the owners are called where each file is one's: by the number of the file; else empty.
    channels : tuple of str
        What the channels of series are called that come from a long table; else empty.
    """

    place: str
    splits: dict[str, Frame]
    kind: Kind
    inputs: tuple[str, ...]
    label: str
    reading: Reading
    values: tuple[str | int, ...] = ()
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()

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

    @property
    def rows(self) -> dict[str, int]:
        """How many rows each split has."""
        return {split: len(data) for split, data in self.splits.items()}

    @cached_property
    def digest(self) -> str:
        """A digest of all inputs."""
        parts = [data.digest(name) for data in self.splits.values() for name in self.inputs]
        return blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def column(self, name: str) -> pa.ChunkedArray:
        """Return the cells of a column of all splits, the training rows first.

        Raises
        ------
        DataError
            They are of types in the splits that nothing holds both of.
        """
        try:
            parts = [data.table.select([name]) for data in self.splits.values()]
            return pa.concat_tables(parts, promote_options="permissive")[name]
        except pa.ArrowTypeError:
            raise DataError(
                f"the splits of {self.place} differ in the type of column '{name}': write all in one type"
            ) from None

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
        return split, *self.splits[split].place_of(row)

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

    def unlike(self, name: str) -> str:
        """Return two files of which one holds numbers alone in a column, the other words; empty if none do."""
        numbers, words = list[str](), list[str]()
        for frame in self.splits.values():
            if frame.file is None or not is_text(frame[name].type):
                continue
            there = frame[name].is_valid().to_numpy()
            plain = pc.match_substring_regex(frame[name], r"^[+-]?[\d.,]+$").fill_null(False).to_numpy()
            filled, alike = (np.bincount(frame.file[one], minlength=len(frame.files)) for one in (there, plain))
            named = np.array([*map(bool, frame.files)])
            numbers += [frame.files[one] for one in np.flatnonzero(named & (filled > 0) & (alike == filled))]
            words += [frame.files[one] for one in np.flatnonzero(named & (alike < filled))]
        return f"numbers in {numbers[0]} and words in {words[0]}" if numbers and words else ""


@dataclass(frozen=True)
class _Found:
    """What messages call a data set; its splits; what was done that nobody asked for; the owners of its files."""

    place: str
    splits: dict[str, Frame]
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


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
    pa.default_memory_pool().release_unused()  # what reading has needed
    found = found if entry else _without_nameless(found, reading)
    place, channels = found.place, tuple[str, ...]()
    if reading.pivot:
        found, reading, channels = _pivoted(found, reading)
    label, kind, inputs = roles(place, found.splits, reading)
    splits: dict[str, Frame] = {name: found.splits[name] for name in ("train", "test") if name in found.splits}
    notes = (*found.notes, *(f"split '{name}' of {place} is not used" for name in found.splits if name not in splits))
    if entry and entry.without:
        kept = {name: ~np.isin(data[label].to_numpy(), entry.without) for name, data in splits.items()}
        splits = {name: data.take(np.flatnonzero(kept[name])) for name, data in splits.items()}
    for name, data in splits.items():
        if not len(data):
            raise DataError(f"split '{name}' of {place} is empty: take it away, or put rows into it")
        if kind == "image":
            _check_images(place, data, inputs[0])
    values = entry.values or tuple(range(entry.spec.classes)) if entry else ()
    source = Source(place, splits, kind, inputs, label, reading, values, notes, found.files, channels)
    declared = {label for _, label in parse_classes(reading.classes)}
    return _typed(_labelled(source, () if entry else [*{*MISSING, *reading.missing} - declared]))


def _pivoted(found: _Found, reading: Reading) -> tuple[_Found, Reading, tuple[str, ...]]:
    """Return a data set of long tables with one row a series, and its channels."""
    both = {name: pivoted(frame, found.place, reading) for name, frame in found.splits.items()}
    (name, (_, channels)), *others = both.items()
    for other, (_, own) in others:
        if own != channels:
            raise DataError(
                f"the splits '{name}' and '{other}' of {found.place} have other channels: {channels}, {own}"
            )
    *_, value = parse_pivot(reading.pivot) or ("",)
    reading = replace(reading, series_column=value, series_layout="channels-first")
    return replace(found, splits={name: frame for name, (frame, _) in both.items()}), reading, channels


def _typed(source: Source) -> Source:
    """Return a data set in which labels, owners and domains are whole numbers or truth values if all of them are."""
    reading, splits = source.reading, source.splits
    for name in filter(None, (source.label, reading.id_column, reading.domain_column)):
        whole = source.column(name)
        text = is_text(whole.type)
        words = () if name == source.label else reading.missing  # rows without a label are gone already
        if not text and not (words and (pa.types.is_integer(whole.type) or pa.types.is_floating(whole.type))):
            continue
        whole = whole.cast(TEXT) if text else whole
        whole = as_written(pc.if_else(stand_for_none(whole, ["", *words]), pa.scalar(None, whole.type), whole))
        unlike = source.unlike(name) if name == source.label and is_text(whole.type) and not reading.classes else ""
        if unlike:
            raise DataError(f"column '{name}' of {source.place} holds {unlike}: write all in one type")
        first = 0
        for split, data in splits.items():
            splits = {**splits, split: data.having({name: whole.slice(first, len(data))})}
            first += len(data)
    return replace(source, splits=splits)


def check_place(dataset: str, data_dir: str, entry: "DatasetEntry | None") -> None:
    """Refuse a data set whose files are not where they are to be; what is on the hub is not looked for.

    Raises
    ------
    DataError
        They are not there.
    """
    if not is_folder(dataset):
        _folder_below(dataset, data_dir, entry)
    elif (place := own_place(dataset)).is_dir() and not signals_folder(place):
        Listing.of(place)


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
    folder = own_place(dataset)
    if folder.is_file():
        return _read_rows({"train": [folder]}, f"'{dataset}'", reading, given)
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
        found = _read_rows({"train": files}, called, reading, given or {}, folder)
        found = replace(found, notes=(*notes, *found.notes))
    else:
        by_split, notes = listing.by_split()
        found = _read_rows(by_split, called, reading, given or {}, folder)
        found = replace(found, notes=(*found.notes, *(notes if not reading.id_column else ())))
    return replace(found, notes=(*found.notes, *listing.notes))


def _read_rows(
    files: Mapping[str, Sequence[Path]],
    called: str,
    reading: Reading,
    given: Mapping[str, str],
    root: Path | None = None,
) -> _Found:
    """Read the files of rows of all splits; sheets of the only one are splits as files of a folder are."""
    paths = [path for of_split in files.values() for path in of_split]
    names = owner_names(paths) if reading.by_file else {path: path.name for path in paths}
    sheets = {path / title: (path, title, frame) for path, title, frame in read_files(paths, reading, root)}
    parts = {split: [key for key, (path, *_) in sheets.items() if path in {*own}] for split, own in files.items()}
    notes: tuple[str, ...] = ()
    if len(paths) == 1 and len(sheets) > 1 and not reading.by_file:
        parts, notes = Listing(paths[0], (*sheets,)).by_split()
    found = [sheets[key] for own in parts.values() for key in own]
    frames = [frame for _, _, frame in found]
    owners = tuple(title or names[path] for path, title, _ in found)
    alone = {of_split[0] for of_split in files.values() if len(of_split) == 1}
    named = [
        given.get(path.name, "") if given else f"file {owner!r}" * (path not in alone or bool(title))
        for (path, title, _), owner in zip(found, owners, strict=True)
    ]
    whole = joined(frames, named)
    if given:
        whole = replace(whole, row=whole.numbers - 1)
    splits, first = dict[str, Frame](), 0
    for split, own in parts.items():
        rows = sum(len(sheets[key][2]) for key in own)
        splits[split] = whole.rows(first, rows)
        first += rows
    notes = () if reading.id_column else notes
    return _Found(called, splits, (*notes_on(frames), *notes), owners if reading.by_file else ())


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
    """Return images in one folder a class, with what files called metadata say of them, and whose they are."""
    tables = [(file.parent, read_file(file)[0][1].table.to_pylist()) for file in listing.rows]
    told = {folder / str(row.get("file_name")): row for folder, table in tables for row in table}
    said = dict.fromkeys(name for row in told.values() for name in row if name != "file_name")
    labelled = "label" in said or bool(reading.label_column)
    by_split, owners = listing.images_by_split(reading.by_file, labelled)
    names = sorted({path.parent.name for path in listing.images})
    check_spelling(f"folders of classes of {called}", names, "call both alike")
    whose = sorted({*owners.values()})
    frames = {}
    for split, paths in by_split.items():
        rows = [told.get(path, {}) for path in paths]
        classes = {"label": [names.index(path.parent.name) for path in paths]} if "label" not in said else {}
        columns = {"image": [*map(str, paths)], **classes, **{name: [row.get(name) for row in rows] for name in said}}
        file = np.array([whose.index(owners[path]) for path in paths], np.int64) if reading.by_file else None
        frames[split] = Frame(pa.table(columns), dict.fromkeys(classes, (*names,)), frozenset(["image"]), file=file)
    if not labelled and len(names) == 1:
        raise DataError(f"{called} holds images of fewer than two classes: put them into one folder a class")
    notes: tuple[str, ...] = ()
    if whose and not reading.by_file:
        named = listing.shown([Path(listing.folder, one) for one in whose])
        notes = (f"images of {called} in {named} are put together: partition=files has a client for each",)
    return _Found(called, frames, notes, (*whose,) if reading.by_file else ())


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
    found, several = source.column(label), len(source.splits) > 1
    without = _missing(found, unknown)
    if not without.any():
        return source
    own = dict(zip(("train", "test"), np.split(without, [source.train_rows]), strict=True))
    for split in source.splits:
        if own[split].all():
            where, way_out = f"split '{split}' of " * several, "take the split away" if several else "name another one"
            raise DataError(f"no row of {where}{place} has any {label} (label-column): fill it in, or {way_out}")
    gone = found.filter(pa.array(without)).drop_null()
    words = ", ".join(repr(text) for text in gone.unique().to_pylist() if text.strip()) if is_text(gone.type) else ""
    note = (
        f"{without.sum()} of {len(source)} rows of {place} have no {label} ({source.rows_said(without)}): left out"
        + f"; if {words} is a class, name all of them in classes" * bool(words)
    )
    splits = {split: data.take(np.flatnonzero(~own[split])) for split, data in source.splits.items()}
    return replace(source, splits=splits, notes=(*source.notes, note, *_gone(source, splits["train"])))


def _gone(source: Source, left: Frame) -> list[str]:
    """Name each file, or owner, none of whose rows has a label: it is gone with them."""
    before, column = source.splits["train"], source.reading.id_column
    if source.files and before.file is not None and left.file is not None:
        what, way_out = "file", "fill it in, or take the file away"
        counts, there = Counter(source.files[one] for one in before.file), {source.files[one] for one in left.file}
    elif column:
        what, way_out = "owner", "fill it in, or the owner is no client"
        counts, there = Counter(before[column].drop_null().to_pylist()), {*left[column].to_pylist()}
    else:
        return []
    why = f"rows has any {source.label}; {way_out}"
    return [
        f"{what} {str(name)!r} of {source.place} is left out: none of its {count} {why}"
        for name, count in counts.items()
        if name not in there
    ]


def _missing(found: pa.ChunkedArray, unknown: Sequence[str]) -> npt.NDArray[np.bool_]:
    missing = found.is_null(nan_is_null=True)
    if is_text(found.type) or pa.types.is_integer(found.type) or pa.types.is_floating(found.type):
        cells = pc.utf8_trim_whitespace(found.cast(TEXT)) if is_text(found.type) else found
        missing = pc.or_(missing, stand_for_none(cells, ["", *unknown]))
    without: npt.NDArray[np.bool_] = missing.to_numpy()
    return without
