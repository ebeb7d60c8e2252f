"""Load the domains of data sets by name, as one array each; a process decodes a data set once."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from hetfl_flwr.data import columns
from hetfl_flwr.data.bundled import resized
from hetfl_flwr.data.catalogue import CATALOGUE, ROTATED, DatasetEntry
from hetfl_flwr.data.client_data import digested
from hetfl_flwr.data.folders import is_folder, local_folder, stem
from hetfl_flwr.data.frame import IntArray
from hetfl_flwr.data.images import image_spec, read_images
from hetfl_flwr.data.labels import classes_of, declared, read_codes, read_owners
from hetfl_flwr.data.opening import Source, open_source
from hetfl_flwr.data.overview import ColumnFacts, Overview
from hetfl_flwr.data.reading import Reading, comma_list, parse_data_sets
from hetfl_flwr.data.roles import Kind
from hetfl_flwr.data.rotation import ANGLES, Rotation, rotated
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.series import read_series
from hetfl_flwr.data.spec import DataSpec
from hetfl_flwr.data.tables import opened_table, read_table
from hetfl_flwr.data.texts import read_texts
from hetfl_flwr.errors import ConfigError, DataError, HetflError, unknown

ROTATED_PREFIX = "rotated-"
"""The prefix of the name of a rotated family."""

_READERS: dict[Kind, Callable[[Source, IntArray], Arrays]] = {
    "table": read_table,
    "text": read_texts,
    "series": read_series,
    "image": read_images,
}


@dataclass(frozen=True)
class DataSet:
    """A data set by its name, which is opened once, when first used.

    `name` is as the user wrote it, but folders are absolute paths. `base` is `name` without ``rotated-``: a name of the
    catalogue, a hub id or a folder. `reading` tells how this data set is read; columns that the catalogue knows are
    filled in.
    """

    name: str
    base: str
    reading: Reading

    @cached_property
    def is_rotated(self) -> bool:
        """Whether the data set is a rotated family."""
        return self.name != self.base

    @cached_property
    def entry(self) -> DatasetEntry | None:
        """The catalogue's entry for the data set."""
        return CATALOGUE.get(self.base)

    @property
    def place(self) -> str:
        """The hub id, file or folder; empty if the data set is bundled."""
        return self.entry.place if self.entry else self.base

    @property
    def short(self) -> str:
        """The name; of a folder only its last part, of a file its name without extensions."""
        if self.is_rotated or not is_folder(self.name):
            return self.name
        path = Path(self.name)
        return (stem(path) if path.is_file() else path.name) or self.name

    @property
    def is_here(self) -> bool:
        """Whether the data set has local files."""
        folder = self.reading.data_dir
        return is_folder(self.place) or bool(self.place and folder and local_folder(self.place, folder))

    @cached_property
    def source(self) -> Source:
        """The opened but not decoded data set, unless it is bundled. Raises DataError if it cannot be opened."""
        return open_source(self.place, self.reading, self.entry)

    @property
    def domain_names(self) -> tuple[str, ...]:
        """The names of the domains: angles, the values of the domain column, or the data set's name."""
        if self.is_rotated:
            return tuple(f"{angle}°" for angle in ANGLES)
        return tuple(map(str, self.source.once(_domains)[0])) if self.reading.domain_column else (self.name,)

    @property
    def spec(self) -> DataSpec:
        """What a model must fit; by the catalogue, if the data set is in it and has no local copy."""
        if self.entry and not self.is_here:
            return self.entry.spec_for(self.reading)
        return image_spec(self.source) if self.source.kind == "image" else self._straight[0].spec

    @property
    def kind(self) -> Kind:
        """The kind of the inputs, by the catalogue, the local files or the columns that the run config names."""
        if self.entry:
            return self.entry.spec.kind
        with suppress(DataError):  # a server need not have what its clients have
            if self.is_here:
                return self.source.kind
        return _kind_by_columns(self.reading)

    @property
    def overview(self) -> Overview:
        """How the data set is interpreted, and any problem with it; of images only the first is decoded."""
        if self.entry and self.entry.bundled:  # it comes with a library, and has no files
            return Overview.of_arrays(self.name, self._straight[0])
        source, learnt, problem = self.source, list[ColumnFacts](), ""
        try:
            self.check_rotated(source.kind)
            if source.kind == "image":
                image_spec(source)
                source.once(_domains)
            elif found := self._straight[0].overview:
                return found
        except HetflError as error:
            problem = str(error)
        for decision, cells in opened_table(source) if source.kind == "table" else ():
            numbers = columns.read(decision.column, cells) if decision.column else None
            learnt.append(ColumnFacts.of(decision, cells, numbers))
        whole = Overview.of(source, learnt)
        return replace(whole, problem=problem or whole.problem)

    def arrays(self, seed: int, with_test: bool, rotation: Rotation = "clockwise") -> tuple[Arrays, ...]:
        """Return the arrays of the domains, as `rotated` makes them; equal arguments return the same objects."""
        straight = self._straight
        self.check_rotated(straight[0].spec.kind)
        return straight[0].once(rotated, seed, with_test, rotation) if self.is_rotated else straight

    @cached_property
    def digest(self) -> str:
        """A digest of all rows and names as stored, before any rotation."""
        found = self._straight
        names = [
            (one.class_names, one.input_names, one.owner_names, one.train_rows, one.words and [*one.words()])
            for one in found
        ]
        parts = ((one.inputs, one.labels, one.owners, one.peak, one.centre, one.origin) for one in found)
        return digested(names, *chain.from_iterable(parts))

    @property
    def is_local(self) -> bool:
        """Whether it is read from files of this machine."""
        return is_folder(self.place) or bool(self.place and self.reading.data_dir)

    @property
    def can_change(self) -> bool:
        """Whether it is read from files of this machine, which exist."""
        with suppress(DataError):  # data-dir is gone
            return self.is_here and (not is_folder(self.place) or Path(self.place).exists())
        return False

    def check_rotated(self, kind: str) -> None:
        """Refuse to rotate data sets that have a domain column or are not images."""
        if self.is_rotated and (self.reading.domain_column or kind != "image"):
            why = "already has domains" if self.reading.domain_column else f"is a {kind}, not an image"
            raise ConfigError(f"dataset '{self.name}': '{self.base}' {why} and cannot be rotated: use '{self.base}'")

    @cached_property
    def _straight(self) -> tuple[Arrays, ...]:
        """The domains before rotation, as views of one array whose rows are ordered by domain, then by split."""
        reading, entry = self.reading, self.entry
        if entry and entry.bundled:
            return (declared(resized(entry.bundled(), reading.image_size), reading.classes, self.base),)
        source = self.source
        names, domains = source.once(_domains)
        rows = np.argsort(domains, kind="stable")
        owner_names, owners = read_owners(source, rows)
        read = _READERS[source.kind](source, rows)
        whole = replace(
            read,
            owner_names=owner_names,
            class_names=(entry.names if entry and not reading.classes else ()) or classes_of(source).names,
            notes=(*source.notes, *classes_of(source).notes, *read.notes),
            facts=read.overview.lines if read.overview and not entry else (),
        )
        counts, of_training = (
            np.bincount(some, minlength=len(names)).tolist() for some in (domains, domains[: source.train_rows])
        )
        parts = list[Arrays]()
        for name, end, count, train_rows in zip(names, np.cumsum(counts).tolist(), counts, of_training, strict=True):
            if not train_rows:
                raise DataError(
                    f"{source.place} has no training row of {reading.domain_column} {name}: add some, or leave that "
                    "domain out"
                )
            some = slice(end - count, end)
            inputs, labels, own = whole.inputs[some], whole.labels[some], None if owners is None else owners[some]
            parts.append(replace(whole, inputs=inputs, labels=labels, owners=own, train_rows=train_rows))
        return tuple(parts)


