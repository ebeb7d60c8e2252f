"""The guard: sets aside an upload that is far larger than those of the other clients.

It is on by default and needs no tuning. It holds against uploads that are far too large: a client that has diverged,
uses another unit or scales what it sends. It does not hold against wrong uploads of the usual size; for these an
algorithm's ``robust`` is there.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from math import exp, inf, log, sqrt
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.common.files import as_json
from hetfl_flwr.wire.factors import product
from hetfl_flwr.wire.messages import EXAMPLES
from hetfl_flwr.wire.spec import TRAINED_SIZE, Arrays, PayloadSpec, learnt

MIN_KNOWN = 3
"""With fewer sizes than this, none of them is the odd one."""

ROWS_FACTOR = 1000.0
"""The factor for public samples, where a column of few rows may differ a lot, such as capital gains, and for numbers of
samples."""

MAX_SIZE = 100.0
"""Size above which an array is not taken before it can be compared."""

WIDEST = 30.0
"""Times the median up to which the clients' own spread, or few numbers, may widen the bound."""

MAX_MORE = 4.0
"""Times by which more training than the median client's may raise the bound, and by which few numbers may."""

DEVIATIONS = 3.0
"""Standard deviations, of the logarithms, within which a size is never far."""

SLIGHT = 0.05
"""Part of an array's own size up to which a change of it is not far where most clients do not change it at all."""

MAD_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""


class Size(NamedTuple):
    """How large one array of an upload is.

    Parameters
    ----------
    value : float
        Root mean square of its nonzero entries; of an `ArraySpec.update`, that of the nonzero changes. 0: all are zero.
    work : int
        How much training is behind it: of a change the square root of this round's samples, as a random walk grows,
        else the client's uploads so far, this one among them. 0: not counted yet.
    usual : float
        Values up to this are never far: `ArraySpec.usual`; of a change, see ``most``.
    numbers : int
        How many entries it is taken of. 0: of so many that it is exact.
    still : float
        Values up to this are not far where most clients' are 0: of a change, `SLIGHT` times the size of what was sent,
        or of 1 where only zeros were; else `MAX_SIZE`.
    most : float
        Of a change, the largest value among the client's uploads so far; else infinity. Values up to the median of it
        are never far: once training has settled, honest changes differ by more than the factor, and each may still be
        as large as most clients' have once been.
    """

    value: float
    work: float = 0
    usual: float = 0.0
    numbers: int = 0
    still: float = MAX_SIZE
    most: float = inf

    @property
    def error(self) -> float:
        """Standard deviation of the logarithm of ``value``, as of that many normal numbers."""
        return 1 / sqrt(2 * self.numbers) if self.numbers else 0.0


_NONE = Size(0.0, most=0.0)

Sizes = Mapping[str, Size]
"""The sizes of an upload's arrays, by name."""


