"""How alike two representations of the same samples are, and what a mean of kernels takes to send.

Makhija, Han, Ho and Ghosh, "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022 (FedHeNN); centred
kernel alignment (CKA) after Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019.

For kernels K and L over the same n samples, with ``H = I - 11^T / n``::

    HSIC(K, L) = tr(K H L H) / (n - 1)^2
    CKA(K, L)  = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))

The linear kernel of a representation A (n, D) is ``A A^T``, the RBF kernel ``exp(-||a - b||^2 / (2 sigma^2))``. CKA is
1 for equal kernels (up to scale and a constant), 0 where nothing is shared, and here also 0, with a gradient of 0,
where one of them is constant: a representation that tells no two samples apart.

The CKA functions take tensors (a client's side) of any floating dtype, compute in float32 at least, and are
differentiable in both arguments unless they say otherwise. The functions of means and factors take and give NumPy
arrays (the server's side) and compute in float64.
"""

from collections.abc import Sequence
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.spatial.distance import cdist
from torch import Tensor

from hetfl_flwr.learning.aggregation import Average

FEWEST_SAMPLES = 4
"""Centred, n samples span n - 1 dimensions: CKA of 2 samples is always 1, and of 3 seldom far from it."""

Matrix = NDArray[np.float64]


def linear_cka(x: Tensor, y: Tensor) -> Tensor:
    """Return the CKA of two representations under the linear kernel: Eq. (3).

    With centred columns it is ``||X^T Y||_F^2 / (||X^T X||_F ||Y^T Y||_F)``: products of the two representations,
    without a kernel over the samples. ``y`` may be a factor of any positive semidefinite kernel ``F F^T`` instead of a
    representation. Orthogonal transforms, scaling and translation of either argument change nothing.

    Parameters
    ----------
    x, y : Tensor
        Shapes (n, D1) and (n, D2): the same n samples in both, at least 4.

    Returns
    -------
    Tensor
        A scalar in [0, 1]. 0 where all rows of one argument are equal.

    Raises
    ------
    ValueError
        The arguments are no matrices of floats, differ in their numbers of rows, or have too few.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    >>> round(float(linear_cka(x, 5 * x + 1)), 6), round(float(linear_cka(x, x[:, :1])), 6)
    (1.0, 0.707107)
    """
    _check_matrices(x, y)
    left, right = _centred(x), _centred(y)
    cka = _cosine((left.mT @ right).square().sum(), _own_linear(left), _own_linear(right))
    return cka.to(torch.promote_types(x.dtype, y.dtype))


def rbf_cka(x: Tensor, y: Tensor, sigma: float) -> Tensor:
    """Return the CKA of two representations under the RBF kernel. Time and memory grow with n^2.

    Orthogonal transforms and translation of either argument change nothing; scaling does. As ``sigma`` grows without
    bound it becomes `linear_cka`. In float32, entries of the kernel are good to 1 % while the samples lie within some
    hundred widths of each other; farther apart, only repeated samples suffer.

    Parameters
    ----------
    x, y : Tensor
        Shapes (n, D1) and (n, D2): the same n samples in both, at least 4.
    sigma : float
        Width of the kernel, above 0, in the units of both representations.

    Returns
    -------
    Tensor
        A scalar in [0, 1]. 0 where all rows of one argument are equal.

    Raises
    ------
    ValueError
        As `linear_cka`; or ``sigma`` is not above 0 and finite.
    """
    _check_matrices(x, y)
    _check_width(sigma)
    return kernel_cka(_rbf_less_one(x, sigma), _rbf_less_one(y, sigma)).to(torch.promote_types(x.dtype, y.dtype))


