"""Gradients of a whole model as one vector, and projections of conflicting gradients. P is the number of parameters.

Li et al., "FedH2L: Federated Learning with Model and Statistical Heterogeneity" (`project`); Yu et al., "Gradient
Surgery for Multi-Task Learning", NeurIPS 2020 (`pcgrad`). Two gradients conflict if their inner product is below 0: a
step that lowers one loss raises the other.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional


def project(gradient: Tensor, reference: Tensor) -> Tensor:
    """Return the vector nearest to a gradient that does not conflict with another: FedH2L Eq. (8).

    If ``<gradient, reference> >= 0``, Eq. (7), the result is the gradient itself, bit for bit. Otherwise it is
    ``gradient + v reference`` with ``v = -<gradient, reference> / ||reference||^2``, the solution of the dual problem
    Eq. (15), which has one constraint and so a closed form: the component of the gradient orthogonal to the reference.
    A reference of zeros does not conflict with any gradient.

    Parameters
    ----------
    gradient, reference : Tensor
        Vectors (P,) on the same device; g_pub and g_loc in the paper. They may have any scale: squares neither overflow
        nor underflow.

    Returns
    -------
    Tensor
        A new tensor (P,) with the gradient's dtype. Its inner product with the reference is 0 or more, up to rounding.
        NaN in either argument propagates.

    Examples
    --------
    >>> project(torch.tensor([2.0, -4.0]), torch.tensor([0.0, 1.0])).tolist()
    [2.0, 0.0]
    """
    wide, other = _wide(gradient), _wide(reference)
    scale = _largest(wide)
    scaled = wide / scale
    direction = functional.normalize(other / _largest(other), dim=0)
    along = torch.dot(scaled, direction.to(scaled.dtype))
    projected = (scaled - along * direction) * scale
    return torch.where(along >= 0, gradient.detach(), projected.to(gradient.dtype))


def pcgrad(gradient: Tensor, reference: Tensor) -> Tensor:
    """Return the PCGrad update of two tasks: the sum of the two gradients, each projected against the other.

    Yu et al. 2020, Algorithm 1 with two tasks: ``project(gradient, reference) + project(reference, gradient)``, each
    against the original other; without conflict, ``gradient + reference``. Unlike `project`, it treats both gradients
    in the same way, and returns their sum. `project` keeps the reference fixed and returns only the projected gradient,
    the first of the two terms here. So if a step along the reference has already been taken, as in FedH2L's local step,
    this update repeats a part of it.

    Parameters
    ----------
    gradient, reference : Tensor
        Vectors (P,) on the same device. Their order does not matter.

    Returns
    -------
    Tensor
        A vector (P,). Its inner products with both arguments are 0 or more, up to rounding. If one argument is zero, it
        equals the other one.

    Examples
    --------
    These two conflict: (1, 0) without its component along (-1, 1) is (1/2, 1/2), and (-1, 1) without its component
    along (1, 0) is (0, 1).

    >>> [round(value, 6) for value in pcgrad(torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])).tolist()]
    [0.5, 1.5]
    """
    return project(gradient, reference) + project(reference, gradient)


def flat_gradient(parameters: Iterable[Tensor]) -> Tensor:
    """Return the gradients of all trainable parameters as one vector, in their order.

    Parameters
    ----------
    parameters : iterable of Tensor
        Usually ``model.parameters()``. Parameters without ``requires_grad`` are skipped; a parameter without a gradient
        contributes zeros.

    Returns
    -------
    Tensor
        A vector (P,). It is a copy and does not share memory with the gradients.

    Raises
    ------
    ValueError
        If no parameter is trainable.
    """
    gradients = [
        (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach()).flatten()
        for parameter in parameters
        if parameter.requires_grad
    ]
    if not gradients:
        raise ValueError("no gradient: none of the parameters is trainable")
    return torch.cat(gradients)


def set_gradient(parameters: Iterable[Tensor], vector: Tensor) -> None:
    """Set the gradients of all trainable parameters from one vector: the inverse of `flat_gradient`.

    Every trainable parameter then has a gradient with its shape, dtype and device, so that an optimizer also applies
    weight decay and momentum to parameters that had no gradient before.

    Parameters
    ----------
    parameters : iterable of Tensor
        The same parameters as for `flat_gradient`, in the same order.
    vector : Tensor
        The gradients as a vector (P,). It is copied, so that in-place changes of the gradients do not affect it.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    sizes = [parameter.numel() for parameter in trainable]
    for parameter, piece in zip(trainable, torch.split(vector.detach(), sizes), strict=True):
        parameter.grad = piece.reshape(parameter.shape).to(parameter, copy=True)


def _wide(vector: Tensor) -> Tensor:
    return vector.detach().to(torch.promote_types(vector.dtype, torch.float32))


def _largest(vector: Tensor) -> Tensor:
    """Return the largest magnitude, or 1 for zeros, to divide by before squaring."""
    largest = vector.abs().amax()
    return torch.where(largest == 0, torch.ones_like(largest), largest)