def data_sets(dataset: str, reading: Reading | None = None) -> tuple[DataSet, ...]:
    """Return the data sets of a name, or of a comma-separated list of names, without opening them.

    A name is from the catalogue, a hub id ``owner/name`` or a folder; each may follow ``rotated-``.

    Examples
    --------
    >>> [(one.base, len(one.domain_names)) for one in data_sets("digits, rotated-mnist")]
    [('digits', 1), ('mnist', 4)]
    """
    names = [_absolute(name) for name in parse_data_sets(dataset)]
    if len(names) > 1 and Path(dataset.strip()).expanduser().exists():
        raise ConfigError(f"dataset {dataset!r} has a comma: write quotes around it, '{comma_list([dataset])}'")
    for name in names:
        if not name or names.count(name) > 1:
            what = f"'{name}' more than once" if name else "an empty name"
            raise ConfigError(f"dataset {dataset!r} has {what}: write each name once, separated by commas")
    own = reading or Reading()
    return tuple(_named(name, own.of(number, len(names))) for number, name in enumerate(names))


_known = cache(DataSet)  # the data sets of this process


def _named(name: str, reading: Reading) -> DataSet:
    base = name.removeprefix(ROTATED_PREFIX)
    entry = CATALOGUE.get(base)
    if base.startswith(ROTATED_PREFIX):
        raise ConfigError(f"dataset '{name}' is rotated twice: write {ROTATED_PREFIX} once")
    here = Path(base).exists() and not reading.data_dir  # with data-dir it may be a hub id
    if not entry and not is_folder(base) and ("/" not in base or here or Path(base).is_file()):
        if Path(base).exists():
            raise ConfigError(f"unknown dataset '{name}': write {f'./{base}'} to read that path")
        raise ConfigError(
            f"{unknown('dataset', name, [*CATALOGUE, *ROTATED])}, "
            f"or a hub id such as owner/name, or a folder such as {f'./{base}'}"
        )
    found = _known(name, base, entry.completed(reading) if entry else reading)
    found.check_rotated(entry.spec.kind if entry else "image")
    return found


