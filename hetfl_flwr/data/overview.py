"""What a data set is taken for: its columns, classes and owners, before anybody trains; what ``hetfl data`` shows."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from hetfl_flwr.data.columns import Decision, read
from hetfl_flwr.data.domains import parse_families
from hetfl_flwr.data.facts import (
    ColumnFacts,
    all_facts,
    class_counts,
    facts_of,
    lines_on,
    owner_counts,
    standardised,
)
from hetfl_flwr.data.labels import label_notes
from hetfl_flwr.data.reading import Reading
from hetfl_flwr.data.tables import opened_table, refusal
from hetfl_flwr.errors import DataError


@dataclass(frozen=True)
class Overview:
    """What a data set is taken for.

    Parameters
    ----------
    place : str
        What messages call it.
    kind : str
        What an input is: "table", "image", "series" or "text".
    rows : dict
        How many rows each split has.
    columns : tuple of ColumnFacts
        In the order of the file; of a data set that has none empty.
    classes, owners : dict
        How many rows each has, by name.
    standardised : tuple of str
        Columns that each client brings to mean 0 and deviation 1 over its own training rows.
    notes : tuple of str
        What was done when it was opened that nobody asked for.
    problem : str
        Why it cannot be learnt from as it is; empty: it can.
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

    @property
    def lines(self) -> tuple[str, ...]:
        """What a run says of it at its start."""
        return lines_on(self.place, self.rows, self.columns, self.classes, self.owners)


def overview(dataset: str, reading: Reading) -> Overview:
    """Return what a data set is taken for.

    Parameters
    ----------
    dataset : str
        One data set, as in `load_client_data`.
    reading : Reading
        How it is read.

    Raises
    ------
    ConfigError
        If there is no such data set.
    DataError
        If it cannot be opened.
    """
    family, *others = parse_families(dataset, reading)
    if others:
        raise DataError(f"dataset {dataset!r} names {len(others) + 1}: look at one at a time")
    if family.is_bundled:
        arrays = family.arrays(0, True)[0]
        counts = np.bincount(arrays.labels, minlength=arrays.spec.classes).tolist()
        rows = {"train": arrays.train_rows, "test": len(arrays.labels) - arrays.train_rows}
        classes = dict(zip(arrays.class_names, counts, strict=True))
        inputs = arrays.input_names if arrays.spec.is_table else ()
        return Overview(dataset, arrays.spec.kind, rows, classes=classes, standardised=inputs)
    source = family.source
    table = opened_table(source) if source.kind == "table" else []
    columns = all_facts(source, [facts_of(decision, cells, _others(decision, cells)) for decision, cells in table])
    classes, owners, problem = dict[str, int](), dict[str, int](), ""
    try:
        owners, classes = owner_counts(source), class_counts(source)
    except DataError as error:
        problem = str(error)
    problem = problem or next((refusal(source, one) for one, _ in table if one.problem), "")
    return Overview(
        source.place,
        source.kind,
        source.rows,
        columns,
        classes,
        owners,
        standardised(columns),
        (*source.notes, *(label_notes(source) if classes and not problem else ())),
        problem,
    )


def _others(decision: Decision, cells: pa.ChunkedArray) -> int:
    column = decision.column
    return int(read(column, cells)[1].sum()) if column and column.kind != "category" else 0