class Guard:
    """Compares the sizes of uploads, array by array, with the newest sizes of all clients.

    With m the median of the newest sizes, one for each client, and s the standard deviation of their logarithms,
    estimated by 1.4826 times the median absolute deviation (Leys et al., Journal of Experimental Social Psychology
    2013), a size is far if it is above ``m * max(factor, min(exp(3 s), 30))`` and above `Size.usual`, or,
    of a change, the median of `Size.most`. The bound is raised by ``exp(3 / sqrt(2 n))``, four times and up
    to 30 m at most, where the size is taken of n entries: few numbers vary, such as the two of a bias.
    For a client with more training behind it than the median client the bound is raised in proportion, four times at
    most: what a client says of its training is held against the run config and its registered rows, and the rows are
    its own word. Sizes of 0 are left out of m and s. Where most clients have one, in arrays that do not learn, such as
    frozen layers and constant buffers, a size is far if it is above `Size.still`; where `MIN_KNOWN` clients or
    more are known, but fewer sizes are left, if it is above that and `MAX_SIZE`. Small sizes are never far: they move
    no mean.

    Fewer than half of the clients in m leave it among the honest sizes, whatever they send. So no size is taken that is
    above 120 times the largest honest one, or four times the factor where that is more, or `Size.usual`; up to there
    they can stretch the bound. Where honest sizes differ by more than the factor they can pull it down, too, to the
    factor times the smallest: then honest uploads are set aside. An array that fewer than `MIN_KNOWN` clients have at
    all is not compared.

    Parameters
    ----------
    factor : float
        1 or more. 0: the guard is off.

    Attributes
    ----------
    newest : dict
        The sizes of each client's newest upload that was not set aside, by client. Part of a checkpoint: see `counts`.

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
        """Return the clients whose uploads are far from the others', each with the reason.

        Parameters
        ----------
        came : mapping
            The sizes of new uploads, by client: those of a round, or the one that has come.
        others_follow : bool
            Whether sizes of more clients are still to come, so that it pays to take no risk: until `MIN_KNOWN` are
            known, a size above `MAX_SIZE` is far, too, and known from then on.
        """
        if self.factor == 0 or not came:
            return {}
        came = self._counted(came)
        all_sizes = {**self.newest, **came}
        reasons: dict[int, str] = {}
        unknown = others_follow and len(all_sizes) < MIN_KNOWN
        for name, sizes in _by_array(all_sizes).items():
            near = -1.0 if unknown else self._near([one.value for one in sizes.values()])
            doubtful = [client for client in came.keys() & sizes.keys() - reasons.keys() if sizes[client].value > near]
            known = _Known.of(sizes.values()) if doubtful else None
            for client in doubtful:
                if known and (reason := self._far(sizes[client], known, unknown=unknown)):
                    reasons[client] = f"array '{name}' has {reason}"
        self.newest |= {client: sizes for client, sizes in came.items() if unknown or client not in reasons}
        return dict(sorted(reasons.items()))

    def _near(self, values: list[float]) -> float:
        """Return a value up to which none of some sizes is far, found out faster than `_far` does; below 0: unknown."""
        heard = sorted([value for value in values if value > 0])
        count = len(heard)
        if count < MIN_KNOWN or 2 * count < len(values):
            return -1.0
        return 0.999 * self.factor * sqrt(heard[(count - 1) // 2]) * sqrt(heard[count // 2])

    def _counted(self, came: Mapping[int, Sizes]) -> dict[int, Sizes]:
        """Return sizes with these uploads counted among each client's."""
        counted: dict[int, Sizes] = {}
        for client, sizes in came.items():
            before, now = self.newest.get(client, {}), dict[str, Size]()
            for name, (value, work, usual, numbers, still, most) in sizes.items():
                last = before.get(name, _NONE)
                now[name] = Size(value, work or 1 + last.work, usual, numbers, still, max(most, last.most))
            counted[client] = now
        return counted

    def keep(self, clients: Set[int]) -> None:
        """Forget the sizes of clients that are not there any more."""
        if not self.newest.keys() <= clients:
            self.newest = {client: sizes for client, sizes in self.newest.items() if client in clients}

    def counts(self) -> dict[int, dict[str, list[float | str]]]:
        """Return `newest` as JSON can hold it."""
        return {
            client: {name: [as_json(number) for number in size] for name, size in sizes.items()}
            for client, sizes in self.newest.items()
        }

    def restore(self, counts: Mapping[int, Mapping[str, Sequence[Any]]]) -> None:
        """Take up what `counts` has returned."""
        self.newest = {
            client: {name: Size(*map(_from_json, size)) for name, size in sizes.items()}
            for client, sizes in counts.items()
        }

    def _far(self, size: Size, known: "_Known", *, unknown: bool) -> str | None:
        if unknown and size.value > MAX_SIZE:
            return f"size {size.value:.3g}, more than {MAX_SIZE:g}, and too few clients are known to compare it with"
        if known.clients >= MIN_KNOWN and 2 * known.heard < known.clients:
            return f"size {size.value:.3g}, and most clients' is 0" if size.value > size.still else None
        if known.clients >= MIN_KNOWN > known.heard and size.value > (most := max(MAX_SIZE, size.still)):
            return f"size {size.value:.3g}, more than {most:.3g}, and too few clients' is not 0 to compare it with"
        if known.heard < MIN_KNOWN or size.value <= min(size.usual, known.most):
            return None
        more = min(max(1.0, size.work / known.work), MAX_MORE) if known.work else 1.0
        distance = log(size.value) - known.middle
        spread = max(log(self.factor), min(DEVIATIONS * known.deviation, log(WIDEST)))
        inexact = min(DEVIATIONS * size.error, log(MAX_MORE))
        bound = max(spread, min(spread + inexact, log(WIDEST)))
        if distance <= bound + log(more):
            return None
        return f"size {size.value:.3g}, {exp(distance):.3g} times the clients' median {exp(known.middle):.3g}"


