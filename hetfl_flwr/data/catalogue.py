"""The data sets known by name. Any other is reached by its hub id, ``owner/name``, or by its folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tomllib import loads
from typing import Any

from hetfl_flwr.data import bundled as bundled_data
from hetfl_flwr.data.reading import Reading, parse_classes, parse_vocabulary
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import DataSpec
from hetfl_flwr.errors import DataError

_NO_COLUMNS = Reading()


@dataclass(frozen=True)
class DatasetEntry:
    """One data set of the catalogue.

    Parameters
    ----------
    spec : DataSpec
        Shape of one input, with all keys at their defaults, and number of classes. Height and width 0: images differ
        in size.
    train_rows, test_rows : int
        Samples in its training split and in its own test split.
    licence : str
        Its licence, and the source of that statement.
    bundled : callable, optional
        Reads it where it comes with scikit-learn or is made here; None for any other.
    place : str
        Its hub id, ``owner/name``, which is its folder below ``data-dir``, too; empty where it is bundled.
    origin : str
        Where a data set can be had that is not on the hub: then ``place`` is its folder alone. Of a bundled one, where
        it comes from, if not from scikit-learn.
    form : str
        As what its folder is taken, where that is as the origin has it; empty: as any other one.
    columns : Reading
        Its columns; one that the run config names instead goes before.
    values : tuple of str or int
        The labels in the files, in class order, so that classes are the same for all clients.
        Empty: 0..C-1.
    names : tuple of str
        What the classes are called, in class order, where the files call them otherwise; empty: as there.
    without : tuple of int
        Labels whose rows are left out.
    domains : int
        How many domains its column of domains has; 1 if it has none.
    """

    spec: DataSpec
    train_rows: int
    test_rows: int
    licence: str
    bundled: Callable[[], Arrays] | None = None
    place: str = ""
    origin: str = ""
    form: str = ""
    columns: Reading = _NO_COLUMNS
    values: tuple[str | int, ...] = ()
    names: tuple[str, ...] = ()
    without: tuple[int, ...] = ()
    domains: int = 1

    def completed(self, reading: Reading) -> Reading:
        """Return a reading with the entry's columns where it names none; bundled data have no columns."""
        if self.bundled:
            return Reading(image_size=reading.image_size, classes=reading.classes)
        names = (field.name for field in fields(Reading))
        return replace(reading, **{name: getattr(reading, name) or getattr(self.columns, name) for name in names})

    def spec_for(self, reading: Reading) -> DataSpec:
        """Return what a model must fit, as far as that can be known without the files.

        Raises
        ------
        DataError
            If images differ in size, and none is asked for.
        """
        spec = replace(self.spec, classes=len(parse_classes(reading.classes)) or self.spec.classes)
        if spec.kind == "text":
            vocabulary = parse_vocabulary(reading.vocabulary)[1]
            return replace(spec, shape=(reading.text_length,), vocabulary=vocabulary)
        if spec.kind != "image":
            return spec
        channels, height, width = spec.shape
        shape = (channels, reading.image_size or height, reading.image_size or width)
        if 0 in shape:
            raise DataError(f"{self.place} has images of many sizes: set image-size to one for all")
        return replace(spec, shape=shape)


def _entry(shape: list[int], classes: int, vocabulary: int = 0, **said: Any) -> DatasetEntry:
    """Return an entry as the file has it: lists for tuples, and the name of what reads bundled data."""
    facts: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in said.items()}
    facts["columns"] = Reading(**facts.get("columns", {}))
    facts["bundled"] = getattr(bundled_data, facts.get("bundled", ""), None)
    return DatasetEntry(DataSpec(tuple(shape), classes, vocabulary), **facts)


_TEXT = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")

CATALOGUE: Mapping[str, DatasetEntry] = {name: _entry(**said) for name, said in loads(_TEXT).items()}

ROTATED: Mapping[str, str] = {"rotated-digits": "digits", "rotated-mnist": "mnist"}
"""Rotated families that are listed, and the data set that each turns; any other ``rotated-NAME`` will do as well."""
