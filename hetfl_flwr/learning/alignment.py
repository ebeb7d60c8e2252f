"""Similarity of two representations of the same samples.

Makhija, Han, Ho and Ghosh, "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022 (FedHeNN);
centered kernel alignment (CKA) after Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML
2019.

For kernels K and L over the same n samples, with ``H = I - 11^T / n``::

    HSIC(K, L) = tr(K H L H) / (n - 1)^2
    CKA(K, L)  = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))

The linear kernel of a representation A (n, D) is ``A A^T``. CKA is 1 for equal kernels (up to scale and a constant) and
0 if they have nothing in common. Here it is also 0, with a gradient of 0, if one of them is constant: a representation
that is the same for all samples.
"""

import torch
from torch import Tensor

MIN_ALIGNED = 4
"""Minimum number of samples for CKA. After centering, n samples span n - 1 dimensions, so that CKA of 2 samples is
always 1, and of 3 samples usually close to 1."""


def linear_cka(x: Tensor, y: Tensor) -> Tensor:
    """Return the CKA of two representations with the linear kernel: Eq. (3).

    With centered columns it is ``||X^T Y||_F^2 / (||X^T X||_F ||Y^T Y||_F)``, computed from products of the features or
    of the samples, whichever are fewer. ``y`` may also be a factor of any positive semidefinite kernel ``F F^T``. CKA
    is invariant to orthogonal transforms, scaling and translation of either argument. It is computed in float32 at
    least, and differentiable in both arguments.

    Parameters
    ----------
    x, y : Tensor
        Representations of the same n samples, with shapes (n, D1) and (n, D2); n is at least 4.

    Returns
    -------
    Tensor
        A scalar in [0, 1]; 0 if all rows of one argument are equal.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    >>> round(float(linear_cka(x, 5 * x + 1)), 6), round(float(linear_cka(x, x[:, :1])), 6)
    (1.0, 0.707107)
    """
    left, right = _centred(x), _centred(y)
    cka = _cosine(_between_linear(left, right), _own_linear(left), _own_linear(right))
    return cka.to(torch.promote_types(x.dtype, y.dtype))


def _from_first(x: Tensor) -> Tensor:
    """Subtract the first row, so that equal rows become exact zeros; centering cancels it otherwise."""
    return x.to(torch.promote_types(x.dtype, torch.float32)) - x[0].detach()


def _unit_scale(values: Tensor) -> Tensor:
    """Scale to a largest magnitude of 1, so that squares neither overflow nor underflow; CKA is invariant to scale."""
    largest = values.detach().abs().amax()
    return values / torch.where(largest == 0, torch.ones_like(largest), largest)


def _centred(x: Tensor) -> Tensor:
    scaled = _unit_scale(_from_first(x))
    return scaled - scaled.mean(0)


def _between_linear(left: Tensor, right: Tensor) -> Tensor:
    """Return ``||X^T Y||_F^2 = tr(X X^T Y Y^T)``, by the form that takes fewer multiplications."""
    (samples, first), second = left.shape, right.shape[1]
    if samples * (first + second) < first * second:
        return ((left @ left.mT) * (right @ right.mT)).sum()
    return (left.mT @ right).square().sum()


def _own_linear(centred: Tensor) -> Tensor:
    """Return ``||X^T X||_F^2``, computed from the smaller of ``X^T X`` and ``X X^T``."""
    tall = centred.shape[0] >= centred.shape[1]
    return (centred.mT @ centred if tall else centred @ centred.mT).square().sum()


def _cosine(between: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return ``between / sqrt(first second)``, clamped to [0, 1] against rounding; 0 if a squared norm is 0."""
    norms = [torch.where(square == 0, torch.ones_like(square), square).sqrt() for square in (first, second)]
    return (between / (norms[0] * norms[1])).clamp(0, 1)
