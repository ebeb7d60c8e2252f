"""Find the label, input and owner columns of a data set by their names and types."""

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
    """Return the label column, the kind of the inputs, and the input columns.

    `reading` need not name an image, series or class-label column if there is only one, nor ``y`` if ``x`` is a series.
    `lacking` maps each column that a file lacks to the names of that file and of one that has it.
    """
    find = partial(_column, place, frame.names)
    usual = "y" if {"x", "y"} <= {*frame.names} and is_list(frame["x"].type) else ""
    label = find(reading.label_column or usual, "label-column", [*frame.classes], "classes")
    others = [find(column, key) for key, column in _id_columns(reading).items()]
    kind, inputs = _inputs(place, frame, label, reading, find)
    learnt = [name for name in inputs if not reading.ignores(name)]
    check_lacking(lacking, [label, *others, *learnt], label, learnt if kind == "table" else ())
    return label, kind, inputs


def check_lacking(
    lacking: Mapping[str, tuple[str, str]], counted: Sequence[str], label: str = "", ignorable: Sequence[str] = ()
) -> None:
    """Refuse a file that lacks a column in use; `roles` describes `lacking`."""
    found = {name: lacking[name] for name in counted if name in lacking}
    for file, other in found.values():
        names = sorted(name for name, files in found.items() if files == (file, other))
        way_out = ", or name it in ignore-columns" * bool({*names} & {*ignorable})
        way_out += ", or hide sheets that hold other things" * file.startswith("sheet ")
        way_out += "; rows without labels are for hetfl predict" * (label in names)
        raise DataError(f"{file} has no {columns_called(names)}, which {other} has: add what is missing{way_out}")


def _inputs(
    place: str, frame: Frame, label: str, reading: Reading, find: Callable[..., str]
) -> tuple[Kind, tuple[str, ...]]:
    """Return the kind of the inputs, and the input columns."""
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
    columns = tuple(name for name in frame.names if name not in (label, *_id_columns(reading).values()))
    if lists := [name for name in columns if is_list(frame[name].type) and not reading.ignores(name)]:
        return "series", (find("", "series-column", lists, "lists"),)
    learnt_columns(place, label, columns, reading)
    return "table", columns


def _column(
    place: str, names: Sequence[str], wanted: str, key: str, declared: Sequence[str] = (), what: str = ""
) -> str:
    """Return the column `wanted`, or the only `declared` one if that is empty."""
    if not wanted and len(declared) == 1:
        wanted = declared[0]
    several = [name.strip() for name in wanted.split(",")]
    if wanted in names:
        return wanted
    near = get_close_matches(wanted, names, n=1) if wanted else []
    choices = (not wanted and declared) or [name for name in names if not is_unnamed(name)]
    if not wanted:
        lead = f"has {len(declared)} columns of {what}" if declared else f"does not say which column holds the {what}"
    elif key == "label-column" and len(several) > 1 and {*several} <= {*names}:
        lead = f"has {len(several)} columns {wanted!r}, and only single-label classification is supported"
    else:
        lead = f"has no column '{wanted}'"
    hint = f"did you mean '{near[0]}'? Set" if near else "set"
    raise DataError(f"{place} {lead}: {hint} {key} to one of: {', '.join(choices)}{header_hint(names)}")


def _id_columns(reading: Reading) -> dict[str, str]:
    """Return the domain and owner columns by their keys."""
    columns = {"domain-column": reading.domain_column, "COLUMN in partition=natural:COLUMN": reading.id_column}
    return {key: column for key, column in columns.items() if column}


TABLE_KEYS = ("ignore-columns", "categorical-columns", "numeric-columns")
"""The keys of the run config that name columns of a table."""


def learnt_columns(
    place: str, label: str, inputs: Sequence[str], reading: Reading
) -> tuple[list[str], dict[str, Literal["", "category", "number"]]]:
    """Return the columns of a table to learn from, and the kinds of those that a key names."""
    there = (*inputs, *_id_columns(reading).values())
    ignored, categories, numbers = (_named(place, there, reading, key) for key in TABLE_KEYS)
    columns = [name for name in inputs if name not in ignored]
    if not columns:
        raise DataError(f"{place} has no column to learn from except '{label}' and those in ignore-columns")
    if both := categories & numbers:
        raise DataError(
            f"column '{min(both)}' of {place} is in both categorical-columns and numeric-columns: name it in only one"
        )
    wanted: dict[str, Literal["", "category", "number"]] = dict.fromkeys(categories, "category")
    return columns, {**wanted, **dict.fromkeys(numbers, "number")}


