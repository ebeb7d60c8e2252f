"""Partition samples over clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from typing import Any, NamedTuple

import numpy as np

from hetfl_flwr.data.frame import IntArray
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator

Generator = np.random.Generator

_LOGGER = getLogger(__name__)
_MIN_SAMPLES = 3  # of each client, so that train, validation and test get one each
_TRIES = 11  # the most draws of Dirichlet proportions to give each client that many


class _Impossible(Exception):
    """Raised if rows cannot be partitioned; the argument is the reason and the way out."""


@dataclass(frozen=True)
class Partition:
    """A way to partition samples over clients: its name before the first colon, and its parameters.

    See `parse_partition`.
    """

    form: str
    values: tuple[float | str, ...] = ()

    @property
    def column(self) -> str:
        """The column with the owners of rows; empty if the partition uses none."""
        return str(self.values[0]) if self.form == "natural" else ""

    @property
    def by_file(self) -> bool:
        """Whether each file is an owner."""
        return self.form == "files"

    @property
    def by_owner(self) -> bool:
        """Whether rows have owners: values of a column, or files."""
        return self.form in ("natural", "files")

    def __str__(self) -> str:
        """Return the text that was parsed."""
        return ":".join((self.form, *(part if isinstance(part, str) else f"{part:g}" for part in self.values)))


def parse_partition(text: str) -> Partition:
    """Parse ``partition`` of the run config; raise `ConfigError` if it is none of the following.

    - ``iid``: rows are shuffled, then cut into equal parts;
    - ``dirichlet:ALPHA``: the rows of each class are divided by proportions from a symmetric Dirichlet distribution,
      ALPHA above 0 and at most 1e6 (low: few classes for each client; high: close to ``iid``);
    - ``classes:N``: each client has N classes, the first one assigned round-robin, the others at random;
    - ``ways:N:D:K``: each client has about N random classes and K samples of each, which no other client has (n-way
      k-shot of Tan et al., FedProto, AAAI 2022): the number of classes is uniform from N - D, at least 2, to N + D, and
      the number of samples of each class from K - D + 1 to K + D - 1;
    - ``shards:N``: rows are sorted by label and cut into equal shards; each client gets N random shards;
    - ``natural:COLUMN``: each value of the column is an owner, and the sorted owners are assigned round-robin, so with
      as many clients as owners each client is one owner;
    - ``files``: the same, but each file of a folder is an owner;
    - ``linear``, ``square``, ``exponential``: rows are shuffled, then cut so that client k of 0..K-1 has a share
      proportional to k + 1, its square or its exponential, rounded down (the last client gets the rest), with a mix of
      classes close to that of all rows;
    - ``all``: every client has every row, for nodes that each have their own data folder.

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
    """Return the indices 0..N-1 of the rows of each of K clients, in random order and, except with "all", disjoint.

    `labels` (N,) and `owners` (N,) are the classes and owners of rows; only "natural" and "files" need owners. K is
    `num_partitions`. Each `scope` has its own random numbers. "classes", "shards" and "ways" may leave rows unused, and
    log a warning then.
    """
    form, rng, rows = _FORMS[partition.form], generator(seed, "partition", *scope), len(labels)
    if partition.form == "all":
        return (rng.permutation(rows),) * num_partitions
    try:
        if num_partitions > rows:
            raise _Impossible(f"use {rows} clients or fewer")
        keys = _clients_of(owners, partition, num_partitions) if partition.by_owner else labels
        parts: Sequence[IntArray]
        if form.shuffles:
            parts = _reshuffled(form.assign, keys, num_partitions, rng, *partition.values)
        else:
            parts = form.assign(keys, num_partitions, rng, *partition.values)
    except _Impossible as error:
        raise ConfigError(
            f"partition '{partition}' cannot divide {rows} samples among {num_partitions} clients: {error}"
        ) from None
    if unused := rows - sum(map(len, parts)):
        _LOGGER.warning("partition '%s' leaves %d of %d samples unused", partition, unused, rows)
    return tuple(parts)


def _clients_of(owners: IntArray | None, partition: Partition, num_partitions: int) -> IntArray:
    """Return the index of the client of each row, by its owner."""
    what = "files" if partition.by_file else "owners"
    if owners is None:
        raise _Impossible(f"the data set has no {what}: use another partition")
    present, codes = np.unique(owners, return_inverse=True)
    if len(present) < num_partitions:
        raise _Impossible(f"they have {len(present)} {what}: use {len(present)} clients or fewer")
    if len(present) > num_partitions:
        _LOGGER.warning(
            "partition '%s' merges %d %s into %d clients: client k has numbers k, k + %d and so on; set clients to %d "
            "for one each",
            *(partition, len(present), what, num_partitions, num_partitions, len(present)),
        )
    return codes % num_partitions


