"""One client's share of a data set."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from hetfl_flwr.data.client_data import ClientData
from hetfl_flwr.data.domains import Family, domain_labels, parse_families
from hetfl_flwr.data.partitions import IntArray, Partition, parse_partition
from hetfl_flwr.data.partitions import split as share_out
from hetfl_flwr.data.samples import Arrays, Samples
from hetfl_flwr.data.scaling import scaled, scaled_as
from hetfl_flwr.data.split import Split
from hetfl_flwr.data.tables import feature_slice, groups_of, parse_features, sliced
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator
from hetfl_flwr.text import LONGEST_NAME, printable


def load_client_data(split: Split, client: int) -> ClientData:
    """Return one client's training, validation and test samples.

    A data set stands for one domain, a rotated family for four, a list for all of those of its names. Client k
    is of domain k modulo their number; the clients of a domain share its rows out. With fewer clients than
    domains, the last domains have none.

    The data set is decoded, and all partitions are made, once a process; every client shares them.
    Equal splits give equal rows in every process.

    Parameters
    ----------
    split : Split
        How the data are shared out and cut.
    client : int
        Which client, 0..K-1.

    Raises
    ------
    ConfigError
        If there is no such client, or the partition cannot be made, or leaves this client nothing to train on.
    DataError
        If the data set cannot be found or read.

    Examples
    --------
    >>> data = load_client_data(Split(dataset="digits", clients=10, seed=0), 0)
    >>> len(data.train), len(data.validation), len(data.test), len(data.public)
    (126, 18, 36, 18)
    """
    form, overlap = parse_partition(split.partition), parse_features(split.features)
    families = _families(split, form)
    _check_position(client, split.clients)
    seats = _Seats(sum(family.domains for family in families), split.clients)
    if split.shared_split:
        seats.check_even()
    index, position = seats.of(client)
    family, first = _domains_for(families, index, split)
    domains = {
        other: _Domain.of(split, form, other, arrays, seats.in_domain(other))
        for other, arrays in enumerate(family, first)
        if seats.in_domain(other)
    }

    samples, (tests, validation, train) = sum(map(len, _own(domains[index], position))), domains[index].cut(position)
    name = joined(domains[index].owners(position))
    if not len(train):
        whose = f", {name}," * bool(name)
        raise ConfigError(
            f"partition {client} of {split.clients} ('{form}'){whose} has {samples} samples and none left to train on: "
            f"lower validation-fraction {split.validation_fraction:g} or test-fraction {split.own_test or 0.0:g}, "
            "use fewer clients, or a more even partition"
        )
    halved = _halved(split.clients, split.half_data_fraction, split.seed)
    train, public_rows = _trained_on(domains[index], position, client in halved, split.public_fraction)
    whole = family[index - first]
    if split.pooled:
        places = tuple(domains.get(number) for number in range(len(family)))
        whole, start = _together(family), sum(len(arrays.labels) for arrays in family[:index])
        train = _pooled(start + train, *_of_everybody(places, family, halved, split))
    if family[0].spec.is_table:
        columns = feature_slice(len(groups_of(family[0])), seats.in_domain(index), position, overlap, split.seed)
        family, whole = tuple(sliced(table, columns) for table in family), sliced(whole, columns)
    trained = [(whole, train)]
    if split.normalize == "mean-training-image" and family[0].spec.is_image:
        trained = [(domain.arrays, _held_of_all(domain, TRAIN)) for domain in domains.values()]
    family = scaled(family, split.normalize, trained)
    source = family[index - first]
    others = [other for other in domains if other != index and len(families) == 1]
    return ClientData(
        spec=source.spec,
        train=Samples(scaled_as(whole, source) if split.pooled and len(family) > 1 else source, train),
        validation=Samples(source, validation),
        test=Samples(source, tests),
        public_rows=public_rows,
        domain=index,
        others=tuple(Samples(family[other], _held_of_all(domains[other], TEST)) for other in others),
        others_validation=tuple(Samples(family[other], _held_of_all(domains[other], VALIDATION)) for other in others),
        name=name or (domain_labels(families)[index] if seats.domains > 1 else ""),
    )


def most_clients(split: Split) -> int:
    """Return how many clients a data set makes whose rows have owners: as many as have one each; 0 without owners.

    Of several domains each has as many clients as the one with the fewest owners.

    Raises
    ------
    DataError
        If the data set cannot be found or read.
    """
    form = parse_partition(split.partition)
    if not form.by_owner:
        return 0
    families, owners = _families(split, form), list[int]()
    for domains in _arrays_of(families, split):
        for arrays in domains:
            owners.append(_Domain.of(split, form, len(owners), arrays, 1).all_owners)
    return len(owners) * min(owners)


def _families(split: Split, form: Partition) -> tuple[Family, ...]:
    return parse_families(split.dataset, replace(split.reading, id_column=form.column, by_file=form.by_file))


def _arrays_of(families: Sequence[Family], split: Split) -> list[tuple[Arrays, ...]]:
    return [family.arrays(split.seed, split.test_set == "global", split.rotation) for family in families]


TEST, VALIDATION, TRAIN = 0, 1, 2
"""Parts that `_Domain.cut` gives."""


@dataclass(frozen=True)
class _Seats:
    """Which client is of which domain, and which of its clients."""

    domains: int
    clients: int

    def of(self, client: int) -> tuple[int, int]:
        position, domain = divmod(client, self.domains)
        return domain, position

    def in_domain(self, domain: int) -> int:
        return len(range(domain, self.clients, self.domains))

    def check_even(self) -> None:
        """Domains that are cut into different numbers of shares have no split in common."""
        if self.clients > self.domains and self.clients % self.domains:
            fewer = self.clients - self.clients % self.domains
            raise ConfigError(
                f"shared-split with {self.clients} clients in {self.domains} domains: each domain needs as many "
                f"clients as the others: use {fewer} or {fewer + self.domains} clients"
            )


@dataclass(frozen=True)
class _Domain:
    """The rows of one domain, and how its clients share them out and cut them."""

    arrays: Arrays
    partition: Partition
    clients: int
    draw: tuple[int, ...]  # seed and scope
    test: float | None  # part of a client's rows; None: all clients have the data set's own test split
    validation: float
    pool: int  # rows that are shared out
    even: int  # how many of these are taken before the rest is partitioned
    iid_evaluation: bool

    @classmethod
    def of(cls, split: Split, form: Partition, domain: int, arrays: Arrays, clients: int) -> "_Domain":
        """Return a domain, of a number, and of so many clients."""
        test, validation = split.own_test, split.validation_fraction
        pool = arrays.train_rows if test is None else len(arrays.labels)
        even = round(pool * ((test or 0.0) + validation)) if split.iid_evaluation else 0
        draw = (split.seed,) if split.shared_split or domain == 0 else (split.seed, domain)
        return cls(arrays, form, clients, draw, test, validation, pool, even, split.iid_evaluation)

    @property
    def all_owners(self) -> int:
        """How many owners have rows to share out; 1 where nobody owns any, which `share_out` refuses."""
        if self.arrays.owners is None:
            return 1
        return len(np.unique(self.arrays.owners.numpy()[_drawn(self.pool, self.even, self.draw)[1]]))

    def owners(self, position: int) -> list[str]:
        """Return the names of those whose rows one of the domain's clients has; none where nobody owns any."""
        if self.arrays.owners is None or not self.partition.by_owner:
            return []
        _, parts = _split(self.arrays, self.pool, self.even, self.partition, self.clients, self.draw)
        return [self.arrays.owner_names[owner] for owner in np.unique(self.arrays.owners.numpy()[parts[position]])]

    def cut(self, position: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the test, validation and training rows of one of the domain's clients."""
        own, validation, train = _own(self, position)
        return _test_split(self.arrays) if self.test is None else own, validation, train


@cache
def _own(domain: _Domain, position: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of one of a domain's clients as `_Domain.cut` does, those of a test split of all aside."""
    even, parts = _split(domain.arrays, domain.pool, domain.even, domain.partition, domain.clients, domain.draw)
    share, tests, validations = torch.from_numpy(parts[position]), domain.test or 0.0, domain.validation
    if domain.iid_evaluation:
        held = torch.from_numpy(even).tensor_split(domain.clients)[position]
        first = round(len(held) * tests / ((tests + validations) or 1))
        return held[:first], held[first:], share
    first, second = _held_out(len(share), tests), _held_out(len(share), validations)
    return share[:first], share[first : first + second], share[first + second :]


@cache
def _test_split(arrays: Arrays) -> Tensor:
    return torch.arange(arrays.train_rows, len(arrays.labels))


@cache
def _held_of_all(domain: _Domain, part: int) -> Tensor:
    """Return one part of the rows of all clients of a domain, ascending."""
    if part == TEST and domain.test is None:
        return _test_split(domain.arrays)
    rows = [domain.cut(position)[part].numpy() for position in range(domain.clients)]
    return torch.from_numpy(np.unique(np.concatenate(rows)))


@cache
def _no_rows() -> Tensor:
    return torch.arange(0)


def _domains_for(families: Sequence[Family], index: int, split: Split) -> tuple[tuple[Arrays, ...], int]:
    """Return the domains of a family, or of all where rows are pooled, and the number of the first."""
    number, first = _family_of(families, index)
    wanted = families if split.pooled else families[number : number + 1]
    arrays = _arrays_of(wanted, split)
    for family, domains in zip(wanted, arrays, strict=True):
        _check_family(family.name, domains[0], split)
    if split.pooled:
        _check_alike([family.name for family in wanted], [domains[0] for domains in arrays])
        _check_unseen(wanted, split)
    return tuple(domain for domains in arrays for domain in domains), 0 if split.pooled else first


def _check_unseen(families: Sequence[Family], split: Split) -> None:
    """Refuse to train on images that are tested on, too, if rotated otherwise."""
    for family in families:
        if family.is_rotated and split.test_set == "client" and not split.shared_split:
            raise ConfigError(
                f"pooled = true and dataset '{family.name}': an image on which one domain tests is a training image "
                "of another; set shared-split to true, in all runs that are compared"
            )


def _trained_on(domain: "_Domain", position: int, half: bool, public: float) -> tuple[Tensor, int]:
    """Return the training rows of one of a domain's clients, and how many of them, the first, are public."""
    train = domain.cut(position)[TRAIN]
    if half:
        train = train[: (len(train) + 1) // 2]
    return train, min(_held_out(sum(map(len, _own(domain, position))), public), len(train))


@cache
def _of_everybody(
    domains: tuple["_Domain | None", ...], family: tuple[Arrays, ...], halved: frozenset[int], split: Split
) -> tuple[Tensor, Tensor]:
    """Return the rows that all clients put together, and those that any of them tests or validates on.

    They are rows of the data set that `_together` makes of the domains' arrays.
    """
    offered, held, start = [_no_rows()], [_no_rows()], 0
    for number, (domain, arrays) in enumerate(zip(domains, family, strict=True)):
        if domain:
            for position in range(domain.clients):
                half = position * len(domains) + number in halved
                offered.append(start + _trained_on(domain, position, half, split.public_fraction)[0])
            held += [start + _held_of_all(domain, part) for part in (TEST, VALIDATION)]
        start += len(arrays.labels)
    return torch.cat(offered), torch.cat(held)


def _family_of(families: Sequence[Family], domain: int) -> tuple[int, int]:
    """Return which family a domain is of, and the family's first domain."""
    first = 0
    for number, family in enumerate(families):
        if domain < first + family.domains:
            return number, first
        first += family.domains
    raise IndexError(domain)


def _check_family(name: str, arrays: Arrays, split: Split) -> None:
    if split.normalize == "imagenet" and not arrays.spec.is_image:
        raise ConfigError(f"normalize = 'imagenet' is for images, and '{name}' is a {arrays.spec.kind}: use mean-image")
    if split.test_set == "global" and arrays.train_rows == len(arrays.labels):
        raise ConfigError(f"dataset '{name}' has no test split of its own: set test-set to client")
    if split.features != "all" and not arrays.spec.is_table:
        raise ConfigError(
            f"features '{split.features}': '{name}' is no table, and only tables are sliced: set it to all"
        )


def _check_position(partition_id: int, num_partitions: int) -> None:
    if not 0 <= partition_id < num_partitions:
        raise ConfigError(
            f"partition-id {partition_id} with {num_partitions} partitions: it must be in 0..num-partitions-1"
        )


def _held_out(samples: int, fraction: float) -> int:
    return max(round(samples * fraction), int(samples >= 3 and fraction > 0))


@cache
def _split(
    arrays: Arrays, pool: int, even: int, partition: Partition, clients: int, draw: tuple[int, ...]
) -> tuple[IntArray, tuple[IntArray, ...]]:
    """Return so many rows of the pool, drawn by chance, and the clients' shares of the others."""
    held, rest = _drawn(pool, even, draw)
    owners = None if arrays.owners is None else arrays.owners[:pool].numpy()[rest]
    parts = share_out(arrays.labels[:pool].numpy()[rest], partition, clients, *draw, owners=owners)
    return held, tuple(map(rest.__getitem__, parts))


@cache
def _drawn(pool: int, even: int, draw: tuple[int, ...]) -> tuple[IntArray, IntArray]:
    """Return so many rows of the pool, drawn by chance, and the others, ascending."""
    order = generator(draw[0], "iid-evaluation", *draw[1:]).permutation(pool) if even else np.arange(pool)
    return order[:even], np.sort(order[even:])


@cache
def _halved(clients: int, fraction: float, seed: int) -> frozenset[int]:
    """Return the clients that keep half of their training rows."""
    return frozenset(generator(seed, "halved").permutation(clients)[: round(fraction * clients)].tolist())


@cache
def _together(domains: tuple[Arrays, ...]) -> Arrays:
    """Return data sets of one form as one, neither with a test split nor with a scale of its own."""
    if len(domains) == 1:
        return domains[0]
    owners = [arrays.owners for arrays in domains if arrays.owners is not None]
    return replace(
        domains[0],
        inputs=torch.cat([arrays.inputs for arrays in domains]),
        labels=torch.cat([arrays.labels for arrays in domains]),
        train_rows=sum(len(arrays.labels) for arrays in domains),
        owners=torch.cat(owners) if len(owners) == len(domains) else None,
    )


def _check_alike(names: Sequence[str], firsts: Sequence[Arrays]) -> None:
    """Refuse to put rows together, by the first domain of each data set, whose numbers or labels differ in meaning."""
    for name, arrays in zip(names[1:], firsts[1:], strict=True):
        for (what, one), (_, other) in zip(_terms(firsts[0]), _terms(arrays), strict=True):
            if one != other:
                raise ConfigError(
                    f"pooled = true: {names[0]} and {name} differ in {what} ({one} and {other}): "
                    "only rows of the same inputs and classes can be put together"
                )


def _terms(arrays: Arrays) -> Iterable[tuple[str, object]]:
    """Go through what must be the same: what it is called, and what a data set says."""
    yield "the shape of their inputs", arrays.spec.shape
    yield "their classes", tuple(name.strip().casefold() for name in arrays.class_names) or arrays.spec.classes
    yield "their columns", arrays.input_names
    yield "what a word's number is", (arrays.spec.vocabulary, arrays.words and arrays.words())
    yield "how inputs are stored", (str(arrays.inputs.dtype), str(arrays.peak))


def _pooled(own: Tensor, offered: Tensor, held: Tensor) -> Tensor:
    """Return a client's own training rows, and after them those that others offer and nobody holds out."""
    mine = own[~torch.isin(own, held)]
    others = np.setdiff1d(offered.numpy(), np.concatenate([own.numpy(), held.numpy()]))
    return torch.cat([mine, torch.from_numpy(others)])


def joined(names: Sequence[str]) -> str:
    """Return several names as one of bounded length; what has no room is counted.

    Examples
    --------
    >>> joined(["North", "South"])
    'North + South'
    >>> joined([f"ward {number}" for number in range(100)])
    'ward 0 + ward 1 + ward 2 + ward 3 + ward 4 + ward 5 + ward 6 + ward 7 + ward 8 + ward 9 + 90 more'
    """
    called = [printable(" ".join(name.split()), LONGEST_NAME) for name in names if name.strip()]
    said = " + ".join(called)
    shown = len(called)
    while len(said) > LONGEST_NAME and shown > 1:
        shown -= 1
        said = f"{' + '.join(called[:shown])} + {len(called) - shown} more"
    return printable(said, LONGEST_NAME)
