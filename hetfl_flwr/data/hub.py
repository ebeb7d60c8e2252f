"""Image data sets in the hub's layout: from a local folder or from the hub itself, decoded into one array."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from hetfl_flwr.data.samples import Arrays, DataSpec
from hetfl_flwr.errors import DataError

if TYPE_CHECKING:
    from datasets.arrow_dataset import Dataset
    from PIL.Image import Image

_SUFFIXES = {".parquet", ".csv", ".json", ".jsonl", ".arrow"}
_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves in its folder
_GREY = {"1", "L", "LA"}
_COLOUR = {"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}
_BATCH = 1000


@dataclass(frozen=True)
class HubTable:
    """An opened data set whose images are not decoded yet.

    Parameters
    ----------
    place : str
        Hub id or folder it came from, for messages.
    splits : dict
        "train", and "test" where it has one, in this order.
    image, label : str
        The two columns that matter.
    """

    place: str
    splits: dict[str, "Dataset"]
    image: str
    label: str


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
    named = root.resolve().name.lower() == hub_id.rpartition("/")[2].lower()
    if any(map(_is_data, (root / hub_id).rglob("*"))):
        return root / hub_id
    here = root.rglob("*") if named else [*root.glob("*"), *root.glob("data/*")]
    return root if any(map(_is_data, here)) else None


def _is_data(path: Path) -> bool:
    return path.suffix in _SUFFIXES and path.is_file()


def open_table(hub_id: str, data_dir: str, image_column: str, label_column: str) -> HubTable:
    """Open a data set, without decoding an image.

    Parameters
    ----------
    hub_id : str
        ``owner/name``.
    data_dir : str
        Folder that holds ``<hub_id>`` in the hub's layout or as `save_to_disk` wrote it, or that folder
        itself; empty to load it from the hub (or from its cache).
    image_column, label_column : str
        Column names; empty to take the only image and the only class-label column.

    Raises
    ------
    DataError
        If it cannot be found or read, has no training split, or lacks the columns.
    """
    from datasets.features import Image
    from datasets.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    place, found = _from_folder(hub_id, data_dir) if data_dir else (hub_id, _from_hub(hub_id))
    names = [name for name in ("train", "test") if name in found]
    splits: dict[str, Dataset] = {name: found[name] for name in names}
    if "train" not in splits:
        raise DataError(f"{place} has no split 'train', only: {', '.join(found)}")
    image = _column(place, splits, image_column, "Image", "image-column")
    label = _column(place, splits, label_column, "ClassLabel", "label-column")
    if not isinstance(splits["train"].features[image], Image):
        raise DataError(f"column '{image}' of {place} holds no images: set image-column to one that does")
    return HubTable(place, splits, image, label)


def _from_folder(hub_id: str, data_dir: str) -> tuple[str, dict[str, "Dataset"]]:
    from datasets.load import load_dataset, load_from_disk

    folder = local_folder(hub_id, data_dir)
    if folder is None:
        raise DataError(
            f"data-dir '{data_dir}' holds no {hub_id}: expected parquet, csv, json or arrow files (the hub's "
            f"layout, or what save_to_disk writes) in '{Path(data_dir, hub_id)}'; or leave data-dir empty to "
            "download it"
        )
    saved = any((folder / name).exists() for name in _SAVED)
    try:
        data: Any = load_from_disk(str(folder)) if saved else load_dataset(str(folder))
    except Exception as error:
        raise DataError(f"cannot read the data set in '{folder}': {_reason(error)}") from error
    return f"'{folder}'", data if isinstance(data, dict) else {"train": data}


def _from_hub(hub_id: str) -> dict[str, "Dataset"]:
    from datasets.load import load_dataset

    try:
        data: Any = load_dataset(hub_id)
    except Exception as error:
        raise DataError(
            f"cannot load {hub_id} from the hub ({_reason(error)}): check name and connection, or put "
            f"a copy in the hub's layout into a folder <data-dir>/{hub_id} and set data-dir"
        ) from error
    return dict(data)


def _reason(error: BaseException) -> str:
    while error.__cause__:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _column(place: str, splits: dict[str, "Dataset"], wanted: str, kind: str, key: str) -> str:
    """Return the wanted column, or else the only one of a kind of feature."""
    features = splits["train"].features
    of_kind = [name for name, feature in features.items() if type(feature).__name__ == kind]
    if not wanted and len(of_kind) != 1:
        raise DataError(
            f"{place} has {len(of_kind)} columns of type {kind}: set {key} to one of: {', '.join(features)}"
        )
    column = wanted or of_kind[0]
    for split, data in splits.items():
        if column not in data.features:
            raise DataError(
                f"{place} has no column '{column}' in its split '{split}': "
                f"set {key} to one of: {', '.join(data.features)}"
            )
    return column


def table_spec(table: HubTable) -> DataSpec:
    """Return the shape of a data set's first image, and its number of classes.

    Classes are the names of a class-label column, or else the distinct values of an integer column.

    Raises
    ------
    DataError
        If the first image cannot be read, or the labels are not integers.
    """
    image = next(_images(table, "train"))
    channels = 1 if image.mode in _GREY else 3
    feature = table.splits["train"].features[table.label]
    classes = getattr(feature, "num_classes", None) or len(np.unique(_raw_labels(table, "train")))
    return DataSpec((channels, image.height, image.width), classes)


def read_table(table: HubTable, spec: DataSpec) -> Arrays:
    """Decode a whole data set into one uint8 array.

    Raises
    ------
    DataError
        If an image cannot be decoded or is not of the shape, or a label is not an integer 0..C-1.
    """
    labels = np.concatenate([_labels(table, split, spec.classes) for split in table.splits])
    inputs = np.empty((len(labels), *spec.shape), dtype=np.uint8)
    targets = iter(np.moveaxis(inputs, 1, -1))
    for split in table.splits:
        for row, image in enumerate(_images(table, split)):
            where = f"image {row} of split '{split}' of {table.place}"
            target = next(targets)
            target[...] = _pixels(image, spec.shape, where).reshape(target.shape)
    return Arrays(
        spec=spec,
        inputs=torch.from_numpy(inputs),
        labels=torch.from_numpy(labels),
        train_rows=len(table.splits["train"]),
        peak=255.0,
        centre=torch.zeros(spec.shape),
    )


def _images(table: HubTable, split: str) -> Iterator["Image"]:
    from datasets.features import Image

    data = table.splits[split].select_columns(table.image)
    feature = data.features[table.image]
    row = 0
    for batch in data.cast_column(table.image, Image(decode=False)).iter(_BATCH):
        for cell in batch[table.image]:
            try:
                image = feature.decode_example(cell)
            except Exception as error:
                raise DataError(
                    f"cannot decode image {row} of split '{split}' of {table.place}: {_reason(error)}"
                ) from error
            yield image
            row += 1


def _pixels(image: "Image", shape: tuple[int, ...], where: str) -> npt.NDArray[np.uint8]:
    """Return an image as (height, width[, 3]); grey is made colour where asked, never the reverse."""
    if image.mode not in _GREY | _COLOUR:
        raise DataError(f"{where} has pixels of mode {image.mode}: only 8-bit grey or colour is read")
    if shape[0] == 1 and image.mode in _COLOUR:
        raise DataError(f"{where} is in colour, others are grey: save all in one mode")
    if (image.height, image.width) != shape[1:]:
        raise DataError(
            f"{where} is {image.height}x{image.width} pixels, expected {shape[1]}x{shape[2]}: "
            "save all images in one size"
        )
    mode = "L" if shape[0] == 1 else "RGB"
    return np.asarray(image if image.mode == mode else image.convert(mode))


def _raw_labels(table: HubTable, split: str) -> npt.NDArray[np.int64]:
    column = table.splits[split].select_columns(table.label).with_format("numpy")[:][table.label]
    labels = np.asarray(column)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"column '{table.label}' of {table.place} does not hold an integer in every row of split "
            f"'{split}': set label-column to one that holds 0..C-1"
        )
    return labels.astype(np.int64)


def _labels(table: HubTable, split: str, classes: int) -> npt.NDArray[np.int64]:
    labels = _raw_labels(table, split)
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        raise DataError(
            f"row {wrong[0]} of split '{split}' of {table.place} has {table.label} {labels[wrong[0]]}: "
            f"labels must be 0..{classes - 1}"
        )
    return labels
