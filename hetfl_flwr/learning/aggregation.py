"""Averages of clients' uploads: the mean, and three averages that are robust to a few wrong uploads.

Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML
2018: the coordinate-wise median (Definition 1) and the coordinate-wise trimmed mean (Definition 2). Pillutla, Kakade
and Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions on Signal Processing 2022: the geometric
median, for points that cannot be averaged coordinate by coordinate, such as kernels. Blanchard, El Mhamdi, Guerraoui
and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NIPS 2017: Multi-Krum, which
leaves out whole uploads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.errors import ConfigError

Numbers = NDArray[np.float64]

STEPS = 1000
"""Maximum steps of Weiszfeld's iteration, which converges slowly if the geometric median is one of the points."""


@dataclass(frozen=True)
class Average:
    """An average of K clients' uploads; see `parse_robust`.

    Parameters
    ----------
    form : {"none", "median", "trimmed", "multikrum"}
        The plain mean, the median, the trimmed mean, or the mean of the uploads that Multi-Krum keeps.
    share : float
        For "trimmed": the share of the clients that is cut off at each end of a coordinate, in [0, 0.5).
    wrong : int
        For "multikrum": the number of uploads that are left out, 0 or more.
    """

    form: Literal["none", "median", "trimmed", "multikrum"]
    share: float = 0.0
    wrong: int = 0

    def __str__(self) -> str:
        """Return the text that the average was parsed from."""
        return {"trimmed": f"trimmed:{self.share:g}", "multikrum": f"multikrum:{self.wrong}"}.get(self.form, self.form)

    @property
    def among_kept(self) -> "Average":
        """The average to use on `kept` uploads: the mean after Multi-Krum, so that it is not applied twice."""
        return Average("none") if self.form == "multikrum" else self

    def kept(self, arrays: Sequence[NDArray[Any]], has: Sequence[NDArray[np.bool_]] | None = None) -> NDArray[np.bool_]:
        """Return which uploads are averaged: all, or the uploads that Multi-Krum keeps, each judged as a whole.

        Parameters
        ----------
        arrays : sequence of array
            The arrays of the uploads, one or more, each of shape (K, ...), stacked over clients.
        has : sequence of array, optional
            Whether a client has an entry, with the same shapes. Two clients are compared on the entries that both have;
            every two clients must have some in common. Default: all clients have all entries.

        Returns
        -------
        array
            Booleans of shape (K,).

        Examples
        --------
        >>> weight, bias = np.array([[1.0, 2.0], [1.1, 2.1], [1.0, -2.0]]), np.array([[0.0], [0.1], [0.0]])
        >>> [parse_robust(text).kept([weight, bias]).tolist() for text in ("median", "multikrum:1")]
        [[True, True, True], [True, True, False]]
        """
        count = len(arrays[0])
        if self.form != "multikrum":
            return np.ones(count, bool)
        squares, shared = np.zeros((count, count)), np.zeros((count, count))
        for values, its in zip(arrays, has or len(arrays) * [None], strict=True):
            for one, other in combinations(range(count), 2):
                both = ... if its is None else its[one] & its[other]
                with np.errstate(invalid="ignore", over="ignore"):  # non-finite values count as infinitely far
                    apart = np.subtract(values[one], values[other], dtype=np.float64)[both]
                    squares[one, other] += np.vdot(apart, apart)
                shared[one, other] += apart.size
        squares, shared = squares + squares.T, shared + shared.T
        return multikrum(squares / np.maximum(shared, 1), self.wrong)

    def mean(self, values: Sequence[NDArray[Any]] | NDArray[Any], has: NDArray[np.bool_] | None = None) -> Numbers:
        """Average arrays of the same shape, coordinate by coordinate, in float64.

        Parameters
        ----------
        values : sequence of array
            One array per client, at least one. Missing entries may have any finite value.
        has : array, optional
            Whether a client has an entry, of shape (K, ...). Default: all clients have all entries. Not supported for
            "multikrum", which does not work coordinate by coordinate.

        Returns
        -------
        array
            The average, of the same shape; 0 for entries that no client has. "median" is the mean of the middle two for
            an even number. "trimmed" is the mean without the ``int(share * K)`` smallest and as many of the largest
            values of each coordinate. "multikrum" is the mean of the `kept` arrays.

        Examples
        --------
        >>> values, has = np.array([[1.0, 7.0], [2.0, 0.0], [9.0, 0.0]]), np.array([[1, 1], [1, 0], [1, 0]], bool)
        >>> [parse_robust(text).mean(values).tolist() for text in ("none", "median", "trimmed:0.4")]
        [[4.0, 2.3333333333333335], [2.0, 0.0], [2.0, 0.0]]
        >>> [parse_robust(text).mean(values, has).tolist() for text in ("none", "median", "trimmed:0.4")]
        [[4.0, 7.0], [2.0, 7.0], [2.0, 7.0]]
        """
        if self.form == "none" and has is None:
            return self.total(values, np.zeros(values[0].shape)) / len(values)
        stack = np.stack([*values]).astype(np.float64)
        if self.form == "multikrum":
            return cast(Numbers, stack[self.kept([stack])].mean(axis=0))
        has = np.ones(stack.shape, bool) if has is None else has
        ordered, count = np.sort(np.where(has, stack, np.inf), axis=0), has.sum(0)
        cuts = {"none": 0 * count, "median": np.maximum(count - 1, 0) // 2, "trimmed": (self.share * count).astype(int)}
        place, cut = np.arange(len(stack)).reshape(-1, *(1,) * (stack.ndim - 1)), cuts[self.form]
        kept = (place >= cut) & (place < count - cut)
        return cast(Numbers, np.where(kept, ordered, 0.0).sum(0) / np.maximum(kept.sum(0), 1))

    def weighted(
        self, values: NDArray[Any], weights: Sequence[float], has: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """Return the weighted mean of arrays; median and trimmed mean ignore the weights.

        For "multikrum", pass only arrays of `kept` uploads: it judges whole uploads, and these arrays are a part.

        Parameters
        ----------
        values : array
            The arrays, stacked over clients, of shape (K, ...).
        weights : sequence of float
            The weights (K,), above 0.
        has : array, optional
            Whether a client has an entry, of shape (K, ...). Default: all clients have all entries.

        Returns
        -------
        array
            The average, of shape (...) and the dtype of `values`; 0 for entries that no client has. If no entry is
            missing, the weighted mean equals that of Flower's FedAvg, bit for bit.
        """
        if self.form in ("none", "multikrum"):
            return weighted_mean(values, weights, has)
        return np.asarray(self.mean(values, has), values.dtype)

    def weighted_by_name(
        self, values: Sequence[Mapping[str, NDArray[Any]]], weights: Sequence[float]
    ) -> dict[str, NDArray[Any]]:
        """Average named arrays as `weighted`; all clients have arrays with the same names and shapes."""
        return {name: self.weighted(np.stack([one[name] for one in values]), weights) for name in values[0]}

    def total(self, values: Sequence[NDArray[Any]] | NDArray[Any], start: Numbers) -> Numbers:
        """Return ``start`` plus the number of arrays times their `mean`; there may be no arrays.

        Examples
        --------
        >>> values = [np.array([1.0]), np.array([2.0]), np.array([300.0])]
        >>> [parse_robust(text).total(values, np.array([10.0])).tolist() for text in ("none", "median")]
        [[313.0], [16.0]]
        """
        if self.form == "none" or len(values) == 0:
            return sum(values, start)
        return start + len(values) * self.mean(values)

    def mixture(self, values: Sequence[NDArray[Any]], on_weights: Callable[[Numbers], object] | None = None) -> Numbers:
        """Average arrays of the same shape as points, so that the average of distributions is a distribution.

        Parameters
        ----------
        values : sequence of array
            One array per client, at least one.
        on_weights : callable, optional
            A function that is called with the clients' weights (K,), 0 for a client that is left out. It is not called
            for "none".

        Returns
        -------
        array
            The average, of the same shape, float64. "median" is the geometric median. "trimmed" is the mean without the
            ``int(share * K)`` points farthest from the geometric median. "multikrum" is the mean of the `kept` points.

        Examples
        --------
        >>> values = [np.array([1.0, 0.0]), np.array([0.8, 0.2]), np.array([0.0, 1.0])]
        >>> [parse_robust(text).mixture(values).round(2).tolist() for text in ("none", "median", "trimmed:0.4")]
        [[0.6, 0.4], [0.8, 0.2], [0.9, 0.1]]
        """
        if self.form == "none":
            return self.mean(values)
        stack = np.stack(values).astype(np.float64)
        points = stack.reshape(len(stack), -1)
        weights = self.weights(points @ points.T)
        if on_weights:
            on_weights(weights)
        mixed: Numbers = np.tensordot(weights, stack, 1)
        return mixed

    def weights(self, products: Numbers) -> Numbers:
        """Return the weights for averaging K points of any space, given only their inner products.

        A weighted mean of positive semidefinite matrices is positive semidefinite; a coordinate-wise median may not be.

        Parameters
        ----------
        products : array
            The inner products of the points, of shape (K, K). For kernels under the Frobenius norm these are
            ``tr(K_i K_j)``.

        Returns
        -------
        array
            The weights, of shape (K,), in [0, 1], with sum 1. "none": 1 / K each. "median": the weights of the
            geometric median. "trimmed": 0 for the ``int(share * K)`` points farthest from the geometric median, equal
            for the others. "multikrum": equal for the points that it keeps, 0 for the others.
        """
        count = len(products)
        if self.form == "none":
            return np.full(count, 1 / count)
        if self.form == "multikrum":
            sizes = np.diag(products)
            kept = multikrum(sizes[:, None] + sizes - 2 * products, self.wrong)
            return cast(Numbers, kept / kept.sum())
        median = geometric_median(products)
        if self.form == "median":
            return median
        nearest = np.argsort(_distances(products, median), kind="stable")[: count - int(self.share * count)]
        weights = np.zeros(count)
        weights[nearest] = 1 / len(nearest)
        return weights


def parse_robust(text: str) -> Average:
    """Return the average that the key ``robust`` of an algorithm sets; raise ConfigError for any other value.

    - ``none``: the plain mean.
    - ``median``: robust if less than half of the averaged uploads are wrong. The median of two is their mean.
    - ``trimmed:SHARE``: robust if at most this share of the uploads is wrong, SHARE above 0 and below 0.5. With fewer
      than 1 / SHARE uploads, nothing is cut, and it is the mean.
    - ``multikrum:COUNT``: the mean without the COUNT uploads farthest from the others, in each round, even if all
      clients are honest; COUNT is 1 or more. Each upload is judged as a whole, so that a client which shares an array
      with only a few others cannot move it, as it can move a median of few. Of 2 COUNT uploads or fewer, less than half
      are left out, and this is logged.

    Examples
    --------
    >>> parse_robust("trimmed:0.2")
    Average(form='trimmed', share=0.2, wrong=0)
    """
    form, colon, value = text.partition(":")
    if form in ("none", "median") and not colon:
        return Average(cast(Literal["none", "median"], form))
    if form == "multikrum" and value.isascii() and value.isdecimal() and 0 < len(value) < 10 and int(value):
        return Average("multikrum", wrong=int(value))
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if form != "trimmed" or not 0 < share < 0.5:
        expected = "none, median, trimmed:SHARE, SHARE above 0 and below 0.5, or multikrum:COUNT, COUNT from 1 on"
        raise ConfigError(f"robust = {text!r}: expected {expected}")
    return Average("trimmed", share)


def weighted_mean(values: NDArray[Any], weights: Sequence[float], has: NDArray[np.bool_] | None = None) -> NDArray[Any]:
    """Return the weighted mean (...) of arrays (K, ...), in their dtype.

    Without `has`, it equals the mean of Flower's FedAvg, bit for bit. `has` (K, ...) tells whether a client has an
    entry: the mean of an entry is over the clients that have it, and 0 if none has.

    Examples
    --------
    >>> values, has = np.float32([[1, 4], [5, 8]]), np.array([[True, False], [True, True]])
    >>> weighted_mean(values, [3, 1]), weighted_mean(values, [3, 1], has)
    (array([2., 5.], dtype=float32), array([2., 8.], dtype=float32))
    """
    has = np.ones(values.shape, bool) if has is None else has
    total, mean = np.tensordot(weights, has, 1), np.zeros(values.shape[1:], values.dtype)
    for value, weight, its in zip(values, weights, has, strict=True):
        mean += value * (weight * its / np.where(total, total, 1)).astype(values.dtype)
    return mean


def geometric_median(products: Numbers) -> Numbers:
    """Return the weights (K,) of the geometric median as a mean of K points, given their inner products (K, K).

    Weiszfeld's iteration, smoothed as in Pillutla et al., Algorithm 2: each point is weighted by the inverse of its
    distance. The weights are above 0, with sum 1. On a line, the result is the median. For two points, or points with
    equal distances from each other, it is the mean.

    Examples
    --------
    >>> points = np.array([[0.0], [1.0], [90.0]])
    >>> (geometric_median(points @ points.T) @ points).round(3).tolist()
    [1.0]
    """
    smallest = max(1e-6 * float(np.sqrt(np.diag(products).max())), np.finfo(np.float64).tiny)
    weights = np.full(len(products), 1 / len(products))
    for _ in range(STEPS):
        pulls = smallest / np.maximum(_distances(products, weights), smallest)
        before, weights = weights, pulls / pulls.sum()
        if np.abs(weights - before).max() < 1e-9:
            break
    return weights


def multikrum(squares: Numbers, wrong: int) -> NDArray[np.bool_]:
    """Return which of K points Multi-Krum keeps (K,), given their squared distances (K, K).

    Blanchard et al., Section 4, with m = n - f: the score of a point is the sum of its squared distances to its
    ``K - wrong - 2`` nearest others, or to the nearest one if that number is not positive. The `wrong` points with the
    highest scores are left out, but always less than half of the points. Of equal scores the first are kept, as in
    Flower's MultiKrum. The paper's guarantee needs ``2 * wrong + 3`` points or more.

    Examples
    --------
    >>> points = np.array([0.0, 1.0, 2.0, 90.0])
    >>> multikrum((points[:, None] - points) ** 2, 1).tolist()
    [True, True, True, False]
    """
    count = len(squares)
    wrong = min(wrong, (count - 1) // 2)
    others = np.sort(np.nan_to_num(squares, nan=np.inf, posinf=np.inf) + np.diag(np.full(count, np.inf)), axis=1)
    scores = others[:, : max(1, count - wrong - 2)].sum(axis=1)
    kept = np.zeros(count, bool)
    kept[np.argsort(scores, kind="stable")[: count - wrong]] = True
    return kept


def _distances(products: Numbers, weights: Numbers) -> Numbers:
    """Return the distances (K,) of points from their weighted mean."""
    across = products @ weights
    return cast(Numbers, np.sqrt(np.maximum(np.diag(products) - 2 * across + weights @ across, 0.0)))
