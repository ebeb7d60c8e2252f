"""Decode tables, whose columns are numbers, dates or categories, and slice their columns over clients."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from hetfl_flwr.data.columns import (
    SWAPPED,
    Decision,
    FloatArray,
    Wanted,
    are_filled,
    cleaned,
    decide,
    doubts,
    number_of,
    read,
    rival,
)
from hetfl_flwr.data.frame import IntArray
from hetfl_flwr.data.labels import classes_of
from hetfl_flwr.data.opening import Source
from hetfl_flwr.data.overview import ColumnFacts, Overview
from hetfl_flwr.data.reading import parse_categories
from hetfl_flwr.data.roles import columns_called, is_text, learnt_columns
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import Column, DataSpec
from hetfl_flwr.errors import ConfigError, DataError
from hetfl_flwr.seeding import generator

MIN_ALIKE = 3
"""The fewest test rows that equal training rows for a note."""

MIN_DATES = 10
"""The fewest dates of a file that cannot all have days up to 12 by chance."""

MIN_COPIES, MAX_COPIES = 20, 3
"""The fewest training rows for a note on a column that determines all classes, and the most values of that column for
each class."""


def read_table(source: Source, rows: IntArray) -> Arrays:
    """Decode a table to inputs (N, features) float64 in the order `rows`, neither scaled nor centered.

    A column of numbers or dates is one input, NaN where a value is missing. A category is one-hot encoded: it has an
    input for each value in the training split, in sorted order; a missing value counts as a value, the last one. A
    category of two values is one input, 1 for the second. A value that only the test split has is all zeros, or 0.5 if
    the category has two values.
    """
    classes = classes_of(source)
    labels = classes.labels
    table = opened_table(source)
    if refused := [decision for decision, _ in table if decision.problem]:
        more = f"; {len(refused) - 1} more columns have problems, see hetfl data" * (len(refused) > 1)
        raise DataError(refusal(source, refused[0]) + more)
    kept = [decision.column for decision, _ in table if decision.column]
    groups = tuple(len(column.input_names) for column in kept)
    inputs, first = np.empty((len(source), sum(groups))), 0
    doubted, notes, facts = doubts(table), list[tuple[str, str]](), list[ColumnFacts]()
    has_test = source.train_rows < len(source) and not source.is_catalogued
    hashes = _RowHashes(labels) if has_test else None
    for decision, cells in table:
        found, own = read(decision.column, cells) if decision.column else None, [*decision.notes]
        own += [note for name, note in doubted if name == decision.name]
        if found:
            numbers = found[0].reshape(len(source), -1)
            own += _copies(source, numbers, labels[: source.train_rows])
            if hashes:
                hashes.add(numbers)
            inputs[:, first : first + numbers.shape[1]] = numbers
            first += numbers.shape[1]
        notes += [(decision.name, note) for note in own]
        facts.append(ColumnFacts.of(replace(decision, notes=(*own,)), cells, found))
    if not kept:
        raise DataError(f"{source.place} has no column to learn from: {'; '.join(grouped(source.place, notes))}")
    ordered = bool((np.diff(rows) == 1).all())
    return Arrays(
        spec=DataSpec((sum(groups),), len(classes.values)),
        inputs=torch.from_numpy(inputs if ordered else inputs[rows]),
        labels=torch.from_numpy(labels[rows]),
        train_rows=source.train_rows,
        peak=1.0,
        centre=torch.zeros(sum(groups)),
        input_names=tuple(name for column in kept for name in column.input_names),
        columns=tuple(kept),
        notes=(*grouped(source.place, notes), *(hashes.notes(source) if hashes else ())),
        overview=Overview.of(source, facts),
    )


def opened_table(source: Source) -> list[tuple[Decision, pa.ChunkedArray]]:
    """Decide on each column of a table that is not ignored; return it with its cleaned cells of all splits."""
    columns, wanted = learnt_columns(source.place, source.label, source.inputs, source.reading)
    declared: dict[str, Wanted] = {**dict.fromkeys(source.frame.classes, "category"), **wanted}
    values, found = parse_categories(source.reading.categorical_columns, columns), []
    for name in columns:
        try:
            cells = cleaned(whole := source.frame[name], source.reading.missing, values.get(name, ()))
        except pa.ArrowInvalid:
            way_out = "save the file as UTF-8, or name it in ignore-columns"
            found.append((Decision(name, problem="holds texts that are not UTF-8", way_out=way_out), whole))
            continue
        decision = decide(
            name,
            cells,
            declared.get(name, ""),
            source.frame.rows_said,
            missing=source.reading.missing,
            values=values.get(name, ()),
            catalogued=source.is_catalogued,
            train_rows=source.train_rows,
        )
        of_words = decision.column and decision.column.kind == "category" and name not in declared
        if of_words and (mixed := source.mixed_types(name)):
            way_out = "use one type in all files, or name it in categorical-columns or ignore-columns"
            decision = Decision(name, problem=f"holds {mixed}", way_out=way_out)
        plain = decision.column if of_words or name not in declared or declared[name] == "number" else None
        if decision.problem and name not in declared:  # a file in another notation explains more
            plain = Column(name, "category")
        if plain and (other := _other_notation(source, plain, cells)):
            way_out = "write all in one notation, list the files in dataset to read each separately"
            decision = Decision(name, problem=other, way_out=f"{way_out}, or name it in ignore-columns")
        found.append((decision, cells))
    return found


def _other_notation(source: Source, column: Column, cells: pa.ChunkedArray) -> str:
    """Name a file whose numbers or dates are in another notation, or whose dates may all be; empty if there is none."""
    frame, size = source.frame, len(source.frame.files)
    if source.is_catalogued or size < 2 or not is_text(cells.type):
        return ""
    column = number_of(column.name, cells) if column.kind == "category" else column
    numbers, others = read(column, cells)
    lost, filled = (np.bincount(frame.in_file[one], minlength=size) for one in (others, are_filled(cells)))
    for file in np.flatnonzero((lost > 0) & (lost == filled)):
        other, _ = rival(column, cells.filter(pa.array(frame.in_file == file)))
        if other:
            where = frame.files[file] or "one split"
            return f"holds {column.kind}s written as {column.notation}, but in {where} as {other}"
    swapped = SWAPPED.get(column.notation)
    there = ~np.isnan(read(replace(column, notation=swapped), cells)[0]) if swapped else np.zeros(0, bool)
    if there.any() and not there[~np.isnan(numbers)].all():
        either = np.bincount(frame.in_file[there], minlength=size)
        for file in np.flatnonzero((either == filled) & (filled >= MIN_DATES)):
            where = frame.files[file] or "one split"
            return f"holds dates written as {column.notation}, but all dates in {where} may be {swapped}"
    return ""


def refusal(source: Source, decision: Decision) -> str:
    """Return the message that refuses a column."""
    return f"column '{decision.name}' of {source.place} {decision.problem}: {decision.way_out}"


def grouped(place: str, notes: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return one line for each distinct note, with its columns; `notes` are pairs (name, text)."""
    columns: dict[str, list[str]] = {}
    for name, text in notes:
        columns.setdefault(text, []).append(name)
    return tuple(f"{columns_called(names)} of {place}: {text}" for text, names in columns.items())


