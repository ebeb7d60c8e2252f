"""Where a data set lies, and its splits as they are there: files, a folder or the hub itself."""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from glob import escape
from logging import CRITICAL, ERROR, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hetfl_flwr.data.folders import (
    CALLED_FILE,
    EXPECTED,
    NAMES_FILE,
    SAVE_AS,
    check_files,
    check_owners,
    files_of_rows,
    holds_images_alone,
    is_folder,
    is_unnamed_part,
    local_folder,
    names_of,
    own_file,
    own_folder,
    possible_owners,
    rows_by_split,
    signals_folder,
    spreadsheets,
    unread,
)
from hetfl_flwr.data.frame import Frame
from hetfl_flwr.data.reading import Reading
from hetfl_flwr.data.rows import Part, notes_on, parts_of, read_files, reason
from hetfl_flwr.data.signals import read_signals
from hetfl_flwr.errors import DataError, HetflError

if TYPE_CHECKING:
    from hetfl_flwr.data.catalogue import DatasetEntry


_SHOWN = 5  # names in a note, at most


_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves in its folder


_OF_SPLITS = re.compile("train|val|dev|test|eval|-of-")  # without one of these in a path all images are of one split


_CONVERTED = "refs/convert/parquet"  # where the hub keeps a copy of what only a script could read


class Found(NamedTuple):
    """What messages call a data set; its splits; name and rows of each file read by itself; what was done unasked."""

    place: str
    splits: dict[str, Frame]
    files: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    parts: Mapping[str, Sequence[Part]] = {}


def found_splits(dataset: str, reading: Reading, entry: "DatasetEntry | None") -> Found:
    """Return the splits of a data set, of which the catalogue may know where it lies.

    Raises
    ------
    DataError
        It cannot be found or read, or has no training split.
    """
    if is_folder(dataset):
        return _from_own(dataset, reading)
    if folder := folder_below(dataset, reading.data_dir, entry):
        return _from_folder(folder, reading)
    if reading.by_file:
        raise DataError(f"partition 'files': {dataset} is of the hub: give a folder of your own, such as ./wards")
    return Found(dataset, _from_hub(dataset, dataset))


def check_place(dataset: str, data_dir: str, entry: "DatasetEntry | None") -> None:
    """Refuse a data set whose files are not where they are to be; what is on the hub is not looked for.

    Raises
    ------
    DataError
        They are not there.
    """
    if not is_folder(dataset):
        folder_below(dataset, data_dir, entry)
    elif own_file(dataset) is None:
        own_folder(dataset)


def folder_below(dataset: str, data_dir: str, entry: "DatasetEntry | None") -> Path | None:
    """Return the folder below ``data-dir`` that holds a data set; None where there is no ``data-dir``: it is the hub's.

    Raises
    ------
    DataError
        There is none, or the data set is not on the hub.
    """
    origin = entry.origin if entry else ""
    if not data_dir:
        if entry and origin:
            raise DataError(
                f"{dataset} is not on the hub: get it from {origin}, put it into a folder <data-dir>/{dataset} as "
                f"{entry.form or EXPECTED}, and set data-dir"
            )
        return None
    if folder := local_folder(dataset, data_dir):
        return folder
    raise DataError(
        f"data-dir '{data_dir}' holds no {dataset}: expected in "
        f"'{Path(data_dir, dataset)}' {(entry and entry.form) or EXPECTED}; "
        + (f"get it from {origin}" if origin else "or leave data-dir empty to download it")
    )


def _from_own(dataset: str, reading: Reading) -> Found:
    folder = Path(dataset)
    given = called_in_python(folder)
    if not given:
        return _read_own(dataset, reading, {})
    try:
        return _read_own(dataset, reading, given)._replace(place=given[""])
    except HetflError as error:
        text = str(error)
        for name, said in sorted(given.items(), reverse=True):
            text = text.replace(f"'{folder / name}'", said)
        raise type(error)(text) from error


def _read_own(dataset: str, reading: Reading, given: Mapping[str, str]) -> Found:
    file, folder = own_file(dataset), Path(dataset)
    if file is not None:
        return _read_rows({"train": [file]}, f"'{dataset}'", reading, given)
    if not reading.by_file:
        found = _from_folder(own_folder(dataset), reading, given)
        return found._replace(notes=(*found.notes, *_put_together(folder, found), *_unread(folder)))
    if holds_images_alone(own_folder(dataset)):
        found = _by_owner(folder, reading)
    else:
        files, others = files_of_rows(folder)
        found = _read_rows({"train": files}, f"'{dataset}'", reading, given)
        if others:
            note = f"files of rows in folders below '{dataset}' are left out: {_shown(others, folder)}"
            found = found._replace(notes=(note, *found.notes))
    return found._replace(notes=(*found.notes, *_unread(folder)))


def _shown(files: Sequence[Path], folder: Path, most: int = _SHOWN) -> str:
    named = ", ".join(str(file.relative_to(folder)) for file in files[:most])
    return named + (f" and {len(files) - most} more" if len(files) > most else "")