def _domains(source: Source) -> tuple[tuple[int | str, ...], IntArray]:
    """Return the names of the domains, and the index of each row's domain (N,)."""
    column = source.reading.domain_column
    return read_codes(source, column, "domain-column") if column else (("",), np.zeros(len(source), np.int64))


def reread(dataset: str) -> None:
    """Make this process read files again, if ``dataset`` of the run config names any."""
    if dataset and not public_data(dataset):
        _known.cache_clear()


def public_data(dataset: str) -> bool:
    """Return whether all data sets of a name, or of a comma-separated list of names, are in the catalogue."""
    return all(name.removeprefix(ROTATED_PREFIX) in CATALOGUE for name in parse_data_sets(dataset))


def absolute(dataset: str) -> str:
    """Make folders absolute in the name of a data set, or in a comma-separated list of names.

    Examples
    --------
    >>> absolute("digits, rotated-/data/./photos")
    'digits,rotated-/data/photos'
    """
    return comma_list(map(_absolute, parse_data_sets(dataset)))


def _absolute(name: str) -> str:
    base = name.removeprefix(ROTATED_PREFIX)
    return name.removesuffix(base) + str(Path(base).expanduser().absolute()) if is_folder(base) else name


def domain_labels(found: Sequence[DataSet]) -> tuple[str, ...]:
    """Return the names of the domains of all data sets, in order."""
    if len(found) == 1:
        return found[0].domain_names
    shorts, names = [one.short for one in found], list[str]()
    for one, short in zip(found, shorts, strict=True):
        called = short if shorts.count(short) == 1 else one.name
        names += [called if own == one.name else f"{called} {own}" for own in one.domain_names]
    return tuple(names)


def overview(dataset: str, reading: Reading) -> Overview:
    """Return how a data set is interpreted; raise `DataError` if `dataset` names several."""
    found, *others = data_sets(dataset, reading)
    if others:
        raise DataError(f"dataset {dataset!r} names {len(others) + 1} data sets: inspect one at a time")
    return found.overview


def data_spec(dataset: str, reading: Reading | None = None) -> DataSpec:
    """Return what a model must fit for a data set, or for the first of a list.

    Raises `ConfigError` if the data set is unknown, and `DataError` if it cannot be opened.

    Examples
    --------
    >>> data_spec("digits")
    DataSpec(shape=(1, 8, 8), classes=10, vocabulary=0)
    >>> data_spec("rotated-digits") == data_spec("digits, mnist") == data_spec("digits")
    True
    """
    return data_sets(dataset, reading)[0].spec


def kind_of(dataset: str, reading: Reading | None = None) -> Kind:
    """Return the kind of the inputs of a data set, or of a list of data sets, without a download.

    If neither the catalogue nor local files tell it, or if `dataset` is empty because each node names its own, inputs
    are texts or series if the run config names such a column, else images.

    Raises `ConfigError` if a data set is unknown or kinds differ, and `DataError` if kinds differ because a data set
    cannot be opened.

    Examples
    --------
    >>> kind_of("digits"), kind_of("adult"), kind_of("owner/name", Reading(text_column="text"))
    ('image', 'table', 'text')
    """
    if not dataset:
        return _kind_by_columns(reading or Reading())
    found = data_sets(dataset, reading)
    kinds = {one.kind: one.name for one in found}
    if len(kinds) > 1:
        for one in found:
            if one.is_here and not one.entry:
                _ = one.source  # if it cannot be opened, its error explains why its kind is unknown
        said = ", ".join(f"{name} are {kind.removesuffix('s')}s" for kind, name in kinds.items())
        raise ConfigError(f"models = 'auto' cannot serve data sets of several kinds ({said}): name the models")
    return next(iter(kinds))


def _kind_by_columns(reading: Reading) -> Kind:
    """Return the kind of the inputs by the columns that the run config names."""
    is_series = reading.series_column or reading.pivot
    return "text" if reading.text_column else "series" if is_series else "image"
