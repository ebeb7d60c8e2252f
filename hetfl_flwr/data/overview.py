"""Describe how a data set is interpreted before training: its columns, classes and owners."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from hetfl_flwr.data.columns import MISSING, BoolArray, Decision, FloatArray
from hetfl_flwr.data.frame import IntArray
from hetfl_flwr.data.labels import classes_of, read_owners
from hetfl_flwr.data.opening import Source, missing_among
from hetfl_flwr.data.samples import Arrays
from hetfl_flwr.errors import DataError
from hetfl_flwr.text import printable, some

_MAX_CLASSES, _LONGEST = 20, 30
"""Classes or owners that a line counts, letters of a name."""
_PARTS = ("label", "owner", "domain")
_MANY = {"category": "categories", "series": "series", "refused": "refused"}


@dataclass(frozen=True)
class ColumnFacts:
    """How one column is used.

    Parameters
    ----------
    name : str
        The name in the file.
    becomes : str
        "number", "date", "category", "label", "owner", "domain", "image", "series", "text", "nothing" or "refused".
    inputs : int
        The number of model inputs that the column becomes.
    missing : int
        The number of cells that are empty, or not numbers in a column of numbers.
    example : str
        The first filled cell.
    why : str
        How the column is read and interpreted.
    """

    name: str
    becomes: str
    inputs: int = 0
    missing: int = 0
    example: str = ""
    why: str = ""

    @classmethod
    def of(
        cls, decision: Decision, cells: pa.ChunkedArray, found: tuple[FloatArray, BoolArray] | None = None
    ) -> "ColumnFacts":
        """Describe a column of a table that is not ignored, by its cleaned cells.

        `found` is what `hetfl_flwr.data.columns.read` returns for the cells; None if the column is left out or refused.
        """
        column, notes, missing = decision.column, [*decision.notes], cells.null_count
        becomes, inputs = ("refused" if decision.problem else "nothing"), 0
        if decision.problem:
            notes = [f"{decision.problem}: {decision.way_out}"]
        if column and found:
            (numbers, _), inputs = found, len(column.input_names)
            becomes = becomes if column.constant else column.kind
            if column.kind == "category":
                names = ["missing" if value is None else str(value) for value in column.values[:5]]
                shown = ", ".join(names) + ", ..." * (len(column.values) > 5)
                notes.insert(0, f"{len(column.values)} values: {shown}")
            else:
                missing = int(np.isnan(numbers).sum())
        return cls(decision.name, becomes, inputs, missing, decision.example, "; ".join(notes))


@dataclass(frozen=True)
class Overview:
    """How a data set is interpreted.

    Parameters
    ----------
    place : str
        The name of the data set in messages.
    kind : str
        The kind of the inputs: "table", "image", "series" or "text".
    rows : dict
        How many rows each split has as it is stored, before clients hold any of them out.
    columns : tuple of ColumnFacts
        The columns in the order of the file; empty if the data set has no columns.
    classes, owners : dict
        The number of rows of each class or owner, by name.
    standardised : tuple of str
        Columns that each client scales to mean 0 and standard deviation 1 over its own training rows.
    notes : tuple of str
        How the data set was interpreted, except for what the run config sets.
    problem : str
        Why the data set cannot be used; empty if it can.
    """

    place: str
    kind: str
    rows: dict[str, int]
    columns: tuple[ColumnFacts, ...] = ()
    classes: dict[str, int] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    standardised: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""

    @classmethod
    def of(cls, source: Source, learnt: Sequence[ColumnFacts] = ()) -> "Overview":
        """Describe a data set; `learnt` are the columns of a table that are not ignored."""
        reading, known = source.reading, {one.name: one for one in learnt}
        parts = {reading.id_column: "owner", reading.domain_column: "domain", source.label: "label"}
        if source.kind != "table":
            parts |= dict.fromkeys(source.inputs, source.kind)
        columns = tuple(
            known.get(name) or _other_column(source, name, parts.get(name, "nothing")) for name in source.frame.names
        )
        classes, owners, notes, problem = dict[str, int](), dict[str, int](), source.notes, ""
        try:
            called, numbers = read_owners(source, np.arange(len(source)))
            owners = {} if numbers is None else _counted(called, numbers.numpy())
            found = classes_of(source)
            classes = _counted(found.names, found.labels)
            notes += found.notes
        except DataError as error:
            problem = str(error)
        scaled = tuple(one.name for one in columns if one.becomes in ("number", "date", "series"))
        return cls(source.place, source.kind, source.rows, columns, classes, owners, scaled, notes, problem)

    @classmethod
    def of_arrays(cls, place: str, arrays: Arrays) -> "Overview":
        """Describe a bundled data set, which has no files."""
        rows = {"train": arrays.train_rows, "test": len(arrays.labels) - arrays.train_rows}
        classes = _counted(arrays.class_names, arrays.labels.numpy())
        inputs = arrays.input_names if arrays.spec.kind == "table" else ()
        return cls(place, arrays.spec.kind, rows, classes=classes, standardised=inputs)

    @property
    def lines(self) -> tuple[str, ...]:
        """At most five lines on what was read, is missing, left out and standardized, and on classes and owners."""
        splits = [f"{count:,} {split}" for split, count in self.rows.items() if count]
        said = [(" and ".join(splits) if len(splits) > 1 else f"{sum(self.rows.values()):,}") + " rows"]
        if columns := self.columns:
            kinds = Counter(one.becomes for one in columns if one.becomes not in (*_PARTS, "nothing"))
            called = {kind: kind if count == 1 else _MANY.get(kind, f"{kind}s") for kind, count in kinds.items()}
            aside = [f", {part} {one.name!r}" for part in _PARTS for one in columns if one.becomes == part]
            learnt = ", ".join(f"{kinds[kind]:,} {name}" for kind, name in called.items()) or "nothing to learn from"
            said[0] += f", {len(columns):,} columns: {learnt}{''.join(aside)}"
            kept = [one for one in columns if one.becomes != "nothing"]
            said += [
                f"missing: {_few([f'{one.name!r} {one.missing:,}' for one in kept if one.missing])}",
                f"left out: {_few([repr(one.name) for one in columns if one.becomes == 'nothing'])}",
                f"standardized: {_few([*map(repr, self.standardised)])}",
            ]
        counted = {"classes": self.classes, "owners": self.owners}
        said += ["; ".join(f"{len(own):,} {what}: {_most(own)}" for what, own in counted.items() if own)]
        return tuple(f"{self.place}: {line}" for line in said if line)


def _other_column(source: Source, name: str, part: str) -> ColumnFacts:
    """Describe a column that is not an input of a table."""
    cells, words = source.frame[name], source.reading.missing
    unknown = {"nothing": (*MISSING, *words), "owner": words, "domain": words}.get(part, ())
    try:
        missing = missing_among(cells, unknown)
        first = "" if part == "image" or missing.all() else cells[int(np.argmin(missing))].as_py()
    except ValueError:  # texts that are not UTF-8, in a column that is not used
        missing, first = cells.is_null().to_numpy(), ""
    why = source.unnamed.get(name) or "ignore-columns" * source.reading.ignores(name)
    return ColumnFacts(name, part, missing=int(missing.sum()), example=str(first)[:60].strip(), why=why)


def _counted(names: Sequence[str], numbers: IntArray) -> dict[str, int]:
    """Return the number of rows of each class or owner by name, given its index (N,) in each row."""
    return dict(zip(names, np.bincount(numbers, minlength=len(names)).tolist(), strict=True))


def _few(parts: Sequence[str]) -> str:
    return some(parts) or "nothing"


def _most(counts: Mapping[str, int]) -> str:
    return some([f"{printable(name, _LONGEST)} {count:,}" for name, count in counts.items()], _MAX_CLASSES)
