"""From the name of a data set, or a list of names, to its domains: one array each, decoded once a process."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from hetfl_flwr.data.catalogue import CATALOGUE, ROTATED
from hetfl_flwr.data.hub import HubTable, open_table, read_table, table_spec
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


@dataclass(frozen=True)
class Place:
    """Where data of the hub lie.

    Parameters
    ----------
    data_dir : str
        Folder of local copies, absolute; empty: the hub.
    image_column, label_column : str
        Columns; empty: the catalogue's, or the only ones of their kind.
    """

    data_dir: str = ""
    image_column: str = ""
    label_column: str = ""


def place_of(families: Sequence[Family], number: int, *, data_dir: str, image_column: str, label_column: str) -> Place:
    """Return where one family of a list lies.

    Parameters
    ----------
    families : sequence of Family
        The whole list.
    number : int
        Which of them, 0 or more.
    data_dir : str
        Folder of local copies; empty: the hub.
    image_column, label_column : str
        A column for all of them, or a comma list of one a name, in which an empty one stands for the only one.
        Bundled data sets have none and ignore them.

    Raises
    ------
    ConfigError
        If there are more or fewer columns than names.
    """
    image = _column(image_column, "image-column", families, number)
    label = _column(label_column, "label-column", families, number)
    entry = CATALOGUE.get(families[number].base)
    if entry and entry.bundled:
        return Place()
    return Place(str(Path(data_dir).expanduser().absolute()) if data_dir else "", image, label)


def _column(text: str, key: str, families: Sequence[Family], number: int) -> str:
    if len(families) == 1 or "," not in text:
        return text
    columns = [column.strip() for column in text.split(",")]
    if len(columns) != len(families):
        raise ConfigError(
            f"{key} '{text}' has {len(columns)} names for {len(families)} data sets: write one for all, or one for each"
        )
    return columns[number]


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


def data_spec(dataset: str, data_dir: str = "", image_column: str = "", label_column: str = "") -> DataSpec:
    """Return what a model must fit, without decoding the data set.

    Parameters
    ----------
    dataset : str
        As in `load_client_data`. Of a list of names, the first one counts.
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
    >>> data_spec("rotated-digits") == data_spec("digits, mnist") == data_spec("digits")
    True
    """
    families = parse_families(dataset)
    base = families[0].base
    if base in CATALOGUE:
        return CATALOGUE[base].spec
    place = place_of(families, 0, data_dir=data_dir, image_column=image_column, label_column=label_column)
    return table_spec(_table(base, place))


@cache
def family_arrays(family: Family, place: Place, seed: int, with_test: bool) -> tuple[Arrays, ...]:
    """Return the arrays of a family's domains; equal arguments return the same copy.

    Parameters
    ----------
    family : Family
        Which domains.
    place : Place
        Where they lie.
    seed : int
        The run's seed, 0 or more, by which the images of a rotated family are drawn.
    with_test : bool
        Whether the data set's own test split is wanted; an ordinary data set comes with it in any case.

    Raises
    ------
    DataError
        If the data set cannot be found or read.
    """
    base = _arrays(family.base, place)
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


def _table(dataset: str, place: Place) -> HubTable:
    entry = CATALOGUE.get(dataset)
    if entry:
        return open_table(
            entry.hub_id,
            place.data_dir,
            place.image_column or entry.image_column,
            place.label_column or entry.label_column,
        )
    return open_table(dataset, place.data_dir, place.image_column, place.label_column)


@cache
def _arrays(dataset: str, place: Place) -> Arrays:
    entry = CATALOGUE.get(dataset)
    if entry and entry.bundled:
        return entry.bundled()
    table = _table(dataset, place)
    return read_table(table, entry.spec if entry else table_spec(table))
