"""One client's share of a data set."""

from functools import cache
from pathlib import Path
from typing import Literal

import torch

from hetfl_flwr.data.catalogue import CATALOGUE
from hetfl_flwr.data.hub import HubTable, open_table, read_table, table_spec
from hetfl_flwr.data.partitions import IntArray, Partition, parse_partition, split
from hetfl_flwr.data.samples import Arrays, ClientData, DataSpec, Samples
from hetfl_flwr.errors import ConfigError, unknown


def data_spec(dataset: str, data_dir: str = "", image_column: str = "", label_column: str = "") -> DataSpec:
    """Return what a model must fit, without decoding the data set.

    Parameters
    ----------
    dataset : str
        A name of the catalogue, or a hub id ``owner/name``.
    data_dir, image_column, label_column : str
        As in `load_client_data`.

    Raises
    ------
    ConfigError
        If there is no such data set.
    DataError
        If it is not in the catalogue, and cannot be opened.

    Examples
    --------
    >>> data_spec("digits")
    DataSpec(shape=(1, 8, 8), classes=10)
    """
    if dataset in CATALOGUE:
        return CATALOGUE[dataset].spec
    return table_spec(_table(dataset, data_dir, image_column, label_column))


def load_client_data(
    *,
    dataset: str,
    data_dir: str = "",
    image_column: str = "",
    label_column: str = "",
    partition: str = "iid",
    partition_id: int,
    num_partitions: int,
    seed: int,
    test: Literal["client", "global"] = "client",
    validation_fraction: float = 0.1,
    test_fraction: float = 0.2,
    normalize: Literal["mean-image", "none"] = "mean-image",
) -> ClientData:
    """Return one client's training, validation and test samples.

    The data set is decoded, and all partitions are made, once a process; every client shares them.
    Equal arguments give equal rows in every process.

    Parameters
    ----------
    dataset : str
        A name of the catalogue, or a hub id ``owner/name``.
    data_dir : str
        Folder that holds ``<hub id>`` in the hub's layout, or that folder itself; empty: the hub.
    image_column, label_column : str
        Columns on the hub; empty: the catalogue's, else the only image and the only class-label column.
        Bundled data sets have none and ignore them.
    partition : str
        How the pool is shared out over clients; see `parse_partition`.
    partition_id : int
        Which client, 0..num_partitions-1.
    num_partitions : int
        K, the number of clients, 1 or more.
    seed : int
        The run's seed, 0 or more.
    test : {"client", "global"}
        "client": the pool is all rows of the data set, and each client tests on a part of its own.
        "global": the pool is the training split, and every client tests on the data set's whole test split.
    validation_fraction, test_fraction : float
        Parts of the client's own rows, each in [0, 1), their sum below 1. Above 0, a client of 3 rows or
        more gets at least one. ``test_fraction`` has no meaning with "global".
    normalize : {"mean-image", "none"}
        "mean-image": inputs in [0, 1] less the mean of the training split; "none": in [0, 1].

    Raises
    ------
    ConfigError
        If an argument is out of range, or the partition cannot be made, or leaves this client nothing to
        train on.
    DataError
        If the data set cannot be found or read.

    Examples
    --------
    >>> data = load_client_data(dataset="digits", partition_id=0, num_partitions=10, seed=0)
    >>> len(data.train), len(data.validation), len(data.test)
    (126, 18, 36)
    """
    form = parse_partition(partition)
    own_test = test_fraction if test == "client" else 0.0
    _check_position(partition_id, num_partitions)
    _check_fractions(validation_fraction, own_test)
    arrays = _arrays(dataset, _absolute(data_dir), image_column, label_column)
    pool = len(arrays.labels) if test == "client" else arrays.train_rows
    if test == "global" and pool == len(arrays.labels):
        raise ConfigError(f"dataset '{dataset}' has no test split of its own: set test-set to client")
    rows = torch.from_numpy(_split(arrays, pool, form, num_partitions, seed)[partition_id])
    tests, validations = _held_out(len(rows), own_test), _held_out(len(rows), validation_fraction)
    if tests + validations >= len(rows):
        raise ConfigError(
            f"partition {partition_id} of {num_partitions} ('{form}') has {len(rows)} samples and none left "
            f"to train on: lower validation-fraction {validation_fraction:g} or test-fraction {own_test:g}, "
            "use fewer clients, or a more even partition"
        )
    source = _centred(arrays) if normalize == "mean-image" else arrays
    own, validation, train = rows.tensor_split((tests, tests + validations))
    return ClientData(
        spec=arrays.spec,
        train=Samples(source, train),
        validation=Samples(source, validation),
        test=Samples(source, own if test == "client" else torch.arange(pool, len(arrays.labels))),
    )


def _check_position(partition_id: int, num_partitions: int) -> None:
    if not 0 <= partition_id < num_partitions:
        raise ConfigError(
            f"partition-id {partition_id} with {num_partitions} partitions: it must be in 0..num-partitions-1"
        )


def _check_fractions(validation: float, test: float) -> None:
    for name, fraction in (("validation-fraction", validation), ("test-fraction", test)):
        if not 0 <= fraction < 1:
            raise ConfigError(f"{name} is {fraction:g}: it must be at least 0 and below 1")
    if validation + test >= 1:
        raise ConfigError(
            f"validation-fraction {validation:g} and test-fraction {test:g} leave nothing to train on: "
            "their sum must be below 1"
        )


def _held_out(samples: int, fraction: float) -> int:
    return max(round(samples * fraction), int(samples >= 3 and fraction > 0))


def _absolute(data_dir: str) -> str:
    return str(Path(data_dir).expanduser().absolute()) if data_dir else ""


def _table(dataset: str, data_dir: str, image_column: str, label_column: str) -> HubTable:
    entry = CATALOGUE.get(dataset)
    if entry:
        return open_table(
            entry.hub_id, data_dir, image_column or entry.image_column, label_column or entry.label_column
        )
    if "/" not in dataset:
        raise ConfigError(f"{unknown('dataset', dataset, CATALOGUE)}, or a hub id such as owner/name")
    return open_table(dataset, data_dir, image_column, label_column)


@cache
def _arrays(dataset: str, data_dir: str, image_column: str, label_column: str) -> Arrays:
    entry = CATALOGUE.get(dataset)
    if entry and entry.bundled:
        return entry.bundled()
    table = _table(dataset, data_dir, image_column, label_column)
    return read_table(table, entry.spec if entry else table_spec(table))


@cache
def _centred(arrays: Arrays) -> Arrays:
    return arrays.centred()


@cache
def _split(arrays: Arrays, pool: int, partition: Partition, clients: int, seed: int) -> tuple[IntArray, ...]:
    return split(arrays.labels[:pool].numpy(), partition, clients, seed)
