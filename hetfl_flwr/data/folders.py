"""Data sets as local files: which files a folder holds, and what their names mean."""

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
"""Endings of the files that hold rows, and the kind of each."""

TEXTS = {".txt", ".tab", ".dat", ".data"}
"""Endings of text files that are read where they are given by name, and not in a folder: there they may be anything."""

PACKED: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    ".gz": (b"\x1f\x8b", gzip.open),
    ".bz2": (b"BZh91AY&SY", bz2.open),
    ".xz": (b"\xfd7zXZ\0", lzma.open),
    ".zip": (b"PK\x03\x04", ZipFile),
}
"""Endings after that of a csv or json file that is packed, how such a file begins, and what opens it."""

IMAGES = {
    *(".bmp", ".gif", ".png", ".tif", ".tiff", ".webp"),
    *(".jfif", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".pnm", ".ppm"),
}
"""Endings of the files that are an image each."""

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
"""Lines of Python that write a file that is not read, ``{0}``, as one that is."""

_KNOWN = ", ".join(TABLES)

SYSTEM = (Path("/dev"), Path("/proc"), Path("/sys"))
"""Folders whose files are none: some of them never end, or wait for somebody."""

MANY = 5000
"""Files in a folder from which on it takes minutes to look through them for data."""

EXPECTED = (
    "parquet, csv, json, arrow or npz files (the hub's layout, or what save_to_disk writes), or one folder of images a "
    "class"
)

SPLITS = ("train", "test", "validation")
_SPLIT = re.compile(
    r"(?:(.*)[ _.-])?(?:(train)(?:ing)?|(test)(?:ing)?|(val|valid|validation|dev))"
    r"(?:[ _.-]?(?:set|data))?(?:[-_.]\d.*)?",
    re.I,
)
_LIKE_A_SPLIT = re.compile(r"train|test", re.I)
_SHARD = re.compile(r"-\d+-of-\d+\.")
_ASIDE = re.compile(  # files that describe a data set
    r"(?:dataset_infos?|dataset_dict|state|datapackage)\.json|.*\.(?:md|py|ipynb|hetfl)|_success|_(?:common_)?metadata|"
    r"~\$.*|(?:readme|licen[cs]e|citation|changelog|notice)[^.]*(?:\.(?:txt|rst|cff|bib))?|thumbs\.db|desktop\.ini",
    re.I,
)

SIGNALS = "Inertial Signals"
"""Folder of a split that holds a text file a channel, as the UCI archive keeps its human activity recognition."""

OBJECTS = "hetfl-objects"
"""Folder in the cache of the datasets library that holds data from Python, each in a folder that is their digest."""

GIVEN_FILE = "given.hetfl"
"""Beside files of data that were given from Python: a JSON object of what messages call each file, and whose it is, and
of what they call all of them, as ``""``."""


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
    outer, inner = path.suffix.lower(), path.with_suffix("").suffix.lower()
    return inner if outer in PACKED and TABLES.get(inner, inner) in {"csv", "json", *TEXTS} else outer


def stem(path: Path) -> str:
    """Return a file's name without its ending."""
    return path.with_suffix("").stem if path.suffix.lower() in PACKED else path.stem


def opened(path: Path) -> IO[bytes]:
    """Open a file of rows for reading; one that is packed, whatever it is called, unpacked."""
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
            raise DataError(f"'{path}' holds {len(names)} files: unpack it into its own folder, and give that")
        return file.open(names[0])
    return cast(IO[bytes], file)


