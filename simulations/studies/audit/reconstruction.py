"""Reconstruction of inputs by optimisation: from embeddings and outputs, and from gradients."""

from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment  # type: ignore[attr-defined]
from torch import Tensor
from torch.nn import functional

from simulations.studies.audit.measures import NotFittedError

STEPS, RATE = 400, 0.05
"""Steps of Adam on pixels in [0, 1], and their size."""

STARTS, LONG = 4, 1000
"""Random starts of gradient inversion, of which the best is kept, and its steps."""

SMOOTH = 1e-2
"""Weight of the total variation where nothing else is said."""


def total_variation(pixels: Tensor) -> Tensor:
    """Return the mean absolute difference between neighbours of pictures (N, channels, H, W): anisotropic."""
    across = (pixels[..., 1:] - pixels[..., :-1]).abs().mean()
    down = (pixels[..., 1:, :] - pixels[..., :-1, :]).abs().mean()
    return across + down


def optimised(
    loss: Callable[[Tensor], Tensor],
    shape: Sequence[int],
    centre: Tensor,
    *,
    smooth: float = SMOOTH,
    signed: bool = False,
    starts: int = 0,
    steps: int = STEPS,
) -> Tensor:
    """Return the inputs (N, channels, H, W) that a loss likes best, by Adam, with pixels in [0, 1].

    Parameters
    ----------
    loss : callable
        From inputs, as a model takes them, to a scalar.
    shape : sequence of int
        Of the inputs.
    centre : Tensor
        Pixels less it are inputs, (channels, H, W).
    smooth : float
        Weight of the total variation, 0 or more.
    signed : bool
        Whether Adam gets the sign of the gradient, as Geiping et al. have it.
    starts : int
        Random pixels to start from, so many times; the result with the least loss is kept. 0: once, from grey.
    steps : int
        Of Adam, 1 or more.

    Raises
    ------
    NotFittedError
        No start leads to a finite loss.
    """
    random = torch.Generator().manual_seed(0)
    begins = [torch.rand(tuple(shape), generator=random) for _ in range(starts)] or [torch.full(tuple(shape), 0.5)]
    ends = [_descended(loss, begin.to(centre.device), centre, smooth, signed, steps) for begin in begins]
    finite = [end for end in ends if isfinite(end[0]) and end[1].isfinite().all()]
    if not finite:
        raise NotFittedError("the loss of its pictures is not finite")
    return min(finite, key=lambda end: end[0])[1]


def _descended(
    loss: Callable[[Tensor], Tensor], begin: Tensor, centre: Tensor, smooth: float, signed: bool, steps: int
) -> tuple[float, Tensor]:
    """Return the loss that was reached from some pixels, and the inputs."""
    pixels, value = begin.requires_grad_(True), torch.zeros(())
    optimizer = torch.optim.Adam([pixels], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        value = loss(pixels - centre) + smooth * total_variation(pixels)
        pixels.grad = torch.autograd.grad(value, pixels)[0]
        if signed:
            pixels.grad.sign_()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            pixels.clamp_(0, 1)
    return float(value.detach()), (pixels - centre).detach()


def invert_outputs(
    outputs: Callable[[Tensor], Tensor], targets: Tensor, centre: Tensor, smooth: float = SMOOTH
) -> Tensor:
    """Return inputs (N, *shape) whose outputs, such as embeddings or logits, are nearest to targets (N, D).

    He, Zhang and Lee, "Model Inversion Attacks Against Collaborative Inference", ACSAC 2019, Eq. (3)-(5): regularised
    maximum likelihood estimation, white-box. With the mean embedding or the mean logits of a class as the target, the
    result is a picture of the class.
    """
    scale = targets.square().mean().clamp(min=1e-12)

    def loss(inputs: Tensor) -> Tensor:
        return functional.mse_loss(outputs(inputs), targets) / scale

    return optimised(loss, (len(targets), *centre.shape), centre, smooth=smooth)


def invert_gradient(
    outputs: Callable[[Tensor], Tensor],
    parameters: Sequence[Tensor],
    gradient: Sequence[Tensor],
    labels: Tensor,
    centre: Tensor,
    smooth: float = 1e-3,
) -> Tensor:
    """Return the batch (B, *shape) whose gradient points where one that is known does.

    Geiping, Bauermeister, Dröge and Moeller, "Inverting Gradients: How easy is it to break privacy in federated
    learning?", NeurIPS 2020, Eq. (4): cosine distance and total variation, Adam on signed gradients, the best of some
    random starts.

    Parameters
    ----------
    outputs : callable
        From inputs to the logits of the model before the step.
    parameters : sequence of Tensor
        That it computes with.
    gradient : sequence of Tensor
        Of each of them, up to a common positive factor.
    labels : Tensor
        Those of the batch, (B,), which are known.
    centre : Tensor
        As in `optimised`.
    smooth : float
        Weight of the total variation.
    """
    wanted = torch.cat([one.flatten() for one in gradient])

    def loss(inputs: Tensor) -> Tensor:
        value = functional.cross_entropy(outputs(inputs), labels)
        found = torch.cat([one.flatten() for one in torch.autograd.grad(value, parameters, create_graph=True)])
        return 1 - functional.cosine_similarity(found, wanted, dim=0)

    shape = len(labels), *centre.shape
    return optimised(loss, shape, centre, smooth=smooth, signed=True, starts=STARTS, steps=LONG)


def inferred_label(bias_gradient: Tensor) -> int:
    """Return the label of a batch of one: the only class whose bias has a negative gradient.

    Zhao, Mopuri and Bilen, "iDLG: Improved Deep Leakage from Gradients", 2020, Eq. (4).

    Examples
    --------
    >>> inferred_label(torch.tensor([0.2, -0.9, 0.7]))
    1
    """
    return int(bias_gradient.argmin())


def matched(found: NDArray[np.float64], originals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return found pictures (B, ...) in the order of the originals that they are nearest to, one each."""
    flat_found, flat = found.reshape(len(found), -1), originals.reshape(len(originals), -1)
    costs = np.square(flat[:, None] - flat_found[None]).mean(-1)
    return np.asarray(found[linear_sum_assignment(costs)[1]])
