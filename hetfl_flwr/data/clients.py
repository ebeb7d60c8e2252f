"""Step four: one client's share of a data set."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

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
from hetfl_flwr.data.tables import feature_slice, parse_features, sliced
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.seeding import generator
from hetfl_flwr.text import LONGEST_NAME, printable


@dataclass(frozen=True, eq=False)
class _Cut:
    """The rows of one of a domain's clients.

    Parameters
    ----------
    test, validation, train : Tensor
        Rows of the domain's arrays.
    public : int
        How many of the training rows, the first, are public.
    own : int
        How many rows are its own.
    names : tuple of str
        The owners whose rows it has; none where the partition does not go by owners.
    """

    test: Tensor
    validation: Tensor
    train: Tensor
    public: int
    own: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Domain:
    """One domain, its number, and the clients among which its rows are shared out."""

    split: Split
    form: Partition
    arrays: Arrays
    number: int
    domains: int

    @property
    def clients(self) -> range:
        """The clients that have rows of it."""
        return range(self.number, self.split.clients, self.domains)

    @property
    def scope(self) -> tuple[int, ...]:
        """What its draws depend on beside the seed."""
        return () if self.split.shared_split or self.number == 0 else (self.number,)


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
    if not 0 <= client < split.clients:
        raise ConfigError(f"partition-id {client} with {split.clients} partitions: it must be in 0..num-partitions-1")
    families = _families(split, form)
    sizes = [len(family.domain_names) for family in families]
    position, index = divmod(client, sum(sizes))
    if split.shared_split:
        _check_even(split.clients, sum(sizes))
    mates, first = _mates(split, families, sizes, index)
    domains = [_Domain(split, form, arrays, number, sum(sizes)) for number, arrays in enumerate(mates, first)]
    own = domains[index - first]
    cut = _cuts(own)[position]
    name = joined(cut.names) if cut.names else domain_labels(families)[index] if sum(sizes) > 1 else ""
    if not len(cut.train):
        whose = f", {name}," * bool(cut.names)
        raise ConfigError(
            f"partition {client} of {split.clients} ('{form}'){whose} has {cut.own} samples and none left to train on: "
            f"lower validation-fraction {split.validation_fraction:g} or test-fraction {split.own_test or 0.0:g}, "
            "use fewer clients, or a more even partition"
        )
    whole, train = own.arrays, cut.train
    if split.pooled:
        whole, train = _together(mates), _pooled(tuple(domains), own, cut)
    if overlap is not None:
        columns = feature_slice(len(whole.groups), len(own.clients), position, overlap, split.seed)
        mates, whole = tuple(sliced(table, columns) for table in mates), sliced(whole, columns)
    trained = [(whole, train)]
    if split.normalize == "mean-training-image" and whole.spec.is_image:
        trained = [(domain.arrays, _of_all(domain, "train")) for domain in domains if domain.clients]
    mates = scaled(mates, split.normalize, trained)
    source = mates[index - first]
    others = [
        (domain, arrays)
        for domain, arrays in zip(domains, mates, strict=True)
        if domain is not own and domain.clients and len(families) == 1
    ]
    return ClientData(
        spec=source.spec,
        train=Samples(scaled_as(whole, source) if split.pooled and len(mates) > 1 else source, train),
        validation=Samples(source, cut.validation),
        test=Samples(source, cut.test),
        public_rows=cut.public,
        domain=index,
        others=tuple(Samples(arrays, _of_all(domain, "test")) for domain, arrays in others),
        others_validation=tuple(Samples(arrays, _of_all(domain, "validation")) for domain, arrays in others),
        name=name,
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
    owners = list[int]()
    for arrays in (arrays for family in _families(split, form) for arrays in _arrays(split, family)):
        _, rows = _pool(_Domain(split, form, arrays, len(owners), 1))
        owners.append(1 if arrays.owners is None else len(np.unique(arrays.owners.numpy()[rows])))
    return len(owners) * min(owners)


def _families(split: Split, form: Partition) -> tuple[Family, ...]:
    return parse_families(split.dataset, replace(split.reading, id_column=form.column, by_file=form.by_file))


def _arrays(split: Split, family: Family) -> tuple[Arrays, ...]:
    return family.arrays(split.seed, split.test_set == "global", split.rotation)


def _check_even(clients: int, domains: int) -> None:
    """Refuse domains that are cut into different numbers of shares: they have no split in common."""
    if clients > domains and clients % domains:
        fewer = clients - clients % domains
        raise ConfigError(
            f"shared-split with {clients} clients in {domains} domains: each domain needs as many "
            f"clients as the others: use {fewer} or {fewer + domains} clients"
        )


def _mates(
    split: Split, families: Sequence[Family], sizes: Sequence[int], index: int
) -> tuple[tuple[Arrays, ...], int]:
    """Return the domains of the family that a domain is of, or all where rows are pooled; and the first's number."""
    firsts = [0, *np.cumsum(sizes).tolist()]
    number = next(number for number, end in enumerate(firsts[1:]) if index < end)
    wanted = families if split.pooled else families[number : number + 1]
    arrays = [_arrays(split, family) for family in wanted]
    for family, (one, *_) in zip(wanted, arrays, strict=True):
        _check_family(split, family, one)
    if split.pooled:
        _check_alike([family.name for family in wanted], [domains[0] for domains in arrays])
    return tuple(domain for domains in arrays for domain in domains), 0 if split.pooled else firsts[number]


