"""How samples are shared out over clients."""

from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger

import numpy as np
import numpy.typing as npt

from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator

IntArray = npt.NDArray[np.int64]
Parts = tuple[IntArray, ...]

_LOGGER = getLogger(__name__)
_MOST = 10**9  # classes or samples that a text may ask for
_MIN_SAMPLES = 3  # of a client, so that train, validation and test get one each
_TRIES = 11  # draws of Dirichlet proportions until each client has these


@dataclass(frozen=True)
class Partition:
    """A way to share samples out over clients; see `parse_partition`.

    Parameters
    ----------
    form : str
        What stands before the colon.
    value : float, str or tuple of int
        Concentration of the Dirichlet distribution, or classes or shards a client; 0 for the forms without a value.
        Of "natural" the column; of "ways" classes a client, their deviation, and samples a class.
    """

    form: str
    value: float | str | tuple[int, int, int] = 0

    @property
    def column(self) -> str:
        """The column whose values say who a row belongs to; empty where that does not matter."""
        return self.value if isinstance(self.value, str) else ""

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
        parts = self.value if isinstance(self.value, tuple) else (self.value,)
        value = ":".join(part if isinstance(part, str) else f"{part:g}" for part in parts)
        return f"{self.form}:{value}" if self.value else self.form


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
    Partition(form='dirichlet', value=0.5)
    """
    name, _, value = text.partition(":")
    try:
        return Partition(name, _FORMS[name][0](value))
    except (KeyError, ValueError):
        raise ConfigError(
            f"partition {text!r} is not one of: "
            "iid, dirichlet:ALPHA (0 < ALPHA <= 1e6), classes:N, shards:N (N >= 1), ways:N:D:K, natural:COLUMN, "
            "files, linear, square, exponential, all"
        ) from None


def split(
    labels: IntArray,
    partition: Partition,
    num_partitions: int,
    seed: int,
    *scope: int,
    owners: IntArray | None = None,
) -> Parts:
    """Return the rows of every partition, each in random order; no row is in two of them, save with "all".

    Parameters
    ----------
    labels : ndarray
        (N,) int64, the class of each row.
    partition : Partition
        How to share them out. "classes" leaves out the classes that fall to no client, "shards" what is left over
        when N rows are cut into equal shards, "ways" what nobody was to have; the others give out every row.
    num_partitions : int
        K, the number of clients, 1 or more.
    seed : int
        The run's seed, 0 or more.
    *scope : int
        What else the draw is for: another scope is another draw.
    owners : ndarray, optional
        (N,) int64, whose each row is; only "natural" and "files" ask for it.

    Returns
    -------
    tuple of ndarray
        K arrays of row numbers 0..N-1, int64.

    Raises
    ------
    ConfigError
        If there are fewer rows or owners than clients, or the partition cannot be met.
    """
    draw = generator(seed, "partition", *scope)
    if partition.form == "all":
        return (draw.permutation(len(labels)),) * num_partitions
    if num_partitions > len(labels):
        raise ConfigError(
            f"{num_partitions} clients cannot share {len(labels)} samples: use {len(labels)} clients or fewer"
        )
    keys = _dealt(owners, partition, num_partitions) if partition.by_owner else labels
    parts = _FORMS[partition.form][1](keys, partition, num_partitions, draw)
    if unused := len(labels) - sum(map(len, parts)):
        _LOGGER.warning("partition '%s' leaves %d of %d samples unused", partition, unused, len(labels))
    return parts


def _dealt(owners: IntArray | None, partition: Partition, num_partitions: int) -> IntArray:
    """Return to which client each row falls with its owner."""
    what = "files" if partition.by_file else "owners"
    if owners is None:
        lacks = "is no folder or file of your own" if partition.by_file else "has no columns"
        raise ConfigError(
            f"partition '{partition}': the data set {lacks}, so nobody owns its rows: use another partition"
        )
    present, codes = np.unique(owners, return_inverse=True)
    if len(present) < num_partitions:
        raise ConfigError(
            f"partition '{partition}': {num_partitions} clients cannot share {len(present)} {what}: "
            f"use {len(present)} clients or fewer"
        )
    if len(present) > num_partitions:
        _LOGGER.warning(
            "partition '%s' merges %d %s into %d clients: client k has those of numbers k, k + %d and so on; take %d "
            "clients for one each",
            *(partition, len(present), what, num_partitions, num_partitions, len(present)),
        )
    return codes % num_partitions


def _impossible(keys: IntArray, partition: Partition, clients: int) -> ConfigError:
    return ConfigError(
        f"partition '{partition}' cannot share {len(keys)} samples over {clients} clients: "
        "use fewer clients, or a more even partition (a higher ALPHA, a lower N)"
    )


def _shuffled(keys: IntArray, draw: np.random.Generator) -> tuple[IntArray, IntArray, np.random.Generator]:
    """Return all rows in random order, their keys, and a source of chance of its own for what follows."""
    order = draw.permutation(len(keys))
    return order, keys[order], np.random.default_rng(int(draw.integers(2**32)))


def _equal(keys: IntArray, partition: Partition, clients: int, draw: np.random.Generator) -> Parts:
    return tuple(np.array_split(draw.permutation(len(keys)), clients))


def _dirichlet(keys: IntArray, partition: Partition, clients: int, draw: np.random.Generator) -> Parts:
    order, labels, chance = _shuffled(keys, draw)
    for _ in range(_TRIES):
        parts: list[list[IntArray]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            rows, shares = np.flatnonzero(labels == label), chance.dirichlet([float(str(partition.value))] * clients)
            for part, own in zip(parts, np.split(rows, (np.cumsum(shares) * len(rows)).astype(int)[:-1]), strict=True):
                part.append(own)
        whole = [np.concatenate(part) for part in parts]
        if min(map(len, whole)) >= _MIN_SAMPLES:
            return _reordered(whole, order, chance)
    raise _impossible(keys, partition, clients)


def _reordered(parts: list[IntArray], order: IntArray, chance: np.random.Generator) -> Parts:
    for part in parts:
        chance.shuffle(part)
    return tuple(order[part] for part in parts)


def _classes(keys: IntArray, partition: Partition, clients: int, draw: np.random.Generator) -> Parts:
    present, wanted = _present(keys, partition, int(str(partition.value)))
    order, labels, chance = _shuffled(keys, draw)
    chosen: list[list[int]] = []
    for client in range(clients):
        own = [present[client % len(present)]]
        while len(own) < wanted:
            if (label := chance.choice(present, size=1)[0]) not in own:
                own.append(label)
        chosen.append(own)
    parts: list[list[IntArray]] = [[] for _ in range(clients)]
    for label in present:
        rows, takers = np.flatnonzero(labels == label), [number for number, own in enumerate(chosen) if label in own]
        if len(takers) > len(rows):
            raise _impossible(keys, partition, clients)
        for client, some in zip(takers, np.array_split(rows, max(len(takers), 1)), strict=False):
            parts[client].append(some)
    return _reordered([np.concatenate(part) for part in parts], order, chance)


def _present(keys: IntArray, partition: Partition, wanted: int) -> tuple[IntArray, int]:
    """Return the classes that are there, and how many of them each client is to have."""
    present = np.unique(keys)
    if wanted > len(present):
        raise ConfigError(f"partition '{partition}': the data has {len(present)} classes, ask for no more")
    return present, wanted


def _shards(keys: IntArray, partition: Partition, clients: int, draw: np.random.Generator) -> Parts:
    most, wanted = len(keys) // clients, int(str(partition.value))
    if wanted > most:
        raise ConfigError(
            f"partition '{partition}': {len(keys)} samples over {clients} clients make at most {most} shards a client"
        )
    order, labels, chance = _shuffled(keys, draw)
    size = len(keys) // (clients * wanted)
    shards = np.argsort(labels, kind="stable")[: len(keys) // size * size].reshape(-1, size)
    given = chance.permutation(len(shards))[: clients * wanted].reshape(clients, wanted)
    return _reordered([shards[own].ravel() for own in given], order, chance)


def _natural(keys: IntArray, partition: Partition, clients: int, draw: np.random.Generator) -> Parts:
    order = draw.permutation(len(keys))
    return tuple(order[keys[order] == client] for client in range(clients))


def _ways(keys: IntArray, partition: Partition, clients: int, draw: np.random.Generator) -> Parts:
    assert isinstance(partition.value, tuple)
    ways, deviation, shots = partition.value
    present, slack = _present(keys, partition, ways)[0], max(deviation - 1, 0)
    fewest, most = min(max(2, ways - deviation), ways), min(len(present), ways + deviation)
    left = {label: list(draw.permutation(np.flatnonzero(keys == label))) for label in present.tolist()}
    parts = []
    for client in range(clients):
        chosen = draw.choice(present, int(draw.integers(fewest, most + 1)), replace=False)
        each, rows = int(draw.integers(shots - slack, shots + slack + 1)), list[int]()
        for label in np.sort(chosen).tolist():
            if len(left[label]) < each:
                raise ConfigError(
                    f"partition '{partition}': class {label} has {len(left[label])} samples left for client {client}, "
                    f"which is to have {each}: use fewer clients, or a lower K"
                )
            rows += left[label][:each]
            del left[label][:each]
        parts.append(draw.permutation(np.array(rows, np.int64)))
    return tuple(parts)


def _sized(grows: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]) -> "Assign":
    """Return the way to give each client a share that grows with its number."""

    def assign(keys: IntArray, partition: Partition, clients: int, draw: np.random.Generator) -> Parts:
        with np.errstate(over="ignore"):
            units = grows(np.arange(1.0, clients + 1))
        most = int(np.count_nonzero(units[0] / np.cumsum(units) * len(keys) >= 1))
        if clients > most:
            raise ConfigError(
                f"partition '{partition}' of {len(keys)} samples leaves the first of {clients} clients without any: "
                f"use {most} clients or fewer"
            )
        ends = np.cumsum((units / units.sum() * len(keys)).astype(np.int64))[:-1]
        return tuple(np.split(draw.permutation(len(keys)), ends))

    return assign


def _nothing(text: str) -> int:
    if text:
        raise ValueError(text)
    return 0


def _alpha(text: str) -> float:
    if not 0 < (alpha := float(text)) <= 1e6:
        raise ValueError(text)
    return alpha


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise ValueError(text)
    return count


def _ways_of(text: str) -> tuple[int, int, int]:
    ways, deviation, shots = map(int, text.split(":"))
    if not (1 <= ways <= _MOST and 0 <= deviation <= _MOST and max(deviation, 1) <= shots <= _MOST):
        raise ValueError(text)
    return ways, deviation, shots


def _name(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


Parse = Callable[[str], float | str | tuple[int, int, int]]
Assign = Callable[[IntArray, Partition, int, np.random.Generator], Parts]
"""From the keys to go by (labels, or clients), partition, number of clients and source of chance to their rows."""

_FORMS: dict[str, tuple[Parse, Assign]] = {
    "iid": (_nothing, _equal),
    "dirichlet": (_alpha, _dirichlet),
    "classes": (_count, _classes),
    "shards": (_count, _shards),
    "ways": (_ways_of, _ways),
    "natural": (_name, _natural),
    "files": (_nothing, _natural),
    "linear": (_nothing, _sized(np.positive)),
    "square": (_nothing, _sized(np.square)),
    "exponential": (_nothing, _sized(np.exp)),
    "all": (_nothing, _equal),
}
