"""Data sets as files on this machine: which folder holds one."""

import gzip
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, cast

from hetfl_flwr.errors import DataError
from hetfl_flwr.text import printable

TABLES = {
    **{".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"},
    **{".arrow": "arrow", ".feather": "arrow", ".npz": "npz"},
}
"""Endings of the files that hold rows, and the kind of each."""

SHEETS, SAVE_AS = {".xlsx", ".xls", ".ods"}, "save the sheet as csv (UTF-8) and give that"
"""Endings of spreadsheets, which are not read, and what to do."""

PACKED = ".gz"
"""Ending after that of a csv or json file that is packed."""

IMAGES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Endings of the files that are an image each."""

SYSTEM = (Path("/dev"), Path("/proc"), Path("/sys"))
"""Folders whose files are none: some of them never end, or wait for somebody."""

MANY = 5000
"""Files in a folder from which on it takes minutes to look through them for data."""

EXPECTED = (
    "parquet, csv, json, arrow or npz files (the hub's layout, or what save_to_disk writes), or one folder of images a "
    "class"
)

_SPLIT = re.compile(r"(?:.*[_.-])?(?:(train)(?:ing)?|(test)(?:ing)?|(val|valid|validation|dev))(?:[-_.]\d.*)?", re.I)
_SPLITS = ("train", "test", "validation")

_SHARD = re.compile(r"-\d+-of-\d+\.")

_ASIDE = re.compile(r"(?:dataset_infos?|dataset_dict|state|datapackage|metadata)\.json", re.I)
"""Files that describe a data set and hold none of its rows."""

SIGNALS = "Inertial Signals"
"""Folder of a split that holds a text file a channel, as the UCI archive keeps its human activity recognition."""


OBJECTS = "hetfl-objects"
"""Folder in the cache of the datasets library that holds data from Python, each in a folder that is their digest."""

NAMES_FILE = "owners.hetfl"
"""Beside files whose names cannot be those of their owners: a JSON object of both."""

CALLED_FILE = "called.hetfl"
"""Beside files of data that were given from Python: what messages call each file and, as ``""``, all of them."""

OWNER_CLASS_IMAGE = 3
"""Parts of an image's path in a folder of owners."""


def is_folder(dataset: str) -> bool:
    """Return whether a data set's name is a folder's: it begins with a dot, a slash or a tilde.

    Examples
    --------
    >>> is_folder("./photos"), is_folder("ylecun/mnist")
    (True, False)
    """
    return dataset.startswith((".", "/", "~"))


def dataset_called(dataset: str) -> str:
    """Return what tables and pictures call a data set: of data from Python the first digits of their digest.

    Examples
    --------
    >>> dataset_called("./photos"), dataset_called(f"/cache/{OBJECTS}/264daef26f7b5c66")
    ('./photos', 'Python data 264daef2')
    """
    folder = Path(dataset)
    return f"Python data {folder.name[:8]}" if folder.parent.name == OBJECTS else dataset


def ending(path: Path) -> str:
    """Return the ending that says what a file holds, in small letters.

    Examples
    --------
    >>> ending(Path("wine.CSV")), ending(Path("wine.csv.gz"))
    ('.csv', '.csv')
    """
    inner = path.with_suffix("").suffix.lower()
    return inner if _is_packed(path) and TABLES.get(inner) in ("csv", "json") else path.suffix.lower()


def stem(path: Path) -> str:
    """Return a file's name without its ending."""
    return path.with_suffix("").stem if _is_packed(path) else path.stem


def own_file(dataset: str) -> Path | None:
    """Return the file of rows that a data set's name is; None where it is no file.

    Raises
    ------
    DataError
        If it is a file of another kind, or the system's.
    """
    path = Path(dataset)
    if not path.is_file():
        return None
    if any(path.resolve().is_relative_to(system) for system in SYSTEM):
        raise DataError(f"dataset '{path}' is the system's: give a file of your own")
    if ending(path) not in TABLES:
        advice = SAVE_AS if ending(path) in SHEETS else f"give one that ends in {', '.join(TABLES)}"
        raise DataError(f"dataset '{path}' is no file of rows: {advice}")
    _check_name(path)
    return path


