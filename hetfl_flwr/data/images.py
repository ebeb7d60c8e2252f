"""Decode the images of a data set to one array."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hetfl_flwr.data.decode import cells_of, decode
from hetfl_flwr.data.frame import IntArray
from hetfl_flwr.data.labels import classes_of
from hetfl_flwr.data.opening import Source
from hetfl_flwr.data.rows import reason
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import DataSpec
from hetfl_flwr.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

_GREY = {"1", "L", "LA"}
_COLOUR = {"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}

MAX_INSPECTED = 20_000
"""The most images whose headers are read for notes."""


@dataclass(frozen=True)
class Pixels:
    """How images become pixels of `shape` (channels, height, width), with 1 or 3 channels.

    If `resize` is set, images of other sizes are resized, bilinear and antialiased, else they are refused. `top` is the
    value of white.
    """

    shape: tuple[int, ...]
    resize: bool
    top: float = 255.0
    dtype = np.uint8
    batch = 1000

    def read(self, cells: pa.Array) -> tuple[npt.NDArray[np.uint8], Mapping[int, str]]:
        """Return the pixels (B, *shape) of images, and what is wrong with each invalid image."""
        pixels, wrong = np.zeros((len(cells), *self.shape), np.uint8), dict[int, str]()
        for row, cell in enumerate(cells.to_pylist()):
            try:
                pixels[row] = self.pixels(cell)
            except Exception as error:
                called = f"image '{file}'" if isinstance(file := _file(cell), str) else "its image"
                why = str(error) if isinstance(error, DataError) else f"cannot be decoded: {reason(error)}"
                wrong[row] = f"{called} {why}"
        return pixels, wrong

    def pixels(self, cell: Any) -> npt.NDArray[np.uint8]:
        """Return an image, turned upright and on a white background, as (channels, height, width)."""
        from PIL import Image

        image, (channels, height, width) = _upright(cell), self.shape
        if channels == 1 and image.mode in _COLOUR:
            raise DataError("is in color, but others are gray: save all in the same mode")
        if image.has_transparency_data:
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        image = image.convert("L" if channels == 1 else "RGB")
        if self.resize:
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        elif (image.height, image.width) != (height, width):
            found = f"is {image.height}x{image.width} pixels, not {height}x{width}"
            raise DataError(f"{found}: resize it, or set image-size to resize all images")
        pixels = np.moveaxis(np.asarray(image).reshape(height, width, channels), -1, 0)
        return pixels if self.top == 255 else np.rint(pixels * (self.top / 255)).astype(np.uint8)


def image_spec(source: Source) -> DataSpec:
    """Return the number of classes, and the shape of the first valid image or the size in ``image_size``."""
    return DataSpec(_form(source).shape, len(classes_of(source).values))


def read_images(source: Source, rows: IntArray) -> Arrays:
    """Decode a whole data set to one uint8 array; `decode` describes the arguments."""
    form = _form(source)
    files = [found for cell in cells_of(source) if isinstance(found := _file(cell.as_py()), str)]
    changed = [(stat.st_size, stat.st_mtime_ns) for stat in map(os.stat, filter(os.path.isfile, files))]
    return decode(source, form, rows, (form, changed), peak=255.0, notes=_notes(source, form.shape[0]))


def _form(source: Source) -> Pixels:
    """Return how images become pixels, by the first image that can be decoded."""
    size = source.reading.image_size
    for cell in cells_of(source):
        with suppress(Exception):
            image = _upright(cell.as_py())
            shape = (1 if image.mode in _GREY else 3, size or image.height, size or image.width)
            return Pixels(shape, bool(size))
    why = Pixels((1, 1, 1), resize=False).read(cells_of(source)[:1].combine_chunks())[1][0]
    raise DataError(f"{source.place} has no image that can be decoded; row {source.frame.where(0)}: {why}")


def _notes(source: Source, channels: int) -> tuple[str, ...]:
    """Note how many images are gray among color images, or may be transparent, by their headers.

    Images of the catalogue are not read, nor more than `MAX_INSPECTED`.
    """
    from PIL import Image

    if source.is_catalogued or len(source) > MAX_INSPECTED:
        return ()
    grey = transparent = 0
    for cell in cells_of(source):
        with suppress(Exception), Image.open(_file(cell.as_py())) as image:
            grey += channels > 1 and image.mode in _GREY
            transparent += image.has_transparency_data
    notes = (grey, "are gray: read as color"), (transparent, "may be transparent: put on a white background")
    return tuple(f"{count:,} of {len(source):,} images of {source.place} {what}" for count, what in notes if count)


def _file(cell: Any) -> Any:
    """Return the image file in a cell, which holds its bytes, its path, or both in a dict."""
    if isinstance(cell, dict):
        cell = cell["bytes"] or cell["path"]
    return BytesIO(cell) if isinstance(cell, bytes) else cell


def _upright(cell: Any) -> "Image":
    """Open an image, and turn it upright by its EXIF data."""
    from PIL import Image, ImageOps

    if (file := _file(cell)) is None:
        raise DataError("is missing: leave the row out")
    image = Image.open(file)
    if image.format != "MPO" and (pages := getattr(image, "n_frames", 1)) > 1:  # MPO photos may contain previews
        raise DataError(f"has {pages} pages: save each as its own file")
    if image.mode not in _GREY | _COLOUR or _is_deep(image):
        raise DataError(
            f"has more than 8 bits for each color, or no colors (mode {image.mode}): save it as 8-bit RGB or gray"
        )
    turned: Image.Image = ImageOps.exif_transpose(image)
    return turned


def _is_deep(image: "Image") -> bool:
    """Return whether a file has more than 8 bits for each color; Pillow would keep only 8."""
    tiles = getattr(image, "tile", ())
    return any(re.search(r";16[BLN]", str(args)) or (codec[:3] == "ppm" and args[1] > 255) for codec, *_, args in tiles)
