"""Find the local files of a data set, and interpret their names."""

import bz2
import gzip
import lzma
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path
from typing import IO, Any, cast
from zipfile import ZipFile

from hetfl_flwr.errors import DataError
from hetfl_flwr.text import printable, some

TABLES = {
    **dict.fromkeys((".csv", ".tsv", ".psv"), "csv"),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **{".arrow": "arrow", ".feather": "arrow", ".npz": "npz", ".xlsx": "sheets", ".xlsm": "sheets"},
}
"""The extensions of files of rows, and the kind of each."""

TEXTS = {".txt", ".tab", ".dat", ".data"}
"""The extensions of text files that are read only if named directly; in a folder they may be anything."""

PACKED: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    ".gz": (b"\x1f\x8b", gzip.open),
    ".bz2": (b"BZh91AY&SY", bz2.open),
    ".xz": (b"\xfd7zXZ\0", lzma.open),
    ".zip": (b"PK\x03\x04", ZipFile),
}
"""The extensions of compressed csv and json files, their first bytes, and the functions that open them."""

IMAGES = {
    *(".bmp", ".gif", ".png", ".tif", ".tiff", ".webp"),
    *(".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".pnm", ".ppm"),
}
"""The extensions of image files."""

_CONVERTED_BY = {
    **dict.fromkeys((".xls", ".ods"), "import pandas; pandas.read_excel('{0}').to_csv('{1}.csv', index=False)"),
    ".arff": "import pandas; from scipy.io.arff import loadarff; pandas.DataFrame(loadarff('{0}')[0]).map("
    "lambda cell: cell.decode() if isinstance(cell, bytes) else cell).to_csv('{1}.csv', index=False)",
    ".ts": "import numpy; from aeon.datasets import load_from_ts_file; x, y = load_from_ts_file('{0}'); "
    "numpy.savez('{1}.npz', x=x, y=y)",
    ".dta": "import pandas; pandas.read_stata('{0}').to_parquet('{1}.parquet')",
    ".sav": "import pandas; pandas.read_spss('{0}').to_parquet('{1}.parquet')",
    ".sas7bdat": "import pandas; pandas.read_sas('{0}', encoding='utf-8').to_parquet('{1}.parquet')",
    ".orc": "import pandas; pandas.read_orc('{0}').to_parquet('{1}.parquet')",
    ".h5": "import pandas; pandas.read_hdf('{0}').to_parquet('{1}.parquet')",
    ".mat": "import numpy; from scipy.io import loadmat; "
    "numpy.savez('{1}.npz', **{{k: v for k, v in loadmat('{0}').items() if k[0] != '_'}})",
}
"""Python code that converts an unsupported file ``{0}`` to a supported one."""

_KNOWN = ", ".join(TABLES)

SYSTEM = (Path("/dev"), Path("/proc"), Path("/sys"))
"""Folders of special files, some of which never end or block when read."""

MANY = 5000
"""The number of files above which a search for data may take minutes."""

EXPECTED = (
    "parquet, csv, json, arrow or npz files (the hub's layout, or what save_to_disk writes), or one folder of images "
    "for each class"
)

SPLITS = ("train", "test", "validation")
_SPLIT = re.compile(
    r"(?:(.*)[ _.-])?(?:(train)(?:ing)?|(test)(?:ing)?|(val|valid|validation|dev))"
    r"(?:[ _.-]?(?:set|data))?(?:[-_.]\d.*)?",
    re.I,
)
_LIKE_A_SPLIT = re.compile(r"train|test", re.I)
_SHARD = re.compile(r"-\d+-of-\d+\.")
_DESCRIBING = re.compile(  # files that describe a data set
    r"(?:dataset_infos?|dataset_dict|state|datapackage)\.json|.*\.(?:md|py|ipynb|hetfl)|_success|_(?:common_)?metadata|"
    r"~\$.*|(?:readme|licen[cs]e|citation|changelog|notice)[^.]*(?:\.(?:txt|rst|cff|bib))?|thumbs\.db|desktop\.ini",
    re.I,
)

SIGNALS = "Inertial Signals"
"""The folder of a split that holds one text file for each channel, as in the UCI human activity recognition data."""

OBJECTS = "hetfl-objects"
"""The folder in the cache of the datasets library for data from Python, each in a folder named by its digest."""

GIVEN_FILE = "given.hetfl"
"""A JSON file next to the files of data from Python: the name in messages and the owner of each file, and the name of
the whole data set under ``""``."""


def is_folder(dataset: str) -> bool:
    """Return whether the name of a data set is a path: it begins with a dot, a slash or a tilde.

    Examples
    --------
    >>> is_folder("./photos"), is_folder("ylecun/mnist")
    (True, False)
    """
    return dataset.startswith((".", "/", "~"))


def dataset_called(dataset: str) -> str:
    """Return the name of a data set in tables and plots; data from Python are named by their digest.

    Examples
    --------
    >>> dataset_called("./photos"), dataset_called(f"/cache/{OBJECTS}/264daef26f7b5c66")
    ('./photos', 'Python data 264daef2')
    """
    folder = Path(dataset)
    return f"Python data {folder.name[:8]}" if folder.parent.name == OBJECTS else dataset


def ending(path: Path) -> str:
    """Return the extension of a file's content, in lower case.

    Examples
    --------
    >>> ending(Path("wine.CSV")), ending(Path("wine.csv.gz"))
    ('.csv', '.csv')
    """
    outer, inner = path.suffix.lower(), path.with_suffix("").suffix.lower()
    return inner if outer in PACKED and TABLES.get(inner, inner) in {"csv", "json", *TEXTS} else outer


def stem(path: Path) -> str:
    """Return a file's name without its extensions."""
    return path.with_suffix("").stem if path.suffix.lower() in PACKED else path.stem


def opened(path: Path) -> IO[bytes]:
    """Open a file of rows for reading, and decompress it whatever its extension."""
    file: Any = path.open("rb")
    head = file.read(10)
    file.seek(0)
    for suffix, (magic, unpacked) in PACKED.items():
        if path.suffix.lower() == suffix or head.startswith(magic):
            file.close()
            file = unpacked(path)
    if isinstance(file, ZipFile):
        names = [name for name in file.namelist() if name[-1] != "/" and not name.startswith("__MACOSX")]
        if len(names) != 1:
            raise DataError(f"'{path}' holds {len(names)} files: unpack it into its own folder, and give that folder")
        return file.open(names[0])
    return cast(IO[bytes], file)


def advice_on(path: Path) -> str:
    """Return advice on an unsupported file: a command that converts it, or the supported extensions."""
    line = _CONVERTED_BY.get(path.suffix.lower(), "")
    return f'convert it: python -c "{line.format(path, path.with_suffix(""))}"' if line else f"give one of {_KNOWN}"


def own_place(dataset: str) -> Path:
    """Return the file or folder that a data set's name refers to."""
    path = Path(dataset)
    place = path.resolve() if path.exists() else path
    if place == Path(place.anchor) or any(place.is_relative_to(system) for system in SYSTEM):
        raise DataError(f"dataset '{path}' is a system path: give your own file or folder")
    if path.is_dir():
        return path
    if not path.is_file():
        raise DataError(
            f"dataset '{path}' is not a folder or a file: give a file of rows, or a folder that holds {EXPECTED}"
        )
    if ending(path) not in TABLES.keys() | TEXTS:
        raise DataError(f"dataset '{path}' is not a file of rows: {advice_on(path)}")
    check_file(path)
    return path


def local_folder(hub_id: str, data_dir: str) -> Path | None:
    """Return the folder below ``data_dir``, or ``data_dir`` itself, that holds a data set; None if none does.

    ``data_dir`` itself counts if data files are in it or in its ``data`` folder, or anywhere below it if it has the
    name of the data set.
    """
    root = Path(data_dir).expanduser()
    if not root.is_dir():
        raise DataError(f"data-dir '{data_dir}' is not a folder: set it to the folder that holds {hub_id}")
    named = root.resolve().name.lower() == hub_id.rpartition("/")[2].lower()
    for folder in (root / hub_id, root) if named else (root / hub_id,):
        if _holds_data(folder.rglob("*")) or signals_folder(folder):
            return folder
    return root if _holds_data([*root.glob("*"), *root.glob("data/*")], TABLES.keys()) else None


def _holds_data(paths: Iterable[Path], endings: Set[str] = TABLES.keys() | IMAGES) -> bool:
    return any(ending(path) in endings and path.is_file() for path in paths)


def signals_folder(folder: Path) -> Path | None:
    """Return the folder whose splits hold `SIGNALS`: the given one or its only subfolder of this kind; else None."""
    found = [one for one in (folder, *folder.glob("*/")) if (one / "train" / SIGNALS).is_dir()]
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True)
class Listing:
    """The sorted files in a folder and its subfolders, except hidden files and files that describe a data set."""

    folder: Path
    rows: tuple[Path, ...]
    images: tuple[Path, ...] = ()
    others: tuple[Path, ...] = ()

    @classmethod
    def of(cls, folder: Path) -> "Listing":
        """List a folder."""
        rows, images, others = list[Path](), list[Path](), list[Path]()
        for place, folders, names in os.walk(folder, followlinks=True):
            here = Path(place).resolve()
            around = {here, *here.parents}  # a link to one of these is a loop
            folders[:] = [name for name in folders if name[0] != "." and Path(place, name).resolve() not in around]
            for path in (Path(place, name) for name in names if name[0] != "." and not _DESCRIBING.fullmatch(name)):
                kind = ending(path)
                (images if kind in IMAGES else rows if kind in TABLES else others).append(path)
            if len(others) > max(MANY, 3 * len(rows) + 3 * len(images)):  # such as a home folder
                raise DataError(
                    f"dataset '{folder}' holds mostly other files: give its subfolder that holds {EXPECTED}"
                )
        found = cls(folder, (*sorted(rows),), (*sorted(images),), (*sorted(others),))
        if not rows and not images:
            there = f", only {found.shown(found.others)}" * bool(others)
            raise DataError(f"dataset '{folder}' holds no data{there}: {found._advice or f'expected {EXPECTED}'}")
        called = Counter(path.parent / stem(path) for path in rows)
        if alike := [path for path in found.rows if called[path.parent / stem(path)] > 1]:
            raise DataError(
                f"'{folder}' holds {found.shown(alike)}: keep one of the files with the same name, or rename them"
            )
        for path in (*found.rows, *found.images):
            check_file(path, filled=ending(path) in TABLES)
        return found

    @property
    def _advice(self) -> str:
        return next((advice_on(one) for one in self.others if one.suffix.lower() in _CONVERTED_BY), "")

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on files that are not read, or are copies."""
        images = () if self.holds_images else self.images
        advice = "call the file that describes the images metadata.csv" if images else self._advice
        lines = {
            "copies of other files, whose rows are counted twice": (self._copies, ""),
            "files not read": ((*images, *self.others), f": {advice}" * bool(advice)),
        }
        return tuple(
            f"{what} in '{self.folder}': {self.shown(files)}{more}" for what, (files, more) in lines.items() if files
        )

    @property
    def _copies(self) -> list[Path]:
        """Files of rows with the same content as an earlier one."""
        alike = dict[tuple[int, bytes], list[Path]]()
        for path in self.rows:
            with path.open("rb") as file:
                alike.setdefault((path.stat().st_size, file.read(2**12)), []).append(path)
        return [
            path
            for group in alike.values()
            for number, path in enumerate(group)
            if any(cmp(path, before, shallow=False) for before in group[:number])
        ]

    def shown(self, files: Sequence[Path]) -> str:
        """Return the names of files for a note: at most the first five."""
        return some([printable(str(file.relative_to(self.folder))) for file in files])

    @property
    def holds_images(self) -> bool:
        """Whether the data are images: all files of rows only describe them."""
        return bool(self.images) and all(path.stem.lower() == "metadata" for path in self.rows)

    def by_split(self, by_file: bool = False) -> tuple[dict[str, list[Path]], tuple[str, ...]]:
        """Return the files of rows by split, and a note on files that are combined or left out.

        With ``by_file`` each file has an owner, and all are of one split: the files in the folder or, if it has none,
        in its subfolders. Else a file belongs to a split if its name, or its folder's, is or ends in the name of one,
        such as ``train.csv``, ``test-00000-of-00002.parquet``, ``wine_test.csv`` or ``data/train/1.csv``. Files are
        splits only if all belong to one, and each test or validation file has a training file, as ``wine_test.csv`` has
        ``wine_train.csv``. Else all files are one split, or are refused if some names are exactly those of splits.
        """
        if by_file:
            here = [path for path in self.rows if path.parent == self.folder] or [*self.rows]
            left = [path for path in self.rows if path not in {*here}]
            note = f"files of rows in subfolders of '{self.folder}' are left out: {self.shown(left)}"
            return {"train": here}, (note,) * bool(left)
        named_splits = {path: _split_of_names((*self._folders(path), path.name.split(".")[0])) for path in self.rows}
        splits = self._splits(named_splits)
        parts = [path for path in self.rows if not _SHARD.search(path.name)]
        if splits.keys() != {"train"} or len(parts) < 2:
            return splits, ()
        note = f"rows of {len(parts)} files in '{self.folder}' are combined: partition=files gives each its own client"
        if like := [path for path in parts if _LIKE_A_SPLIT.search(path.name)]:
            note += f"; if {self.shown(like[:1])} is a split, rename it to end in train or test"
        return splits, (note,)

    def images_by_split(self, by_file: bool, labelled: bool) -> tuple[dict[str, list[Path]], dict[Path, str]]:
        """Return all images by split, and their owners, if folders give them.

        Images are in folders ``CLASS``, ``OWNER/CLASS`` or, if all belong to splits, ``SPLIT/CLASS``. If `labelled`, a
        metadata file has the classes, and images may be in any folders, such as ``SPLIT``, unless `by_file` asks for
        owners.
        """
        folders = {path: self._folders(path) for path in self.images}
        deep, flat = (most(self.images, key=lambda path: len(folders[path])) for most in (max, min))
        depths = {len(folders[deep]), len(folders[flat])}
        alike = depths in ([{2}] if by_file else [{1}, {2}])
        if not alike and (by_file or not labelled):
            other = f" and '{self.shown([flat])}'" * (flat != deep)
            raise DataError(
                f"'{self.folder}' holds '{self.shown([deep])}'{other}: put all images into folders CLASS, all into "
                "OWNER/CLASS, or all into SPLIT/CLASS"
            )
        named_splits = {path: _split_of_names(inner if labelled else inner[:-1]) for path, inner in folders.items()}
        splits = {"train": [*self.images]} if by_file else self._splits(named_splits)
        owners = {path: inner[0] for path, inner in folders.items()} if depths == {2} else {}
        several = len({*owners.values()}) > 1 and splits.keys() == {"train"}
        return splits, owners if by_file or several else {}

    def described(
        self, tables: Mapping[Path, Sequence[Mapping[str, Any]]]
    ) -> tuple[dict[Path, Mapping[str, Any]], tuple[str, ...]]:
        """Return the metadata row of each image, and notes on images without rows and rows without images."""
        named = ((file.parent, str(row.get("file_name")), row) for file, table in tables.items() for row in table)
        rows = [(folder / name.replace("\\", "/"), row) for folder, name, row in named]
        counts, images = Counter(path for path, _ in rows), {*self.images}
        if several := [path for path in self.images if counts[path] > 1]:
            raise DataError(
                f"several rows of metadata in '{self.folder}' describe one image: keep one for {self.shown(several)}"
            )
        found, notes = {path: row for path, row in rows if path in images}, list[str]()
        if tables and (without := [path for path in self.images if path not in found]):
            share = f"{len(without)} of {len(images)} images in '{self.folder}'"
            notes.append(f"{share} have no row of metadata: {self.shown(without)}")
        if unmatched := len(rows) - len(found):
            notes.append(f"{unmatched} of {len(rows)} rows of metadata in '{self.folder}' match no image: left out")
        return found, (*notes,)

    def _folders(self, path: Path) -> tuple[str, ...]:
        return path.relative_to(self.folder).parts[:-1]

    def _splits(self, named_splits: Mapping[Path, tuple[str, str]]) -> dict[str, list[Path]]:
        """Return files by split, in the order of the splits; all are of one split unless each file belongs to one.

        `named_splits` has the split of each file, empty if unknown, and the text before it in the name.
        """
        by_split = {split: [path for path, (own, _) in named_splits.items() if own == split] for split in (*SPLITS, "")}
        others, train = by_split.pop(""), by_split["train"]
        exact = [path for path, (split, before) in named_splits.items() if split and not before]
        alike = {"", *(named_splits[path][1] for path in train)}
        alone = [path for split in SPLITS[1:] for path in by_split[split] if named_splits[path][1] not in alike]
        if (others or alone) and (exact or (train and by_split["test"])):
            one = (exact or by_split["test"])[0]
            other = next(path for path in (*others, *alone, *train) if path != one)
            raise DataError(
                f"'{self.folder}' holds '{self.shown([one])}' and '{self.shown([other])}', which may or may not be "
                "splits of one data set: name the second or its folder train or test, such as train-2.csv, or move it "
                "to another folder"
            )
        if others or not (train or exact):
            return {"train": [*named_splits]}
        return {split: paths for split, paths in by_split.items() if paths}


def _split_of_names(names: Sequence[str]) -> tuple[str, str]:
    """Return the split in the last name that has one, and the text before it."""
    return next((found for found in map(split_called, reversed(names)) if found[0]), ("", ""))


def split_called(name: str) -> tuple[str, str]:
    """Return the split that a name ends in, and the text before it; empty if there is none.

    Examples
    --------
    >>> split_called("wine_testing"), split_called("train-00001-of-00002"), split_called("latest data")
    (('test', 'wine'), ('train', ''), ('', ''))
    """
    found = _SPLIT.fullmatch(name)
    if not found:
        return "", ""
    before, *words = found.groups()
    return next(split for split, word in zip(SPLITS, words, strict=True) if word), (before or "").lower()


def names_of(files: Sequence[Path]) -> dict[Path, str]:
    """Return distinct names for files: their names without extensions or, if some are equal, their folders.

    Examples
    --------
    >>> files = [Path("wards/north/2023.csv"), Path("wards/south/2023.csv")]
    >>> [*names_of(files).values()], [*names_of([*files, Path("wards/south/2024.csv")]).values()]
    (['north', 'south'], ['north/2023', 'south/2023', 'south/2024'])
    """
    root = Path(os.path.commonpath([path.parent for path in files]))
    below = {path: path.parent.relative_to(root) for path in files}
    ways: tuple[Callable[[Path], str], ...] = (
        stem,
        lambda path: str(below[path]) if below[path].parts else root.name,
        lambda path: str(below[path] / stem(path)),
    )
    named = [{path: way(path) for path in files} for way in ways]
    return next((names for names in named if len({*names.values()}) == len(files)), named[-1])


def check_file(path: Path, *, filled: bool = True) -> None:
    """Refuse a path that is not a file, has a name that is not UTF-8 or, if `filled`, is empty."""
    if not path.is_file():
        raise DataError(f"'{path}' is not a file, or is a broken link: replace it, or remove it")
    if any("\udc80" <= letter <= "\udcff" for letter in path.name):
        raise DataError(f"'{printable(str(path))}' has a name that is not UTF-8: rename it")
    if filled and not path.stat().st_size:
        raise DataError(f"'{path}' is empty: add rows, or remove it")