def files_of_rows(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of rows that lie in a folder or, if there is none, in those below it; all of one kind, by path.

    Returns
    -------
    files : list of Path
        One or more.
    others : list of Path
        Those in folders below, where there are some in the folder itself: nobody reads them.

    Raises
    ------
    DataError
        If there is none, or there are several kinds.
    """
    everywhere = sorted(path for path in folder.rglob("*") if _is_file(path, TABLES) and not _is_hidden(path, folder))
    found = [path for path in everywhere if path.parent == folder] or everywhere
    kinds = Counter(TABLES[ending(path)] for path in found)
    if len(kinds) != 1:
        what = f"files of {len(kinds)} kinds, {' and '.join(sorted(kinds))}" if kinds else "no file of rows"
        raise DataError(
            f"partition 'files': '{folder}' holds {what}: put files of one kind into it, such as csv, one a client"
        )
    for path in found:
        _check_name(path)
    return found, [path for path in everywhere if path not in set(found)]


def rows_by_split(folder: Path) -> dict[str, list[Path]]:
    """Return all files of rows anywhere below a folder, by split.

    A file belongs to a split if its name, or a folder's, is that of one or ends in it, such as ``train.csv``,
    ``test-00000-of-00002.parquet``, ``wine_test.csv`` or ``data/train/1.csv``. If some files belong to none, all are
    rows of one split, as nothing says what these are apart from.

    Raises
    ------
    DataError
        Files belong to both train and test, or one is just called as a split, and others to none.
    """
    files = [path for path in sorted(folder.rglob("*")) if _holds_rows(path, folder)]
    for path in files:
        _check_name(path)
    words = {path: _split_of(path, folder) for path in files}
    others = [path for path in files if not words[path]]
    said = {split: [path for path in files if words[path] == split] for split in _SPLITS}
    exact = [path for path in files if words[path] and stem(path).lower() == words[path]]
    if others and ((said["train"] and said["test"]) or [path for path in exact if words[path] != "train"]):
        one = (exact or said["test"])[0]
        raise DataError(
            f"'{folder}' holds '{one.relative_to(folder)}' beside '{others[0].relative_to(folder)}', whose name says "
            "no split: call it train or test, such as train-2.csv, or put it into another folder"
        )
    if others or not (said["train"] or exact):
        return {"train": files}
    return {split: paths for split, paths in said.items() if paths}


def _split_of(path: Path, folder: Path) -> str:
    """Return the split that the name of a file says, or else the nearest folder's; empty: none does."""
    for name in (path.name.split(".")[0], *reversed(path.relative_to(folder).parts[:-1])):
        if found := _SPLIT.fullmatch(name):
            return next(split for split, word in zip(_SPLITS, found.groups(), strict=True) if word)
    return ""


def _holds_rows(path: Path, folder: Path) -> bool:
    return _is_file(path, TABLES) and not _is_hidden(path, folder) and not _ASIDE.fullmatch(path.name)


def is_unnamed_part(path: Path, folder: Path) -> bool:
    """Say whether a file may have rows of its own owner: it is no shard, and its name is that of no split."""
    return not _SHARD.search(path.name) and not _split_of(path, folder)


def unread(folder: Path) -> list[Path]:
    """Return backups and unfinished downloads of files of rows, such as ``a.csv.bak``, which are not read."""
    return sorted(
        path
        for path in folder.rglob("*")
        if ending(path) not in TABLES and {*map(str.lower, path.suffixes[:-1])} & TABLES.keys() and path.is_file()
    )


def names_of(files: Sequence[Path]) -> dict[Path, str]:
    """Return what several files are called: by their names without endings or, if these are alike, by their folders.

    Examples
    --------
    >>> files = [Path("wards/north/2023.csv"), Path("wards/south/2023.csv")]
    >>> [*names_of(files).values()], [*names_of([*files, Path("wards/south/2024.csv")]).values()]
    (['north', 'south'], ['north/2023', 'south/2023', 'south/2024'])
    """
    root = Path(os.path.commonpath([path.parent for path in files]))
    below = {path: path.parent.relative_to(root) for path in files}
    ways: tuple[Callable[[Path], str], ...] = (stem, lambda path: str(below[path]) if below[path].parts else root.name)
    for way in ways:
        names = {path: way(path) for path in files}
        if len(set(names.values())) == len(files):
            return names
    return {path: str(below[path] / stem(path)) for path in files}


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def own_folder(dataset: str) -> Path:
    """Return the folder that a data set's name is.

    Raises
    ------
    DataError
        If it is none, or holds no data.
    """
    folder = Path(dataset)
    if not folder.is_dir():
        raise DataError(
            f"dataset '{folder}' is not a folder or a file: give a file of rows, or a folder that holds {EXPECTED}"
        )
    place = folder.resolve()
    if place == Path(place.anchor) or any(place.is_relative_to(system) for system in SYSTEM):
        raise DataError(f"dataset '{folder}' is the system's: give a folder that holds {EXPECTED}")
    if not holds_data(folder):
        advice = SAVE_AS if spreadsheets(folder) else f"expected {EXPECTED}"
        raise DataError(f"dataset '{folder}' holds no data: {advice}")
    if _is_mostly_other(folder):
        raise DataError(f"dataset '{folder}' holds mostly other files: give the folder below it that holds {EXPECTED}")
    return folder


def local_folder(hub_id: str, data_dir: str) -> Path | None:
    """Return the folder under ``data_dir``, or ``data_dir`` itself, that holds a data set; None if none does.

    ``data_dir`` itself counts where data files lie in it or in its ``data`` folder, or anywhere below it
    if it bears the data set's name.

    Raises
    ------
    DataError
        If ``data_dir`` is not a folder.
    """
    root = Path(data_dir).expanduser()
    if not root.is_dir():
        raise DataError(f"data-dir '{data_dir}' is not a folder: set it to the folder that holds {hub_id}")
    if holds_data(root / hub_id):
        return root / hub_id
    if root.resolve().name.lower() == hub_id.rpartition("/")[2].lower():
        return root if holds_data(root) else None
    return root if any(_is_file(path, TABLES) for path in [*root.glob("*"), *root.glob("data/*")]) else None


def holds_data(folder: Path) -> bool:
    """Return whether there is a file of rows or an image anywhere below a folder, or a folder of signals."""
    return signals_folder(folder) is not None or any(
        _is_file(path, TABLES.keys() | IMAGES) for path in folder.rglob("*")
    )


def signals_folder(folder: Path) -> Path | None:
    """Return the folder whose splits hold `SIGNALS`: a folder itself or the only one in it that does; else None."""
    found = [one for one in (folder, *folder.glob("*/")) if (one / "train" / SIGNALS).is_dir()]
    return found[0] if len(found) == 1 else None


def spreadsheets(folder: Path) -> list[Path]:
    """Return the spreadsheets anywhere below a folder, by path: nobody reads them."""
    return sorted(path for path in folder.rglob("*") if _is_file(path, SHEETS) and not _is_hidden(path, folder))


def holds_images_alone(folder: Path) -> bool:
    """Return whether there are images below a folder and no file of rows, save one that describes them."""
    rows = any(_is_file(path, TABLES) and path.stem != "metadata" for path in folder.rglob("*"))
    return not rows and signals_folder(folder) is None


def check_files(folder: Path) -> None:
    """Refuse a folder in which what is called like data is no file: the library that reads it would leave it out.

    Raises
    ------
    DataError
        Names the first.
    """
    for path in sorted(folder.rglob("*")):
        if ending(path) not in IMAGES | TABLES.keys() or path.is_dir():
            continue
        if not path.is_file():
            raise DataError(f"'{path}' is no file, or a link to none: put one there, or remove it")
        _check_name(path)
        check_filled([path])


def check_owners(folder: Path) -> None:
    """Refuse images that do not lie in folders ``OWNER/CLASS``.

    Raises
    ------
    DataError
        Names the first.
    """
    for path in _images(folder):
        inner = path.relative_to(folder)
        if len(inner.parts) != OWNER_CLASS_IMAGE:
            raise DataError(
                f"partition 'files': image '{inner}' of '{folder}' does not lie in a folder "
                "OWNER/CLASS: put all images into a folder for each class, within one for each owner"
            )


def possible_owners(folder: Path) -> list[str]:
    """Return the folders within a folder that look like owners of images: all images lie in folders of theirs."""
    inner = [path.relative_to(folder).parts for path in _images(folder)]
    owners = sorted({parts[0] for parts in inner})
    return owners if len(owners) > 1 and all(len(parts) == OWNER_CLASS_IMAGE for parts in inner) else []


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGES and not _is_hidden(path, folder))


def check_filled(files: Iterable[Path]) -> None:
    """Refuse files of rows that hold nothing at all.

    Raises
    ------
    DataError
        Names the first.
    """
    for path in files:
        if ending(path) in TABLES and not path.stat().st_size:
            raise DataError(f"'{path}' is empty: put rows into it, or take it away")


def _check_name(path: Path) -> None:
    if any("\udc80" <= letter <= "\udcff" for letter in path.name):
        raise DataError(f"'{printable(str(path))}' has a name that is not UTF-8: rename it")


def _is_mostly_other(folder: Path) -> bool:
    """Return whether of the first `MANY` files below a folder less than a quarter are data, as in a user's home."""
    files = (name for _, _, names in os.walk(folder) for name in names)
    first = list(islice(files, MANY))
    data = sum(ending(Path(name)) in TABLES.keys() | IMAGES for name in first)
    return len(first) == MANY and data < MANY / 4


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() == PACKED


def opened(path: Path) -> IO[bytes]:
    """Open a file of rows for reading; one that is packed, unpacked."""
    return cast(IO[bytes], gzip.open(path, "rb")) if _is_packed(path) else path.open("rb")


def _is_file(path: Path, suffixes: Container[str]) -> bool:
    return ending(path) in suffixes and path.is_file()