def rbf_to_factor_cka(x: Tensor, factor: Tensor, sigma: float) -> Tensor:
    """Return the CKA of a representation's RBF kernel and the kernel ``F F^T`` of a factor.

    The factor is that of a mean of RBF kernels (`mean_rbf_kernel`, `thin_factor_of_kernel`), received from elsewhere:
    no gradient flows to it. Both may be cut to the same rows.

    Parameters
    ----------
    x : Tensor
        Shape (n, D), n at least 4.
    factor : Tensor
        F, shape (n, r), of the same n samples.
    sigma : float
        Width of the kernel of ``x``, above 0.

    Returns
    -------
    Tensor
        A scalar in [0, 1].

    Raises
    ------
    ValueError
        As `rbf_cka`.
    """
    _check_matrices(x, factor)
    _check_width(sigma)
    centred = _centred(factor.detach())
    return kernel_cka(_rbf_less_one(x, sigma), centred @ centred.mT).to(torch.promote_types(x.dtype, factor.dtype))


def kernel_cka(first: Tensor, second: Tensor) -> Tensor:
    """Return the CKA of two kernels: HSIC with both kernels centred over rows and columns.

    Parameters
    ----------
    first, second : Tensor
        Shape (n, n), symmetric, n at least 4. A kernel whose entries differ by rounding errors alone counts as
        constant.

    Returns
    -------
    Tensor
        A scalar in [0, 1] for positive semidefinite kernels, in [-1, 1] for others.

    Raises
    ------
    ValueError
        The kernels are no square matrices of floats, differ in size, or have too few rows.
    """
    _check_matrices(first, second)
    if not first.shape[0] == first.shape[1] == second.shape[1]:
        raise ValueError(f"kernels of shapes {tuple(first.shape)} and {tuple(second.shape)}, expected square ones")
    left, right = _centred_kernel(first), _centred_kernel(second)
    cka = _cosine((left * right).sum(), left.square().sum(), right.square().sum())
    return cka.to(torch.promote_types(first.dtype, second.dtype))


def median_scaled(x: Tensor) -> Tensor:
    """Return a representation over the median distance between its samples, which no gradient flows to.

    The width of an RBF kernel is then in units of that distance, whatever the scale of a network's representations.

    Parameters
    ----------
    x : Tensor
        Shape (n, D), n at least 2. Where the median is 0, as it is.

    Examples
    --------
    >>> median_scaled(torch.tensor([[0.0], [2.0], [6.0]])).flatten().tolist()
    [0.0, 0.5, 1.5]
    """
    median = torch.pdist(x.detach()).median()
    return x / torch.where(median == 0, torch.ones_like(median), median)


def mean_kernel_factor(
    representations: Sequence[NDArray[np.floating]],
    average: Average,
    *,
    sigma: float | None = None,
    rank: int = 0,
    unit_norm: bool = False,
) -> tuple[Matrix, float]:
    """Return a thin factor of the clients' mean kernel, centred: K_mean of Eq. (5) with w_j = 1 / K, or a robust mean.

    Of a robust mean, kernels are centred and scaled to a Frobenius norm of 1, so that none counts for more by its
    length; the product of two is then their CKA. All of them are held at once.

    Parameters
    ----------
    representations : sequence of array
        A_j, shape (n, D_j) each; the widths may differ. At least one.
    average : Average
        How kernels are averaged.
    sigma : float, optional
        Width of the RBF kernel, above 0. Default: the kernels are linear.
    rank : int
        As in `thin_factor`.
    unit_norm : bool
        Whether kernels are centred and scaled to a Frobenius norm of 1 for the plain mean, too.

    Returns
    -------
    factor : array
        Shape (n, r), as in `thin_factor`.
    kept : float
        Share of the trace that is kept, in [0, 1].

    Raises
    ------
    ValueError
        As `stack_factor` and `thin_factor`; or ``sigma`` is not above 0 and finite.

    Examples
    --------
    >>> across, along = np.array([[1.0], [0], [-1], [0]]), np.array([[0.0], [3], [0], [-3]])
    >>> factor, kept = mean_kernel_factor([across + 5, along - 2], Average("none"), rank=1)
    >>> (factor @ factor.T).round(6).tolist()[1], round(kept, 6)
    ([0.0, 4.5, 0.0, -4.5], 0.9)
    """
    weights = _kernel_weights(representations, average, sigma, unit_norm=unit_norm)
    if sigma is None:
        return thin_factor(_less_mean_row(stack_factor(representations, weights)), rank)
    return thin_factor_of_kernel(_less_means(mean_rbf_kernel(representations, weights, sigma)), rank)


