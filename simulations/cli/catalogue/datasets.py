"""The data sets of ``hetfl list datasets``: what each name stands for, and where it is."""

from math import prod
from typing import NamedTuple

from hetfl_flwr.data import CATALOGUE, DatasetEntry
from hetfl_flwr.data.arrays.rotation import ANGLES, IMAGES_A_CLASS
from hetfl_flwr.data.sources.catalogue import ROTATED
from hetfl_flwr.data.sources.folders import local_folder


class CatalogueRow(NamedTuple):
    """One line of ``hetfl list datasets``.

    ``domains`` is how many of them the name stands for, ``samples`` what is shared out over the clients of all of them
    with ``test-set = "client"``, ``megabytes`` what that takes decoded, 0 where images differ in size (height and width
    0); ``source`` is its hub id or its folder below ``data-dir``, ``where`` "bundled", "local", "hub" or "folder only".
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    classes: int
    domains: int
    samples: int
    megabytes: float
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
    >>> rows = {row.name: row for row in catalogue_rows()}
    >>> rows["digits"].samples, rows["digits"].where, rows["mnist"].where, rows["mnist"].megabytes
    (1797, 'bundled', 'hub', 54.88)
    """
    rows = [
        _row(name, entry, domains=entry.domains, samples=entry.train_rows + entry.test_rows, data_dir=data_dir)
        for name, entry in CATALOGUE.items()
    ]
    for name, base in ROTATED.items():
        entry = CATALOGUE[base]
        samples = len(ANGLES) * IMAGES_A_CLASS * entry.spec.classes
        rows.append(_row(name, entry, domains=len(ANGLES), samples=samples, data_dir=data_dir))
    return sorted(rows)


def _row(name: str, entry: DatasetEntry, *, domains: int, samples: int, data_dir: str) -> CatalogueRow:
    spec = entry.spec
    return CatalogueRow(
        name=name,
        kind=spec.kind,
        shape=spec.shape,
        classes=spec.classes,
        domains=domains,
        samples=samples,
        megabytes=samples * prod(spec.shape) * (1 if spec.is_image else 4) / 1e6,
        source=entry.place or entry.origin or "scikit-learn",
        where=_where(entry, data_dir),
        licence=entry.licence,
    )


def _where(entry: DatasetEntry, data_dir: str) -> str:
    if entry.bundled:
        return "bundled"
    if data_dir and local_folder(entry.place, data_dir):
        return "local"
    return "folder only" if entry.origin else "hub"
