"""Which client gets which rows under a run config, counted before anybody trains: what ``hetfl partition`` shows."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import ClientData, load_client_data
from hetfl_flwr.data.domains import parse_families
from hetfl_flwr.errors import ConfigError, plain

MOST_CLASSES = 20
"""Up to so many classes each one is a column of the table; beyond, the most frequent are named."""

FREQUENT = 4
"""How many."""


@dataclass(frozen=True)
class Share:
    """The rows of one client, counted.

    Parameters
    ----------
    client : int
        Which client, 0..K-1.
    domain : str
        Name of the client's domain.
    training, validation, test, public : int
        How many; the public ones are training rows, too.
    histogram : tuple of int
        C counts, the training rows of each class.
    """

    client: int
    domain: str
    training: int
    validation: int
    test: int
    public: int
    histogram: tuple[int, ...]

    @property
    def classes(self) -> int:
        """How many classes are among the training rows."""
        return sum(count > 0 for count in self.histogram)


@dataclass(frozen=True)
class Split:
    """Who gets which rows, counted.

    Parameters
    ----------
    title : str
        Data set, partition, number of clients and seed.
    shares : tuple of Share
        One a client, by number.
    own_tests : bool
        Whether each client tests on rows of its own, not on the data set's whole test split.
    rows : int
        Rows of all domains that have a client.
    unused : int
        How many of them no client has.
    notes : tuple of str
        What was done with the data that nobody has asked for, a line each.
    """

    title: str
    shares: tuple[Share, ...]
    own_tests: bool
    rows: int
    unused: int
    notes: tuple[str, ...] = ()

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of the domains that have a client, in order."""
        return tuple(dict.fromkeys(share.domain for share in self.shares))

    @property
    def classes(self) -> int:
        """C, the most classes that a client's data set has."""
        return max(len(share.histogram) for share in self.shares)


def load_split(config: RunConfig) -> Split:
    """Count the rows of every client that a run config asks for: its own, also where it trains on those of all.

    Parameters
    ----------
    config : RunConfig
        Its ``clients`` is 1 or more.

    Raises
    ------
    HetflError
        If the data cannot be read, or shared out as asked.
    """
    config = config.with_data()
    names = _domain_names(config)
    split = replace(config.split(config.clients), pooled=False)
    clients = [load_client_data(split, client) for client in range(config.clients)]
    domains = [[data for data in clients if data.domain == index] for index in {data.domain for data in clients}]
    rows = sum(len(members[0].train.arrays.labels) for members in domains)
    return Split(
        title=f"{config.dataset}, {config.partition}, {config.clients} clients, seed {config.seed}",
        shares=tuple(_share(number, names[data.domain], data) for number, data in enumerate(clients)),
        own_tests=config.test_set == "client",
        rows=rows,
        unused=rows - sum(map(_used, domains)),
        notes=tuple(dict.fromkeys(plain(note) for data in clients for note in data.train.arrays.notes)),
    )


def split_table(split: Split) -> Table:
    """Return the table of a split: a line a client, and their sum. The domain stands there if there are several."""
    few, several = split.classes <= MOST_CLASSES, len(split.domains) > 1
    table = Table(title=split.title, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.caption = f"{split.rows:,} rows, {split.unused:,} unused" + "; 0, 1, ...: training rows of each class" * few
    table.add_column("client", justify="right")
    if several:
        table.add_column("domain", no_wrap=True)
    for name in ("training", "validation", "test", "public", "classes"):
        table.add_column(name, justify="right", no_wrap=True)
    for label in range(split.classes) if few else ():
        table.add_column(str(label), justify="right", no_wrap=True)
    if not few:
        table.add_column("training rows of the most frequent classes")
    for share in split.shares:
        table.add_row(str(share.client), *[share.domain] * several, *_counts(share), *_histogram(share.histogram, few))
    total = _total(split.shares)
    table.add_section()
    table.add_row("sum", *[""] * several, *_counts(total), *_histogram(total.histogram, few))
    return table


def _counts(share: Share) -> list[str]:
    return [f"{count:,}" for count in (share.training, share.validation, share.test, share.public, share.classes)]


def _histogram(counts: tuple[int, ...], few: bool) -> list[str]:
    if few:
        return [f"{count:,}" if count else "\u00b7" for count in counts]
    order = sorted(range(len(counts)), key=lambda label: -counts[label])[:FREQUENT]
    return [", ".join(f"{label}: {counts[label]:,}" for label in order if counts[label])]


def _total(shares: Sequence[Share]) -> Share:
    return Share(
        client=len(shares),
        domain="",
        training=sum(share.training for share in shares),
        validation=sum(share.validation for share in shares),
        test=sum(share.test for share in shares),
        public=sum(share.public for share in shares),
        histogram=tuple(map(sum, zip_longest(*(share.histogram for share in shares), fillvalue=0))),
    )


def write_json(split: Split, path: Path) -> None:
    """Write a split as JSON.

    Raises
    ------
    ConfigError
        If it cannot be written there.
    """
    try:
        path.write_text(json.dumps(asdict(split), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}; name another file") from None


def _domain_names(config: RunConfig) -> list[str]:
    families = parse_families(config.dataset, config.reading)
    return [
        name if len(families) == 1 or name == family.name else f"{family.name} {name}"
        for family in families
        for name in family.domain_names
    ]


def _share(client: int, domain: str, data: ClientData) -> Share:
    return Share(
        client=client,
        domain=domain,
        training=len(data.train),
        validation=len(data.validation),
        test=len(data.test),
        public=data.public_rows,
        histogram=tuple(data.train.class_counts(data.spec.classes).tolist()),
    )


def _used(members: Iterable[ClientData]) -> int:
    """Return how many rows of a domain its clients have together."""
    rows = [part.rows for data in members for part in (data.train, data.validation, data.test)]
    return np.unique(torch.cat(rows).numpy()).size
