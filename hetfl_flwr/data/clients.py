"""The split, step four of `hetfl_flwr.data`: one client's share of a data set."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hetfl_flwr.data.client_data import ClientData, digested
from hetfl_flwr.data.domains import DataSet, data_sets, domain_labels
from hetfl_flwr.data.frame import IntArray
from hetfl_flwr.data.partitions import split as share_out
from hetfl_flwr.data.samples import Arrays, Samples
from hetfl_flwr.data.scaling import scaled, scaled_as
from hetfl_flwr.data.split import Split
from hetfl_flwr.data.tables import feature_slice, parse_features, sliced
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator
from hetfl_flwr.text import LONGEST_NAME, printable


class _Cut(NamedTuple):
    """The rows of one client, how many of them are public and its own, and the owners that they belong to."""

    test: Tensor
    validation: Tensor
    train: Tensor
    public: int
    own: int
    names: tuple[str, ...]


class Holding(NamedTuple):
    """What a client holds, as `ClientData` does, in numbers."""

    domain: int
    train: int
    public: int
    validation: int
    test: int
    owners: int
    name: str


@dataclass(frozen=True, eq=False)
class _Domain:
    """One domain of a split: its index, and the number of domains."""

    arrays: Arrays
    split: Split
    number: int
    count: int

    @property
    def clients(self) -> range:
        """The clients that share it."""
        return range(self.number, self.split.clients, self.count)

    @property
    def scope(self) -> tuple[int, ...]:
        """The scope of its random draws, in addition to the seed."""
        return () if self.split.shared_split or self.number == 0 else (self.number,)

    @cached_property
    def pool(self) -> tuple[IntArray, IntArray]:
        """The rows for evaluation, which are split evenly, and those of the partition."""
        split, arrays = self.split, self.arrays
        pool = arrays.train_rows if split.own_test is None else len(arrays.labels)
        even = round(pool * ((split.own_test or 0.0) + split.validation_fraction)) if split.iid_evaluation else 0
        order = generator(split.seed, "iid-evaluation", *self.scope).permutation(pool) if even else np.arange(pool)
        return order[:even], np.sort(order[even:])

    @cached_property
    def owners(self) -> IntArray | None:
        """The owner of each row of the pool."""
        owners = self.arrays.owners
        return None if owners is None else owners.numpy()[self.pool[1]]

    @cached_property
    def cuts(self) -> list[_Cut]:
        """The rows of each of its clients: those that the partition assigns, and those for evaluation."""
        split, (dealt, rest), owners = self.split, self.pool, self.owners
        labels, count = self.arrays.labels.numpy()[rest], len(self.clients)
        shares = share_out(labels, split.form, count, split.seed, *self.scope, owners=owners)
        all_test = torch.arange(self.arrays.train_rows, len(self.arrays.labels)) if split.own_test is None else None
        cuts = list[_Cut]()
        for client, part, held in zip(self.clients, shares, np.array_split(dealt, count), strict=True):
            share, own = rest[part], len(part) + len(held)
            fractions = split.own_test or 0.0, split.validation_fraction, split.public_fraction
            tested, validated, public = [max(round(own * one), int(own >= 3 and one > 0)) for one in fractions]
            whose = np.unique(owners[part]) if owners is not None and split.form.by_owner else ()
            if split.iid_evaluation:
                tested = round(len(held) * fractions[0] / ((fractions[0] + fractions[1]) or 1))
            else:
                held, share = share[: tested + validated], share[tested + validated :]
            if client in split.halved:
                share = share[: (len(share) + 1) // 2]
            tests = torch.from_numpy(held[:tested]) if all_test is None else all_test
            validation, train = torch.from_numpy(held[tested:]), torch.from_numpy(share)
            names = tuple(self.arrays.owner_names[number] for number in whose)
            cuts.append(_Cut(tests, validation, train, min(public, len(train)), own, names))
        return cuts

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """The test, validation and training rows of all its clients, ascending."""
        parts = list(zip(*self.cuts, strict=True))[:3]
        test, validation, train = (torch.from_numpy(np.unique(np.concatenate(part))) for part in parts)
        return self.cuts[0].test if self.split.own_test is None else test, validation, train


class _Shares:
    """All domains of a split, by index; each is opened on first use."""

    def __init__(self, split: Split) -> None:
        reading = replace(split.reading, id_column=split.form.column, by_file=split.form.by_file)
        self.split, self.data_sets = split, data_sets(split.dataset, reading)
        self.labels = domain_labels(self.data_sets)
        self._places = [(one, own) for one in self.data_sets for own in range(len(one.domain_names))]
        count = len(self.labels)
        if split.shared_split and split.clients > count and (over := split.clients % count):
            raise ConfigError(
                f"shared-split with {split.clients} clients in {count} domains: each domain needs as many clients as "
                f"the others: use {split.clients - over} or {split.clients - over + count} clients"
            )

    def __getitem__(self, number: int) -> _Domain:
        """Return a domain; the same object each time."""
        (data_set, own), split = self._places[number], self.split
        arrays = data_set.arrays(split.seed, split.test_set == "global", split.rotation)
        if why := _unfit(split, arrays[0], data_set.is_rotated):
            raise ConfigError(f"dataset '{data_set.name}': {why}")
        return arrays[own].once(_Domain, split, number, len(self._places))

    def domains_for(self, number: int) -> list[_Domain]:
        """Return the domains that matter to a client in one of them: all of its data set, or all if rows are pooled."""
        own, _ = self._places[number]
        return [self[other] for other, (one, _) in enumerate(self._places) if one is own or self.split.pooled]

    def with_clients(self) -> list[_Domain]:
        """Return the domains that have clients; others are not opened."""
        return [self[number] for number in range(min(len(self._places), self.split.clients))]

    def used(self) -> list[DataSet]:
        """Return the data sets that matter to some client: those of domains with clients, or all if rows are pooled."""
        places = self._places if self.split.pooled else self._places[: self.split.clients]
        return list(dict.fromkeys(data_set for data_set, _ in places))

    def name(self, domain: _Domain, cut: _Cut) -> str:
        """Return the name of the owner or domain of a client's data."""
        return joined(cut.names) if cut.names else self.labels[domain.number] if len(self.labels) > 1 else ""