def _from_folder(folder: Path, reading: Reading, given: Mapping[str, str] | None = None, pattern: str = "") -> Found:
    called = f"'{folder}'"
    if signals := signals_folder(folder):
        return Found(called, read_signals(signals))
    check_files(folder)
    if any((folder / name).exists() for name in _SAVED):
        return Found(called, _by_library(called, _saved_in, folder))
    if not holds_images_alone(folder):
        files = rows_by_split(folder)
        found = _read_rows(files, called, reading, given or {})
        parts = [path for path in files.get("train", ()) if is_unnamed_part(path, folder)]
        if len(parts) < 2 or reading.id_column or reading.by_file:
            return found
        note = f"rows of {len(parts)} files in {called} are put together: partition=files has a client for each"
        return found._replace(notes=(*found.notes, note))
    splits = _by_library(called, _images_in, folder, pattern)
    if not reading.label_column and any("label" not in split for split in splits.values()):
        raise DataError(f"{called} holds images of fewer than two classes: put them into one folder a class")
    return Found(called, splits)


def _by_library(called: str, read: Callable[..., Any], *arguments: Any) -> dict[str, Frame]:
    """Return the splits that the datasets library reads."""
    getLogger("datasets").setLevel(CRITICAL)  # of what it raises, too, and with the whole path
    try:
        data = _quietly(read, *arguments)
    except Exception as error:
        raise DataError(f"cannot read the data set in {called}: {reason(error)}") from error
    return _frames(data if isinstance(data, dict) else {"train": data})


def _quietly(read: Callable[..., Any], *arguments: Any) -> Any:
    """Return what the datasets library reads, without bars of progress where nobody looks at them."""
    from datasets.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    return read(*arguments)


def _frames(splits: Mapping[str, Any]) -> dict[str, Frame]:
    return {name: Frame.of_dataset(data) for name, data in splits.items()}


def _saved_in(folder: Path) -> Any:
    from datasets.load import load_from_disk

    return load_from_disk(str(folder))


def _read_rows(files: Mapping[str, Sequence[Path]], called: str, reading: Reading, given: Mapping[str, str]) -> Found:
    """Read the files of rows of all splits: a column has one type in all of them."""
    paths = [path for of_split in files.values() for path in of_split]
    data, read = read_files(paths, reading)
    splits, parts, first = dict[str, Frame](), dict[str, list[Part]](), 0
    names = owner_names(paths) if reading.by_file else {path: path.name for path in paths}
    by_path = {file.path: file for file in read}
    for split, of_split in files.items():
        rows = sum(by_path[path].table.num_rows for path in of_split)
        splits[split] = data.rows(first, rows)
        parts[split] = parts_of([by_path[path] for path in of_split], [names[path] for path in of_split], given)
        first += rows
    owners = tuple((names[file.path], file.table.num_rows) for file in read) if reading.by_file else ()
    return Found(called, splits, owners, notes_on(read), parts)


def _images_in(folder: Path, pattern: str) -> Any:
    from datasets.load import load_dataset

    if pattern:
        return load_dataset("imagefolder", data_files={"train": pattern})
    split = any(_OF_SPLITS.search(str(path.relative_to(folder))) for path in folder.rglob("*"))
    # else it is what the library finds after 64 walks through the folder, which take longer than to read the images
    return load_dataset("imagefolder", data_dir=str(folder), data_files=None if split else {"train": "**"})


def _put_together(folder: Path, found: Found) -> tuple[str, ...]:
    """Return a note where images are read as those of one that look like those of several owners."""
    owners = possible_owners(folder) if holds_images_alone(folder) and set(found.splits) == {"train"} else []
    if not owners:
        return ()
    named = ", ".join(owners[:_SHOWN]) + (f" and {len(owners) - _SHOWN} more" if len(owners) > _SHOWN else "")
    return (f"images of {found.place} in {named} are put together: partition=files has a client for each",)


def _unread(folder: Path) -> tuple[str, ...]:
    """Return a note on each kind of files that lie beside what is read."""
    kinds = ((spreadsheets(folder), f": {SAVE_AS}"), (unread(folder), ""))
    return tuple(f"not read in '{folder}': {_shown(left, folder)}{advice}" for left, advice in kinds if left)


def _by_owner(folder: Path, reading: Reading) -> Found:
    """Return images in folders ``OWNER/CLASS``, those of one owner after those of another."""
    import pyarrow.compute as pc

    check_owners(folder)
    found = _from_folder(folder, reading, pattern=f"{escape(str(folder))}/**")
    data = found.splits["train"]
    [column] = data.images
    paths = pc.struct_field(data[column], "path").to_pylist()
    owners = [Path(path).parent.parent.name for path in paths]
    ordered = sorted(range(len(owners)), key=owners.__getitem__)
    return found._replace(splits={"train": data.take(np.array(ordered))}, files=tuple(sorted(Counter(owners).items())))


def owner_names(files: Sequence[Path]) -> dict[Path, str]:
    """Return whose each file is: by the file that says so beside them, else by its own name."""
    try:
        said = _said(files[0].parent / NAMES_FILE)
        return {path: said[path.name] for path in files}
    except KeyError:
        return names_of(files)


def called_in_python(folder: Path) -> dict[str, str]:
    """Return what the files of a folder were called when they were given from Python; nothing where they were not."""
    return _said(folder / CALLED_FILE)


def _said(path: Path) -> dict[str, str]:
    try:
        return {str(name): str(said) for name, said in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}


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
