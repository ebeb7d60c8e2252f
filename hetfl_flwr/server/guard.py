"""The guard: rejects an upload that is far larger than those of the other clients.

It is on by default and needs no tuning. It protects against uploads that are far too large: from a client that has
diverged, uses another unit or scales its upload. It does not protect against wrong uploads of the usual size: for these
an algorithm has ``robust``.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from functools import cached_property
from itertools import islice
from math import exp, inf, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.common.files import as_json
from hetfl_flwr.wire.factors import product
from hetfl_flwr.wire.spec import TRAINED_SIZE, Arrays, PayloadSpec, learnt

MIN_KNOWN = 3
"""Minimum number of sizes for a comparison."""

MAX_KNOWN = 1000
"""Maximum number of clients, the latest ones, whose sizes are kept for comparison; all clients of a round are kept."""

ROWS_FACTOR = 1000.0
"""The factor for public samples, where a column of few rows may differ a lot, such as capital gains, and for numbers of
samples."""

MAX_SIZE = 100.0
"""Size above which an array is rejected before it can be compared."""

WIDEST = 30.0
"""Limit of the bound, in medians, if the clients' spread or few numbers widen it."""

MAX_MORE = 4.0
"""Limit of the factor by which more training than the median client's, or few numbers, raise the bound."""

DEVIATIONS = 3.0
"""Standard deviations of the logarithms within which a size is never an outlier."""

SLIGHT = 0.05
"""Fraction of an array's size up to which a change is not an outlier if most clients do not change it at all."""

TINY = 1e-30
"""Sums of squares in single precision are inexact up to this value."""

MAD_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""


class Size(NamedTuple):
    """How large one array of an upload is."""

    value: float
    """Root mean square of its nonzero entries; of an `ArraySpec.update`, that of the nonzero changes. 0: all are zero.
    """
    work: float = 0
    """The amount of training behind it: of a change the square root of this round's samples, as a random walk grows,
    else the client's uploads so far, this one among them. 0: not counted yet.
    """
    usual: float = 0.0
    """Values up to this are never outliers: `ArraySpec.usual`; of a change, see ``most``."""
    numbers: int = 0
    """The number of entries that it is computed from. 0: so many that it is exact."""
    still: float = MAX_SIZE
    """Values up to this are no outliers where most clients' are 0: of a change, `SLIGHT` times the size of what was
    sent, or of 1 where only zeros were; else `MAX_SIZE`.
    """
    most: float = inf
    """Of a change, the largest value among the client's uploads so far; else infinity. Values up to its median
    are never outliers: once training has settled, honest changes differ by more than the factor, and each may still be
    as large as those of most clients were earlier.
    """

    @property
    def error(self) -> float:
        """Standard deviation of the logarithm of ``value``, as of that many normal numbers."""
        return 1 / sqrt(2 * self.numbers) if self.numbers else 0.0


Sizes = Mapping[str, Size]
"""The sizes of an upload's arrays, by name."""


