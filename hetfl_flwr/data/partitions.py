"""How samples are shared out over clients, mostly by the partitioners of flwr-datasets."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

IntArray = npt.NDArray[np.int64]
Parts = tuple[IntArray, ...]

_LOGGER = getLogger(__name__)
_KEY = "key"  # the column that a partitioner goes by
_MOST = 10**9  # classes or samples that a text may ask for
_MIN_SAMPLES = 3  # so that train, validation and test get one each
_SIZES: dict[str, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
    "linear": np.positive,
    "square": np.square,
    "exponential": np.exp,
}


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
    def number(self) -> float:
        """The value of the forms whose value is one number; 0 of the others."""
        return 0 if isinstance(self.value, str | tuple) else self.value

    @property
    def by_file(self) -> bool:
        """Whether each file's rows belong together."""
        return self.form == "files"

    @property
    def by_owner(self) -> bool:
        """Whether rows belong to somebody: to a value of a column, or to a file."""
        return bool(self.column) or self.by_file

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
        return Partition(name, _FORMS[name].parse(value))
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
    assign, draw = _FORMS[partition.form].assign, generator(seed, "partition", *scope)
    if assign is None:
        return (draw.permutation(len(labels)),) * num_partitions
    if num_partitions > len(labels):
        raise ConfigError(
            f"{num_partitions} clients cannot share {len(labels)} samples: use {len(labels)} clients or fewer"
        )
    keys = _dealt(owners, partition, num_partitions) if partition.by_owner else labels
    parts = assign(keys, partition, num_partitions, draw)
    unused = len(labels) - sum(map(len, parts))
    if unused:
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
            partition,
            len(present),
            what,
            num_partitions,
            num_partitions,
            len(present),
        )
    return codes % num_partitions


def _equal(keys: IntArray, partition: Partition, num_partitions: int, draw: np.random.Generator) -> Parts:
    """Cut as flwr-datasets' IidPartitioner does, without its library, which is slow to import."""
    return tuple(np.array_split(draw.permutation(len(keys)), num_partitions))


def _assigned(
    build: "Build", keys: IntArray, partition: Partition, num_partitions: int, draw: np.random.Generator
) -> Parts:
    from datasets.arrow_dataset import Dataset

    order = draw.permutation(len(keys))
    partitioner = build(keys, partition, num_partitions, int(draw.integers(2**32)))
    partitioner.dataset = Dataset.from_dict({_KEY: keys[order], "row": order})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parts = [partitioner.load_partition(k) for k in range(num_partitions)]
    except ValueError as error:
        raise ConfigError(
            f"partition '{partition}' cannot share {len(keys)} samples over {num_partitions} clients: "
            "use fewer clients, or a more even partition (a higher ALPHA, a lower N)"
        ) from error
    return tuple(np.asarray(part.with_format("numpy")[:]["row"]) for part in parts)


def _ways(keys: IntArray, partition: Partition, num_partitions: int, draw: np.random.Generator) -> Parts:
    assert isinstance(partition.value, tuple)
    ways, deviation, shots = partition.value
    present, slack = np.unique(keys), max(deviation - 1, 0)
    fewest, most = min(max(2, ways - deviation), ways), min(len(present), ways + deviation)
    if ways > len(present):
        raise ConfigError(f"partition '{partition}': the data has {len(present)} classes, ask for no more")
    left = {label: list(draw.permutation(np.flatnonzero(keys == label))) for label in present.tolist()}
    parts = []
    for client in range(num_partitions):
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


def _dirichlet(keys: IntArray, partition: Partition, num_partitions: int, seed: int) -> "Partitioner":
    from flwr_datasets.partitioner import DirichletPartitioner

    return DirichletPartitioner(
        num_partitions, _KEY, alpha=partition.number, min_partition_size=_MIN_SAMPLES, seed=seed
    )


def _classes(keys: IntArray, partition: Partition, num_partitions: int, seed: int) -> "Partitioner":
    from flwr_datasets.partitioner import PathologicalPartitioner

    present, wanted = len(np.unique(keys)), int(partition.number)
    if wanted > present:
        raise ConfigError(f"partition '{partition}': the data has {present} classes, ask for no more")
    return PathologicalPartitioner(num_partitions, _KEY, wanted, class_assignment_mode="first-deterministic", seed=seed)


def _shards(keys: IntArray, partition: Partition, num_partitions: int, seed: int) -> "Partitioner":
    from flwr_datasets.partitioner import ShardPartitioner

    most, wanted = len(keys) // num_partitions, int(partition.number)
    if wanted > most:
        raise ConfigError(
            f"partition '{partition}': {len(keys)} samples over {num_partitions} clients "
            f"make at most {most} shards a client"
        )
    return ShardPartitioner(num_partitions, _KEY, num_shards_per_partition=wanted, seed=seed)


def _natural(keys: IntArray, partition: Partition, num_partitions: int, seed: int) -> "Partitioner":
    from flwr_datasets.partitioner import GroupedNaturalIdPartitioner

    return GroupedNaturalIdPartitioner(_KEY, group_size=1, sort_unique_ids=True)


def _sized(keys: IntArray, partition: Partition, num_partitions: int, seed: int) -> "Partitioner":
    from flwr_datasets.partitioner import IdToSizeFncPartitioner

    size = _SIZES[partition.form]
    with np.errstate(over="ignore"):
        units = size(np.arange(1.0, num_partitions + 1))
    most = int(np.count_nonzero(units[0] / np.cumsum(units) * len(keys) >= 1))  # how the partitioner counts
    if num_partitions > most:
        raise ConfigError(
            f"partition '{partition}' of {len(keys)} samples leaves the first of {num_partitions} clients without any: "
            f"use {most} clients or fewer"
        )
    return IdToSizeFncPartitioner(num_partitions, size)


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


Build = Callable[[IntArray, Partition, int, int], "Partitioner"]
"""From the keys to go by (labels, or clients), partition, number of partitions and seed to the dealing partitioner."""

Assign = Callable[[IntArray, Partition, int, np.random.Generator], Parts]
"""From the keys to go by, partition, number of partitions and source of the order to the rows of each partition."""


@dataclass(frozen=True)
class _Form:
    parse: Callable[[str], float | str | tuple[int, int, int]]
    assign: Assign | None  # None: nothing is assigned, every client has every row


_FORMS = {
    "iid": _Form(_nothing, _equal),
    "dirichlet": _Form(_alpha, partial(_assigned, _dirichlet)),
    "classes": _Form(_count, partial(_assigned, _classes)),
    "shards": _Form(_count, partial(_assigned, _shards)),
    "ways": _Form(_ways_of, _ways),
    "natural": _Form(_name, partial(_assigned, _natural)),
    "files": _Form(_nothing, partial(_assigned, _natural)),
    **{form: _Form(_nothing, partial(_assigned, _sized)) for form in _SIZES},
    "all": _Form(_nothing, None),
}
