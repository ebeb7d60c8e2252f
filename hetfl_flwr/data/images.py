"""Images of a data set, decoded into one array."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from hetfl_flwr.data.cache import kept
from hetfl_flwr.data.labels import IntArray, read_labels
from hetfl_flwr.data.opening import Source
from hetfl_flwr.data.roles import is_text
from hetfl_flwr.data.rows import reason
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import DataSpec
from hetfl_flwr.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

_GREY = {"1", "L", "LA"}
COLOUR = {"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}
_BATCH = 1000

MOST_LOOKED_AT = 20_000
"""Images that are looked at for what can be told without decoding them."""

EIGHT_BIT = _GREY | COLOUR
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


def read_images(source: Source, rows: IntArray) -> Arrays:
    """Decode a whole data set into one uint8 array; large ones are decoded once a machine, see `kept`.

    Parameters
    ----------
    source : Source
        Its images are resized, bilinear and smoothed, where its reading asks for a size.
    rows : ndarray
        (N,) int64, all its rows, in the order that they are wanted in: counted through the training split and then
        the test split.

    Raises
    ------
    DataError
        If images cannot be decoded or are not of the shape, or a label is none of the classes.
    """
    classes, labels = read_labels(source)
    shape = _shape(source)
    notes = (*_notes(source, shape[0]),)
    inputs = kept(
        (source.digest, _files_changed(source), sha256(rows.tobytes()).hexdigest()),
        (len(rows), *shape),
        np.uint8,
        partial(_batches, source, shape, rows),
    )
    return Arrays(
        spec=DataSpec(shape, classes),
        inputs=torch.from_numpy(inputs),
        labels=torch.from_numpy(np.concatenate(list(labels.values()))[rows]),
        train_rows=len(source.splits["train"]),
        peak=255.0,
        centre=torch.zeros(shape),
        notes=notes,
    )


def _notes(source: Source, channels: int) -> Iterator[str]:
    """Count images that are grey among others in colour, or may be transparent, as their heads say.

    Of the catalogue's and of very many nobody looks.
    """
    from PIL import Image

    if source.is_catalogued or len(source) > MOST_LOOKED_AT:
        return
    cell, grey, transparent = _cells(source), 0, 0
    for row in range(len(source)):
        with suppress(OSError), Image.open(_file(cell(row))) as image:
            grey += image.mode in _GREY
            transparent += _may_be_transparent(image)
    if grey and channels > 1:
        yield f"{grey:,} of {len(source):,} images of {source.place} are grey: read as colour"
    if transparent:
        yield f"{transparent:,} of {len(source):,} images of {source.place} may be transparent: laid on white"


def _shape(source: Source) -> tuple[int, int, int]:
    image, size = _first(source), source.reading.image_size
    if image is None:
        return 1, 1, 1
    return (1 if image.mode in _GREY else 3, size or image.height, size or image.width)


def _first(source: Source) -> "Image | None":
    """Return the first image that can be decoded; None if there is none."""
    cell = _cells(source)
    for row in range(len(source)):
        with suppress(DataError):
            return _decoded(source, cell(row), row)
    return None


def _cells(source: Source) -> Callable[[int], Any]:
    """Return what gives the cell of a row, 0..N-1, counted through the splits: bytes of a file, or its path."""
    train, *test = (data[source.inputs[0]] for data in source.splits.values())

    def cell(row: int) -> Any:
        found = (train[row] if row < len(train) else test[0][row - len(train)]).as_py()
        return (found["bytes"] or found["path"]) if isinstance(found, dict) else found

    return cell


def _file(cell: Any) -> Any:
    return BytesIO(cell) if isinstance(cell, bytes) else cell or BytesIO()


def _files_changed(source: Source) -> list[tuple[int, int]]:
    """Return size and time of the files that cells are paths of."""
    column = source.inputs[0]
    found = []
    for data in source.splits.values():
        cells = data[column]
        if pa.types.is_struct(cells.type):
            bare = pc.is_null(pc.struct_field(cells, "bytes"))
            cells = pc.struct_field(cells, "path").filter(bare)
        if is_text(cells.type):
            for path in cells.drop_null().to_pylist():
                with suppress(OSError):
                    found.append(((stat := os.stat(path)).st_size, stat.st_mtime_ns))
    return found


def _batches(source: Source, shape: tuple[int, int, int], rows: IntArray) -> Iterator[npt.NDArray[np.uint8]]:
    """Decode all images, batch by batch: each (B, *shape); afterwards refuse them if some cannot be learnt from."""
    channels, height, width = shape
    cell_of, unfit = _cells(source), list[DataError]()

    def pixels(row: int) -> npt.NDArray[np.uint8]:
        cell = cell_of(row)
        try:
            return _pixels(source, _decoded(source, cell, row), _called(source, cell, row), shape)
        except DataError as error:
            unfit.append(error)
            return np.zeros((height, width, channels), np.uint8)

    for first in range(0, len(rows), _BATCH):
        images = [pixels(row).reshape(height, width, channels) for row in rows[first : first + _BATCH].tolist()]
        yield np.moveaxis(np.stack(images), -1, 1)
    if unfit:
        more = f" ({len(unfit) - 1} more images cannot be learnt from)" * (len(unfit) > 1)
        raise DataError(f"{unfit[0]}{more}") from unfit[0]


def _called(source: Source, cell: Any, row: int) -> str:
    """Return how messages call an image: by its file where it has one of its own."""
    own = isinstance(cell, str) and os.path.isabs(cell) and os.path.isfile(cell)
    return f"image '{cell}'" if own else f"image {source.where(row)}"


def _pixels(source: Source, image: "Image", called: str, shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """Return an image as (height, width[, 3]); grey is made colour where asked, never the reverse."""
    if image.mode not in EIGHT_BIT:
        raise DataError(f"{called} has pixels of mode {image.mode}: only 8-bit grey or colour is read")
    if shape[0] == 1 and image.mode in COLOUR:
        raise DataError(f"{called} is in colour, others are grey: save all in one mode")
    image = flattened(image, "L" if shape[0] == 1 else "RGB")
    size = source.reading.image_size
    if size:
        from PIL.Image import Resampling

        return np.asarray(image.resize((size, size), Resampling.BILINEAR))
    if (image.height, image.width) != shape[1:]:
        raise DataError(
            f"{called} is {image.height}x{image.width} pixels, others are {shape[1]}x{shape[2]}: "
            "set image-size to the height and width that all are to have",
        )
    return np.asarray(image)


def _may_be_transparent(image: "Image") -> bool:
    return image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info


def flattened(image: "Image", mode: str) -> "Image":
    """Return an image in a mode, on white where it is transparent."""
    from PIL import Image

    if _may_be_transparent(image):
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image if image.mode == mode else image.convert(mode)


def _decoded(source: Source, cell: Any, row: int) -> "Image":
    """Return the image of a cell, upright."""
    try:
        return upright(_file(cell))
    except Exception as error:
        raise DataError(f"cannot decode {_called(source, cell, row)}: {reason(error)}") from error


def upright(file: Any) -> "Image":
    """Decode an image, and turn it as its EXIF data say."""
    from PIL import Image, ImageOps

    image = Image.open(file)
    if image.format == "TIFF" and getattr(image, "n_frames", 1) > 1:
        raise ValueError(f"it has {getattr(image, 'n_frames', 1)} pages: save each as a file of its own")
    image.load()
    turned: Image.Image = ImageOps.exif_transpose(image)
    return turned