def _copies(source: Source, inputs: FloatArray, labels: IntArray) -> list[str]:
    """Note a column that alone determines the class, by its values or by which of them are missing."""
    inputs = inputs[: len(labels)]
    if source.is_catalogued or len(labels) < MIN_COPIES:
        return []
    empty = np.isnan(inputs)
    for found, what in ((inputs, "its values determine"), (empty, "whether it has a value determines")):
        if (found is inputs or empty.any()) and _determine(found, labels):
            why = "if it repeats the label, or is known only after the label, name it in ignore-columns"
            return [f"{what} the class of every training row: {why}"]
    return []


def _determine(inputs: npt.NDArray[Any], labels: IntArray) -> bool:
    """Return whether each value belongs to one class, and there are only a few values."""
    most = MAX_COPIES * len(np.unique(labels))
    if len(np.unique(inputs[: 4 * most], axis=0)) > most:
        return False  # sorting whole columns takes long
    values = np.unique(inputs, axis=0, return_inverse=True)[1].ravel()
    pairs = len(np.unique(values * (labels.max() + 1) + labels))
    return pairs == len(np.unique(values)) <= most


class _RowHashes:
    """Hashes of all rows, to find test rows that equal training rows."""

    def __init__(self, labels: IntArray) -> None:
        self._draw = np.random.default_rng(0)
        self._sums = labels.astype(np.uint64)

    def add(self, inputs: FloatArray) -> None:
        """Add the inputs (N, features) of a column to the hashes."""
        odd = self._draw.integers(2**63, size=inputs.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._sums += (np.ascontiguousarray(inputs).view(np.uint64) * odd).sum(axis=1, dtype=np.uint64)

    def notes(self, source: Source) -> tuple[str, ...]:
        """Note how many test rows equal training rows, if that is more than duplicates within training rows explain."""
        train, test = self._sums[: source.train_rows], self._sums[source.train_rows :]
        alike = int(np.isin(test, train).sum())
        usual = 1 - len(np.unique(train)) / len(train)
        if alike < MIN_ALIKE or alike <= 2 * usual * len(test):
            return ()
        return (
            f"{alike} of {len(test)} test rows of {source.place} equal training rows: test scores will be too high",
        )


def parse_features(text: str) -> float | None:
    """Parse ``features`` of the run config: return the overlap of the slices, or None for "all".

    With ``all`` every client has every column. With ``slices:OVERLAP``, OVERLAP in [0, 1), each client has a slice of
    them; see `feature_slice`. Anything else raises `ConfigError`.

    Examples
    --------
    >>> parse_features("all"), parse_features("slices:0.5")
    (None, 0.5)
    """
    if text == "all":
        return None
    name, _, value = text.partition(":")
    try:
        overlap = float(value)
    except ValueError:
        overlap = -1.0
    if name != "slices" or not 0 <= overlap < 1:
        raise ConfigError(f"features {text!r} is not one of: all, slices:OVERLAP (0 <= OVERLAP < 1)")
    return overlap


def feature_slice(columns: int, clients: int, position: int, overlap: float | None, seed: int) -> tuple[int, ...]:
    """Return the columns of the client at `position`, ascending: its own part of them, and some of its neighbor's.

    The slices are those of SubTab (Ucar et al., NeurIPS 2021, section 3), which CHFL uses. The `columns`, shuffled by
    the seed, are cut into one equal part for each of the `clients`; the first parts get any remainder. A client has its
    own part and the last columns of the part before it, a fraction `overlap` in [0, 1) of that part, rounded; the last
    part comes before the first. So with three or more clients, each shares as many columns with both neighbors. In the
    paper the slices do not form a ring: the first slice is extended at its other end instead.

    Columns are those of `Arrays.groups`: a category keeps all its inputs. All slices together cover all columns, and
    none is empty. With `overlap` None each client has all columns.

    Examples
    --------
    >>> [len(feature_slice(30, 3, position, 0.5, seed=0)) for position in range(3)]
    [15, 15, 15]
    """
    if overlap is None:
        return tuple(range(columns))
    if clients > columns:
        raise ConfigError(
            f"{clients} clients cannot share {columns} columns: use {columns} clients or fewer, or features all"
        )
    parts = np.array_split(generator(seed, "features").permutation(columns), clients)
    before = parts[position - 1]
    shared = before[len(before) - round(overlap * len(before)) :]
    return tuple(np.union1d(shared, parts[position]).tolist())


def sliced(table: Arrays, columns: tuple[int, ...]) -> Arrays:
    """Return some columns of a table that is not scaled yet, each with all of its inputs.

    Equal arguments return the same copy, and all columns in order return the table itself, so a process holds one copy
    of each slice.
    """
    return table if columns == tuple(range(len(table.groups))) else table.once(_sliced, columns)


def _sliced(table: Arrays, columns: tuple[int, ...]) -> Arrays:
    widths = table.groups
    ends = np.cumsum(widths)
    kept = np.concatenate([np.arange(ends[column] - widths[column], ends[column]) for column in columns])
    return replace(
        table,
        spec=DataSpec(kept.shape, table.spec.classes),
        inputs=table.inputs[:, kept],
        centre=table.centre[kept],
        input_names=tuple(table.input_names[number] for number in kept) if table.input_names else (),
        columns=tuple(table.columns[column] for column in columns) if table.columns else (),
    )
