"""How samples are shared out over clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator

IntArray = npt.NDArray[np.int64]
Chance = np.random.Generator

_LOGGER = getLogger(__name__)
_MIN_SAMPLES = 3  # of a client, so that train, validation and test get one each
_TRIES = 11  # draws of Dirichlet proportions until each client has these


class _Impossible(Exception):
    """Why rows cannot be shared out."""


@dataclass(frozen=True)
class Partition:
    """A way to share samples out over clients; see `parse_partition`.

    Parameters
    ----------
    form : str
        What stands before the first colon.
    values : tuple of int, float or str
        Its parameters.
    """

    form: str
    values: tuple[float | str, ...] = ()

    @property
    def column(self) -> str:
        """The column whose values say who a row belongs to; empty where that does not matter."""
        return str(self.values[0]) if self.form == "natural" else ""

    @property
    def by_file(self) -> bool:
        """Whether each file's rows belong together."""
        return self.form == "files"

    @property
    def by_owner(self) -> bool:
        """Whether rows belong to somebody: to a value of a column, or to a file."""
        return self.form in ("natural", "files")

    def __str__(self) -> str:
        """Return the text it was parsed from."""
        return ":".join((self.form, *(part if isinstance(part, str) else f"{part:g}" for part in self.values)))


def parse_partition(text: str) -> Partition:
    """Return the partition that a text names.

    Parameters
    ----------
    text : str
        One of

        - ``iid``: shuffled, then cut into equal parts;
        - ``dirichlet:ALPHA``: each class is shared out by proportions drawn from a symmetric Dirichlet
          distribution, ALPHA above 0 and at most 1e6 (low: few classes a client; high: near ``iid``);
        - ``classes:N``: N classes a client, the first in turn, the others at random;
        - ``ways:N:D:K``: N classes a client on average, at random, and K samples of each, which no other client has
          (n-way k-shot of Tan et al., FedProto, AAAI 2022): their number is drawn evenly from N - D, but 2, up to
          N + D, and the samples a class from K - D + 1 to K + D - 1;
        - ``shards:N``: sorted by label and cut into N equal shards a client, given out at random;
        - ``natural:COLUMN``: each value of the column owns its rows, and the owners, sorted, are assigned round-robin:
          of as many owners as clients each client is one;
        - ``files``: the same with the files of a folder, each of which owns its rows;
        - ``linear``, ``square``, ``exponential``: shuffled, then cut so that client k of 0..K-1 has a share
          proportional to k + 1, its square or its exponential, rounded down (the last client has what is left over);
          each client's mix of classes is near that of all rows;
        - ``all``: every row to every client, for nodes that each have a data folder of their own.

    Raises
    ------
    ConfigError
        If it is none of these.

    Examples
    --------
    >>> parse_partition("dirichlet:0.5")
    Partition(form='dirichlet', values=(0.5,))
    """
    name, _, rest = text.partition(":")
    try:
        form = _FORMS[name]
        parts = rest.split(":", len(form.types) - 1) if rest else []
        values = tuple(kind(part) for kind, part in zip(form.types, parts, strict=True))
        if form.valid(*values):
            return Partition(name, values)
    except (KeyError, ValueError):
        pass
    known = ", ".join(f"{name}{form.parameters}" for name, form in _FORMS.items())
    raise ConfigError(f"partition {text!r} is not one of: {known} (0 < ALPHA <= 1e6, whole numbers N >= 1)")


