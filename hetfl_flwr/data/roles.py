"""The roles of columns (label, inputs, owner), by their names and types alone."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Literal
from unicodedata import category, normalize

import pyarrow as pa

from hetfl_flwr.data.frame import Frame
from hetfl_flwr.data.reading import Reading, parse_categories, parse_names
from hetfl_flwr.errors import ConfigError, DataError, unknown
from hetfl_flwr.text import some

_MINUS = "\u2212"

Kind = Literal["image", "series", "text", "table"]


def roles(
    place: str, frame: Frame, lacking: Mapping[str, tuple[str, str]], reading: Reading
) -> tuple[str, Kind, tuple[str, ...]]:
    """Return the label column, what an input is, and the columns that it is made of.

    Parameters
    ----------
    place : str
        What messages call the data set.
    frame : Frame
        All its rows.
    lacking : mapping
        Of each column that one of its files lacks, what messages call that file, and one that has it.
    reading : Reading
        Which columns count; the only image, the only series and the only class-label column need no name, and neither
        does ``y`` beside a series ``x``.
    """
    find = partial(_column, place, frame.names)
    usual = "y" if {"x", "y"} <= {*frame.names} and is_list(frame["x"].type) else ""
    label = find(reading.label_column or usual, "label-column", [*frame.classes], "classes")
    aside = [find(column, key) for key, column in _aside(reading).items()]
    kind, inputs = _inputs(place, frame, label, reading, find)
    learnt = [name for name in inputs if not reading.ignores(name)]
    check_lacking(lacking, [label, *aside, *learnt], label, learnt if kind == "table" else ())
    return label, kind, inputs


def check_lacking(
    lacking: Mapping[str, tuple[str, str]], counted: Sequence[str], label: str = "", ignorable: Sequence[str] = ()
) -> None:
    """Refuse files of which one lacks a column that counts; `roles` says what they are."""
    found = {name: lacking[name] for name in counted if name in lacking}
    for file, other in found.values():
        names = sorted(name for name, files in found.items() if files == (file, other))
        way_out = ", or name it in ignore-columns" * bool({*names} & {*ignorable})
        way_out += ", or hide sheets that hold other things" * file.startswith("sheet ")
        way_out += "; rows without labels are for hetfl predict" * (label in names)
        raise DataError(f"{file} has no {columns_called(names)}, which {other} has: add the missing ones{way_out}")


def _inputs(
    place: str, frame: Frame, label: str, reading: Reading, find: Callable[..., str]
) -> tuple[Kind, tuple[str, ...]]:
    """Return what an input is, and the columns that it is made of."""
    inputs: dict[Kind, str] = {
        **{"image": reading.image_column, "text": reading.text_column, "series": reading.series_column}
    }
    named = {kind: column for kind, column in inputs.items() if column}
    if len(named) > 1:
        raise ConfigError(f"{'-column and '.join(named)}-column are both set for {place}: choose one of them")
    if frame.images and not named:
        named = {"image": ""}
    for kind, column in named.items():
        return kind, (find(column, f"{kind}-column", [*frame.images] if kind == "image" else [], "images"),)
    columns = tuple(name for name in frame.names if name not in (label, *_aside(reading).values()))
    if lists := [name for name in columns if is_list(frame[name].type) and not reading.ignores(name)]:
        return "series", (find("", "series-column", lists, "lists"),)
    learnt_columns(place, label, columns, reading)
    return "table", columns


def _column(
    place: str, names: Sequence[str], wanted: str, key: str, declared: Sequence[str] = (), what: str = ""
) -> str:
    """Return the wanted column, or else the only one of those that are declared as what it is to be."""
    if not wanted and len(declared) == 1:
        wanted = declared[0]
    several = [name.strip() for name in wanted.split(",")]
    if wanted in names:
        return wanted
    near = get_close_matches(wanted, names, n=1) if wanted else []
    choices = (not wanted and declared) or [name for name in names if not is_nameless(name)]
    if not wanted:
        lead = f"has {len(declared)} columns of {what}" if declared else f"does not say which column holds the {what}"
    elif key == "label-column" and len(several) > 1 and {*several} <= {*names}:
        lead = f"has {len(several)} columns {wanted!r}, and only single-label classification is supported"
    else:
        lead = f"has no column '{wanted}'"
    hint = f"did you mean '{near[0]}'? Set" if near else "set"
    raise DataError(f"{place} {lead}: {hint} {key} to one of: {', '.join(choices)}{header_hint(names)}")


def _aside(reading: Reading) -> dict[str, str]:
    """Return the columns that say whose a row is, by their keys."""
    columns = {"domain-column": reading.domain_column, "COLUMN in partition=natural:COLUMN": reading.id_column}
    return {key: column for key, column in columns.items() if column}


TABLE_KEYS = ("ignore-columns", "categorical-columns", "numeric-columns")
"""Keys of the run config that name columns of a table."""


def learnt_columns(
    place: str, label: str, inputs: Sequence[str], reading: Reading
) -> tuple[list[str], dict[str, Literal["", "category", "number"]]]:
    """Return the columns of a table that are learnt from, and what those are to be that a key names."""
    there = (*inputs, *_aside(reading).values())
    ignored, categories, numbers = (_named(place, there, reading, key) for key in TABLE_KEYS)
    columns = [name for name in inputs if name not in ignored]
    if not columns:
        raise DataError(f"{place} has no column to learn from besides '{label}' and those of ignore-columns")
    if both := categories & numbers:
        raise DataError(
            f"column '{min(both)}' of {place} is in categorical-columns and in numeric-columns: name it in one"
        )
    wanted: dict[str, Literal["", "category", "number"]] = dict.fromkeys(categories, "category")
    return columns, {**wanted, **dict.fromkeys(numbers, "number")}


def _named(place: str, columns: Sequence[str], reading: Reading, key: str) -> set[str]:
    """Return the columns that a key of the run config names; a blank in a name stands for any white space."""
    by_name = {" ".join(name.split()): name for name in columns}
    wanted: str = getattr(reading, key.replace("-", "_"))
    if (whole := " ".join(wanted.split())) in by_name:  # its quotes are gone where TOML has read it
        return {by_name[whole]}
    valued = parse_categories(wanted, columns) if key == "categorical-columns" else {}
    names = [name for name in parse_names(wanted) if name in by_name or name.partition(":")[0].strip() not in valued]
    strangers = [name for name in names if name not in by_name]
    if strangers:
        raise DataError(f"{key} of {place}: " + unknown("column", "', '".join(strangers), by_name))
    return {*valued, *(by_name[name] for name in names)}


def columns_called(names: Sequence[str]) -> str:
    """Return columns as messages name them, the first five."""
    return f"column{'s' * (len(names) > 1)} {some([*map(repr, names)])}"


def _folded(text: str, *, cased: bool) -> str:
    """Return a form of a name that is equal for names that look alike: without case and invisible characters."""
    kinds = [(letter, category(letter)) for letter in normalize("NFKC", text)]
    shown = "".join("-" if kind == "Pd" or letter == _MINUS else letter for letter, kind in kinds if kind != "Cf")
    return " ".join((shown if cased else shown.casefold()).split())


def column_called(name: str) -> str:
    """Return the name of a column, its letters in one form and without invisible characters."""
    return name if name.isascii() else "".join(one for one in normalize("NFC", name) if category(one) != "Cf")


def check_spelling(called: str, names: Sequence[str | int], way_out: str, *, cased: bool = False) -> None:
    """Refuse names that differ in blanks, forms of letters or, unless ``cased``, capitals, and control characters then.

    Messages call what has the names ``called``, and end with the way out.
    """
    if not cased:
        for name in names:
            if any(category(letter) == "Cc" and letter != "\t" for letter in str(name).strip()):
                raise DataError(f"{called} holds {name!r}, with a control character: {way_out}")
    if twins := twins_among(names, cased=cased):
        raise DataError(f"{called} holds {twins}: {way_out}")


def twins_among(names: Iterable[str | int], *, cased: bool = False) -> str:
    """Return which names only capitals, blanks or forms of letters tell apart, the first pairs; empty if none."""
    first: dict[str, str | int] = {}
    pairs = [(first.setdefault(_folded(str(name), cased=cased), name), name) for name in names]
    twins = [f"{one!r} and {name!r}" for one, name in pairs if one != name]
    return some(twins)


def is_nameless(column: str) -> bool:
    """Return whether a column has the name that pandas or readr give to one without, or to the names of the rows."""
    return re.fullmatch(r"Unnamed: \d+(\.\d+)?|\.\.\.\d+|__index_level_\d+__", column) is not None


def is_between(column: str) -> bool:
    """Return whether a nameless column has another before it, so that it holds no names of the rows."""
    return re.fullmatch(r"Unnamed: [1-9]\d*|\.\.\.([2-9]|[1-9]\d+)", column) is not None


def header_hint(names: Sequence[str]) -> str:
    """Return a question where names of columns look like cells: one is a decimal number or a date, or most numbers."""
    cells = any(re.fullmatch(r"[+-]?\d+[.,]\d+|\d+[-./]\d+[-./]\d+", name.strip()) for name in names)
    numbers = sum(re.fullmatch(r"[+-]?\d+([.,]\d+)*", name.strip()) is not None for name in names)
    if not cells and (2 * numbers <= len(names) or [*names] == [*map(str, range(len(names)))]):
        return ""
    return " (if these are cells of a row, set header-row to the row that has the names, or to -1 if none has)"


def is_list(kind: pa.DataType) -> bool:
    """Return whether cells are lists of numbers, or lists of such lists."""
    nested = False
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, nested = kind.value_type, True
    return nested and bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def shape_of(kind: pa.DataType) -> str:
    """Return the lengths of lists, and of lists within these, as messages say them."""
    lengths = []
    while pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        lengths.append(str(kind.list_size) if pa.types.is_fixed_size_list(kind) else "many")
        kind = kind.value_type
    return " x ".join(lengths) or str(kind)


def is_text(kind: pa.DataType) -> bool:
    """Return whether cells of a type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def in_words(kind: pa.DataType) -> str:
    """Return what cells of a type are, as messages say it."""
    words = (
        (is_text, "texts"),
        (pa.types.is_boolean, "booleans"),
        (pa.types.is_integer, "whole numbers"),
        (pa.types.is_floating, "decimal numbers"),
        (pa.types.is_duration, "durations"),
        (pa.types.is_time, "times of day"),
        (pa.types.is_temporal, "dates or times"),
        (pa.types.is_struct, "records"),
        (pa.types.is_nested, "lists"),
    )
    return next((word for is_one, word in words if is_one(kind)), str(kind))
