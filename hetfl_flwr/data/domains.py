"""From the name of a data set, or a list of names, to its domains: one array each, decoded once a process."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from hetfl_flwr.data.catalogue import CATALOGUE, ROTATED
from hetfl_flwr.data.hub import HubTable, open_table, read_table, table_spec
from hetfl_flwr.data.reading import Reading
from hetfl_flwr.data.rotation import ANGLES, rotated
from hetfl_flwr.data.samples import Arrays, DataSpec
from hetfl_flwr.errors import ConfigError, unknown

_ROTATED = "rotated-"


@dataclass(frozen=True)
class Family:
    """The domains that one name stands for.

    Parameters
    ----------
    name : str
        As it was written.
    base : str
        The data set that it is, or turns: a name of the catalogue, or a hub id.
    domains : int
        How many they are: 1, or the number of angles of a rotated family.
    """

    name: str
    base: str
    domains: int


def parse_families(dataset: str) -> tuple[Family, ...]:
    """Return what a data set's name, or a comma list of names, stands for.

    Parameters
    ----------
    dataset : str
        Names of the catalogue, hub ids ``owner/name``, or either of them after ``rotated-``; blanks around a name
        do not count.

    Raises
    ------
    ConfigError
        If a name is empty, unknown, or there twice, or is ``rotated-`` of what cannot be turned.

    Examples
    --------
    >>> [(family.name, family.domains) for family in parse_families("digits, rotated-mnist")]
    [('digits', 1), ('rotated-mnist', 4)]
    """
    names = [name.strip() for name in dataset.split(",")]
    for name in names:
        if not name:
            raise ConfigError(f"dataset {dataset!r} has an empty name: write one name, or several with a comma between")
        if names.count(name) > 1:
            raise ConfigError(f"dataset {dataset!r} has '{name}' more than once: name each data set once")
    return tuple(map(_family, names))


def _family(name: str) -> Family:
    base = name.removeprefix(_ROTATED)
    if base.startswith(_ROTATED):
        raise ConfigError(f"dataset '{name}' is turned twice: write {_ROTATED} once")
    if base not in CATALOGUE and "/" not in base:
        raise ConfigError(f"{unknown('dataset', name, [*CATALOGUE, *ROTATED])}, or a hub id such as owner/name")
    if base == name:
        return Family(name, base, domains=1)
    if base in CATALOGUE and CATALOGUE[base].spec.is_table:
        raise ConfigError(f"dataset '{name}': '{base}' is a table, and only images can be turned: use '{base}'")
    return Family(name, base, domains=len(ANGLES))


def data_spec(dataset: str, reading: Reading | None = None) -> DataSpec:
    """Return what a model must fit, without decoding the data set.

    Parameters
    ----------
    dataset : str
        As in `load_client_data`. Of a list of names, the first one counts.
    reading : Reading, optional
        Where it lies and how it is read.

    Raises
    ------
    ConfigError
        If there is no such data set.
    DataError
        If it is not in the catalogue, and cannot be opened.

    Examples
    --------
    >>> data_spec("digits")
    DataSpec(shape=(1, 8, 8), classes=10, vocabulary=0)
    >>> data_spec("rotated-digits") == data_spec("digits, mnist") == data_spec("digits")
    True
    """
    families = parse_families(dataset)
    base = families[0].base
    if base in CATALOGUE:
        return CATALOGUE[base].spec
    return table_spec(_table(base, reading_of(families, 0, reading or Reading())))


def reading_of(families: Sequence[Family], number: int, reading: Reading) -> Reading:
    """Return how one family of a list is read: of bundled data only the size of images can be chosen.

    Raises
    ------
    ConfigError
        If a key names more or fewer columns than there are data sets.
    """
    own, entry = reading.of(number, len(families)), CATALOGUE.get(families[number].base)
    return Reading(image_size=own.image_size) if entry and entry.bundled else own


@cache
def family_arrays(family: Family, reading: Reading, seed: int, with_test: bool) -> tuple[Arrays, ...]:
    """Return the arrays of a family's domains; equal arguments return the same copy.

    Parameters
    ----------
    family : Family
        Which domains.
    reading : Reading
        Where they lie and how they are read.
    seed : int
        The run's seed, 0 or more, by which the images of a rotated family are drawn.
    with_test : bool
        Whether the data set's own test split is wanted; an ordinary data set comes with it in any case.

    Raises
    ------
    DataError
        If the data set cannot be found or read.
    """
    base = _arrays(family.base, reading)
    return (base,) if family.domains == 1 else rotated(base, seed, with_test)


@cache
def centred(domains: tuple[Arrays, ...]) -> tuple[Arrays, ...]:
    """Return the domains of a family of images, not copied, with one centre for all: their mean training image."""
    mean = np.mean([_mean_image(arrays) for arrays in domains], axis=0)
    centre = torch.from_numpy(mean.astype(np.float32))
    return tuple(replace(arrays, centre=centre) for arrays in domains)


def _mean_image(arrays: Arrays) -> npt.NDArray[np.float64]:
    mean: npt.NDArray[np.float64] = arrays.inputs[: arrays.train_rows].numpy().mean(axis=0, dtype=np.float64)
    return mean / float(arrays.peak)


def _table(dataset: str, reading: Reading) -> HubTable:
    entry = CATALOGUE.get(dataset)
    if entry:
        return open_table(
            entry.hub_id,
            reading.data_dir,
            reading.image_column or entry.image_column,
            reading.label_column or entry.label_column,
        )
    return open_table(dataset, reading.data_dir, reading.image_column, reading.label_column)


@cache
def _arrays(dataset: str, reading: Reading) -> Arrays:
    entry = CATALOGUE.get(dataset)
    if entry and entry.bundled:
        return entry.bundled()
    table = _table(dataset, reading)
    return read_table(table, entry.spec if entry else table_spec(table))