def advice_on(path: Path) -> str:
    """Return what to do with a file that is not read: the line that writes it as one that is."""
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
    """Return the folder under ``data_dir``, or ``data_dir`` itself, that holds a data set; None if none does.

    ``data_dir`` itself counts where data files lie in it or in its ``data`` folder, or anywhere below it
    if it bears the data set's name.
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
    """Return the folder whose splits hold `SIGNALS`: a folder itself or the only one in it that does; else None."""
    found = [one for one in (folder, *folder.glob("*/")) if (one / "train" / SIGNALS).is_dir()]
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True)
class Listing:
    """What lies in a folder and those below it, by path: hidden files and what describes a data set aside.

    Parameters
    ----------
    folder : Path
        Which one.
    rows, images : tuple of Path
        Files of rows, and images.
    others : tuple of Path
        All other files.
    """

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
            around = {here, *here.parents}  # where a link goes round
            folders[:] = [name for name in folders if name[0] != "." and Path(place, name).resolve() not in around]
            for path in (Path(place, name) for name in names if name[0] != "." and not _ASIDE.fullmatch(name)):
                kind = ending(path)
                (images if kind in IMAGES else rows if kind in TABLES else others).append(path)
            if len(others) > max(MANY, 3 * len(rows) + 3 * len(images)):  # as a user's home
                raise DataError(
                    f"dataset '{folder}' holds mostly other files: give the folder below it that holds {EXPECTED}"
                )
        found = cls(folder, (*sorted(rows),), (*sorted(images),), (*sorted(others),))
        if not rows and not images:
            there = f", only {found.shown(found.others)}" * bool(others)
            raise DataError(f"dataset '{folder}' holds no data{there}: {found._advice or f'expected {EXPECTED}'}")
        called = Counter(path.parent / stem(path) for path in rows)
        if alike := [path for path in found.rows if called[path.parent / stem(path)] > 1]:
            raise DataError(
                f"'{folder}' holds {found.shown(alike)}: keep one of those with the same name, or rename them"
            )
        for path in (*found.rows, *found.images):
            check_file(path, filled=ending(path) in TABLES)
        return found

    @property
    def _advice(self) -> str:
        return next((advice_on(one) for one in self.others if one.suffix.lower() in _CONVERTED_BY), "")

    @property
    def notes(self) -> tuple[str, ...]:
        """What lies there and is not read, or is read twice."""
        beside = () if self.holds_images else self.images
        advice = "name the file that describes the images metadata.csv" if beside else self._advice
        lines = {
            "copies of other files, whose rows count once more": (self._copies, ""),
            "not read": ((*beside, *self.others), f": {advice}" * bool(advice)),
        }
        return tuple(
            f"{what} in '{self.folder}': {self.shown(files)}{more}" for what, (files, more) in lines.items() if files
        )

    @property
    def _copies(self) -> list[Path]:
        """Files of rows that hold the same as one before."""
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
        """Return files as a note names them, the first five."""
        return some([printable(str(file.relative_to(self.folder))) for file in files])

    @property
    def holds_images(self) -> bool:
        """Whether images are the data: files of rows, if there are any, describe them."""
        return bool(self.images) and all(path.stem.lower() == "metadata" for path in self.rows)

    def by_split(self, by_file: bool = False) -> tuple[dict[str, list[Path]], tuple[str, ...]]:
        """Return the files of rows by split, and a note on what was done with several.

        Files that have an owner each, ``by_file``, are of one split: those in the folder or, without any, in those
        below. Else a file belongs to a split if its name, or a folder's, is that of one or ends in it, such as
        ``train.csv``, ``test-00000-of-00002.parquet``, ``wine_test.csv`` or ``data/train/1.csv``. Files are splits only
        if all belong to one, and each that is not of training has one that is called alike; else all are rows of one
        split, unless one is just called as a split is.
        """
        if by_file:
            here = [path for path in self.rows if path.parent == self.folder] or [*self.rows]
            left = [path for path in self.rows if path not in {*here}]
            note = f"files of rows in folders below '{self.folder}' are left out: {self.shown(left)}"
            return {"train": here}, (note,) * bool(left)
        named_splits = {path: _split_of_names((*self._folders(path), path.name.split(".")[0])) for path in self.rows}
        splits = self._splits(named_splits)
        parts = [path for path in self.rows if not _SHARD.search(path.name)]
        if splits.keys() != {"train"} or len(parts) < 2:
            return splits, ()
        note = f"rows of {len(parts)} files in '{self.folder}' are combined: partition=files gives each its own client"
        if like := [path for path in parts if _LIKE_A_SPLIT.search(path.name)]:
            note += f"; if {self.shown(like[:1])} is a split, let its name end in train or test"
        return splits, (note,)

    def images_by_split(self, by_file: bool, labelled: bool) -> tuple[dict[str, list[Path]], dict[Path, str]]:
        """Return all images by split, and their owners, which are used with ``by_file`` alone.

        Images lie in folders ``CLASS``, ``SPLIT/CLASS`` if all are of splits, or ``OWNER/CLASS``; those whose classes
        are written elsewhere, ``labelled``, may lie anywhere, as in folders ``SPLIT``, unless their owners are wanted.
        """
        folders = {path: self._folders(path) for path in self.images}
        deep, flat = (most(self.images, key=lambda path: len(folders[path])) for most in (max, min))
        depths = {len(folders[deep]), len(folders[flat])}
        alike = depths in ([{2}] if by_file else [{1}, {2}])
        if not alike and (by_file or not labelled):
            beside = f" beside '{self.shown([flat])}'" * (flat != deep)
            raise DataError(
                f"'{self.folder}' holds '{self.shown([deep])}'{beside}: put each image into a folder CLASS, "
                "OWNER/CLASS or SPLIT/CLASS, all alike"
            )
        named_splits = {path: _split_of_names(inner if labelled else inner[:-1]) for path, inner in folders.items()}
        splits = {"train": [*self.images]} if by_file else self._splits(named_splits)
        owners = {path: inner[0] for path, inner in folders.items()} if depths == {2} else {}
        several = len({*owners.values()}) > 1 and splits.keys() == {"train"}
        return splits, owners if by_file or several else {}

    def described(
        self, tables: Mapping[Path, Sequence[Mapping[str, Any]]]
    ) -> tuple[dict[Path, Mapping[str, Any]], tuple[str, ...]]:
        """Return what the rows of files called metadata say of each image, and a note on what they leave open."""
        named = ((file.parent, str(row.get("file_name")), row) for file, table in tables.items() for row in table)
        rows = [(folder / name.replace("\\", "/"), row) for folder, name, row in named]
        counts, images = Counter(path for path, _ in rows), {*self.images}
        if several := [path for path in self.images if counts[path] > 1]:
            raise DataError(
                f"rows of metadata in '{self.folder}' describe the same image, keep one: {self.shown(several)}"
            )
        found, notes = {path: row for path, row in rows if path in images}, list[str]()
        if tables and (without := [path for path in self.images if path not in found]):
            share = f"{len(without)} of {len(images)} images in '{self.folder}'"
            notes.append(f"{share} have no row of metadata: {self.shown(without)}")
        if strangers := len(rows) - len(found):
            notes.append(f"{strangers} of {len(rows)} rows of metadata in '{self.folder}' match no image: left out")
        return found, (*notes,)

    def _folders(self, path: Path) -> tuple[str, ...]:
        return path.relative_to(self.folder).parts[:-1]

    def _splits(self, named_splits: Mapping[Path, tuple[str, str]]) -> dict[str, list[Path]]:
        """Return files by split, in the order of the splits: one if not all names say a split, and what is before."""
        by_split = {split: [path for path, (own, _) in named_splits.items() if own == split] for split in (*SPLITS, "")}
        others, train = by_split.pop(""), by_split["train"]
        exact = [path for path, (split, before) in named_splits.items() if split and not before]
        alike = {"", *(named_splits[path][1] for path in train)}
        alone = [path for split in SPLITS[1:] for path in by_split[split] if named_splits[path][1] not in alike]
        if (others or alone) and (exact or (train and by_split["test"])):
            one = (exact or by_split["test"])[0]
            other = next(path for path in (*others, *alone, *train) if path != one)
            raise DataError(
                f"'{self.folder}' holds '{self.shown([one])}' beside '{self.shown([other])}', and nothing says whether "
                "these are splits of one data set: call it or its folder train or test, such as train-2.csv, or put it "
                "into another folder"
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
    """Return what several files are called: by their names without endings or, if these are alike, by their folders.

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
    """Refuse what is no file, has a name that is not UTF-8 or, of rows, holds nothing at all."""
    if not path.is_file():
        raise DataError(f"'{path}' is not a file, or is a broken link: replace it, or remove it")
    if any("\udc80" <= letter <= "\udcff" for letter in path.name):
        raise DataError(f"'{printable(str(path))}' has a name that is not UTF-8: rename it")
    if filled and not path.stat().st_size:
        raise DataError(f"'{path}' is empty: add rows, or remove it")