def split(
    labels: IntArray,
    partition: Partition,
    num_partitions: int,
    seed: int,
    *scope: int,
    owners: IntArray | None = None,
) -> tuple[IntArray, ...]:
    """Return the rows 0..N-1 of each of K clients in random order; no row is in two of them, save with "all".

    Parameters
    ----------
    labels : ndarray
        (N,) int64, the class of each row.
    partition : Partition
        How to share them out. "classes", "shards" and "ways" may leave rows unused, and a line says so.
    num_partitions, seed : int
        K, 1 or more, and the run's seed.
    *scope : int
        What else the draw is for: another scope is another draw.
    owners : ndarray, optional
        (N,) int64, whose each row is; only "natural" and "files" ask for it.
    """
    form, draw, rows = _FORMS[partition.form], generator(seed, "partition", *scope), len(labels)
    if partition.form == "all":
        return (draw.permutation(rows),) * num_partitions
    try:
        if num_partitions > rows:
            raise _Impossible(f"use {rows} clients or fewer")
        keys = _dealt(owners, partition, num_partitions) if partition.by_owner else labels
        parts: Sequence[IntArray]
        if form.shuffles:
            parts = _reshuffled(form.assign, keys, num_partitions, draw, *partition.values)
        else:
            parts = form.assign(keys, num_partitions, draw, *partition.values)
    except _Impossible as error:
        raise ConfigError(
            f"partition '{partition}' cannot share {rows} samples over {num_partitions} clients: {error}"
        ) from None
    if unused := rows - sum(map(len, parts)):
        _LOGGER.warning("partition '%s' leaves %d of %d samples unused", partition, unused, rows)
    return tuple(parts)


def _dealt(owners: IntArray | None, partition: Partition, num_partitions: int) -> IntArray:
    """Return to which client each row falls with its owner."""
    what = "files" if partition.by_file else "owners"
    if owners is None:
        raise _Impossible(f"the data set has no {what} of its own: use another partition")
    present, codes = np.unique(owners, return_inverse=True)
    if len(present) < num_partitions:
        raise _Impossible(f"they have {len(present)} {what}: use {len(present)} clients or fewer")
    if len(present) > num_partitions:
        _LOGGER.warning(
            "partition '%s' merges %d %s into %d clients: client k has those of numbers k, k + %d and so on; take %d "
            "clients for one each",
            *(partition, len(present), what, num_partitions, num_partitions, len(present)),
        )
    return codes % num_partitions


def _reshuffled(assign: "Assign", labels: IntArray, clients: int, draw: Chance, *values: float | str) -> list[IntArray]:
    """Assign rows that come in random order, and shuffle each client's once more."""
    order = draw.permutation(len(labels))
    chance = np.random.default_rng(int(draw.integers(2**32)))
    parts = assign(labels[order], clients, chance, *values)
    for part in parts:
        chance.shuffle(part)
    return [order[part] for part in parts]


def _equal(keys: IntArray, clients: int, draw: Chance) -> list[IntArray]:
    return np.array_split(draw.permutation(len(keys)), clients)


def _dirichlet(labels: IntArray, clients: int, chance: Chance, alpha: float) -> list[IntArray]:
    for _ in range(_TRIES):
        shares = list[list[IntArray]]()
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            ends = np.cumsum(chance.dirichlet([alpha] * clients)) * len(rows)
            shares.append(np.split(rows, ends.astype(int)[:-1]))
        parts = [np.concatenate(of_client) for of_client in zip(*shares, strict=True)]
        if min(map(len, parts)) >= _MIN_SAMPLES:
            return parts
    raise _Impossible(f"none of {_TRIES} draws gave each client {_MIN_SAMPLES}: use fewer clients or a higher ALPHA")


def _classes_of(labels: IntArray, wanted: float) -> IntArray:
    """Return the classes that are there, as many as are wanted or more."""
    present = np.unique(labels)
    if wanted > len(present):
        raise _Impossible(f"they have {len(present)} classes: use no more")
    return present


def _classes(labels: IntArray, clients: int, chance: Chance, count: int) -> list[IntArray]:
    present, parts = _classes_of(labels, count), [list[IntArray]() for _ in range(clients)]
    takers: dict[int, list[int]] = {label: [] for label in present.tolist()}
    for client in range(clients):
        own = {int(present[client % len(present)])}
        while len(own) < count:
            own.add(int(chance.choice(present, size=1)[0]))
        for label in own:
            takers[label].append(client)
    for label, taking in takers.items():
        rows = np.flatnonzero(labels == label)
        if len(taking) > len(rows):
            raise _Impossible(
                f"class {label} has {len(rows)} for {len(taking)} of them: use fewer clients or a lower N"
            )
        for client, some in zip(taking, np.array_split(rows, max(len(taking), 1)), strict=False):
            parts[client].append(some)
    return [np.concatenate(part) for part in parts]


