"""Files of rows read one by one: a data set that is one file, or a folder in which each file is somebody's."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hetfl_flwr.data.sources.columns import Columns, in_words, is_text, roles, shape_of
from hetfl_flwr.data.sources.csv.dialects import common_options, row_numbers
from hetfl_flwr.data.sources.csv.headers import check_headers
from hetfl_flwr.data.sources.folders import TABLES, check_filled, ending, names_of
from hetfl_flwr.data.sources.notations import PLAIN, Notation, Undecided, recognised
from hetfl_flwr.data.sources.npz import read_npz
from hetfl_flwr.data.sources.reading import Reading
from hetfl_flwr.errors import DataError, HetflError

if TYPE_CHECKING:
    from datasets.arrow_dataset import Dataset

NAMES_FILE = "owners.hetfl"
"""Beside files whose names cannot be those of their owners: a JSON object of both."""

CALLED_FILE = "called.hetfl"
"""Beside files of data that were given from Python: what messages call each file and, as ``""``, all of them."""

_NOT_CLOSED = re.compile(r"EOF inside string starting at row (\d+)")  # pandas' words, which count from 0


def from_files(files: Sequence[Path], called: str, reading: Reading) -> tuple["Dataset", tuple[tuple[str, int], ...]]:
    """Read some files of one kind, one after the other.

    Columns are matched by name. Whole numbers in one file and fractions in another are both fractions; a column that is
    empty in one file has the type that it has in the others.

    Parameters
    ----------
    files : sequence of Path
        One or more.
    called : str
        What messages call them together.
    reading : Reading
        Which columns count.

    Returns
    -------
    data : Dataset
        All rows.
    owners : tuple of (str, int)
        Name and rows of each file.

    Raises
    ------
    DataError
        If one cannot be read or has no row, or if they differ in their columns.
    """
    check_filled(files)
    path, parts = files[0], list["Dataset"]()
    try:
        headers = check_headers(files, reading.ignored)
        for path in files:
            parts.append(_read(path, called, reading, headers))
    except HetflError:
        raise
    except Exception as error:
        place = f"'{path}'" if parts or len(files) == 1 else called
        raise DataError(f"cannot read {place}: {reason(error)}") from error
    names = _names(files)
    owners = tuple((names[path], len(part)) for path, part in zip(files, parts, strict=True))
    return (parts[0] if len(parts) == 1 else _joined(files, parts, reading)), owners


def _read(path: Path, called: str, reading: Reading, headers: Mapping[Path, Sequence[str]]) -> "Dataset":
    import datasets.features
    from datasets.load import load_dataset_builder

    if TABLES[ending(path)] == "npz":
        return read_npz(path)
    of_columns: Any = datasets.features.Features
    options: dict[str, Any] = common_options([path])
    builder: Any = load_dataset_builder(TABLES[ending(path)], data_files={"train": [escape(str(path))]}, **options)
    if columns := head(builder.config, path, headers):
        others = (name for header in headers.values() for name in header if " ".join(name.split()) in reading.ignored)
        roles(called, {"train": {**dict.fromkeys(others), **columns}}, reading)
    try:
        builder.download_and_prepare()
    except Exception:
        if TABLES[ending(path)] != "csv":
            raise
        features = of_columns(csv_features([path]))
        builder = load_dataset_builder("csv", data_files=builder.config.data_files, features=features, **options)
        builder.download_and_prepare()
    if not builder.info.splits["train"].num_examples:
        raise DataError(f"'{path}' holds no rows: put some into it, or take it away")
    data: Dataset = builder.as_dataset(split="train")
    return data


def _joined(files: Sequence[Path], parts: Sequence["Dataset"], reading: Reading) -> "Dataset":
    import datasets.features
    from datasets.combine import concatenate_datasets

    of_columns: Any = datasets.features.Features
    first: dict[str, tuple[Path, Any]] = {}
    kinds: dict[str, pa.DataType] = {}
    clashes: dict[str, str] = {}
    parts = _numbers_with_words(parts, reading)
    for path, part in zip(files, parts, strict=True):
        for name, feature in part.features.items():
            before, wanted = first.setdefault(name, (path, feature))
            kind = pa.null() if _is_empty(part, name) else part.features.arrow_schema.field(name).type
            place = f"column {name!r} of '{path}'"
            if feature != wanted and _is_special(feature) and kind != pa.null():
                clashes.setdefault(name, f"{place} declares other classes than that of '{before}': declare the same")
                continue
            try:
                kinds[name] = _both(kinds.get(name, kind), kind)
            except pa.ArrowTypeError:
                clashes.setdefault(name, _clash(path, before, name, (kind, kinds[name]), reading))
    if clashes:
        raise DataError("; ".join(clashes.values()))
    empty = {name: feature for name, (_, feature) in first.items() if kinds[name] == pa.null()}
    values = {**of_columns.from_arrow_schema(pa.schema(kinds.items())), **empty}
    wanted_features = {name: one if _is_special(one) else values[name] for name, (_, one) in first.items()}
    return concatenate_datasets(
        [part.cast(of_columns({name: wanted_features[name] for name in part.column_names})) for part in parts]
    )


def _clash(path: Path, before: Path, name: str, kinds: tuple[pa.DataType, pa.DataType], reading: Reading) -> str:
    """Return what is said of a column that holds other things in one file than in another before."""
    kind, other = kinds
    place, there = f"column {name!r} of '{path}'", f"that of '{before}'"
    if pa.types.is_nested(kind) and pa.types.is_nested(other):
        return (
            f"{place} holds lists of {shape_of(kind)} numbers, {there} of {shape_of(other)}: cut or fill all to one "
            "length"
        )
    way_out = "write all in one type"
    if name != reading.label_column:
        listed = ", or list the files with commas between, which reads each by itself"
        way_out += listed * (TABLES.get(ending(path)) == "csv") + ", or name it in ignore-columns"
    return f"{place} holds {in_words(kind)}, {there} {in_words(other)}: {way_out}"


def _numbers_with_words(parts: Sequence["Dataset"], reading: Reading) -> list["Dataset"]:
    """Return files in which a column of numbers is one of texts if it is in another file, where a few are no numbers.

    What becomes of these is told where the whole column is read.
    """
    from datasets.features import Value

    done = list(parts)
    for name in parts[0].column_names:
        there = [part for part in parts if name in part.features]
        kinds = {part.features.arrow_schema.field(name).type for part in there}
        mixed = any(map(is_text, kinds)) and any(map(_is_number, kinds)) and name != reading.label_column
        if not mixed or not all(is_text(kind) or _is_number(kind) for kind in kinds):
            continue
        texts = [part for part in there if is_text(part.features.arrow_schema.field(name).type)]
        if all(_mostly_numbers(part, name) for part in texts):
            done = [part.cast_column(name, Value("string")) if name in part.features else part for part in done]
    return done


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _mostly_numbers(part: "Dataset", name: str) -> bool:
    """Say whether texts are plain numbers, but for a few."""
    texts = pc.utf8_trim_whitespace(part.select_columns(name).with_format("arrow")[:][name].drop_null())
    try:
        return recognised(texts.filter(pc.not_equal(texts, ""))) == Notation(PLAIN)
    except Undecided:
        return False


def _is_empty(part: "Dataset", column: str) -> bool:
    """Say whether no cell of a column holds anything; then it has any type."""
    kind = part.features.arrow_schema.field(column).type
    if not any(is_one(kind) for is_one in (pa.types.is_null, pa.types.is_floating, is_text)):
        return False
    found = part.select_columns(column).with_format("arrow")[:][column]
    return bool(found.is_null(nan_is_null=True).to_numpy().all())


def _both(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds what both hold."""
    fields = [pa.schema([("", kind)]) for kind in (one, other)]
    return pa.unify_schemas(fields, promote_options="permissive").field(0).type


