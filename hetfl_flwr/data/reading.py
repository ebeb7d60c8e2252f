"""Options for reading a data set, and parsers of their lists."""

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
"""Whether the outer lists of a series are channels or points in time."""


@dataclass(frozen=True)
class Reading:
    """Where a data set is, which of its columns are used, and how its inputs are decoded.

    The fields are keys of the run config, which `RunConfig` describes, except the last two, which ``partition`` sets:
    the owner column, and whether each file of a folder is an owner. For a list of data sets a column is one name for
    all, or a comma-separated list of one for each; ``categorical_columns``, ``numeric_columns`` and ``ignore_columns``
    are always lists for all.
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
        """Return whether ``ignore_columns`` names a column; a space in a name matches any white space."""
        return " ".join(column.split()) in self._ignored

    @property
    def missing(self) -> tuple[str, ...]:
        """The words in ``missing_values``."""
        return tuple(parse_names(self.missing_values))

    @property
    def named(self) -> frozenset[str]:
        """All columns that a key names for use."""
        lists = parse_names(f"{self.categorical_columns},{self.numeric_columns}")
        return frozenset((*lists, *(getattr(self, key).strip() for key in _ALONE), self.id_column))

    def of(self, number: int, count: int) -> "Reading":
        """Return the reading of the data set with index `number` in a list of `count`, with an absolute ``data_dir``.

        Raises `ConfigError` if a key names more than one column, but not one for each data set.

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
"""The fields of a reading that are keys of the run config."""


def parse_data_sets(text: str) -> list[str]:
    """Split a comma-separated list of data sets; a name with a comma is quoted.

    Examples
    --------
    >>> parse_data_sets('digits, "./north, old.csv"')
    ['digits', './north, old.csv']
    """
    return [name.strip() for name in _listed(text) or [""]]


def comma_list(names: Iterable[str]) -> str:
    """Join names to a list that `parse_data_sets` splits into the same names."""
    return ",".join(f'"{name}"' if "," in name else name for name in names)


def parse_names(text: str) -> list[str]:
    """Split a comma-separated list of names and normalize their spaces; a name with a comma is quoted.

    Examples
    --------
    >>> parse_names('age, "height, in  cm",')
    ['age', 'height, in cm']
    """
    return [" ".join(name.split()) for name in _listed(text) if name.strip()]


def _listed(text: str) -> list[str]:
    """Split a comma-separated list with optional quotes."""
    if '"' not in text:
        return text.split(",")
    try:
        return next(reader([text], skipinitialspace=True), [])
    except CsvError:
        raise ConfigError(f"{text!r}: a name in this list has a line break: remove it") from None


def parse_categories(text: str, columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values that a comma-separated list gives for columns, as in ``city:Bonn|Oslo``.

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
    """Parse ``vocabulary`` of the run config: return its kind and size V, 3 or more.

    With ``hashed:V`` the token of a word is its hash, the same for all clients; with ``shared:V`` tokens are the most
    frequent words of the training split. V counts all tokens. Anything else raises `ConfigError`.

    Examples
    --------
    >>> parse_vocabulary("hashed:20000")
    ('hashed', 20000)
    """
    said = re.fullmatch(r"(hashed|shared):([0-9]{1,10})", text)
    if not said or not 3 <= int(said[2]) <= 2**31:
        raise ConfigError(f"vocabulary {text!r} is not one of: hashed:V, shared:V (V >= 3 tokens in total)")
    return said[1], int(said[2])


def parse_classes(text: str) -> tuple[tuple[str, str], ...]:
    """Parse ``classes`` of the run config: return the name and the label in the data of each class, in order.

    `text` is a comma-separated list of two or more classes, ``NAME``, or ``NAME:LABEL`` if the label in the data
    differs. Raises `ConfigError` for a single class, and for empty or repeated names or labels.

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
        raise ConfigError(
            f"classes {text!r}: expected two or more different classes, NAME or NAME:LABEL, separated by commas"
        )
    return classes
