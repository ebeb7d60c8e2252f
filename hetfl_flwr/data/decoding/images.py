"""Images of a data set, decoded into one array."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from hetfl_flwr.common.problems import Problems
from hetfl_flwr.data.arrays.cache import kept
from hetfl_flwr.data.arrays.samples import Arrays
from hetfl_flwr.data.arrays.spec import DataSpec
from hetfl_flwr.data.decoding.findings import Findings
from hetfl_flwr.data.decoding.labels import IntArray, labels_of, read_labels
from hetfl_flwr.data.sources.files import reason
from hetfl_flwr.data.sources.finding import features_of
from hetfl_flwr.data.sources.hub import Source
from hetfl_flwr.errors import DataError

if TYPE_CHECKING:
    from datasets.arrow_dataset import Dataset
    from PIL.Image import Image

_GREY = {"1", "L", "LA"}
_COLOUR = {"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}
_BATCH = 1000

MOST_LOOKED_AT = 20_000
"""Images that are looked at for what can be told without decoding them."""

EIGHT_BIT = _GREY | _COLOUR
"""Modes of images, as Pillow calls them, whose pixels have 8 bits a colour."""


def image_spec(source: Source) -> DataSpec:
    """Return the shape of a data set's first sound image, or the size that is asked for, and its number of classes.

    Raises
    ------
    DataError
        If no image can be decoded, or the labels are none.
    """
    if _first(source) is None:
        raise DataError(f"{source.place} has no image that can be decoded")
    return DataSpec(_shape(source), read_labels(source)[0])


def read_images(source: Source, rows: IntArray, findings: Findings) -> Arrays:
    """Decode a whole data set into one uint8 array; large ones are decoded once a machine, see `kept`.

    Parameters
    ----------
    source : Source
        Its images are resized, bilinear and smoothed, where its reading asks for a size.
    rows : ndarray
        (N,) int64, all its rows, in the order that they are wanted in: counted through the training split and then
        the test split.
    findings : Findings
        What has been found of it before, and takes down the rest.

    Raises
    ------
    DataError
        If images cannot be decoded or are not of the shape, or a label is none of the classes; with what has been found
        before.
    """
    classes, labels = labels_of(source, findings.problems)
    shape = _shape(source)
    grey = _grey(source) if shape[0] == 3 else 0
    inputs = kept(
        (*(data._fingerprint for data in source.splits.values()), source.inputs, sha256(rows.tobytes()).hexdigest()),
        (len(rows), *shape),
        np.uint8,
        partial(_batches, source, shape, rows, findings.problems),
    )
    findings.problems.refuse()
    return Arrays(
        spec=DataSpec(shape, classes),
        inputs=torch.from_numpy(inputs),
        labels=torch.from_numpy(np.concatenate(list(labels.values()))[rows]),
        train_rows=len(source.splits["train"]),
        peak=255.0,
        centre=torch.zeros(shape),
        notes=(f"{grey:,} of {len(rows):,} images of {source.place} are grey: read as colour",) if grey else (),
    )


def _grey(source: Source) -> int:
    """Return how many images are grey, as their heads say; of the catalogue's and of very many nobody looks."""
    from PIL import Image

    images = _encoded(source)
    if source.is_catalogued or len(images) > MOST_LOOKED_AT:
        return 0
    [column], grey = source.inputs, 0
    for cell in images[column]:
        with suppress(OSError), Image.open(BytesIO(cell["bytes"]) if cell["bytes"] else cell["path"]) as image:
            grey += image.mode in _GREY
    return grey


def _shape(source: Source) -> tuple[int, int, int]:
    image, size = _first(source), source.reading.image_size
    if image is None:
        return 1, 1, 1
    return (1 if image.mode in _GREY else 3, size or image.height, size or image.width)


def _first(source: Source) -> "Image | None":
    """Return the first image that can be decoded; None if there is none."""
    decode, [column] = _decoder(source), source.inputs
    for row, cell in enumerate(_encoded(source)[column]):
        with suppress(_Unfit):
            return decode(cell, row)
    return None