def stack_factor(representations: Sequence[NDArray[np.floating]], weights: Sequence[float]) -> Matrix:
    """Return a factor of the mean of linear kernels: ``F = [sqrt(w_j) A_j]``, so that ``F F^T = sum_j w_j A_j A_j^T``.

    The sum is K_mean of Eq. (5), without its n x n matrix.

    Parameters
    ----------
    representations : sequence of array
        A_j, shape (n, D_j) each; the widths may differ. At least one.
    weights : sequence of float
        w_j, one for each representation, 0 or more; 1/K each is the paper's mean.

    Returns
    -------
    array
        F, shape (n, sum of D_j).

    Raises
    ------
    ValueError
        There is none, the numbers of rows differ, or a weight is missing or below 0.

    Examples
    --------
    >>> stack_factor([np.array([[1.0], [2.0]]), np.array([[0.0, 3.0], [1.0, 0.0]])], [4.0, 1.0]).tolist()
    [[2.0, 0.0, 3.0], [4.0, 1.0, 0.0]]
    """
    _check_average(representations, weights)
    ends = np.cumsum([np.shape(representation)[1] for representation in representations])
    stacked = np.empty((len(representations[0]), ends[-1]))
    for block, representation, weight in zip(
        np.split(stacked, ends[:-1], axis=1), representations, weights, strict=True
    ):
        np.multiply(representation, np.sqrt(weight), out=block, dtype=np.float64)
    return stacked


def thin_factor(factor: NDArray[np.floating], rank: int = 0) -> tuple[Matrix, float]:
    """Return the thinnest factor of the kernel ``F F^T``, exact or of a given rank, and how much of it is kept.

    CKA is blind to the mean row of F, but a given rank is not: centre F first (``F - F.mean(0)``), and no column is
    spent on it. Costs the eigenvectors of the smaller of ``F F^T`` and ``F^T F``.

    Parameters
    ----------
    factor : array
        F, shape (n, m).
    rank : int
        Columns of the result at most: the best approximation of ``F F^T`` of this rank. 0: as many as an exact factor
        needs; eigenvalues at rounding level are dropped.

    Returns
    -------
    factor : array
        Shape (n, r), r at least 1 and at most min(n, m): columns in order of falling length, orthogonal to each other,
        the largest entry of each positive. Equal input gives equal bits.
    kept : float
        Share of the trace of ``F F^T`` that is kept, in [0, 1]; 1 for a factor of zeros.

    Raises
    ------
    ValueError
        ``factor`` is no matrix or is empty, or ``rank`` is below 0.

    Examples
    --------
    >>> thin, kept = thin_factor(np.array([[0.0, 2.0], [1.0, 0.0], [0.0, 0.0]]), rank=1)
    >>> thin.tolist(), kept
    ([[2.0], [0.0], [0.0]], 0.8)
    """
    wide = np.asarray(factor, np.float64)
    if wide.ndim != 2 or wide.size == 0:
        raise ValueError(f"factor of shape {wide.shape}, expected a matrix with at least one row and one column")
    if wide.shape[0] <= wide.shape[1]:
        return thin_factor_of_kernel(wide @ wide.T, rank)
    _, vectors, kept = _spectrum(wide.T @ wide, rank)
    return _positive(wide @ vectors), kept


def thin_factor_of_kernel(kernel: NDArray[np.floating], rank: int = 0) -> tuple[Matrix, float]:
    """Return the thinnest factor of a kernel, exact or of a given rank, and how much of the kernel is kept.

    Parameters
    ----------
    kernel : array
        Shape (n, n), symmetric and positive semidefinite.
    rank : int
        As in `thin_factor`.

    Returns
    -------
    factor : array
        Shape (n, r), as in `thin_factor`.
    kept : float
        Share of the trace that is kept, in [0, 1].

    Raises
    ------
    ValueError
        ``kernel`` is not square or is empty, or ``rank`` is below 0.
    """
    dense = np.asarray(kernel, np.float64)
    if dense.ndim != 2 or dense.shape[0] != dense.shape[1] or dense.size == 0:
        raise ValueError(f"kernel of shape {dense.shape}, expected a square matrix")
    values, vectors, kept = _spectrum(dense, rank)
    return _positive(vectors * np.sqrt(values)), kept


