"""Images that look different each time they are trained on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from hetfl_flwr.data.samples import Samples

PADDING = 8
"""A crop may be shifted by the side of an image over this, such as 4 pixels of 32."""


@dataclass(frozen=True, eq=False, repr=False)
class Augmented(Samples):
    """Samples whose images are cropped or flipped by chance in each batch, each image for itself.

    The chance is torch's global generator's, as for dropout.

    Parameters
    ----------
    arrays, rows
        As of `Samples` of images.
    kind : {"crop", "flip", "crop-flip"}
        "crop": a window of the image's own size, shifted by up to an eighth of each side; what lies beyond the image is
        0, after scaling and centring. "flip": left and right exchanged, for every second image.
    """

    kind: str

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return augmented inputs (B, C, H, W) float32 and labels (B,) of the samples at positions (B,)."""
        inputs, labels = self._prepared(self.rows[rows.to(self.rows.device)])
        change = _change(self.kind, (inputs.shape[-2], inputs.shape[-1]))
        return torch.stack([change(image) for image in inputs]) if len(inputs) else inputs, labels


@cache
def _change(kind: str, size: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    from torchvision.transforms import Compose, RandomCrop, RandomHorizontalFlip  # slow to import

    crop, flip = partial(RandomCrop, size, padding=[size[1] // PADDING, size[0] // PADDING]), RandomHorizontalFlip
    steps = [{"crop": crop, "flip": flip}[step]() for step in kind.split("-")]  # type: ignore[operator]
    change: Callable[[Tensor], Tensor] = Compose(steps)  # type: ignore[no-untyped-call]
    return change