def _shards(labels: IntArray, clients: int, chance: Chance, count: int) -> list[IntArray]:
    size = len(labels) // (clients * count)
    if not size:
        raise _Impossible(f"use at most {len(labels) // clients} shards a client")
    shards = np.argsort(labels, kind="stable")[: len(labels) // size * size].reshape(-1, size)
    given = chance.permutation(len(shards))[: clients * count].reshape(clients, count)
    return [shards[own].ravel() for own in given]


def _ways(labels: IntArray, clients: int, draw: Chance, ways: int, deviation: int, shots: int) -> list[IntArray]:
    present, slack = _classes_of(labels, ways), max(deviation - 1, 0)
    fewest, most = min(max(2, ways - deviation), ways), min(len(present), ways + deviation)
    left = {label: list(draw.permutation(np.flatnonzero(labels == label))) for label in present.tolist()}
    parts = []
    for client in range(clients):
        chosen = draw.choice(present, int(draw.integers(fewest, most + 1)), replace=False)
        each, rows = int(draw.integers(shots - slack, shots + slack + 1)), list[int]()
        for label in np.sort(chosen).tolist():
            if len(left[label]) < each:
                raise _Impossible(
                    f"class {label} has {len(left[label])} left for client {client}, which is to have {each}: "
                    "use fewer clients or a lower K"
                )
            rows += left[label][:each]
            del left[label][:each]
        parts.append(draw.permutation(np.array(rows, np.int64)))
    return parts


def _natural(keys: IntArray, clients: int, draw: Chance, column: str = "") -> list[IntArray]:
    order = draw.permutation(len(keys))
    return [order[keys[order] == client] for client in range(clients)]


def _growing(grows: np.ufunc, keys: IntArray, clients: int, draw: Chance) -> list[IntArray]:
    """Give each client a share that grows with its number."""
    with np.errstate(over="ignore"):
        units = grows(np.arange(1.0, clients + 1))
    most = int(np.count_nonzero(units[0] / np.cumsum(units) * len(keys) >= 1))
    if clients > most:
        raise _Impossible(f"the first client would have none: use {most} clients or fewer")
    ends = np.cumsum((units / units.sum() * len(keys)).astype(np.int64))[:-1]
    return np.split(draw.permutation(len(keys)), ends)


Assign = Callable[..., Sequence[IntArray]]
"""From the keys to go by (labels, or clients), number of clients, source of chance and parameters to their rows."""


class _Form(NamedTuple):
    """A form of partition: what assigns rows, what its parameters are, which of them will do, and who shuffles."""

    assign: Assign
    parameters: str = ""
    types: tuple[Callable[[str], Any], ...] = ()
    valid: Callable[..., bool] = lambda: True
    shuffles: bool = False


_FORMS = {
    "all": _Form(_equal),
    "iid": _Form(_equal),
    "dirichlet": _Form(_dirichlet, ":ALPHA", (float,), lambda alpha: 0 < alpha <= 1e6, shuffles=True),
    "classes": _Form(_classes, ":N", (int,), lambda count: count >= 1, shuffles=True),
    "shards": _Form(_shards, ":N", (int,), lambda count: count >= 1, shuffles=True),
    "ways": _Form(_ways, ":N:D:K", (int,) * 3, lambda n, d, k: n >= 1 and 0 <= d <= k and k >= 1 and n + k < 10**9),
    "files": _Form(_natural),
    "natural": _Form(_natural, ":COLUMN", (str,), bool),
    "linear": _Form(partial(_growing, np.positive)),
    "square": _Form(partial(_growing, np.square)),
    "exponential": _Form(partial(_growing, np.exp)),
}