def _named(place: str, columns: Sequence[str], reading: Reading, key: str) -> set[str]:
    """Return the columns that a key of the run config names; a space in a name matches any white space."""
    by_name = {" ".join(name.split()): name for name in columns}
    wanted: str = getattr(reading, key.replace("-", "_"))
    if (whole := " ".join(wanted.split())) in by_name:  # TOML has removed its quotes
        return {by_name[whole]}
    valued = parse_categories(wanted, columns) if key == "categorical-columns" else {}
    names = [name for name in parse_names(wanted) if name in by_name or name.partition(":")[0].strip() not in valued]
    if missing := [name for name in names if name not in by_name]:
        raise DataError(f"{key} of {place}: " + unknown("column", "', '".join(missing), by_name))
    return {*valued, *(by_name[name] for name in names)}


def columns_called(names: Sequence[str]) -> str:
    """Return the names of columns for a message: at most the first five."""
    return f"column{'s' * (len(names) > 1)} {some([*map(repr, names)])}"


def _folded(text: str, *, cased: bool) -> str:
    """Normalize a name so that names that look alike are equal: one form of letters, spaces, hyphens and numbers."""
    kinds = [(letter, category(letter)) for letter in normalize("NFKC", text)]
    shown = "".join("-" if kind == "Pd" or letter == _MINUS else letter for letter, kind in kinds if kind != "Cf")
    seen = " ".join((shown if cased else shown.casefold()).split())
    return re.sub(r"^(-?(?:0|[1-9]\d*))\.0+$", r"\1", seen)


def column_called(name: str) -> str:
    """Normalize the letters in the name of a column, and remove invisible characters."""
    return name if name.isascii() else "".join(one for one in normalize("NFC", name) if category(one) != "Cf")


def check_spelling(called: str, names: Sequence[str | int], way_out: str, *, cased: bool = False) -> None:
    """Refuse names that `twins_among` lists, and names with control characters.

    If `cased`, names may differ in capitals and have control characters. Messages begin with `called`.
    """
    if not cased:
        for name in names:
            if any(category(letter) == "Cc" and letter != "\t" for letter in str(name).strip()):
                raise DataError(f"{called} holds {name!r}, which has a control character: {way_out}")
    if twins := twins_among(names, cased=cased):
        raise DataError(f"{called} holds {twins}: {way_out}")


def twins_among(names: Iterable[str | int], *, cased: bool = False) -> str:
    """List pairs of names that differ only in capitals, spaces, forms of letters, or as 1 and 1.0; empty if none do."""
    first: dict[str, str | int] = {}
    pairs = [(first.setdefault(_folded(str(name), cased=cased), name), name) for name in names]
    twins = [f"{one!r} and {name!r}" for one, name in pairs if one != name]
    return some(twins)


def is_unnamed(column: str) -> bool:
    """Return whether pandas or readr made up the name of a column, as they do for unnamed columns and row names."""
    return re.fullmatch(r"Unnamed: \d+(\.\d+)?|\.\.\.\d+|__index_level_\d+__", column) is not None


def is_between(column: str) -> bool:
    """Return whether an unnamed column is not the first one, so that it does not hold row names."""
    return re.fullmatch(r"Unnamed: [1-9]\d*|\.\.\.([2-9]|[1-9]\d+)", column) is not None


def header_hint(names: Sequence[str]) -> str:
    """Return a hint if column names look like cells: one is a decimal number or a date, or most are numbers."""
    cells = any(re.fullmatch(r"[+-]?\d+[.,]\d+|\d+[-./]\d+[-./]\d+", name.strip()) for name in names)
    numbers = sum(re.fullmatch(r"[+-]?\d+([.,]\d+)*", name.strip()) is not None for name in names)
    if not cells and (2 * numbers <= len(names) or [*names] == [*map(str, range(len(names)))]):
        return ""
    return " (if these are cells, set header-row to the row that has the names, or to -1 if there is none)"


def is_list(kind: pa.DataType) -> bool:
    """Return whether cells of a type are lists of numbers, or nested lists of numbers."""
    nested = False
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, nested = kind.value_type, True
    return nested and bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def shape_of(kind: pa.DataType) -> str:
    """Describe the lengths of nested lists, such as "many x 3"."""
    lengths = []
    while pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        lengths.append(str(kind.list_size) if pa.types.is_fixed_size_list(kind) else "many")
        kind = kind.value_type
    return " x ".join(lengths) or str(kind)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is a text type."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def in_words(kind: pa.DataType) -> str:
    """Describe the cells of a type for messages."""
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
