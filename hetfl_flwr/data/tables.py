"""Tables: columns read as numbers and categories, sliced over the clients, and brought to one scale."""

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
from hetfl_flwr.data.labels import IntArray, classes_of
from hetfl_flwr.data.opening import Source
from hetfl_flwr.data.overview import ColumnFacts, Overview
from hetfl_flwr.data.reading import parse_categories
from hetfl_flwr.data.roles import columns_called, is_text, learnt_columns
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.data.spec import Column, DataSpec
from hetfl_flwr.errors import ConfigError, DataError
from hetfl_flwr.seeding import generator

MIN_ALIKE = 3
"""Test rows from which on it is noted that they are training rows, too."""

MIN_DATES = 10
"""Dates of a file, none with a day above 12, from which on this is no chance."""

MIN_COPIES, MAX_COPIES = 20, 3
"""Training rows from which on a column that tells all classes is noted, and the values a class that it may have."""


def read_table(source: Source, rows: IntArray) -> Arrays:
    """Turn each row of a table into numbers, NaN where a number is missing; `hetfl_flwr.data.columns` says how.

    A column of numbers or dates is one input. A category has an input for each value that the training split has, 1
    where it is the row's and 0 elsewhere, in sorted order; a missing value is a value like any other, and the last.
    With two values it is one input, 1 for the second. A value that only the test split has is 0 throughout, or 0.5 of
    two values.

    Parameters
    ----------
    source : Source
        The table.
    rows : ndarray
        The order of its rows, as in `hetfl_flwr.data.decode.decode`.

    Returns
    -------
    Arrays
        Inputs (N, features) float64, neither scaled nor centred.
    """
    classes = classes_of(source)
    labels = classes.labels
    table = opened_table(source)
    if refused := [decision for decision, _ in table if decision.problem]:
        more = f"; {len(refused) - 1} more columns cannot be learnt from, see hetfl data" * (len(refused) > 1)
        raise DataError(refusal(source, refused[0]) + more)
    kept = [decision.column for decision, _ in table if decision.column]
    groups = tuple(len(column.input_names) for column in kept)
    inputs, first = np.empty((len(source), sum(groups))), 0
    doubted, notes, facts = doubts(table), list[tuple[str, str]](), list[ColumnFacts]()
    has_test = source.train_rows < len(source) and not source.is_catalogued
    rows_alike = _Alike(labels) if has_test else None
    for decision, cells in table:
        found, own = read(decision.column, cells) if decision.column else None, [*decision.notes]
        own += [note for name, note in doubted if name == decision.name]
        if found:
            numbers = found[0].reshape(len(source), -1)
            own += _copies(source, numbers, labels[: source.train_rows])
            if rows_alike:
                rows_alike.add(numbers)
            inputs[:, first : first + numbers.shape[1]] = numbers
            first += numbers.shape[1]
        notes += [(decision.name, note) for note in own]
        facts.append(ColumnFacts.of(replace(decision, notes=(*own,)), cells, found))
    if not kept:
        raise DataError(f"{source.place} has no column to learn from: {'; '.join(said(source.place, notes))}")
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
        notes=(*said(source.place, notes), *(rows_alike.notes(source) if rows_alike else ())),
        overview=Overview.of(source, facts),
    )


def opened_table(source: Source) -> list[tuple[Decision, pa.ChunkedArray]]:
    """Return what each column of a table that is not ignored is, and its cells of all splits, cleaned."""
    columns, wanted = learnt_columns(source.place, source.label, source.inputs, source.reading)
    declared: dict[str, Wanted] = {**dict.fromkeys(source.frame.classes, "category"), **wanted}
    values, found = parse_categories(source.reading.categorical_columns, columns), []
    for name in columns:
        try:
            cells = cleaned(whole := source.frame[name], source.reading.missing)
        except pa.ArrowInvalid:
            way_out = "write the file again, or name it in ignore-columns"
            found.append((Decision(name, problem="holds texts that are not UTF-8", way_out=way_out), whole))
            continue
        decision = decide(
            name,
            cells,
            declared.get(name, ""),
            source.frame.rows_said,
            missing=source.reading.missing,
            values=values.get(name, ()),
            plainly=source.is_catalogued,
            train_rows=source.train_rows,
        )
        of_words = decision.column and decision.column.kind == "category" and name not in declared
        if of_words and (mixed := source.mixed_types(name)):
            way_out = "write all in one type, or name it in categorical-columns or ignore-columns"
            decision = Decision(name, problem=f"holds {mixed}", way_out=way_out)
        plain = decision.column if of_words or name not in declared or declared[name] == "number" else None
        if plain and (other := _otherwise_in_a_file(source, plain, cells)):
            way_out = "write all in one notation, list the files in dataset, each of which is then read by itself"
            decision = Decision(name, problem=other, way_out=f"{way_out}, or name it in ignore-columns")
        found.append((decision, cells))
    return found


