"""Data sets in memory: data frames, arrays, torch and Hugging Face data sets are written to files once.

The files are in the cache folder of the datasets library, in a folder named by a digest of their content. A run's
config names that folder, so that its workers and resumed runs read the same rows.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from hetfl_flwr.data.arrays import table_of
from hetfl_flwr.data.folders import GIVEN_FILE, OBJECTS
from hetfl_flwr.errors import DataError
from hetfl_flwr.text import brief

MAX_CLASSES = 100_000
"""Maximum number of classes of a client."""

if TYPE_CHECKING:
    from datasets.arrow_dataset import Dataset

ACCEPTED = (
    "a data frame, a dict of arrays by column, a datasets.Dataset or DatasetDict, a torch data set of (image, label) "
    "or (vector, label) pairs, or several of these"
)

_SERIES = "; time series need series_column, a name for their column"


def is_object(dataset: object) -> bool:
    """Return whether a data set is an object in memory: not a name, a path, or a list of these."""
    if isinstance(dataset, list | tuple):
        return not dataset or not all(isinstance(one, str | os.PathLike) for one in dataset)
    return not isinstance(dataset, str | os.PathLike)


def stored(dataset: object, series: str = "") -> tuple[Path, bool]:
    """Write a data set to files, unless it was written before; return their folder, and whether each is a client's.

    `dataset` is one of `ACCEPTED`; a list of several, or a dict by the clients' names, holds one per client. `series`
    is the column of time series: if it is set, the items of a torch data set are pairs of a series and a label. Raises
    DataError if the data set is not supported or cannot be written.
    """
    from datasets.dataset_dict import DatasetDict

    names: list[str] = []
    several = False
    if isinstance(dataset, list | tuple | Mapping) and not isinstance(dataset, DatasetDict) and not _is_arrays(dataset):
        several = True
        named = dataset if isinstance(dataset, Mapping) else {}
        names = list(map(str, named)) or [""] * len(dataset)
        places = [f"dataset[{key!r}]" for key in named or range(len(names))]
        files = _of_clients([*(named.values() or dataset)], places, series)
    elif isinstance(dataset, DatasetDict):
        wanted = {split: one for split, one in dataset.items() if split in ("train", "test")}
        if "train" not in wanted:
            found = ", ".join(map(repr, dataset)) or "none"
            raise DataError(f"dataset has the splits {found}: expected 'train', and 'test' if there is one")
        places = [f"dataset[{split!r}]" for split in wanted]
        files = {f"{split}.parquet": _rows(f"dataset[{split!r}]", one, series) for split, one in wanted.items()}
    else:
        places = ["dataset"]
        files = {"train.parquet": _rows("dataset", dataset, series)}
    try:
        return _written(files, names, places), several
    except OSError as error:
        raise DataError(f"the data set cannot be written to {_folder()}: {error.strerror}") from None


def _of_clients(datasets: Sequence[object], places: Sequence[str], series: str) -> dict[str, "Dataset"]:
    if not datasets:
        raise DataError(f"dataset is empty: give {ACCEPTED}")
    pairs = zip(places, datasets, strict=True)
    classes = _shared_classes([_torch_classes(place, one) for place, one in pairs if _is_torch(one)])
    digits = len(str(len(datasets)))
    return {
        f"{number:0{digits}}.parquet": _rows(place, one, series, classes)
        for number, (place, one) in enumerate(zip(places, datasets, strict=True))
    }


def _shared_classes(said: Sequence[int | Sequence[str]]) -> int | Sequence[str]:
    """Return the classes of several torch data sets: their names or, if none has names, their number."""
    named = [list(classes) for classes in said if not isinstance(classes, int)]
    if any(classes != named[0] for classes in named):
        other = next(classes for classes in named if classes != named[0])
        raise DataError(f"data sets have different classes, {brief(named[0])} and {brief(other)}: use the same names")
    return named[0] if named else max((classes for classes in said if isinstance(classes, int)), default=0)


def _rows(place: str, dataset: object, series: str, classes: int | Sequence[str] = 0) -> "Dataset":
    """Return the rows of one data set as a Hugging Face Dataset."""
    from datasets.arrow_dataset import Dataset
    from datasets.dataset_dict import DatasetDict

    rows: Dataset
    try:
        if isinstance(dataset, Dataset):
            rows = dataset.with_format(None)
        elif _is_torch(dataset):
            classes = classes or _torch_classes(place, dataset)
            rows = _series(place, dataset, classes, series) if series else _of_torch(place, dataset, classes)
        elif _is_arrays(dataset):
            rows = Dataset(table_of({name: np.asanyarray(one) for name, one in dataset.items()}, place))
        elif isinstance(dataset, DatasetDict) or not _is_frame(dataset):
            if callable(getattr(dataset, "collect", None)):
                raise DataError(
                    f"{place} is {_article(dataset)}, whose rows are not computed yet: pass the result of its collect()"
                )
            raise DataError(f"{place} is {_article(dataset)}: expected {ACCEPTED}")
        else:
            rows = Dataset(_plain(_table(place, dataset)))
    except (pa.ArrowException, ValueError, TypeError, NotImplementedError, OverflowError) as error:
        why = " ".join("; ".join(map(str, error.args)).split()) or type(error).__name__
        raise DataError(f"{place} cannot be written as a table: {why}") from error
    if not len(rows):
        raise DataError(f"{place} has no rows")
    return rows


def _is_arrays(dataset: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a data set is a dict of NumPy arrays or torch tensors by column."""
    from torch import Tensor

    if not isinstance(dataset, Mapping) or not dataset:
        return False
    return all(isinstance(one, np.ndarray | Tensor) for one in dataset.values())


