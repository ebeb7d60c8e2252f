"""How samples are shared out over clients, by the partitioners of flwr-datasets."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from logging import getLogger
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

IntArray = npt.NDArray[np.int64]

_LOGGER = getLogger(__name__)
_MIN_SAMPLES = 3  # so that train, validation and test get one each


@dataclass(frozen=True)
class Partition:
    """A way to share samples out over clients; see `parse_partition`.

    Parameters
    ----------
    form : str
        "iid", "dirichlet", "classes", "shards" or "all".
    value : float
        Concentration of the Dirichlet distribution, or classes or shards a client; 0 for the others.
    """

    form: str
    value: float = 0

    def __str__(self) -> str:
        """Return the text it was parsed from."""
        return f"{self.form}:{self.value:g}" if self.value else self.form


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
        - ``shards:N``: sorted by label and cut into N equal shards a client, given out at random;
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
            "iid, dirichlet:ALPHA (0 < ALPHA <= 1e6), classes:N, shards:N (N >= 1), all"
        ) from None


def split(labels: IntArray, partition: Partition, num_partitions: int, seed: int, *scope: int) -> tuple[IntArray, ...]:
    """Return the rows of every partition, each in random order; no row is in two of them, save with "all".

    Parameters
    ----------
    labels : ndarray
        (N,) int64, the class of each row.
    partition : Partition
        How to share them out. "iid" and "dirichlet" give out every row; "classes" leaves out the classes that
        fall to no client, "shards" what is left over when N rows are cut into equal shards.
    num_partitions : int
        K, the number of clients, 1 or more.
    seed : int
        The run's seed, 0 or more.
    *scope : int
        What else the draw is for: another scope is another draw.

    Returns
    -------
    tuple of ndarray
        K arrays of row numbers 0..N-1, int64.

    Raises
    ------
    ConfigError
        If there are fewer rows than clients, or the partition cannot be met.
    """
    build = _FORMS[partition.form].build
    if build is None:
        return (generator(seed, "partition", *scope).permutation(len(labels)),) * num_partitions
    if num_partitions > len(labels):
        raise ConfigError(
            f"{num_partitions} clients cannot share {len(labels)} samples: use {len(labels)} clients or fewer"
        )
    parts = _assign(build, labels, partition, num_partitions, generator(seed, "partition", *scope))
    unused = len(labels) - sum(map(len, parts))
    if unused:
        _LOGGER.warning("partition '%s' leaves %d of %d samples unused", partition, unused, len(labels))
    return parts


def _assign(
    build: "Build", labels: IntArray, partition: Partition, num_partitions: int, draw: np.random.Generator
) -> tuple[IntArray, ...]:
    from datasets.arrow_dataset import Dataset

    order = draw.permutation(len(labels))
    partitioner = build(labels, partition, num_partitions, int(draw.integers(2**32)))
    partitioner.dataset = Dataset.from_dict({"label": labels[order], "row": order})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parts = [partitioner.load_partition(k) for k in range(num_partitions)]
    except ValueError as error:
        raise ConfigError(
            f"partition '{partition}' cannot share {len(labels)} samples over {num_partitions} clients: "
            "use fewer clients, or a more even partition (a higher ALPHA, a lower N)"
        ) from error
    return tuple(np.asarray(part.with_format("numpy")[:]["row"]) for part in parts)


def _iid(labels: IntArray, partition: Partition, num_partitions: int, seed: int) -> "Partitioner":
    from flwr_datasets.partitioner import IidPartitioner

    return IidPartitioner(num_partitions)


def _dirichlet(labels: IntArray, partition: Partition, num_partitions: int, seed: int) -> "Partitioner":
    from flwr_datasets.partitioner import DirichletPartitioner

    return DirichletPartitioner(
        num_partitions, "label", alpha=float(partition.value), min_partition_size=_MIN_SAMPLES, seed=seed
    )


def _classes(labels: IntArray, partition: Partition, num_partitions: int, seed: int) -> "Partitioner":
    from flwr_datasets.partitioner import PathologicalPartitioner

    present = len(np.unique(labels))
    if partition.value > present:
        raise ConfigError(f"partition '{partition}': the data has {present} classes, ask for no more")
    return PathologicalPartitioner(
        num_partitions, "label", int(partition.value), class_assignment_mode="first-deterministic", seed=seed
    )


def _shards(labels: IntArray, partition: Partition, num_partitions: int, seed: int) -> "Partitioner":
    from flwr_datasets.partitioner import ShardPartitioner

    most = len(labels) // num_partitions
    if partition.value > most:
        raise ConfigError(
            f"partition '{partition}': {len(labels)} samples over {num_partitions} clients "
            f"make at most {most} shards a client"
        )
    return ShardPartitioner(num_partitions, "label", num_shards_per_partition=int(partition.value), seed=seed)


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


Build = Callable[[IntArray, Partition, int, int], "Partitioner"]
"""From labels, partition, number of partitions and seed to the partitioner that deals the rows."""


@dataclass(frozen=True)
class _Form:
    parse: Callable[[str], float]
    build: Build | None  # None: nothing is dealt, every client has every row


_FORMS = {
    "iid": _Form(_nothing, _iid),
    "dirichlet": _Form(_alpha, _dirichlet),
    "classes": _Form(_count, _classes),
    "shards": _Form(_count, _shards),
    "all": _Form(_nothing, None),
}