class _Known(NamedTuple):
    """What all clients' newest sizes of an array come to; medians of those that are not 0, where they are enough."""

    clients: int
    heard: int
    most: float = inf
    work: float = 0.0
    middle: float = 0.0
    deviation: float = 0.0

    @classmethod
    def of(cls, sizes: Collection[Size]) -> Self:
        """Compute it. Middle and deviation are of the logarithms."""
        heard = [one for one in sizes if one.value > 0]
        if len(heard) < MIN_KNOWN:
            return cls(len(sizes), len(heard))
        logs = np.log([one.value for one in heard])
        middle = float(np.median(logs))
        deviation = MAD_TO_DEVIATION * float(np.median(np.abs(logs - middle)))
        most = float(np.median([one.most for one in sizes if one.most > 0]))
        return cls(len(sizes), len(heard), most, float(np.median([one.work for one in heard])), middle, deviation)


def _from_json(number: Any) -> Any:
    return float(number) if isinstance(number, str) else number


class Guards:
    """The guards of a run, each of one kind of numbers.

    Parameters
    ----------
    factor : float
        ``outlier-factor`` of the run config. 0: they are off.

    Attributes
    ----------
    uploads : Guard
        Of the sizes of uploads.
    rows : Guard
        Of public samples.
    claims, tests : Guard
        Of ``num-examples`` of training, and of evaluations.
    """

    def __init__(self, factor: float) -> None:
        self.uploads = Guard(factor)
        self.rows, self.claims, self.tests = (Guard(ROWS_FACTOR if factor else 0.0) for _ in range(3))

    def reject_outliers(
        self, sizes: Mapping[int, Sizes], trained: Mapping[int, int], tested: Mapping[int, int], here: Set[int]
    ) -> dict[int, str]:
        """Return the clients whose replies are far from the others', each with the reason.

        Parameters
        ----------
        sizes : mapping
            Of new uploads, by client.
        trained, tested : mapping of int to int
            ``num-examples`` of new replies, by client.
        here : set of int
            The clients that are there.
        """
        for guard in (self.uploads, self.claims, self.tests):
            guard.keep(here)
        far = self.claims.reject_outliers(_claimed(trained)) | self.tests.reject_outliers(_claimed(tested))
        near = {client: one for client, one in sizes.items() if client not in far}
        return far | self.uploads.reject_outliers(near, others_follow=len(here) >= MIN_KNOWN)

    def counts(self) -> dict[str, dict[int, Any]]:
        """Return what is known of each client, as JSON can hold it."""
        return {"sizes": self.uploads.counts(), "claims": self.claims.counts(), "tests": self.tests.counts()}

    def restore(self, counts: Mapping[str, Mapping[int, Any]]) -> None:
        """Take up what `counts` has returned."""
        self.uploads.restore(counts["sizes"])
        self.claims.restore(counts["claims"])
        self.tests.restore(counts["tests"])


def _claimed(samples: Mapping[int, int]) -> dict[int, Sizes]:
    return {client: {EXAMPLES: Size(number)} for client, number in samples.items()}


def _by_array(uploads: Mapping[int, Sizes]) -> dict[str, dict[int, Size]]:
    """Return the sizes of each array by client, without the clients that have sent zeros alone."""
    found: dict[str, dict[int, Size]] = {}
    for client, sizes in uploads.items():
        if any([size.value > 0 for size in sizes.values()]):  # noqa: C419  # a list is faster here
            for name, size in sizes.items():
                found.setdefault(name, {})[client] = size
    return found