def _is_special(feature: Any) -> bool:
    """Say whether a feature says more than the type of its cells, such as that they are classes or images."""
    return type(feature).__name__ not in ("Value", "List", "LargeList", "dict", "list")


def _names(files: Sequence[Path]) -> dict[Path, str]:
    """Return whose each file is: by the file that says so beside them, else by its own name."""
    try:
        said = _said(files[0].parent / NAMES_FILE)
        return {path: said[path.name] for path in files}
    except KeyError:
        return names_of(files)


def called_in_python(folder: Path) -> dict[str, str]:
    """Return what the files of a folder were called when they were given from Python; nothing where they were not."""
    return _said(folder / CALLED_FILE)


def _said(path: Path) -> dict[str, str]:
    try:
        return {str(name): str(said) for name, said in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def csv_features(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the features of csv files that are read together: each column in the type that all of its cells have."""
    from datasets.features import Value
    from pandas import read_csv

    kinds: dict[str, set[str]] = {}
    for path in paths:
        frame = read_csv(path, low_memory=False, **common_options([path]))
        for name, column in frame.items():
            if column.notna().any():
                kinds.setdefault(str(name), set()).add(column.infer_objects().dtype.kind)
            else:
                kinds.setdefault(str(name), set())
    number = {"i": "int64", "f": "float64", "b": "bool"}
    return {
        name: Value(
            number.get(min(found), "string") if len(found) == 1 else "float64" if found <= {"i", "f"} else "string"
        )
        for name, found in kinds.items()
    }


def left(files: Sequence[tuple[str, int]], rows: Mapping[str, npt.NDArray[np.int64]]) -> tuple[tuple[str, int], ...]:
    """Return name and rows of each file after some rows of the training split were left out.

    Examples
    --------
    >>> left([("a", 3), ("b", 2)], {"train": np.array([0, 2, 3])})
    (('a', 2), ('b', 1))
    """
    if "train" not in rows:
        return tuple(files)
    ends = np.searchsorted(rows["train"], np.cumsum([count for _, count in files]))
    return tuple((name, int(count)) for (name, _), count in zip(files, np.diff(ends, prepend=0), strict=True))


@dataclass(frozen=True)
class Part:
    """One of the files that a split was read from.

    Parameters
    ----------
    called : str
        What messages call it; empty where it is the only one.
    rows : callable
        Returns how many rows it has.
    number : callable
        Returns the number of a row 0, 1, ..., as people count.
    """

    called: str
    rows: Callable[[], int]
    number: Callable[[int], int]


def parts_of(
    files: Sequence[Path], owners: Sequence[tuple[str, int]] = (), given: Mapping[str, str] | None = None
) -> list[Part]:
    """Return the files of a split.

    Parameters
    ----------
    files : sequence of Path
        In the order of their rows.
    owners : sequence of (str, int)
        Name and rows of each, where these are known.
    given : mapping, optional
        What they are called, by their names, where they were given from Python: there, the first row is 0.

    Returns
    -------
    list of Part
        None where nobody can tell where one file ends.
    """
    is_csv = all(TABLES.get(ending(path)) == "csv" for path in files)
    if given:
        counts = [count for _, count in owners] or [0]
        return [
            Part(given.get(path.name, ""), partial(int, rows), int) for path, rows in zip(files, counts, strict=True)
        ]
    if not is_csv and not owners:
        return []
    named: Sequence[tuple[str, int | None]] = owners or [(path.name, None) for path in files]
    return [
        Part(
            f"file {name!r}" if len(files) > 1 else "",
            partial(_rows_of, path) if rows is None else partial(int, rows),
            partial(_number_in, path),
        )
        for path, (name, rows) in zip(files, named, strict=True)
    ]


def _rows_of(path: Path) -> int:
    return len(row_numbers(path))


def _number_in(path: Path, row: int) -> int:
    return int(numbers_in(path, np.array([row]))[0])


def numbers_in(path: Path, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers of rows 0, 1, ... of a file, (N,), as people count, in a csv file as a spreadsheet."""
    if TABLES.get(ending(path)) != "csv":
        return rows + 1
    numbers = row_numbers(path)
    return numbers[rows] if rows.max(initial=-1) < len(numbers) else rows + 2


def numbered(parts: Sequence[Part], row: int) -> tuple[int, str]:
    """Return which row of its file a row 0, 1, ... of a split is, as people count, and what the file is called.

    Examples
    --------
    >>> parts = [Part("north", lambda: 30, lambda row: row + 2), Part("south", lambda: 40, lambda row: row + 2)]
    >>> numbered(parts, 0), numbered(parts, 30), numbered([], 0)
    ((2, 'north'), (2, 'south'), (1, ''))
    """
    for part in parts[:-1]:
        if row < (rows := part.rows()):
            return part.number(row), part.called
        row -= rows
    return (parts[-1].number(row), parts[-1].called) if parts else (row + 1, "")


def head(config: Any, path: Path, headers: Mapping[Path, Sequence[str]]) -> Columns | None:
    """Return the columns of one file, under the names by which it is going to be read."""
    if hasattr(config, "pd_read_csv_kwargs"):
        from pandas import read_csv

        return dict.fromkeys(read_csv(path, **{**config.pd_read_csv_kwargs, "nrows": 0, "chunksize": None}).columns)
    if path.suffix.lower() == ".parquet" and not config.columns:
        from datasets.features import Features
        from pyarrow.parquet import read_schema

        return Features.from_arrow_schema(read_schema(path))
    return dict.fromkeys(headers[path]) if path in headers and path.suffix.lower() != ".parquet" else None


def reason(error: BaseException) -> str:
    """Return the first line of what an error is about."""
    while error.__cause__:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    if lines and (quote := _NOT_CLOSED.search(lines[0])):
        return f"the quote that row {int(quote[1]) + 1} opens is never closed"
    return lines[0] if lines else type(error).__name__