def _article(dataset: object) -> str:
    kind = type(dataset).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind} ({brief(dataset)})"


def _is_frame(dataset: object) -> bool:
    return hasattr(dataset, "__arrow_c_stream__") or hasattr(dataset, "__dataframe__")


def _table(place: str, frame: Any) -> pa.Table:
    """Return a frame as an Arrow table, without its index."""
    names = [str(name) for name in getattr(frame, "columns", ())]
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise DataError(f"{place} has column {twice[0]!r} more than once: give each column a unique name")
    if type(frame).__module__.partition(".")[0] == "pandas":
        named = frame.set_axis(names, axis=1)
        nested = {name: named[name].map(list) for name in names if np.ndim(named[name].iloc[:1].squeeze()) > 1}
        return pa.Table.from_pandas(named.assign(**nested), preserve_index=False)
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.table(frame)
    from pyarrow.interchange import from_dataframe

    return from_dataframe(frame)


def _plain(table: pa.Table) -> pa.Table:
    """Return a table without the Arrow types that the datasets library does not support."""
    columns = [pa.chunked_array(map(_plain_cells, column.chunks)) for column in table.columns if table.num_rows]
    return pa.table(columns or table.columns, names=table.column_names)


def _plain_cells(cells: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(cells.type):
        return _plain_cells(cells.dictionary).take(cells.indices)
    if pa.types.is_string_view(cells.type):
        return cells.cast(pa.large_string())
    return cells.cast(pa.large_binary()) if pa.types.is_binary_view(cells.type) else cells


def _is_torch(dataset: object) -> bool:
    from torch.utils.data import Dataset

    return isinstance(dataset, Dataset)


def _torch_classes(place: str, dataset: Any) -> int | Sequence[str]:
    """Return the class names of a torch data set or, if it has none, the number of classes by its labels."""
    names = getattr(dataset, "classes", None)
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
        return names
    most = max((label for _, label in _pairs(place, dataset)), default=-1)
    if most >= MAX_CLASSES:
        raise DataError(f"{place} has label {brief(most)}: expected less than {MAX_CLASSES:,}")
    return 1 + most


def _pairs(place: str, dataset: Any) -> Iterator[tuple[Any, int]]:
    """Yield the inputs and labels of a torch data set."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(f"{place} is an iterable data set: expected one with __len__ and __getitem__")
    for number in range(len(dataset)):
        item = dataset[number]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"item {number} of {place} is {_article(item)}: expected an (image, label) or (vector, label) pair"
            )
        label = item[1].item() if getattr(item[1], "ndim", None) == 0 else item[1]
        if isinstance(label, bool) or not isinstance(label, int) or label < 0:
            raise DataError(f"item {number} of {place} has label {brief(label)}: expected an integer, 0 or more")
        yield item[0], label


def _of_torch(place: str, dataset: object, classes: int | Sequence[str]) -> "Dataset":
    """Return a torch data set as labeled images or, if its first item is a vector, as a table of numbers."""
    import datasets.features
    from datasets.arrow_dataset import Dataset
    from datasets.features import Image, Value

    of_columns: Any = datasets.features.Features
    label, inputs, labels = _class_label(classes), [], []
    for one, value in _labelled(place, dataset, label):
        inputs.append(one)
        labels.append(value)
    named = [(f"item {number} of {place}", one) for number, one in enumerate(inputs)]
    if inputs and getattr(inputs[0], "ndim", None) == 1:
        vectors = np.stack([_vector(called, one, len(inputs[0])) for called, one in named])
        columns = {f"x{number}": column for number, column in enumerate(vectors.T)}
        kinds = dict.fromkeys(columns, Value(str(vectors.dtype)))
        return Dataset.from_dict({**columns, "label": labels}, of_columns(**kinds, label=label))
    images = [{"bytes": _png(called, one), "path": None} for called, one in named]
    return Dataset.from_dict({"image": images, "label": labels}, of_columns(image=Image(), label=label))


def _vector(place: str, vector: Any, size: int) -> npt.NDArray[np.floating[Any]]:
    """Return a vector of a torch data set in single precision, or in double precision if single may round it."""
    if getattr(vector, "shape", None) != (size,):
        raise DataError(f"{place} is {_article(vector)}: expected a vector of {size} numbers, as item 0 is")
    numbers = torch.as_tensor(vector)
    if numbers.is_complex() or not size:
        raise DataError(f"{place} is {_article(vector)}: expected a vector of real numbers")
    return (numbers.float() if numbers.is_floating_point() and numbers.itemsize < 8 else numbers.double()).numpy()


def _series(place: str, dataset: object, classes: int | Sequence[str], column: str) -> "Dataset":
    """Return a torch data set of series, tensors (channels, length) or (length,), with the series in one column."""
    from datasets.arrow_dataset import Dataset

    label, series, labels = _class_label(classes), list[np.ndarray[Any, Any]](), []
    for number, (one, value) in enumerate(_labelled(place, dataset, label)):
        series.append(np.asarray(one))
        labels.append(value)
        if series[number].shape != series[0].shape:
            raise DataError(
                f"item {number} of {place} has shape {series[number].shape}, item 0 has {series[0].shape}: crop or pad "
                "all series to one length"
            )
    if not series:
        raise DataError(f"{place} has no rows")
    rows = Dataset(table_of({column: np.stack(series), "label": np.array(labels)}, place))
    labelled: Dataset = rows.cast_column("label", label)
    return labelled


def _class_label(classes: int | Sequence[str]) -> Any:
    import datasets.features

    kind: Any = datasets.features.ClassLabel
    return kind(num_classes=classes) if isinstance(classes, int) else kind(names=list(classes))


def _labelled(place: str, dataset: object, label: Any) -> Iterator[tuple[Any, int]]:
    """Yield the inputs and labels of a torch data set; check labels against the known classes."""
    for number, (one, value) in enumerate(_pairs(place, dataset)):
        if value >= label.num_classes:
            raise DataError(f"item {number} of {place} has label {value}: expected 0..{label.num_classes - 1}")
        yield one, value


def _png(place: str, image: Any) -> bytes:
    """Return an image as a PNG file: a tensor (H, W) or (C, H, W) with one or three channels, or a Pillow image."""
    from PIL import Image

    file = BytesIO()
    if isinstance(image, Image.Image):
        image.save(file, "png")
        return file.getvalue()
    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3):
        pixels = pixels[0] if pixels.shape[0] == 1 else pixels.transpose(1, 2, 0)
    elif pixels.ndim != 2:
        raise DataError(f"{place} has shape {pixels.shape}: expected an image (H, W), (1, H, W) or (3, H, W){_SERIES}")
    if pixels.dtype.kind == "f" and pixels.min(initial=0) >= 0 and pixels.max(initial=0) <= 1:
        pixels = np.rint(pixels * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise DataError(f"{place} holds {pixels.dtype} beyond 0..1: expected uint8, or fractions from 0 to 1{_SERIES}")
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "png")
    return file.getvalue()


def _folder() -> Path:
    from datasets import config

    return Path(config.HF_DATASETS_CACHE) / OBJECTS


def _written(files: Mapping[str, "Dataset"], names: Sequence[str], places: Sequence[str]) -> Path:
    """Write files into a folder named by their digest, together with the names that messages use for them."""
    from datasets.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    home = _folder()
    home.mkdir(parents=True, exist_ok=True)
    scratch = Path(mkdtemp(dir=home, prefix="writing-"))
    try:
        for name, data in files.items():
            data.to_parquet(scratch / name)
        owners = names or [""] * len(files)
        given = {"": ("dataset", ""), **dict(zip(files, zip(places, owners, strict=True), strict=True))}
        (scratch / GIVEN_FILE).write_text(json.dumps(given, allow_nan=False), encoding="utf-8")
        folder = home / _digest(scratch)
        try:
            scratch.rename(folder)
        except OSError:  # it exists already
            if not folder.is_dir():
                raise
        return folder
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _digest(folder: Path) -> str:
    digest = blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(np.memmap(path, mode="r").data)
    return digest.hexdigest()