def mean_rbf_kernel(representations: Sequence[NDArray[np.floating]], weights: Sequence[float], sigma: float) -> Matrix:
    """Return the mean of RBF kernels, ``sum_j w_j K_j``: K_mean of Eq. (5).

    Parameters
    ----------
    representations : sequence of array
        A_j, shape (n, D_j) each; the widths may differ. At least one.
    weights : sequence of float
        w_j, one for each representation, 0 or more.
    sigma : float
        Width of the kernels, above 0.

    Returns
    -------
    array
        Shape (n, n), symmetric and positive semidefinite; the sum of the weights on its diagonal.

    Raises
    ------
    ValueError
        As `stack_factor`; or ``sigma`` is not above 0 and finite.
    """
    _check_average(representations, weights)
    _check_width(sigma)
    total = np.zeros((len(representations[0]), len(representations[0])))
    for representation, weight in zip(representations, weights, strict=True):
        scaled = np.asarray(representation, np.float64) / sigma
        kernel = cdist(scaled, scaled, "sqeuclidean")  # and from here on in place: each copy is n x n
        kernel /= -2
        np.exp(kernel, out=kernel)
        kernel *= weight
        total += kernel
    return total


def _check_matrices(first: Tensor, second: Tensor) -> None:
    shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
    if first.ndim != 2 or second.ndim != 2 or first.numel() == 0 or second.numel() == 0:
        raise ValueError(f"CKA of shapes {shapes}, expected two matrices of samples by features")
    if len(first) != len(second):
        raise ValueError(f"CKA of {len(first)} and {len(second)} samples, expected the same samples in both")
    if len(first) < FEWEST_SAMPLES:
        raise ValueError(
            f"CKA of {len(first)} samples, expected at least {FEWEST_SAMPLES}: take more alignment samples"
        )
    if not (first.is_floating_point() and second.is_floating_point()):
        raise ValueError(f"CKA of {first.dtype} and {second.dtype}, expected floating-point tensors")


def _check_width(sigma: float) -> None:
    if not 0 < sigma < inf:
        raise ValueError(f"sigma = {sigma}, expected a number above 0")


def _check_average(representations: Sequence[NDArray[np.floating]], weights: Sequence[float]) -> None:
    rows = sorted({len(representation) for representation in representations})
    if len(rows) != 1:
        raise ValueError(f"representations of {rows or 'no'} samples, expected the same samples in all")
    if len(weights) != len(representations) or not all(weight >= 0 for weight in weights):
        raise ValueError(
            f"weights {list(weights)} for {len(representations)} representations, expected one of 0 or more each"
        )


def _from_first(x: Tensor) -> Tensor:
    """Subtract the first row, which centring undoes: rows that are all equal become exact zeros."""
    return x.to(torch.promote_types(x.dtype, torch.float32)) - x[0].detach()


def _unit_scale(values: Tensor) -> Tensor:
    """Scale to a largest magnitude of 1, so that no square overflows or vanishes; zeros stay. CKA knows no scale."""
    largest = values.detach().abs().amax()
    return values / torch.where(largest == 0, torch.ones_like(largest), largest)


def _centred(x: Tensor) -> Tensor:
    scaled = _unit_scale(_from_first(x))
    return scaled - scaled.mean(0)


def _centred_kernel(kernel: Tensor) -> Tensor:
    scaled = _unit_scale(kernel.to(torch.promote_types(kernel.dtype, torch.float32)))
    shifted = scaled - scaled[0, 0].detach()
    constant = shifted.detach().abs().amax() <= 8 * torch.finfo(scaled.dtype).eps
    scaled = _unit_scale(torch.where(constant, torch.zeros_like(shifted), shifted))
    return scaled - scaled.mean(0) - scaled.mean(1, keepdim=True) + scaled.mean()


def _own_linear(centred: Tensor) -> Tensor:
    """Return ``||X^T X||_F^2`` by the smaller of the two products that share it."""
    tall = centred.shape[0] >= centred.shape[1]
    return (centred.mT @ centred if tall else centred @ centred.mT).square().sum()


