"""Matrices as payloads: whole, or as the leading part of a singular value decomposition if that is smaller.

A matrix W (m, n) becomes ``left`` (m, K) and ``right`` (K, n); their product is the nearest matrix of rank K. The
weights of a convolution (out, in, height, width) are a matrix (out, in x height x width). Vectors are sent whole.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hetfl_flwr.common.arithmetic import torch_threads
from hetfl_flwr.errors import DivergedError
from hetfl_flwr.wire.spec import Arrays, ArraySpec, Dim, PayloadSpec

SLIGHT_CHANGE = 0.005
"""Root mean square up to which the guard accepts any change of weights: a twentieth of 0.1, a usual size of weights."""


def factored(spec: PayloadSpec, prefix: str = "", *, changes: bool = False) -> PayloadSpec:
    """Declare weights, or changes of weights, as `factor` encodes them.

    Parameters
    ----------
    spec : PayloadSpec
        The declaration of the weights, with known shapes.
    prefix : str
        A prefix for all names.
    changes : bool
        Whether these are changes of weights: `hetfl_flwr.server.guard.Guard` accepts any small change.

    Examples
    --------
    >>> matrix, vector = (ArraySpec(name, shape, "float32", -9, 9) for name, shape in (("w", (6, 4)), ("b", (6,))))
    >>> declared = factored(PayloadSpec((matrix, vector)))
    >>> {one.name: one.shape for one in declared.arrays}
    {'w': (rows of w 0 or 6, 4), 'w.left': (6, rank of w <= 2), 'w.right': (rank of w <= 2, 4), 'b': (6,)}
    """
    declared, usual = list[ArraySpec](), SLIGHT_CHANGE if changes else 1.0
    for one in spec.arrays:
        most, name = float(one.maximum or 0.0), f"{prefix}{one.name}"
        whole = ArraySpec(name, one.shape, one.dtype, -most, most, usual=usual, frozen=one.frozen)
        if not (rank := _largest_rank(one)):
            declared.append(whole)
            continue
        (rows, columns), shared = _form(one), Dim(f"rank of {one.name}", rank)
        left, right = (f"{name}.{side}" for side in ("left", "right"))
        declared += [
            replace(whole, shape=(Dim(f"rows of {one.name}", rows, step=rows), columns), factors=(left, right)),
            replace(whole, name=left, shape=(rows, shared)),
            replace(whole, name=right, shape=(shared, columns), minimum=-1, maximum=1),
        ]
    return PayloadSpec(tuple(declared))


def factor(arrays: Arrays, spec: PayloadSpec, share: float, prefix: str = "") -> dict[str, NDArray[Any]]:
    """Encode named weights as `factored` declares them.

    For each matrix, the fewest leading singular values and vectors are kept that retain a share of the sum of the
    squared singular values. If the factors are not smaller than the matrix, K (m + n) >= m n, it is sent whole.

    Parameters
    ----------
    arrays : mapping of str to array
        The weights.
    spec : PayloadSpec
        The declaration of the weights.
    share : float
        The share to keep, in (0, 1]. With 1, all matrices are sent whole, bit for bit.
    prefix : str
        A prefix for all names.

    Raises
    ------
    DivergedError
        If a matrix has values that are not finite.
    """
    packed: dict[str, NDArray[Any]] = {}
    for one in spec.arrays:
        array, name = arrays[one.name], f"{prefix}{one.name}"
        if not (most := _largest_rank(one)):
            packed[name] = array
            continue
        matrix = array.reshape(_form(one))
        if not np.isfinite(matrix).all():
            raise DivergedError(f"training diverged: '{one.name}' has values that are not finite")
        left, right = leading(matrix, share) if share < 1 else (matrix, matrix)
        small = share < 1 and left.shape[1] <= most and np.abs(left).max(initial=0.0) <= float(one.maximum or 0.0)
        rank = left.shape[1] if small else 0
        packed[name] = matrix[: 0 if small else None]
        packed[f"{name}.left"], packed[f"{name}.right"] = left[:, :rank], right[:rank]
    return packed


def multiplied(packed: Arrays, spec: PayloadSpec, prefix: str = "") -> dict[str, NDArray[Any]]:
    """Decode weights that `factor` has encoded, with the names and shapes of their declaration.

    A matrix without rows and with factors of rank 0 is zero.
    """
    return {one.name: _matrix(packed, one, f"{prefix}{one.name}").reshape(_shape(one)) for one in spec.arrays}


def leading(matrix: NDArray[Any], share: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the factors (m, K) and (K, n) of the leading part of a finite matrix (m, n), in its dtype.

    The factors are ``U diag(s)`` and ``V^T``, with rows of norm 1. K is the smallest number of singular values that
    retain a share, in (0, 1], of the sum of their squares; 0 for a matrix of zeros.

    Examples
    --------
    >>> [leading(np.diag([3.0, 4.0, 0.0]), share)[0].shape[1] for share in (0.64, 0.65, 1.0)]
    [1, 2, 2]
    """
    with torch_threads(1):
        vectors, values, others = torch.linalg.svd(torch.tensor(matrix, dtype=torch.float64), full_matrices=False)
    held = values.square().cumsum(0)
    rank = int((held < share * held[-1]).sum()) + 1 if held[-1] > 0 else 0
    left, right = (vectors[:, :rank] * values[:rank]).numpy(), others[:rank].numpy()
    return left.astype(matrix.dtype), np.clip(right, -1, 1).astype(matrix.dtype)


