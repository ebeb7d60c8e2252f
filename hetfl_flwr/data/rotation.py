"""Make rotated families, such as Rotated MNIST: images rotated by several angles, each of which is a domain.

As in Li et al., "FedH2L: Federated Learning with Model and Statistical Heterogeneity", 2021, "Evaluation on Rotated
MNIST", after Ghifary et al., ICCV 2015.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.seeding import generator

ANGLES = (0, 20, 40, 60)
"""The angles of the four domains in degrees, in the direction of `Rotation`."""

Rotation = Literal["clockwise", "counter-clockwise"]
"""The direction of rotation. The paper says clockwise, but its authors may have called torchvision's ``rotate`` with
20, 40 and 60, which rotates counter-clockwise."""

IMAGES_A_CLASS = 100
"""The number of images that are drawn from each class."""


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Rotate images (N, channels, height, width) uint8 clockwise, bilinear, and fill the corners with zeros.

    Examples
    --------
    >>> rotate(torch.tensor([[[[1, 0, 0], [0, 0, 0], [0, 0, 0]]]], dtype=torch.uint8), 90)
    tensor([[[[0, 0, 1],
              [0, 0, 0],
              [0, 0, 0]]]], dtype=torch.uint8)
    """
    from torchvision.transforms.functional import InterpolationMode, rotate

    return rotate(images, -degrees, interpolation=InterpolationMode.BILINEAR)


def rotated(base: Arrays, seed: int, with_test: bool, rotation: Rotation = "clockwise") -> tuple[Arrays, ...]:
    """Return the domains of a rotated family: each has the same rows, rotated by its angle.

    Rows are `IMAGES_A_CLASS` random images of each class, or all if there are fewer, from the training split of `base`,
    and the whole test split if `with_test` is set.
    """
    draw, training = generator(seed, "rotated"), base.labels[: base.train_rows].numpy()
    classes = [np.flatnonzero(training == label) for label in np.unique(training)]
    drawn = [torch.from_numpy(draw.choice(rows, min(len(rows), IMAGES_A_CLASS), replace=False)) for rows in classes]
    rows = torch.cat([*drawn, *[torch.arange(base.train_rows, len(base.labels))] * with_test])
    owners = None if base.owners is None else base.owners[rows]
    some = replace(
        base, inputs=base.inputs[rows], labels=base.labels[rows], train_rows=sum(map(len, drawn)), owners=owners
    )
    sign = 1 if rotation == "clockwise" else -1
    return tuple(replace(some, inputs=rotate(some.inputs, sign * degrees)) for degrees in ANGLES)