def _reshuffled(
    assign: "Assign", labels: IntArray, clients: int, rng: Generator, *values: float | str
) -> list[IntArray]:
    """Shuffle rows, assign them, and shuffle the rows of each client again."""
    order = rng.permutation(len(labels))
    rng = np.random.default_rng(int(rng.integers(2**32)))
    parts = assign(labels[order], clients, rng, *values)
    for part in parts:
        rng.shuffle(part)
    return [order[part] for part in parts]


def _equal(keys: IntArray, clients: int, rng: Generator) -> list[IntArray]:
    return np.array_split(rng.permutation(len(keys)), clients)


def _dirichlet(labels: IntArray, clients: int, rng: Generator, alpha: float) -> list[IntArray]:
    for _ in range(_TRIES):
        shares = list[list[IntArray]]()
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            ends = np.cumsum(rng.dirichlet([alpha] * clients)) * len(rows)
            shares.append(np.split(rows, ends.astype(int)[:-1]))
        parts = [np.concatenate(of_client) for of_client in zip(*shares, strict=True)]
        if min(map(len, parts)) >= _MIN_SAMPLES:
            return parts
    raise _Impossible(f"none of {_TRIES} draws gave each client {_MIN_SAMPLES}: use fewer clients or a higher ALPHA")


def _classes_of(labels: IntArray, wanted: float) -> IntArray:
    """Return the classes that occur in labels; refuse more than that."""
    present = np.unique(labels)
    if wanted > len(present):
        raise _Impossible(f"they have {len(present)} classes: use at most that many for each client")
    return present


def _classes(labels: IntArray, clients: int, rng: Generator, count: int) -> list[IntArray]:
    present, parts = _classes_of(labels, count), [list[IntArray]() for _ in range(clients)]
    takers: dict[int, list[int]] = {label: [] for label in present.tolist()}
    for client in range(clients):
        own = {int(present[client % len(present)])}
        while len(own) < count:
            own.add(int(rng.choice(present, size=1)[0]))
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


def _shards(labels: IntArray, clients: int, rng: Generator, count: int) -> list[IntArray]:
    size = len(labels) // (clients * count)
    if not size:
        raise _Impossible(f"use at most {len(labels) // clients} shards for each client")
    shards = np.argsort(labels, kind="stable")[: len(labels) // size * size].reshape(-1, size)
    given = rng.permutation(len(shards))[: clients * count].reshape(clients, count)
    return [shards[own].ravel() for own in given]


def _ways(labels: IntArray, clients: int, rng: Generator, ways: int, deviation: int, shots: int) -> list[IntArray]:
    present, slack = _classes_of(labels, ways), max(deviation - 1, 0)
    fewest, most = min(max(2, ways - deviation), ways), min(len(present), ways + deviation)
    left = {label: list(rng.permutation(np.flatnonzero(labels == label))) for label in present.tolist()}
    parts = []
    for client in range(clients):
        chosen = rng.choice(present, int(rng.integers(fewest, most + 1)), replace=False)
        each, rows = int(rng.integers(shots - slack, shots + slack + 1)), list[int]()
        for label in np.sort(chosen).tolist():
            if len(left[label]) < each:
                raise _Impossible(
                    f"class {label} has {len(left[label])} left for client {client}, which needs {each}: "
                    "use fewer clients or a lower K"
                )
            rows += left[label][:each]
            del left[label][:each]
        parts.append(rng.permutation(np.array(rows, np.int64)))
    return parts


def _natural(keys: IntArray, clients: int, rng: Generator, column: str = "") -> list[IntArray]:
    order = rng.permutation(len(keys))
    return [order[keys[order] == client] for client in range(clients)]


def _growing(grows: np.ufunc, keys: IntArray, clients: int, rng: Generator) -> list[IntArray]:
    """Give each client a share that grows with its index."""
    with np.errstate(over="ignore"):
        units = grows(np.arange(1.0, clients + 1))
    most = int(np.count_nonzero(units[0] / np.cumsum(units) * len(keys) >= 1))
    if clients > most:
        raise _Impossible(f"the first client would have none: use {most} clients or fewer")
    ends = np.cumsum((units / units.sum() * len(keys)).astype(np.int64))[:-1]
    return np.split(rng.permutation(len(keys)), ends)


Assign = Callable[..., Sequence[IntArray]]
"""A function of keys (labels, or client indices), number of clients, random generator and parameters that returns the
rows of each client."""


class _Form(NamedTuple):
    """A kind of partition: its function, its parameters, their types and check, and whether rows are shuffled first."""

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