def load_client_data(split: Split, client: int) -> ClientData:
    """Return one client's training, validation and test samples.

    A data set is one domain, a rotated family has four, and a list has all domains of its data sets. Client k
    belongs to domain k modulo the number of domains; the rows of a domain are divided among its clients. With
    fewer clients than domains, the last domains have no clients.

    The data set is decoded, and all partitions are made, once per process; all clients share them.
    Equal splits give equal rows in every process.

    Parameters
    ----------
    split : Split
        How the data are partitioned and split.
    client : int
        The client, 0..K-1.

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
    overlap, shares = parse_features(split.features), _Shares(split)
    if not 0 <= client < split.clients:
        raise ConfigError(f"partition-id {client} with {split.clients} partitions: it must be in 0..num-partitions-1")
    position, index = divmod(client, len(shares.labels))
    domains = shares.domains_for(index)
    own = next(domain for domain in domains if domain.number == index)
    cut = own.cuts[position]
    if not len(cut.train):
        whose = f", {joined(cut.names)}," * bool(cut.names)
        raise ConfigError(
            f"partition {client} of {split.clients} ('{split.partition}'){whose} has {cut.own} samples and none left "
            f"to train on: lower validation-fraction {split.validation_fraction:g} or test-fraction "
            f"{split.own_test or 0.0:g}, use fewer clients, or a more even partition"
        )
    arrays, whole, train = tuple(domain.arrays for domain in domains), own.arrays, cut.train
    if split.pooled:
        whole, train = arrays[0].once(_together, arrays, shares.labels), _pooled(domains, own, cut)
    elif overlap is not None:
        columns = feature_slice(len(whole.groups), len(own.clients), position, overlap, split.seed)
        arrays, whole = tuple(sliced(table, columns) for table in arrays), sliced(whole, columns)
    trained = [(whole, train)]
    if split.normalize == "mean-training-image" and whole.spec.kind == "image":
        trained = [(domain.arrays, domain.rows[2]) for domain in domains if domain.clients]
    arrays = scaled(arrays, split.normalize, trained)
    source = arrays[domains.index(own)]
    others = [
        [Samples(one, rows) for rows in domain.rows[:2]]
        for domain, one in zip(domains, arrays, strict=True)
        if domain is not own and domain.clients and len(shares.data_sets) == 1
    ]
    return ClientData(
        spec=source.spec,
        train=Samples(scaled_as(whole, source) if len(domains) > 1 and split.pooled else source, train),
        validation=Samples(source, cut.validation),
        test=Samples(source, cut.test),
        public_rows=cut.public,
        domain=index,
        others=tuple(tests for tests, _ in others),
        others_validation=tuple(validations for _, validations in others),
        name=shares.name(own, cut),
    )


def holdings(split: Split) -> list[Holding]:
    """Return how many samples each client of a split has, before any rows are pooled; no rows are read.

    Raises the same errors as `load_client_data`, except that a client may have no training samples.
    """
    shares, held = _Shares(split), dict[int, Holding]()
    for own in shares.with_clients():
        owners = own.arrays.owners
        for client, cut in zip(own.clients, own.cuts, strict=True):
            whose = 0 if owners is None else len(torch.unique(owners[cut.train]))
            sizes = len(cut.train), cut.public, len(cut.validation), len(cut.test)
            held[client] = Holding(own.number, *sizes, whose, shares.name(own, cut))
    return [held[client] for client in range(split.clients)]


def digest_of(split: Split) -> str:
    """Return a digest of the data sets from which the data of all clients come, whatever the seed."""
    return digested([data_set.digest for data_set in _Shares(split).used()])


def own_digest(split: Split) -> str:
    """Return a digest of those of these data sets that have local files."""
    return digested([data_set.digest for data_set in _Shares(split).used() if data_set.is_local])


def most_clients(split: Split) -> int:
    """Return the largest number of clients for a data set whose rows have owners: one per owner; 0 without owners.

    If there are several domains, each has as many clients as the domain with the fewest owners.

    Raises
    ------
    DataError
        If the data set cannot be found or read.
    """
    if not split.form.by_owner:
        return 0
    shares = _Shares(split)
    owners = [shares[number].owners for number in range(len(shares.labels))]
    return len(owners) * min(1 if one is None else len(np.unique(one)) for one in owners)


def _unfit(split: Split, arrays: Arrays, is_rotated: bool) -> str:
    """Return why a data set cannot be split as requested; empty if it can."""
    spec, own_tests = arrays.spec, split.own_test is not None
    if split.normalize == "imagenet" and spec.kind != "image":
        return f"normalize = imagenet is for images, and this is a {spec.kind}: use mean-image"
    if not own_tests and arrays.train_rows == len(arrays.labels):
        return "it has no test split: set test-set to client"
    if split.features != "all" and spec.kind != "table":
        return f"features = {split.features} is for tables only: set it to all"
    if split.pooled and is_rotated and own_tests and not split.shared_split:
        return (
            "pooled = true, but a test image of one domain is a training image of another: set shared-split to "
            "true in all runs that are compared"
        )
    return ""


def _together(first: Arrays, every: Sequence[Arrays], labels: Sequence[str]) -> Arrays:
    """Return the rows of all domains as one data set, without a test split and not yet scaled."""
    if len(every) == 1:
        return first
    terms = _terms(first)
    for arrays, label in zip(every, labels, strict=True):
        for what, one in _terms(arrays).items():
            if one != terms[what]:
                raise ConfigError(
                    f"pooled = true: {labels[0]} and {label} differ in {what} ({terms[what]} and {one}): "
                    "only rows of the same inputs and classes can be combined"
                )
    owners = [arrays.owners for arrays in every if arrays.owners is not None]
    return replace(
        first,
        inputs=torch.cat([arrays.inputs for arrays in every]),
        labels=torch.cat([arrays.labels for arrays in every]),
        train_rows=sum(len(arrays.labels) for arrays in every),
        owners=torch.cat(owners) if len(owners) == len(every) else None,
    )


def _terms(arrays: Arrays) -> dict[str, object]:
    """Return the properties in which data sets must agree for their rows to be combined."""
    return {
        "the shape of their inputs": arrays.spec.shape,
        "their classes": [name.strip().casefold() for name in arrays.class_names] or arrays.spec.classes,
        "their columns": arrays.input_names,
        "what a word's number is": (arrays.spec.vocabulary, arrays.words and arrays.words()),
        "how inputs are stored": (str(arrays.inputs.dtype), str(arrays.peak)),
    }


def _pooled(domains: Sequence[_Domain], own: _Domain, cut: _Cut) -> Tensor:
    """Return a client's training rows in `_together`: its own, then those of others that no client holds out."""
    starts = np.cumsum([0, *(len(domain.arrays.labels) for domain in domains)]).tolist()
    shared = [(domain, start) for domain, start in zip(domains, starts, strict=False) if domain.clients]
    offered = torch.cat([domain.rows[2] + start for domain, start in shared])
    held = torch.cat([rows + start for domain, start in shared for rows in domain.rows[:2]])
    mine = cut.train + starts[domains.index(own)]
    others = np.setdiff1d(offered.numpy(), torch.cat([mine, held]).numpy())
    return torch.cat([mine[~torch.isin(mine, held)], torch.from_numpy(others)])


def joined(names: Sequence[str]) -> str:
    """Join names into one of bounded length; names that do not fit are counted.

    Examples
    --------
    >>> joined(["North", "South"])
    'North + South'
    >>> joined([f"ward {number}" for number in range(100)])
    'ward 0 + ward 1 + ward 2 + ward 3 + ward 4 + ward 5 + ward 6 + ward 7 + ward 8 + ward 9 + 90 more'
    """
    called = [printable(" ".join(name.split()), LONGEST_NAME) for name in names if name.strip()]
    shown, said = len(called), " + ".join(called)
    while len(said) > LONGEST_NAME and shown > 1:
        shown -= 1
        said = f"{' + '.join(called[:shown])} + {len(called) - shown} more"
    return printable(said, LONGEST_NAME)
