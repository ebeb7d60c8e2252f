"""Read options of a data set."""

import re
from collections.abc import Iterable, Sequence
from csv import Error as CsvError
from csv import reader
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

from hetfl_flwr.errors import ConfigError

_LISTS = ("categorical_columns", "numeric_columns", "ignore_columns", "id_column")
_ALONE = ("image_column", "text_column", "series_column", "label_column", "domain_column")

SeriesLayout = Literal["auto", "channels-first", "channels-last"]
"""What the outer lists of a series may be."""


@dataclass(frozen=True)
class Reading:
    """Where a data set lies, which of its columns count, and the form that its inputs are given.

    The fields are the config keys of these names, which `RunConfig` describes; save the last two, which ``partition``
    says: the column whose values own the rows, and whether each file of a folder owns its rows. For a list of data sets
    a column is one for all, or a comma list of one each; ``categorical_columns``, ``numeric_columns`` and
    ``ignore_columns`` are lists by themselves, for all.
    """

    data_dir: str = ""
    image_column: str = ""
    text_column: str = ""
    series_column: str = ""
    label_column: str = ""
    domain_column: str = ""
    classes: str = ""
    categorical_columns: str = ""
    numeric_columns: str = ""
    ignore_columns: str = ""
    missing_values: str = ""
    header_row: int = 0
    encoding: str = ""
    image_size: int = 0
    vocabulary: str = "hashed:20000"
    text_length: int = 32
    pivot: str = ""
    series_layout: SeriesLayout = "auto"
    id_column: str = ""
    by_file: bool = False

    @cached_property
    def _ignored(self) -> frozenset[str]:
        return frozenset(parse_names(self.ignore_columns))

    def ignores(self, column: str) -> bool:
        """Return whether ``ignore_columns`` names a column; a blank in a name stands for any white space."""
        return " ".join(column.split()) in self._ignored

    @property
    def missing(self) -> tuple[str, ...]:
        """The words of ``missing_values``."""
        return tuple(parse_names(self.missing_values))

    @property
    def named(self) -> frozenset[str]:
        """All columns that a key names to be read."""
        lists = parse_names(f"{self.categorical_columns},{self.numeric_columns}")
        return frozenset((*lists, *(getattr(self, key).strip() for key in _ALONE), self.id_column))

    def of(self, number: int, count: int) -> "Reading":
        """Return the reading of one data set of a list, by its number 0..count-1, its folder as an absolute path.

        Raises
        ------
        ConfigError
            If a key names more or fewer columns than there are data sets.

        Examples
        --------
        >>> Reading(image_column="image,img", label_column="label").of(1, 2).image_column
        'img'
        """
        folder = str(Path(self.data_dir).expanduser().absolute()) if self.data_dir else ""
        own: dict[str, Any] = {key: normalize("NFC", getattr(self, key)) for key in (*_LISTS, *_ALONE)}
        for key in filter(own.get, _ALONE):
            columns = parse_data_sets(own[key])
            if len(columns) in (1, count):
                own[key] = columns[number % len(columns)]
            elif count > 1:
                raise ConfigError(
                    f"{key.replace('_', '-')} '{own[key]}' has {len(columns)} names for {count} data sets: write one "
                    "for all, or one for each"
                )
        return replace(self, data_dir=folder, **own)


READING_KEYS = tuple(field.name for field in fields(Reading) if field.name not in ("id_column", "by_file"))
"""The fields of a reading that the run config has a key for."""


def parse_data_sets(text: str) -> list[str]:
    """Return the names of a comma list of data sets, blanks around one aside; quotes hold a name that has a comma.

    Examples
    --------
    >>> parse_data_sets('digits, "./north, old.csv"')
    ['digits', './north, old.csv']
    """
    return [name.strip() for name in _listed(text) or [""]]


def comma_list(names: Iterable[str]) -> str:
    """Return the comma list that `parse_data_sets` reads as some names."""
    return ",".join(f'"{name}"' if "," in name else name for name in names)


def parse_names(text: str) -> list[str]:
    """Return the names of a comma list, their blanks one space each; quotes hold a name that has a comma.

    Examples
    --------
    >>> parse_names('age, "height, in  cm",')
    ['age', 'height, in cm']
    """
    return [" ".join(name.split()) for name in _listed(text) if name.strip()]


def _listed(text: str) -> list[str]:
    """Return the parts of a comma list."""
    if '"' not in text:
        return text.split(",")
    try:
        return next(reader([text], skipinitialspace=True), [])
    except CsvError:
        raise ConfigError(f"{text!r}: a name in a list has a line break") from None


def parse_categories(text: str, columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of those columns of a comma list that are listed there, as in ``city:Bonn|Oslo``.

    Examples
    --------
    >>> parse_categories("city:Bonn|Oslo, code, a:b", ["city", "code", "a:b"])
    {'city': ('Bonn', 'Oslo')}
    """
    known = {" ".join(name.split()): name for name in columns}
    parts = [name.partition(":") for name in parse_names(text) if name not in known]
    listed = {known.get(name.strip(), ""): values.split("|") for name, colon, values in parts if colon}
    return {name: tuple(value.strip() for value in values) for name, values in listed.items() if name}


def parse_vocabulary(text: str) -> tuple[str, int]:
    """Return the kind and size of a vocabulary.

    Parameters
    ----------
    text : str
        ``hashed:V``: a word's token is its hash, the same for all clients; or ``shared:V``: the most frequent words of
        the training split. V, tokens in all, is 3 or more.

    Raises
    ------
    ConfigError
        If it is neither.

    Examples
    --------
    >>> parse_vocabulary("hashed:20000")
    ('hashed', 20000)
    """
    said = re.fullmatch(r"(hashed|shared):([0-9]{1,10})", text)
    if not said or not 3 <= int(said[2]) <= 2**31:
        raise ConfigError(f"vocabulary {text!r} is not one of: hashed:V, shared:V (V tokens in all, 3 or more)")
    return said[1], int(said[2])


def parse_classes(text: str) -> tuple[tuple[str, str], ...]:
    """Return the name of each class, in order, and what it is called in the data.

    Parameters
    ----------
    text : str
        Comma list of two classes or more: ``NAME``, or ``NAME:LABEL`` where the data call it otherwise. Empty: none.

    Raises
    ------
    ConfigError
        If there is one class alone, or a name or label is empty or there twice.

    Examples
    --------
    >>> parse_classes("malignant:Malignant, benign")
    (('malignant', 'Malignant'), ('benign', 'benign'))
    """
    if not text.strip():
        return ()
    parts = [[part.strip() for part in item.split(":", 1)] for item in text.split(",")]
    classes = tuple((part[0], part[-1]) for part in parts)
    if len(classes) < 2 or any(len({*column} - {""}) < len(classes) for column in zip(*classes, strict=True)):
        raise ConfigError(f"classes {text!r}: expected two or more different names, NAME or NAME:LABEL, with commas")
    return classes
