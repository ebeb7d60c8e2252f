"""The data sets known by name. Any other is reached by its hub id, ``owner/name``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hetfl_flwr.data.bundled import read_breast_cancer, read_digits, read_digits_colour
from hetfl_flwr.data.hub import local_folder
from hetfl_flwr.data.rotation import ANGLES, IMAGES_A_CLASS
from hetfl_flwr.data.samples import Arrays, DataSpec


@dataclass(frozen=True)
class DatasetEntry:
    """One data set of the catalogue.

    Parameters
    ----------
    spec : DataSpec
        Shape of one input and number of classes.
    train_rows, test_rows : int
        Samples in its training split and in its own test split.
    licence : str
        Its licence, and whose word that is.
    bundled : callable, optional
        Reads it where it comes with scikit-learn; None for a data set of the hub.
    hub_id : str
        Its place on the hub, ``owner/name``; empty where it is bundled.
    image_column, label_column : str
        Its columns on the hub.
    """

    spec: DataSpec
    train_rows: int
    test_rows: int
    licence: str
    bundled: Callable[[], Arrays] | None = None
    hub_id: str = ""
    image_column: str = "image"
    label_column: str = "label"


CATALOGUE: Mapping[str, DatasetEntry] = {
    "breast-cancer": DatasetEntry(
        spec=DataSpec(shape=(30,), classes=2),
        train_rows=455,
        test_rows=114,
        licence="CC BY 4.0 (UCI)",
        bundled=read_breast_cancer,
    ),
    "cifar10": DatasetEntry(
        spec=DataSpec(shape=(3, 32, 32), classes=10),
        train_rows=50_000,
        test_rows=10_000,
        licence="not stated (hub card)",
        hub_id="uoft-cs/cifar10",
        image_column="img",
    ),
    "digits": DatasetEntry(
        spec=DataSpec(shape=(1, 8, 8), classes=10),
        train_rows=1437,
        test_rows=360,
        licence="CC BY 4.0 (UCI)",
        bundled=read_digits,
    ),
    "digits-colour": DatasetEntry(
        spec=DataSpec(shape=(3, 16, 16), classes=10),
        train_rows=1437,
        test_rows=360,
        licence="CC BY 4.0 (UCI)",
        bundled=read_digits_colour,
    ),
    "mnist": DatasetEntry(
        spec=DataSpec(shape=(1, 28, 28), classes=10),
        train_rows=60_000,
        test_rows=10_000,
        licence="MIT (hub card)",
        hub_id="ylecun/mnist",
    ),
}

ROTATED: Mapping[str, str] = {"rotated-digits": "digits", "rotated-mnist": "mnist"}
"""Rotated families that are listed, and the data set that each turns; any other ``rotated-NAME`` will do as well."""


class CatalogueRow(NamedTuple):
    """One line of ``hetfl list datasets``.

    ``domains`` is how many of them the name stands for, ``samples`` what is shared out over the clients of all of them
    with ``test-set = "client"``; ``where`` is "bundled", "local" or "hub".
    """

    name: str
    shape: tuple[int, ...]
    classes: int
    domains: int
    samples: int
    source: str
    where: str
    licence: str


def catalogue_rows(data_dir: str = "") -> list[CatalogueRow]:
    """Return the catalogue as rows, ordered by name.

    Parameters
    ----------
    data_dir : str
        Folder of local copies; empty for none.

    Raises
    ------
    DataError
        If ``data_dir`` is set and is not a folder.

    Examples
    --------
    >>> [(row.name, row.samples, row.where) for row in catalogue_rows()][2:5]
    [('digits', 1797, 'bundled'), ('digits-colour', 1797, 'bundled'), ('mnist', 70000, 'hub')]
    """
    rows = [
        _row(name, entry, domains=1, samples=entry.train_rows + entry.test_rows, data_dir=data_dir)
        for name, entry in CATALOGUE.items()
    ]
    for name, base in ROTATED.items():
        entry = CATALOGUE[base]
        samples = len(ANGLES) * IMAGES_A_CLASS * entry.spec.classes
        rows.append(_row(name, entry, domains=len(ANGLES), samples=samples, data_dir=data_dir))
    return sorted(rows)


def _row(name: str, entry: DatasetEntry, *, domains: int, samples: int, data_dir: str) -> CatalogueRow:
    return CatalogueRow(
        name=name,
        shape=entry.spec.shape,
        classes=entry.spec.classes,
        domains=domains,
        samples=samples,
        source=entry.hub_id or "scikit-learn",
        where=_where(entry, data_dir),
        licence=entry.licence,
    )


def _where(entry: DatasetEntry, data_dir: str) -> str:
    if entry.bundled:
        return "bundled"
    return "local" if data_dir and local_folder(entry.hub_id, data_dir) else "hub"