class Guard:
    """Compares the sizes of uploads, array by array, with the newest sizes of the clients that have uploaded last.

    It keeps the sizes of `MAX_KNOWN` clients, or of all clients of a round, if these are more.

    With m the median of the newest sizes, one for each client, and s the standard deviation of their logarithms,
    estimated by 1.4826 times the median absolute deviation (Leys et al., Journal of Experimental Social Psychology
    2013), a size is an outlier if it is above ``m * max(factor, min(exp(3 s), 30))`` and above `Size.usual`, or,
    of a change, the median of `Size.most`. The bound is raised by ``exp(3 / sqrt(2 n))``, four times and up
    to 30 m at most, where the size is taken of n entries: few numbers vary, such as the two of a bias.
    For a client with more training behind it than the median client the bound is raised in proportion, four times at
    most: the amount of training that a client reports is checked against the run config and its registered rows, and
    the rows are its own word. Sizes of 0 are left out of m and s. Where most clients have one, in arrays that do not
    learn, such as frozen layers and constant buffers, a size is an outlier if it is above `Size.still`; where
    `MIN_KNOWN` clients or more are known, but fewer sizes are left, if it is above that and `MAX_SIZE`. Small sizes are
    never outliers: they move no mean.

    Fewer than half of the clients in m leave it among the honest sizes, whatever they send. So no size is taken that is
    above 120 times the largest honest one, or four times the factor where that is more, or `Size.usual`; up to there
    they can stretch the bound. Where honest sizes differ by more than the factor they can pull it down, too, to the
    factor times the smallest: then honest uploads are left out. An array that fewer than `MIN_KNOWN` clients have at
    all is not compared.

    Parameters
    ----------
    factor : float
        1 or more. 0: the guard is off.

    Attributes
    ----------
    newest : dict
        The sizes of each client's newest accepted upload, by client, the most recent last. Part of a
        checkpoint: see `counts`.

    Examples
    --------
    >>> guard = Guard(5.0)
    >>> guard.reject_outliers({client: {"logits": Size(2.0 + client)} for client in range(3)})
    {}
    >>> guard.reject_outliers({1: {"logits": Size(900.0)}})
    {1: "array 'logits' has size 900, 225 times the clients' median 4"}
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.newest: dict[int, Sizes] = {}

    def reject_outliers(self, came: Mapping[int, Sizes], *, others_follow: bool = False) -> dict[int, str]:
        """Return the clients whose uploads are outliers, each with the reason.

        Parameters
        ----------
        came : mapping
            The sizes of new uploads, by client: those of a round, or of a single upload.
        others_follow : bool
            Whether sizes of more clients are still to come: then, until `MIN_KNOWN` are
            known, a size above `MAX_SIZE` is an outlier, too, and known from then on.
        """
        if self.factor == 0 or not came:
            return {}
        came = {client: self._counted(client, sizes) for client, sizes in came.items()}
        everybody = {client: sizes for client, sizes in {**self.newest, **came}.items() if _has_learnt(sizes)}
        early = others_follow and len({**self.newest, **came}) < MIN_KNOWN
        reasons: dict[int, str] = {}
        for name in dict.fromkeys(name for sizes in everybody.values() for name in sizes):
            known = _Known([sizes[name] for sizes in everybody.values() if name in sizes], self.factor, early=early)
            for client in came.keys() & everybody.keys() - reasons.keys():
                size = came[client].get(name)
                if size is not None and size.value > known.near and (reason := known.far(size)):
                    reasons[client] = f"array '{name}' has size {size.value:.3g}, {reason}"
        taken = {client: sizes for client, sizes in came.items() if early or client not in reasons}
        before = {client: sizes for client, sizes in self.newest.items() if client not in taken}
        over = max(len(before) + len(taken) - max(MAX_KNOWN, len(taken)), 0)
        self.newest = {**dict(islice(before.items(), over, None)), **taken}
        return dict(sorted(reasons.items()))

    def _counted(self, client: int, sizes: Sizes) -> Sizes:
        """Return the sizes of an upload, with the client's uploads so far taken into account."""
        before = self.newest.get(client, {})
        counted = dict[str, Size]()
        for name, (value, work, usual, numbers, still, most) in sizes.items():
            last = before.get(name) or Size(0.0, most=0.0)
            counted[name] = Size(value, work or 1 + last.work, usual, numbers, still, max(most, last.most))
        return counted

    def keep(self, clients: Set[int]) -> None:
        """Drop the sizes of clients that have left."""
        if not self.newest.keys() <= clients:
            self.newest = {client: sizes for client, sizes in self.newest.items() if client in clients}

    def counts(self) -> dict[int, dict[str, list[float | str]]]:
        """Return `newest` as JSON can hold it."""
        return {
            client: {name: [as_json(number) for number in size] for name, size in sizes.items()}
            for client, sizes in self.newest.items()
        }

    def restore(self, counts: Mapping[int, Mapping[str, Sequence[Any]]]) -> None:
        """Restore what `counts` has returned."""
        self.newest = {
            client: {name: _from_json(size) for name, size in sizes.items()} for client, sizes in counts.items()
        }


def _from_json(size: Sequence[Any]) -> Size:
    value, work, usual, numbers, still, most = (float(one) if isinstance(one, str) else one for one in size)
    return Size(value, work, usual, int(numbers), still, most)