def _encoded(source: Source) -> "Dataset":
    """Return the images of all splits, one after the other, as the bytes or paths that they are stored as."""
    from datasets.combine import concatenate_datasets
    from datasets.features import Image

    [column] = source.inputs
    raw = [data.select_columns(column).cast_column(column, Image(decode=False)) for data in source.splits.values()]
    whole: Dataset = concatenate_datasets(raw)
    return whole


class _Unfit(DataError):
    """An image that cannot be learnt from: what messages call it, and what they say before and after that."""

    def __init__(self, before: str, called: str, after: str) -> None:
        super().__init__(f"{before}{called}{after}")
        self.said = before, called, after


def _batches(
    source: Source, shape: tuple[int, int, int], rows: IntArray, problems: Problems
) -> Iterator[npt.NDArray[np.uint8]]:
    """Decode all images, batch by batch: each (B, *shape); afterwards refuse them if some cannot be learnt from."""
    channels, height, width = shape
    place, decode, unfit = iter(rows.tolist()), _decoder(source), list[_Unfit]()

    def pixels(cell: Any) -> npt.NDArray[np.uint8]:
        row = next(place)
        try:
            return _pixels(source, decode(cell, row), _called(source, cell, row), shape)
        except _Unfit as error:
            unfit.append(error)
            return np.zeros((height, width, channels), np.uint8)

    for batch in _encoded(source).select(rows).iter(_BATCH):
        images = [pixels(cell).reshape(height, width, channels) for cell in batch[source.inputs[0]]]
        yield np.moveaxis(np.stack(images), -1, 1)
    for (before, called, after), more in _counted(unfit):
        problems.add(f"{before}{called}{f' (and {more} more such)' if more else ''}{after}")
    problems.refuse()


def _counted(unfit: Sequence[_Unfit]) -> Iterator[tuple[tuple[str, str, str], int]]:
    """Go through what is wrong with images: what is said of the first, and of how many more it holds."""
    alike: dict[str, list[_Unfit]] = {}
    for one in unfit:
        before, _, after = one.said
        alike.setdefault(before or after.rpartition(":")[2], []).append(one)
    for same in alike.values():
        yield same[0].said, len(same) - 1


def _called(source: Source, cell: Any, row: int) -> str:
    """Return how messages call an image: by its file where it has one of its own."""
    path = cell.get("path") if isinstance(cell, dict) else cell
    own = isinstance(path, str) and os.path.isabs(path) and os.path.isfile(path)
    return f"image '{path}'" if own else f"image {source.where(row)}"


def _pixels(source: Source, image: "Image", called: str, shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """Return an image as (height, width[, 3]); grey is made colour where asked, never the reverse."""
    if image.mode not in EIGHT_BIT:
        raise _Unfit("", called, f" has pixels of mode {image.mode}: only 8-bit grey or colour is read")
    if shape[0] == 1 and image.mode in _COLOUR:
        raise _Unfit("", called, " is in colour, others are grey: save all in one mode")
    mode = "L" if shape[0] == 1 else "RGB"
    image = image if image.mode == mode else image.convert(mode)
    size = source.reading.image_size
    if size:
        from PIL.Image import Resampling

        return np.asarray(image.resize((size, size), Resampling.BILINEAR))
    if (image.height, image.width) != shape[1:]:
        raise _Unfit(
            "",
            called,
            f" is {image.height}x{image.width} pixels, others are {shape[1]}x{shape[2]}: "
            "set image-size to the height and width that all are to have",
        )
    return np.asarray(image)


def _decoder(source: Source) -> Callable[[Any, int], "Image"]:
    """Return what makes an image of a cell and its row number."""
    feature = features_of(source.splits["train"])[source.inputs[0]]

    def decode(cell: Any, row: int) -> "Image":
        try:
            image: Image = feature.decode_example(cell)
        except Exception as error:
            raise _Unfit("cannot decode ", _called(source, cell, row), f": {reason(error)}") from error
        return image

    return decode