def _otherwise_in_a_file(source: Source, column: Column, cells: pa.ChunkedArray) -> str:
    """Return which file has numbers or dates in another notation, or some dates that all may be; else nothing."""
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
    turned = SWAPPED.get(column.notation)
    there = ~np.isnan(read(replace(column, notation=turned), cells)[0]) if turned else np.zeros(0, bool)
    if there.any() and not there[~np.isnan(numbers)].all():
        either = np.bincount(frame.in_file[there], minlength=size)
        for file in np.flatnonzero((either == filled) & (filled >= MIN_DATES)):
            where = frame.files[file] or "one split"
            return f"holds dates written as {column.notation}, but all of {where} may be {turned}"
    return ""


def refusal(source: Source, decision: Decision) -> str:
    """Return why a column cannot be learnt from, and the way out."""
    return f"column '{decision.name}' of {source.place} {decision.problem}: {decision.way_out}"


def said(place: str, notes: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return notes on columns, (name, text) each, with the columns that each text holds of, many of them in short."""
    columns: dict[str, list[str]] = {}
    for name, text in notes:
        columns.setdefault(text, []).append(name)
    return tuple(f"{columns_called(names)} of {place}: {text}" for text, names in columns.items())


def _copies(source: Source, inputs: FloatArray, labels: IntArray) -> list[str]:
    """Note a column that tells the classes apart by itself, by its values or by where it has none."""
    inputs = inputs[: len(labels)]
    if source.is_catalogued or len(labels) < MIN_COPIES:
        return []
    empty = np.isnan(inputs)
    for found, what in ((inputs, "its values tell"), (empty, "whether it has a value tells")):
        if (found is inputs or empty.any()) and _tell(found, labels):
            why = "if it repeats the label, or is known only after it, name it in ignore-columns"
            return [f"{what} the classes of all training rows: {why}"]
    return []


def _tell(inputs: npt.NDArray[Any], labels: IntArray) -> bool:
    """Return whether there are one value or more for each class, and none for two."""
    most = MAX_COPIES * len(np.unique(labels))
    if len(np.unique(inputs[: 4 * most], axis=0)) > most:
        return False  # sorting all of each column takes long
    values = np.unique(inputs, axis=0, return_inverse=True)[1].ravel()
    pairs = len(np.unique(values * (labels.max() + 1) + labels))
    return pairs == len(np.unique(values)) <= most


class _Alike:
    """Tells test rows that are training rows, too, by a number for each row: of equal rows the same."""

    def __init__(self, labels: IntArray) -> None:
        self._draw = np.random.default_rng(0)
        self._sums = labels.astype(np.uint64)

    def add(self, inputs: FloatArray) -> None:
        """Count in the inputs (N, features) of a column."""
        odd = self._draw.integers(2**63, size=inputs.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._sums += (np.ascontiguousarray(inputs).view(np.uint64) * odd).sum(axis=1, dtype=np.uint64)

    def notes(self, source: Source) -> tuple[str, ...]:
        """Note how many test rows are training rows, if these are more alike than training rows are to one another."""
        train, test = self._sums[: source.train_rows], self._sums[source.train_rows :]
        alike = int(np.isin(test, train).sum())
        usual = 1 - len(np.unique(train)) / len(train)
        if alike < MIN_ALIKE or alike <= 2 * usual * len(test):
            return ()
        return (f"{alike} of {len(test)} test rows of {source.place} are training rows, too: scores are too high",)


def parse_features(text: str) -> float | None:
    """Return the overlap of the slices that a text asks for, or None for "all".

    Parameters
    ----------
    text : str
        ``all``: every client has every column; or ``slices:OVERLAP``: each has a slice of its own, OVERLAP at
        least 0 and below 1; see `feature_slice`.

    Raises
    ------
    ConfigError
        If it is neither.

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
    """Return the columns of one client: its own part of them, and some of its neighbour's.

    As in SubTab (Ucar et al., NeurIPS 2021, section 3), which CHFL takes its feature slices from. The columns,
    in an order drawn by the seed, are cut into equal parts, one a client (where that leaves a remainder, the first
    parts have one more). Each client has its own part, and before it the last ``overlap`` of the part before, the
    last part coming before the first. So from three clients on, each shares that many columns with either neighbour.
    Departs from the paper: there the first slice is enlarged at its other end instead, and the slices form no ring.

    A column that is a category goes with all its inputs.

    Parameters
    ----------
    columns : int
        Columns of the table, 1 or more; see `Arrays.groups`.
    clients : int
        K, the number of slices, 1 or more.
    position : int
        Which slice, 0..K-1.
    overlap : float
        In [0, 1): which fraction of a part, rounded to whole columns, the next client has, too. 0: no column is
        in two slices.
    seed : int
        The run's seed, 0 or more.

    Returns
    -------
    tuple of int
        Columns, ascending; all slices together cover all columns, and none is empty.

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
    """Return some columns of a table that is not scaled yet, each with all the inputs it became.

    Equal arguments return one copy of the values; all columns in their order are the table itself, not copied. So a
    process holds one copy a slice, as many as there are clients in it and less than the columns.
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