class _Known:
    """All clients' newest sizes of one array, and which sizes are outliers."""

    def __init__(self, sizes: Collection[Size], factor: float, *, early: bool) -> None:
        self.sizes, self.factor, self.early = sizes, factor, early
        self.heard = sorted([one.value for one in sizes if one.value > 0])

    @property
    def near(self) -> float:
        """A value up to which no size is an outlier, for a fast check. Below 0: unknown."""
        count = len(self.heard)
        if self.early or count < MIN_KNOWN or 2 * count < len(self.sizes):
            return -1.0
        return 0.999 * self.factor * sqrt(self.heard[(count - 1) // 2]) * sqrt(self.heard[count // 2])

    def far(self, size: Size) -> str | None:
        """Return why a size is an outlier; None where it is not."""
        clients, heard = len(self.sizes), len(self.heard)
        if self.early and size.value > MAX_SIZE:
            return f"more than {MAX_SIZE:g}, and too few clients are known to compare it with"
        if clients >= MIN_KNOWN and 2 * heard < clients:
            return "and most clients' is 0" if size.value > size.still else None
        if clients >= MIN_KNOWN > heard and size.value > (most := max(MAX_SIZE, size.still)):
            return f"more than {most:.3g}, and too few clients have a size above 0 to compare it with"
        if heard < MIN_KNOWN or size.value <= min(size.usual, self._most):
            return None
        middle, deviation, work = self._spread
        more = min(max(1.0, size.work / work), MAX_MORE) if work else 1.0
        distance = log(size.value) - middle
        spread = max(log(self.factor), min(DEVIATIONS * deviation, log(WIDEST)))
        inexact = min(DEVIATIONS * size.error, log(MAX_MORE))
        bound = max(spread, min(spread + inexact, log(WIDEST)))
        if distance <= bound + log(more):
            return None
        return f"{exp(distance):.3g} times the clients' median {exp(middle):.3g}"

    @cached_property
    def _most(self) -> float:
        """The median of the clients' largest values so far."""
        return float(np.median([one.most for one in self.sizes if one.most > 0]))

    @cached_property
    def _spread(self) -> tuple[float, float, float]:
        """The median and deviation of the logarithms of sizes that are not 0, and the median work behind them."""
        logs = np.log(self.heard)
        middle = float(np.median(logs))
        deviation = MAD_TO_DEVIATION * float(np.median(np.abs(logs - middle)))
        return middle, deviation, float(np.median([one.work for one in self.sizes if one.value > 0]))


def _has_learnt(sizes: Sizes) -> bool:
    """Return whether an upload has nonzero entries: else it is not compared."""
    return any([size.value > 0 for size in sizes.values()])  # noqa: C419  # a list is faster here


def measure(
    upload: Arrays, spec: PayloadSpec, sent: Arrays, samples: int, known: dict[int, float] | None = None
) -> dict[str, Size]:
    """Return the sizes of an upload's arrays: of those that hold amounts, not row numbers or distributions.

    A matrix that is sent as factors is measured as their product.

    Parameters
    ----------
    upload, sent : mapping of str to array
        What a client has sent, and what it had been sent before.
    spec : PayloadSpec
        The upload's declaration.
    samples : int
        How many samples the client has trained on, repeats included.
    known : dict, optional
        Caches `Size.still` of arrays that several clients were sent, by their ids.
    """
    sizes, known, work = dict[str, Size](), {} if known is None else known, sqrt(max(samples, 1))  # 0: not counted yet
    for one in spec.amounts:
        values: NDArray[Any] = upload[one.name]
        if one.factors and not len(values):
            values = product(*(upload[name] for name in one.factors))
        before = sent.get(one.name) if one.update else None
        if before is None:
            size, count = _magnitude(values)
            sizes[one.name] = Size(size, 0, 0.0 if one.update else one.usual, count)
            continue
        if id(before) not in known:
            known[id(before)] = SLIGHT * (root_mean_square(before) or 1.0)
        exact = values if values.dtype == before.dtype == np.float32 else values.astype(np.float64)
        size, count = _magnitude(exact - before)
        sizes[one.name] = Size(size, work, inf, count, known[id(before)], size)
    return sizes


def measure_learnt(name: str, values: NDArray[Any]) -> dict[str, Size]:
    """Return the size of a learned array, as `measure`; values that are not finite count as infinite."""
    spec = PayloadSpec((learnt(name, values.shape, usual=TRAINED_SIZE),))
    return measure({name: np.where(np.isfinite(values), values, np.inf)}, spec, {}, 0)


def measure_rows(inputs: NDArray[Any]) -> dict[str, Size]:
    """Return the sizes of public samples (N, *shape): of each column of a table, of other numbers together.

    Pixels and tokens are bounded and have no size.
    """
    if inputs.dtype.kind != "f":
        return {}
    if inputs.ndim != 2:
        return {"inputs": Size(root_mean_square(inputs), still=inf)}
    sizes = map(root_mean_square, inputs.T)
    return {f"inputs, column {column}": Size(size, still=inf) for column, size in enumerate(sizes)}


def root_mean_square(values: NDArray[Any]) -> float:
    """Return the root mean square of the entries that are not zero, by which arrays are compared; 0 of none."""
    return _magnitude(values)[0]


def _magnitude(values: NDArray[Any]) -> tuple[float, int]:
    """Return the root mean square of the entries that are not zero, and how many these are."""
    if values.dtype != np.float32:
        values = values.astype(np.float64)
    count = values.size if values.all() else int(np.count_nonzero(values))  # the first takes a quarter of the time
    square = float(np.add.reduce(np.square(values), None))
    if count and values.dtype == np.float32 and not TINY < square < inf:  # float32 has no such squares
        square = float(np.add.reduce(np.square(values, dtype=np.float64), None))
    return (sqrt(square / count) if count else 0.0), count
