"""Rotated families: some images of a data set, rotated by several angles; each angle is a domain.

Rotated MNIST as FedH2L uses it: Li et al., "FedH2L: Federated Learning with Model and Statistical Heterogeneity",
2021, "Evaluation on Rotated MNIST"; after Ghifary et al., ICCV 2015.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.seeding import generator

ANGLES = (0, 20, 40, 60)
"""Degrees of the four domains, in the direction of the `Rotation`."""

Rotation = Literal["clockwise", "counter-clockwise"]
"""Which way images are rotated. The paper's text says clockwise; an angle above 0 of torchvision's ``rotate``, which
its authors may have called with 20, 40 and 60, is counter-clockwise."""

IMAGES_A_CLASS = 100
"""Images that are drawn of each class."""


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Return images (N, channels, height, width) uint8 rotated clockwise, bilinear, with zeros where nothing was.

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
    """Return the domains of a rotated family: the same rows in each, rotated by its angle.

    Parameters
    ----------
    base : Arrays
        The images as they are. `IMAGES_A_CLASS` of each class are drawn by the run's seed from its training split, or
        all of a class that has fewer.
    seed : int
        The run's seed, 0 or more.
    with_test : bool
        Whether the whole test split comes with them.
    rotation : {"clockwise", "counter-clockwise"}
        Which way they are rotated.
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
