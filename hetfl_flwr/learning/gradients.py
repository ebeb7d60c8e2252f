"""Gradients of a whole model as one vector, and projections of conflicting ones. Shape letter P: parameters.

Li et al., "FedH2L: Federated Learning with Model and Statistical Heterogeneity" (`project`); Yu et al., "Gradient
Surgery for Multi-Task Learning", NeurIPS 2020 (`pcgrad`). Two gradients conflict where their inner product is below 0:
a step that lowers one loss raises the other.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional


def project(gradient: Tensor, reference: Tensor) -> Tensor:
    """Return the vector nearest to a gradient that does not conflict with another: FedH2L Eq. (8).

    Where ``<gradient, reference> >= 0``, Eq. (7), it is the gradient itself, bit for bit. Elsewhere it is
    ``gradient + v reference`` with ``v = -<gradient, reference> / ||reference||^2``, the solution of the dual problem
    Eq. (15), which has one constraint and so a closed form: what of the gradient is orthogonal to the reference. A
    reference of zeros conflicts with nothing.

    Parameters
    ----------
    gradient, reference : Tensor
        Shape (P,), on one device; g_pub and g_loc in the paper. Any scale: squares neither overflow nor vanish.

    Returns
    -------
    Tensor
        Shape (P,), a new tensor of the gradient's dtype. Its inner product with the reference is 0 or more, up to
        rounding. NaN in either argument is passed on.

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
    against the other as it was given; without conflict, ``gradient + reference``. It differs from `project` in that
    it treats both gradients alike: it changes both and returns both. `project` holds the reference fixed, changes the
    gradient alone and returns that alone; it is the first of the two terms here. So a caller that has taken the
    reference's own step already, as FedH2L's local step does, takes some of it once more with this update.

    Parameters
    ----------
    gradient, reference : Tensor
        Shape (P,), on one device. Exchanging them changes nothing.

    Returns
    -------
    Tensor
        Shape (P,). Its inner products with both arguments are 0 or more, up to rounding. If one argument is zeros,
        the other one.

    Examples
    --------
    Conflict: (1, 0) loses its part along (-1, 1), which leaves (1/2, 1/2); (-1, 1) loses its part along (1, 0), which
    leaves (0, 1).

    >>> [round(value, 6) for value in pcgrad(torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])).tolist()]
    [0.5, 1.5]
    """
    return project(gradient, reference) + project(reference, gradient)


def flat_gradient(parameters: Iterable[Tensor]) -> Tensor:
    """Return the gradients of all trainable parameters as one vector, in their order.

    Parameters
    ----------
    parameters : iterable of Tensor
        Usually ``model.parameters()``. Those with ``requires_grad`` off are passed over; one without a gradient
        counts as zeros.

    Returns
    -------
    Tensor
        Shape (P,), a copy: later changes of the gradients do not reach it.

    Raises
    ------
    ValueError
        No parameter is trainable.
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

    Every trainable parameter has a gradient afterwards, of its own shape, dtype and device; an optimizer then also
    applies weight decay and momentum to those that had none before.

    Parameters
    ----------
    parameters : iterable of Tensor
        The same as were given to `flat_gradient`, in the same order.
    vector : Tensor
        Shape (P,). It is copied: an optimizer that changes gradients in place does not reach it.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    sizes = [parameter.numel() for parameter in trainable]
    for parameter, piece in zip(trainable, torch.split(vector.detach(), sizes), strict=True):
        parameter.grad = piece.reshape(parameter.shape).to(parameter, copy=True)


def _wide(vector: Tensor) -> Tensor:
    return vector.detach().to(torch.promote_types(vector.dtype, torch.float32))


def _largest(vector: Tensor) -> Tensor:
    """Return the largest magnitude, or 1 for zeros: what to divide by before squaring."""
    largest = vector.abs().amax()
    return torch.where(largest == 0, torch.ones_like(largest), largest)
