"""Data sets, their domains, and the data of each client, in four steps that each process takes once.

1. Open (`opening`): a name, a file, a folder or a hub id becomes one `frame` of all rows, with cells as written.
   `folders` lists files, `rows` reads and joins them with `text_tables` and `arrays`, `pivot` turns long tables into
   series, and `roles` finds the label, input and owner columns.
2. Columns (`columns`, `labels`): the kind of each column is decided once, from all of its cells, with the reason.
   `overview` shows it.
3. Decode (`decode`): each domain becomes one array by `tables`, `images`, `series` or `texts`; `cache` keeps it.
   `domains` maps names to these arrays, and `scaling` scales them.
4. Split (`clients`): the training, validation, test and public rows of one client, by `partitions`.

An error that a user can fix is one line: `ConfigError` for a wrong key, `DataError` for a wrong file.

Independent of servers, models and algorithms.
"""

from hetfl_flwr.data.augmentation import Augmented
from hetfl_flwr.data.catalogue import CATALOGUE, DatasetEntry
from hetfl_flwr.data.client_data import ClientData
from hetfl_flwr.data.clients import Holding, digest_of, holdings, load_client_data, most_clients, own_digest
from hetfl_flwr.data.domains import absolute, data_spec, kind_of, public_data, reread
from hetfl_flwr.data.partitions import parse_partition
from hetfl_flwr.data.pivot import parse_pivot
from hetfl_flwr.data.reading import READING_KEYS, Reading, parse_classes, parse_vocabulary
from hetfl_flwr.data.samples import Samples, prepared
from hetfl_flwr.data.spec import DataSpec
from hetfl_flwr.data.split import SPLIT_KEYS, Split
from hetfl_flwr.data.tables import parse_features

__all__ = [
    "CATALOGUE",
    "READING_KEYS",
    "SPLIT_KEYS",
    "Augmented",
    "ClientData",
    "DataSpec",
    "DatasetEntry",
    "Holding",
    "Reading",
    "Samples",
    "Split",
    "absolute",
    "data_spec",
    "digest_of",
    "holdings",
    "kind_of",
    "load_client_data",
    "most_clients",
    "own_digest",
    "parse_classes",
    "parse_features",
    "parse_partition",
    "parse_pivot",
    "parse_vocabulary",
    "prepared",
    "public_data",
    "reread",
]