def _check_family(split: Split, family: Family, arrays: Arrays) -> None:
    """Refuse what the run config asks of a data set that does not have it."""
    name, spec = family.name, arrays.spec
    if split.normalize == "imagenet" and not spec.is_image:
        raise ConfigError(f"normalize = 'imagenet' is for images, and '{name}' is a {spec.kind}: use mean-image")
    if split.test_set == "global" and arrays.train_rows == len(arrays.labels):
        raise ConfigError(f"dataset '{name}' has no test split of its own: set test-set to client")
    if split.features != "all" and not spec.is_table:
        raise ConfigError(
            f"features '{split.features}': '{name}' is no table, and only tables are sliced: set it to all"
        )
    if split.pooled and family.is_rotated and split.test_set == "client" and not split.shared_split:
        raise ConfigError(
            f"pooled = true and dataset '{name}': an image on which one domain tests is a training image of another; "
            "set shared-split to true, in all runs that are compared"
        )


def _pool(domain: _Domain) -> tuple[IntArray, IntArray]:
    """Return the rows of a domain that are dealt out evenly for measuring, and those that are shared out."""
    split, arrays = domain.split, domain.arrays
    pool = arrays.train_rows if split.own_test is None else len(arrays.labels)
    if not split.iid_evaluation:
        return np.arange(0), np.arange(pool)
    even = round(pool * ((split.own_test or 0.0) + split.validation_fraction))
    order = generator(split.seed, "iid-evaluation", *domain.scope).permutation(pool) if even else np.arange(pool)
    return order[:even], np.sort(order[even:])


@cache
def _cuts(domain: _Domain) -> tuple[_Cut, ...]:
    """Share a domain out, and cut the rows of each of its clients."""
    split, arrays, clients, own_test = domain.split, domain.arrays, domain.clients, domain.split.own_test
    even, rest = _pool(domain)
    owners = None if arrays.owners is None else arrays.owners.numpy()[rest]
    labels = arrays.labels.numpy()[rest]
    parts = share_out(labels, domain.form, len(clients), split.seed, *domain.scope, owners=owners)
    fractions = own_test or 0.0, split.validation_fraction, split.public_fraction
    whole_test, halved, cuts = torch.arange(arrays.train_rows, len(arrays.labels)), _halved(split), list[_Cut]()
    for client, part, held in zip(clients, parts, np.array_split(even, len(clients)), strict=True):
        share = rest[part]
        own = len(share) + len(held)
        tested, validated, public = (
            max(round(own * fraction), int(own >= 3 and fraction > 0)) for fraction in fractions
        )
        if split.iid_evaluation:
            tested = round(len(held) * fractions[0] / ((fractions[0] + fractions[1]) or 1))
        else:
            held, share = share[: tested + validated], share[tested + validated :]
        if client in halved:
            share = share[: (len(share) + 1) // 2]
        cuts.append(
            _Cut(
                whole_test if own_test is None else torch.from_numpy(held[:tested]),
                torch.from_numpy(held[tested:]),
                torch.from_numpy(share),
                min(public, len(share)),
                own,
                _owners(arrays, owners[part]) if owners is not None and domain.form.by_owner else (),
            )
        )
    return tuple(cuts)


def _owners(arrays: Arrays, numbers: IntArray) -> tuple[str, ...]:
    return tuple(arrays.owner_names[number] for number in np.unique(numbers))


@cache
def _halved(split: Split) -> frozenset[int]:
    """Return the clients that keep half of their training rows."""
    if not split.half_data_fraction:
        return frozenset()
    order = generator(split.seed, "halved").permutation(split.clients)
    return frozenset(order[: round(split.half_data_fraction * split.clients)].tolist())


@cache
def _of_all(domain: _Domain, part: Literal["train", "validation", "test"]) -> Tensor:
    """Return one part of the rows of all clients of a domain, ascending."""
    cuts = _cuts(domain)
    if part == "test" and domain.split.own_test is None:
        return cuts[0].test
    return torch.from_numpy(np.unique(np.concatenate([getattr(cut, part).numpy() for cut in cuts])))


def _pooled(domains: tuple[_Domain, ...], domain: _Domain, cut: _Cut) -> Tensor:
    """Return a client's own training rows, and after them those that others offer and nobody holds out.

    They are rows of the data set that `_together` makes of the domains' arrays.
    """
    offered, held = _of_everybody(domains)
    own = cut.train + _before(domains, domain)
    others = np.setdiff1d(offered.numpy(), np.concatenate([own.numpy(), held.numpy()]))
    return torch.cat([own[~torch.isin(own, held)], torch.from_numpy(others)])


def _before(domains: Sequence[_Domain], domain: _Domain) -> int:
    """Return how many rows the domains before one have."""
    return sum(len(other.arrays.labels) for other in domains[: domain.number])


@cache
def _of_everybody(domains: tuple[_Domain, ...]) -> tuple[Tensor, Tensor]:
    """Return the rows that all clients put together, and those that any of them tests or validates on."""
    shared = [(domain, _before(domains, domain)) for domain in domains if domain.clients]
    offered = [cut.train + start for domain, start in shared for cut in _cuts(domain)]
    held = [
        rows + start for domain, start in shared for rows in (_of_all(domain, "test"), _of_all(domain, "validation"))
    ]
    return torch.cat(offered), torch.cat(held)


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