def measure(upload: Arrays, spec: PayloadSpec, sent: Arrays, samples: int) -> dict[str, Size]:
    """Return the sizes of an upload's arrays: of all that hold amounts, not numbers of rows or distributions.

    A matrix is measured as what it comes to, whether it has come whole or as factors.

    Parameters
    ----------
    upload, sent : mapping of str to array
        What a client has sent, and what it was sent for that.
    spec : PayloadSpec
        The upload's declaration.
    samples : int
        How many samples the client has trained on, repeats included.
    """
    sizes = {}
    factors = {name for one in spec.arrays for name in one.factors}
    for one in spec.arrays:
        if not one.is_amount or one.name in factors:
            continue
        values = upload[one.name].astype(np.float64)
        if one.factors and not len(values):
            values = product(*(upload[name] for name in one.factors))
        if one.update and one.name in sent:
            before = sent[one.name].astype(np.float64)
            work = sqrt(max(samples, 1))  # 0 would be that of an upload whose client's uploads are counted instead
            change = _size(values - before, work, inf, SLIGHT * (root_mean_square(before) or 1.0))
            sizes[one.name] = change._replace(most=change.value)
        else:
            sizes[one.name] = _size(values, usual=0.0 if one.update else one.usual)
    return sizes


class Gauge:
    """Measures uploads of one declaration, as `measure`.

    Parameters
    ----------
    spec : PayloadSpec
        The declaration.
    """

    def __init__(self, spec: PayloadSpec) -> None:
        self._spec = spec
        self._plain = not any(one.factors for one in spec.arrays)
        self._amounts = [
            (one.name, one.update, 0.0 if one.update else one.usual) for one in spec.arrays if one.is_amount
        ]

    def __call__(self, upload: Arrays, sent: Arrays, samples: int, measured: dict[int, float]) -> dict[str, Size]:
        """Measure an upload, in the precision of its arrays.

        Parameters
        ----------
        upload, sent, samples
            As there.
        measured : dict
            Remembers how large the arrays are that many were sent, by their ids.
        """
        sizes, work = dict[str, Size](), sqrt(max(samples, 1))
        for name, update, usual in self._amounts:
            values, before = upload[name], sent.get(name) if update else None
            if not self._plain or values.dtype != np.float32:
                return measure(upload, self._spec, sent, samples)
            if before is not None:
                values = values - before
                still = measured.get(id(before))
                if still is None:
                    still = SLIGHT * (root_mean_square(before.astype(np.float64)) or 1.0)
                    measured[id(before)] = still
            count = int(np.count_nonzero(values))
            square = float(np.add.reduce(np.square(values), None, np.float64))
            if count and not 0 < square < inf:
                return measure(upload, self._spec, sent, samples)
            value = sqrt(square / count) if count else 0.0
            sizes[name] = (
                Size(value, 0, usual, count) if before is None else Size(value, work, inf, count, still or 0.0, value)
            )
        return sizes


def measure_learnt(name: str, values: NDArray[Any]) -> dict[str, Size]:
    """Return the size of an array that somebody has learnt, as `measure`; what is not finite counts as infinite."""
    spec = PayloadSpec((learnt(name, values.shape, usual=TRAINED_SIZE),))
    return measure({name: np.where(np.isfinite(values), values, np.inf)}, spec, {}, 0)


def _size(values: NDArray[np.float64], work: float = 0, usual: float = 0.0, still: float = MAX_SIZE) -> Size:
    return Size(root_mean_square(values), work, usual, int(np.count_nonzero(values)), still)


def measure_rows(inputs: NDArray[Any]) -> dict[str, Size]:
    """Return the sizes of public samples (N, *shape): of each column of a table, of other numbers as a whole.

    Bytes of pixels and tokens have none: they are bounded.
    """
    if inputs.dtype.kind != "f":
        return {}
    values = inputs.astype(np.float64)
    if values.ndim != 2:
        return {"inputs": Size(root_mean_square(values), still=inf)}
    squares, filled = np.square(values).sum(0), np.maximum((values != 0).sum(0), 1)
    sizes = np.sqrt(squares / filled).tolist()
    return {f"inputs, column {column}": Size(size, still=inf) for column, size in enumerate(sizes)}


def root_mean_square(values: NDArray[Any]) -> float:
    """Return the root mean square of the entries that are not zero, by which arrays are compared; 0 of none."""
    nonzero = values[values != 0]
    return float(np.sqrt(np.mean(np.square(nonzero)))) if nonzero.size else 0.0
