"""The mean of the kernels of several representations, and the factor that is sent instead of it.

Kernels and equations are those of `hetfl_flwr.learning.alignment`. The functions take and return NumPy arrays, and
compute in float64.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from hetfl_flwr import Average

Matrix = NDArray[np.float64]


def mean_kernel_factor(
    representations: Sequence[NDArray[np.floating]],
    average: Average,
    *,
    on_weights: Callable[[Matrix], object] | None = None,
) -> Matrix:
    """Return a thin factor of the clients' centered mean kernel: K_mean of Eq. (5) with w_j = 1 / K, or a robust mean.

    For a robust mean, kernels are centered and scaled to a Frobenius norm of 1, so that none has more influence by its
    norm; the inner product of two kernels is then their CKA. All kernels are in memory at once.

    Parameters
    ----------
    representations : sequence of array
        The representations A_j, of shape (n, D_j), at least one. The widths may differ.
    average : Average
        How kernels are averaged.
    on_weights : callable, optional
        A function that is called with the weights of the kernels (K,), 0 for a kernel that a robust mean leaves out.

    Returns
    -------
    array
        The factor (n, r), with r at least 1; see `thin_factor`.

    Examples
    --------
    >>> across, along = np.array([[1.0], [0], [-1], [0]]), np.array([[0.0], [3], [0], [-3]])
    >>> factor = mean_kernel_factor([across + 5, along - 2], Average("none"))
    >>> factor.shape, ((factor @ factor.T).round(6) + 0.0).tolist()[1]
    ((4, 2), [0.0, 4.5, 0.0, -4.5])
    """
    weights = _kernel_weights(representations, average)
    if on_weights:
        on_weights(np.array(weights))
    return thin_factor(_centred(stack_factor(representations, weights)))


def stack_factor(representations: Sequence[NDArray[np.floating]], weights: Sequence[float]) -> Matrix:
    """Return a factor (n, sum of D_j) of the weighted sum of linear kernels, without computing the n x n matrix.

    ``F = [sqrt(w_j) A_j]``, so that ``F F^T = sum_j w_j A_j A_j^T``: K_mean of Eq. (5) if each w_j is 1 / K.

    Examples
    --------
    >>> stack_factor([np.array([[1.0], [2.0]]), np.array([[0.0, 3.0], [1.0, 0.0]])], [4.0, 1.0]).tolist()
    [[2.0, 0.0, 3.0], [4.0, 1.0, 0.0]]
    """
    stacked: Matrix = np.concatenate(representations, axis=1, dtype=np.float64)
    stacked *= np.repeat(np.sqrt(weights), [one.shape[1] for one in representations])
    return stacked


def thin_factor(factor: NDArray[np.floating]) -> Matrix:
    """Return the thinnest factor (n, r) of ``F F^T`` for F (n, m).

    Eigenvalues at rounding level are dropped. The columns are orthogonal, in order of decreasing norm, with a positive
    largest entry, so that equal inputs give equal bits. The eigenvectors of the smaller of ``F F^T`` and ``F^T F`` are
    computed.

    Examples
    --------
    >>> thin_factor(np.array([[0.0, 2.0, 2.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])).round(6).tolist()
    [[2.828427, 0.0], [0.0, 1.0], [0.0, 0.0]]
    """
    wide = np.asarray(factor, np.float64)
    if wide.shape[0] <= wide.shape[1]:
        values, vectors = _spectrum(wide @ wide.T)
        return _fix_signs(vectors * np.sqrt(values))
    return _fix_signs(wide @ _spectrum(wide.T @ wide)[1])


def _kernel_weights(representations: Sequence[NDArray[np.floating]], average: Average) -> list[float]:
    """Return the weight of each kernel: 1 / K, or its weight among kernels of norm 1, divided by its norm."""
    if average.form == "none":
        return [1 / len(representations)] * len(representations)
    kernels = np.stack([_own_kernel(representation).ravel() for representation in representations])
    products = kernels @ kernels.T
    norms = np.sqrt(np.diag(products))
    norms[norms == 0] = 1.0
    weights: list[float] = (average.weights(products / np.outer(norms, norms)) / norms).tolist()
    return weights


def _own_kernel(representation: NDArray[np.floating]) -> Matrix:
    """Return the centered kernel (n, n) of one representation."""
    factor = _centred(representation.astype(np.float64))
    return factor @ factor.T


def _centred(factor: Matrix) -> Matrix:
    """Subtract the mean row, after subtracting the first row, so that equal rows become exact zeros."""
    shifted: Matrix = factor - factor[0]
    shifted -= shifted.mean(0)
    return shifted


def _spectrum(gram: Matrix) -> tuple[Matrix, Matrix]:
    """Return the eigenvalues above rounding level, at least one, in decreasing order, and their eigenvectors."""
    rising, vectors = eigh(gram)
    falling = rising[::-1]
    rounding = 10 * len(gram) * np.finfo(np.float64).eps * falling[0]
    count = max(int(np.count_nonzero(falling > rounding)), 1)
    return np.maximum(falling[:count], 0.0), vectors[:, ::-1][:, :count]


def _fix_signs(factor: Matrix) -> Matrix:
    """Flip the signs of columns in place, so that the first entry of largest magnitude in each is positive."""
    largest = factor[np.abs(factor).argmax(0), np.arange(factor.shape[1])]
    factor *= np.where(largest < 0, -1.0, 1.0)
    return factor