def product(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
    """Return the matrix product (m, n) of factors (m, K) and (K, n), zero if K = 0.

    Examples
    --------
    >>> product(np.float32([[1], [2]]), np.float32([[3, 4]])).tolist()
    [[3.0, 4.0], [6.0, 8.0]]
    """
    with torch_threads(1):
        multiplied: NDArray[np.float64] = (torch.tensor(left).double() @ torch.tensor(right).double()).numpy()
    return multiplied


def bounded(arrays: Mapping[str, NDArray[Any]], spec: PayloadSpec, *, changes: bool = False) -> dict[str, NDArray[Any]]:
    """Clip weights, or changes of weights, to the bounds of a declaration of weights, and convert them to its dtypes.

    A change may be negative where a weight may not, such as a variance.

    Examples
    --------
    >>> spec = PayloadSpec((ArraySpec("var", (2,), "float32", 0, 9),))
    >>> [bounded({"var": np.array([-1, 10])}, spec, changes=changes)["var"].tolist() for changes in (False, True)]
    [[0.0, 9.0], [-1.0, 9.0]]
    """
    clipped = dict[str, NDArray[Any]]()
    for one in spec.arrays:
        minimum = -one.maximum if changes and one.maximum is not None else one.minimum
        clipped[one.name] = np.asarray(np.clip(arrays[one.name], minimum, one.maximum), one.dtype)
    return clipped


def _matrix(packed: Arrays, one: ArraySpec, name: str) -> NDArray[Any]:
    whole = packed[name]
    if f"{name}.left" not in packed or len(whole) == one.shape[0]:
        return whole
    return product(packed[f"{name}.left"], packed[f"{name}.right"]).astype(one.dtype)


def _shape(one: ArraySpec) -> tuple[int, ...]:
    return tuple(size for size in one.shape if isinstance(size, int))


def _form(one: ArraySpec) -> tuple[int, int]:
    """Return the numbers of rows and columns of weights as a matrix."""
    rows, *others = _shape(one)
    return rows, prod(others)


def _largest_rank(one: ArraySpec) -> int:
    """Return the largest rank at which factors have fewer numbers than the matrix; 0 if there is none."""
    if len(one.shape) < 2:
        return 0
    rows, columns = _form(one)
    return max(rows * columns - 1, 0) // max(rows + columns, 1)
