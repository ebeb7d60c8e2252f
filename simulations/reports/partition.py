"""Number of rows of each client under a run config, counted without training, for ``hetfl partition``."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.table import Table

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import ClientData, load_client_data
from hetfl_flwr.data.domains import data_sets, domain_labels
from hetfl_flwr.data.folders import dataset_called
from hetfl_flwr.text import printable
from hetfl_flwr.wire.naming import distinct
from simulations.reports.layout import cells_table

MAX_CLASSES = 20
"""With more classes than this, the table names the `FREQUENT` most frequent ones instead of a column for each."""
FREQUENT = 4
LONGEST_CLASS = 24
"""Maximum number of characters of a class name in a column heading."""
KINDS = ["training", "validation", "test", "public"]
"""Uses of a client's rows; public rows are also training rows."""


@dataclass(frozen=True, eq=False)
class ClientRows:
    """Numbers of rows of each client.

    `shares` has a row for each client: its ``domain``, its number of rows of each of `KINDS`, and its unique ``name``
    or "". `counts` has its training rows by class, NaN for a class that its data set lacks. With `own_tests`, each
    client tests on its own rows, not on the data set's whole test split. `rows` counts the rows of all domains with a
    client, `unused` those that no client has. `notes` are warnings about the data, `facts` how they were interpreted.
    """

    title: str
    shares: pd.DataFrame
    counts: pd.DataFrame
    own_tests: bool
    rows: int
    unused: int
    notes: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return values that JSON can represent; a client's ``histogram`` has the classes of its own data set."""
        shares = self.shares.reset_index(names="client").to_dict("records")
        for share, (_, row) in zip(shares, self.counts.iterrows(), strict=True):
            own = row.dropna().astype(int)
            share |= {"histogram": own.tolist(), "class_names": own.index.tolist()}
        return {name: value for name, value in vars(self).items() if name != "counts"} | {"shares": shares}


def load_split(config: RunConfig, called: str = "") -> ClientRows:
    """Count the rows of each client of a config with at least one client; with ``pooled`` too, only its own rows.

    `called` is the name of the data set in the title; by default as the config has it.
    Raises HetflError if the data cannot be read or partitioned.
    """
    config = config.with_data()
    labels = domain_labels(data_sets(config.dataset, config.reading))
    split = replace(config.split(config.clients), pooled=False)
    clients = [load_client_data(split, client) for client in range(config.clients)]
    names = distinct({number: data.name for number, data in enumerate(clients)})
    domains = [[data for data in clients if data.domain == index] for index in {data.domain for data in clients}]
    rows = sum(len(members[0].train.arrays.labels) for members in domains)
    many = f"{config.clients} clients" if config.clients > 1 else "1 client"
    shares = [
        (labels[data.domain], len(data.train), len(data.validation), len(data.test), data.public_rows, names[number])
        for number, data in enumerate(clients)
    ]
    return ClientRows(
        title=f"{called or dataset_called(config.dataset)}, {config.partition}, {many}, seed {config.seed}",
        shares=pd.DataFrame(shares, columns=["domain", *KINDS, "name"]),
        counts=pd.DataFrame(map(_class_counts, clients)),
        own_tests=config.test_set == "client",
        rows=rows,
        unused=rows - sum(map(_used, domains)),
        notes=tuple(dict.fromkeys(note for data in clients for note in data.train.arrays.notes)),
        facts=tuple(dict.fromkeys(fact for data in clients for fact in data.train.arrays.facts)),
    )


def _class_counts(data: ClientData) -> dict[str, int]:
    counts = data.train.class_counts(data.spec.classes).tolist()
    return dict(zip(data.train.arrays.class_names or map(str, range(len(counts))), counts, strict=True))


def _used(members: list[ClientData]) -> int:
    """Return how many rows of a domain its clients have together."""
    rows = [part.rows for data in members for part in (data.train, data.validation, data.test)]
    return np.unique(torch.cat(rows).numpy()).size


def split_table(split: ClientRows) -> Table:
    """Return one row per client and a row of sums; the domain is a column if there are several."""
    few, several = split.counts.shape[1] <= MAX_CLASSES, split.shares.domain.nunique() > 1
    counts = pd.concat([split.counts, split.counts.sum().to_frame("sum").T])
    shares = pd.concat([split.shares, split.shares[KINDS].sum().to_frame("sum").T]).fillna("")
    words = ["domain"] * several + ["name"] * (shares.name.any() and not several)
    cells = shares[words].assign(client=counts.index.astype(str))[["client", *words]]
    cells = cells.join(shares[KINDS].assign(classes=(counts > 0).sum(axis=1)).map("{:,}".format))
    if few:
        for number, name in enumerate(counts):
            heading = printable(str(name), LONGEST_CLASS)
            cells[f"{heading} ({number})" if heading in cells else heading] = counts[name].map(_count)
    else:
        words.append("training rows of the most frequent classes")
        cells[words[-1]] = [_frequent(row) for _, row in counts.iterrows()]
    note = f"{split.rows:,} rows, {split.unused:,} unused" + "; right: training rows of each class" * few
    return cells_table(split.title, cells, words=words, notes=[note])


def _count(count: float) -> str:
    return "" if np.isnan(count) else f"{count:,.0f}" if count else "\u00b7"


def _frequent(counts: "pd.Series[float]") -> str:
    most = counts[counts > 0].sort_values(ascending=False, kind="stable")[:FREQUENT]
    return ", ".join(f"{name}: {count:.0f}" for name, count in most.items())
