"""Which client gets which rows under a run config, counted before anybody trains: what ``hetfl partition`` shows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from rich.table import Table

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import ClientData, load_client_data
from hetfl_flwr.data.domains import domain_labels, parse_families
from hetfl_flwr.data.folders import dataset_called
from hetfl_flwr.text import printable
from hetfl_flwr.wire.naming import distinct
from simulations.reports.terminal import table_of

MOST_CLASSES = 20
"""Up to so many classes each one is a column of the table; beyond, the `FREQUENT` most frequent are named."""
FREQUENT = 4
LONGEST_CLASS = 24
"""Letters of a class's name in a column of the table."""


@dataclass(frozen=True)
class Share:
    """The rows of one client, counted; the public ones are training rows, too.

    `histogram` has the training rows of each of C classes, `class_names` what these are called, or nothing. `name` is
    the client's own, as no other one has it, or empty.
    """

    client: int
    domain: str
    training: int
    validation: int
    test: int
    public: int
    histogram: tuple[int, ...]
    name: str = ""
    class_names: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """The training rows of each class, by its name."""
        return dict(zip(self.class_names or map(str, range(len(self.histogram))), self.histogram, strict=True))

    @property
    def classes(self) -> int:
        """How many classes are among the training rows."""
        return sum(count > 0 for count in self.histogram)


@dataclass(frozen=True)
class Split:
    """Who gets which rows, counted.

    `own_tests` says whether each client tests on rows of its own, not on the data set's whole test split. `rows` are
    those of all domains that have a client; `unused` ones no client has. `notes` say what was done with the data that
    nobody has asked for.
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

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The classes of all data sets by name, those of the first one first."""
        return tuple(dict.fromkeys(name for share in self.shares for name in share.counts))

    @property
    def classes(self) -> int:
        """C, how many they are."""
        return len(self.class_names)

    @property
    def named(self) -> bool:
        """Whether clients have names that are not those of their domains."""
        return any(share.name for share in self.shares) and len(self.domains) == 1

    def counts(self, share: Share) -> list[int | None]:
        """Return the training rows of each class that a client has; None of a class that its data set has not."""
        return [share.counts.get(name) for name in self.class_names]


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
    names = domain_labels(parse_families(config.dataset, config.reading))
    split = replace(config.split(config.clients), pooled=False)
    clients = [load_client_data(split, client) for client in range(config.clients)]
    domains = [[data for data in clients if data.domain == index] for index in {data.domain for data in clients}]
    called = distinct({number: data.name for number, data in enumerate(clients)})
    rows = sum(len(members[0].train.arrays.labels) for members in domains)
    many = f"{config.clients} clients" if config.clients > 1 else "1 client"
    return Split(
        title=f"{dataset_called(config.dataset)}, {config.partition}, {many}, seed {config.seed}",
        shares=tuple(_share(number, called[number], names[data.domain], data) for number, data in enumerate(clients)),
        own_tests=config.test_set == "client",
        rows=rows,
        unused=rows - sum(map(_used, domains)),
        notes=tuple(dict.fromkeys(note for data in clients for note in data.train.arrays.notes)),
    )


def split_table(split: Split) -> Table:
    """Return the table of a split: a line a client, and their sum. The domain stands there if there are several."""
    few, total = split.classes <= MOST_CLASSES, _total(split)
    columns: dict[str, Callable[[Share], str]] = {
        "client": lambda share: "sum" if share is total else str(share.client),
        **({"name": lambda share: share.name} if split.named else {}),
        **({"domain": lambda share: share.domain} if len(split.domains) > 1 else {}),
        "training": lambda share: f"{share.training:,}",
        "validation": lambda share: f"{share.validation:,}",
        "test": lambda share: f"{share.test:,}",
        "public": lambda share: f"{share.public:,}",
        "classes": lambda share: f"{share.classes:,}",
    }
    if few:
        for number, name in enumerate(split.class_names):
            heading = printable(name, LONGEST_CLASS)
            columns[f"{heading} ({number})" if heading in columns else heading] = partial(_count, name)
    else:
        columns["training rows of the most frequent classes"] = _frequent
    note = f"{split.rows:,} rows, {split.unused:,} unused" + "; right: training rows of each class" * few
    words = {"name", "domain", "training rows of the most frequent classes"}
    return table_of(split.title, columns, [*split.shares, total], words=words, notes=[note])


def _count(name: str, share: Share) -> str:
    count = share.counts.get(name)
    return "" if count is None else f"{count:,}" if count else "\u00b7"


def _frequent(share: Share) -> str:
    order = sorted(share.counts.items(), key=lambda item: -item[1])[:FREQUENT]
    return ", ".join(f"{name}: {count:,}" for name, count in order if count)


def _total(split: Split) -> Share:
    shares = split.shares
    return Share(
        client=len(shares),
        domain="",
        training=sum(share.training for share in shares),
        validation=sum(share.validation for share in shares),
        test=sum(share.test for share in shares),
        public=sum(share.public for share in shares),
        histogram=tuple(sum(share.counts.get(name, 0) for share in shares) for name in split.class_names),
        class_names=split.class_names,
    )


def _share(client: int, name: str, domain: str, data: ClientData) -> Share:
    return Share(
        client=client,
        domain=domain,
        training=len(data.train),
        validation=len(data.validation),
        test=len(data.test),
        public=data.public_rows,
        histogram=tuple(data.train.class_counts(data.spec.classes).tolist()),
        name=name,
        class_names=data.train.arrays.class_names,
    )


def _used(members: Iterable[ClientData]) -> int:
    """Return how many rows of a domain its clients have together."""
    rows = [part.rows for data in members for part in (data.train, data.validation, data.test)]
    return np.unique(torch.cat(rows).numpy()).size
