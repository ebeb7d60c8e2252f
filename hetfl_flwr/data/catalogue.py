"""The catalogue of data sets by name; others are named by their hub id, ``owner/name``, or their folder."""

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
        Shape of one input, with default keys, and number of classes. Height and width are 0 if images differ in size.
    train_rows, test_rows : int
        The number of samples in the training split and the test split.
    licence : str
        The license, and the source of that statement.
    bundled : callable, optional
        Returns the arrays, if the data set comes with scikit-learn or is generated.
    place : str
        The hub id, ``owner/name``, which is also the folder below ``data-dir``; empty if the data set is bundled.
    origin : str
        Where to download a data set that is not on the hub; ``place`` is then only its folder. For a bundled data set
        its source, if that is not scikit-learn.
    form : str
        The form in which the origin's files are read; empty for the usual forms.
    columns : Reading
        The columns; the run config may name others.
    values : tuple of str or int
        The labels in the files, in class order, so that classes are the same for all clients. Empty: 0..C-1.
    names : tuple of str
        The names of the classes, in class order; empty: the names in the files.
    without : tuple of int
        Labels whose rows are left out.
    domains : int
        The number of domains in the domain column; 1 if there is none.
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
        """Fill in the columns that a reading does not name; bundled data have no columns."""
        if self.bundled:
            return Reading(image_size=reading.image_size, classes=reading.classes)
        names = (field.name for field in fields(Reading))
        return replace(reading, **{name: getattr(reading, name) or getattr(self.columns, name) for name in names})

    def spec_for(self, reading: Reading) -> DataSpec:
        """Return what a model must fit, without reading files.

        Raises `DataError` if images differ in size and ``image_size`` is not set.
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
            raise DataError(f"{self.place} has images of several sizes: set image-size to one size for all")
        return replace(spec, shape=shape)


def _entry(shape: list[int], classes: int, vocabulary: int = 0, **said: Any) -> DatasetEntry:
    """Return the entry for a table of the TOML file, where tuples are lists and ``bundled`` is a function's name."""
    facts: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in said.items()}
    facts["columns"] = Reading(**facts.get("columns", {}))
    facts["bundled"] = getattr(bundled_data, facts.get("bundled", ""), None)
    return DatasetEntry(DataSpec(tuple(shape), classes, vocabulary), **facts)


_TEXT = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")

CATALOGUE: Mapping[str, DatasetEntry] = {name: _entry(**said) for name, said in loads(_TEXT).items()}

ROTATED: Mapping[str, str] = {"rotated-digits": "digits", "rotated-mnist": "mnist"}
"""The rotated families that are listed, and their data sets; any other ``rotated-NAME`` also works."""
