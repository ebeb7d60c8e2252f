"""Data sets, and each client's share of one: samples, partitions, private train, validation and test rows."""

from hetfl_flwr.data.catalogue import CATALOGUE, CatalogueRow, DatasetEntry, catalogue_rows
from hetfl_flwr.data.clients import data_spec, load_client_data
from hetfl_flwr.data.partitions import Partition, parse_partition
from hetfl_flwr.data.samples import ClientData, DataSpec, Samples

__all__ = [
    "CATALOGUE",
    "CatalogueRow",
    "ClientData",
    "DataSpec",
    "DatasetEntry",
    "Partition",
    "Samples",
    "catalogue_rows",
    "data_spec",
    "load_client_data",
    "parse_partition",
]