def _cosine(between: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return ``between / sqrt(first second)``, at most 1 in spite of rounding; 0 where a squared norm is 0."""
    norms = [torch.where(square == 0, torch.ones_like(square), square).sqrt() for square in (first, second)]
    return (between / (norms[0] * norms[1])).clamp(max=1)


def _rbf_less_one(x: Tensor, sigma: float) -> Tensor:
    """Return ``K - 1``: centring makes it K, and a wide kernel, all near 1, loses no digits."""
    scaled = _from_first(x) / sigma
    squares = scaled.square().sum(1)
    distances = (squares[:, None] + squares - 2 * scaled @ scaled.mT).clamp(min=0)
    own = torch.eye(len(x), dtype=torch.bool, device=x.device)
    return torch.expm1(-distances.masked_fill(own, 0.0) / 2)


def _kernel_weights(
    representations: Sequence[NDArray[np.floating]], average: Average, sigma: float | None, *, unit_norm: bool
) -> list[float]:
    """Return what each kernel counts: 1 / K; or its weight among kernels of norm 1, over its own norm."""
    alike = 1 / len(representations)
    if average.form == "none":
        if not unit_norm:
            return [alike] * len(representations)
        lengths = (float(np.linalg.norm(_own_kernel(one, sigma))) for one in representations)
        return [alike / (length or 1.0) for length in lengths]
    kernels = np.stack([_own_kernel(representation, sigma).ravel() for representation in representations])
    products = kernels @ kernels.T
    norms = np.sqrt(np.diag(products))
    norms[norms == 0] = 1.0
    weights: list[float] = (average.weights(products / np.outer(norms, norms)) / norms).tolist()
    return weights


def _own_kernel(representation: NDArray[np.floating], sigma: float | None) -> Matrix:
    """Return the centred kernel (n, n) of one representation."""
    if sigma is not None:
        return _less_means(mean_rbf_kernel([representation], [1.0], sigma))
    factor = _less_mean_row(representation.astype(np.float64))
    return factor @ factor.T


def _less_mean_row(factor: Matrix) -> Matrix:
    """Subtract the mean row; the first row before it, so that what is equal in all rows leaves exact zeros."""
    shifted: Matrix = factor - factor[0]
    shifted -= shifted.mean(0)
    return shifted


def _less_means(kernel: Matrix) -> Matrix:
    """Subtract the mean row and the mean column; one entry before them, as in `_less_mean_row`."""
    shifted: Matrix = kernel - kernel[0, 0]
    columns, rows, whole = shifted.mean(0), shifted.mean(1, keepdims=True), shifted.mean()
    shifted -= columns
    shifted -= rows
    shifted += whole
    return shifted


def _spectrum(gram: Matrix, rank: int) -> tuple[Matrix, Matrix, float]:
    """Return the leading eigenvalues, falling, their eigenvectors, and the share of the trace that they hold."""
    if rank < 0:
        raise ValueError(f"rank = {rank}, expected 0 (exact) or more")
    size = len(gram)
    wanted = None if rank == 0 else (max(size - rank, 0), size - 1)
    rising, vectors = eigh(gram, subset_by_index=wanted)
    falling = rising[::-1]
    rounding = 10 * size * np.finfo(np.float64).eps * falling[0]
    count = max(int(np.count_nonzero(falling > rounding)), 1)
    values = np.maximum(falling[:count], 0.0)
    trace = float(np.trace(gram))
    kept = min(float(values.sum()) / trace, 1.0) if trace > 0 else 1.0
    return values, vectors[:, ::-1][:, :count], kept


def _positive(factor: Matrix) -> Matrix:
    """Turn columns, in place, so that the first of each one's entries of largest magnitude is positive."""
    lowest, highest = factor.min(0), factor.max(0)
    negative, tied = -lowest > highest, -lowest == highest
    negative[tied] = factor[:, tied].argmin(0) < factor[:, tied].argmax(0)
    factor *= np.where(negative, -1.0, 1.0)
    return factor
