"""Augment images: random crops and flips in each batch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from hetfl_flwr.data.samples import Samples

PADDING = 8
"""A crop is shifted by up to the side of an image divided by this, such as 4 of 32 pixels."""


@dataclass(frozen=True, eq=False, repr=False)
class Augmented(Samples):
    """Samples of images that are randomly cropped or flipped in each batch, each image independently.

    Random numbers come from PyTorch's global generator, as for dropout.

    Parameters
    ----------
    arrays, rows
        As in `Samples`.
    kind : {"crop", "flip", "crop-flip"}
        "crop": a random crop of the same size, shifted by up to an eighth of each side and padded with 0 after scaling
        and centering. "flip": a horizontal flip with probability 1/2.
    """

    kind: str

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return augmented inputs (B, C, H, W) float32 and labels (B,) of the samples with indices (B,)."""
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
