"""What a data set is taken for: its columns, classes and owners, before anybody trains; what ``hetfl data`` shows."""

from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from hetfl_flwr.data.columns import Decision, are_filled, cleaned, read
from hetfl_flwr.data.domains import parse_families
from hetfl_flwr.data.labels import class_names, label_notes, read_labels, read_owners
from hetfl_flwr.data.opening import Source
from hetfl_flwr.data.reading import Reading
from hetfl_flwr.data.tables import opened_table
from hetfl_flwr.errors import DataError


@dataclass(frozen=True)
class ColumnFacts:
    """A column, and what becomes of it.

    Parameters
    ----------
    name : str
        As the file has it.
    becomes : str
        "number", "date", "category", "label", "owner", "domain", "image", "series", "text", "nothing" or "refused".
    inputs : int
        How many inputs of a model it makes.
    missing : int
        Cells that are empty, or no number where others are.
    example : str
        Its first cell that is filled.
    why : str
        How it is read, and what is done with it that nobody asked for.
    """

    name: str
    becomes: str
    inputs: int = 0
    missing: int = 0
    example: str = ""
    why: str = ""


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
    source = family.source
    if source is None:
        arrays = family.arrays(0, True)[0]
        counts = np.bincount(arrays.labels, minlength=arrays.spec.classes).tolist()
        rows = {"train": arrays.train_rows, "test": len(arrays.labels) - arrays.train_rows}
        standardised = arrays.input_names if arrays.spec.is_table else ()
        return Overview(
            dataset,
            arrays.spec.kind,
            rows,
            classes=dict(zip(arrays.class_names, counts, strict=True)),
            standardised=standardised,
        )
    columns = [_aside(source, name, part) for name, part in _parts(source).items()]
    if source.kind == "table":
        columns += [_facts(decision, cells) for decision, cells in opened_table(source)]
    else:
        columns += [_aside(source, name, source.kind) for name in source.inputs]
    order = {name: place for place, name in enumerate(source.splits["train"].names)}
    columns += [ColumnFacts(name, "nothing") for name in order if name not in {one.name for one in columns}]
    classes, owners, problem = dict[str, int](), dict[str, int](), ""
    try:
        owners, classes = _owners(source), _classes(source)
    except DataError as error:
        problem = str(error)
    refused = (f"column '{one.name}' of {source.place} {one.why}" for one in columns if one.becomes == "refused")
    problem = problem or next(refused, "")
    return Overview(
        source.place,
        source.kind,
        {split: len(data) for split, data in source.splits.items()},
        tuple(sorted(columns, key=lambda one: order[one.name])),
        classes,
        owners,
        tuple(one.name for one in columns if one.becomes in ("number", "date", "series")),
        (*source.notes, *(label_notes(source) if classes and not problem else ())),
        problem,
    )


def _parts(source: Source) -> dict[str, str]:
    """Return the columns that are no inputs, and what they are."""
    parts = {source.reading.id_column: "owner", source.reading.domain_column: "domain", source.label: "label"}
    return {name: part for name, part in parts.items() if name}


def _aside(source: Source, name: str, part: str) -> ColumnFacts:
    cells = source.column(name)
    with suppress(pa.ArrowException):
        cells = cleaned(cells)
    filled = cells.drop_null()
    example = str(filled[0].as_py())[:60] if len(filled) and part != "image" else ""
    return ColumnFacts(name, part, missing=len(cells) - len(filled), example=example)


def _facts(decision: Decision, cells: pa.ChunkedArray) -> ColumnFacts:
    column, why = decision.column, "; ".join(decision.notes)
    if decision.problem:
        why = f"{decision.problem}: {decision.way_out}"
        return ColumnFacts(decision.name, "refused", 0, cells.null_count, decision.example, why)
    if column is None or column.constant:
        return ColumnFacts(decision.name, "nothing", int(column is not None), cells.null_count, decision.example, why)
    missing = int((~are_filled(cells)).sum())
    if column.kind == "category":
        shown = ", ".join(str(value) for value in column.values[:5]) + ", ..." * (len(column.values) > 5)
        why = "; ".join(filter(None, (f"{len(column.values)} values: {shown}", why)))
    else:
        others = int(read(column, cells)[1].sum())
        missing += others
        why = "; ".join(filter(None, (why, f"{others} cells are no {column.kind}s" * bool(others))))
    return ColumnFacts(decision.name, column.kind, len(column.input_names), missing, decision.example, why)


def _classes(source: Source) -> dict[str, int]:
    count, labels = read_labels(source)
    counts = np.bincount(labels, minlength=count).tolist()
    return dict(zip(class_names(source), counts, strict=True))


def _owners(source: Source) -> dict[str, int]:
    names, owners = read_owners(source, np.arange(len(source)))
    if owners is None:
        return {}
    return dict(zip(names, np.bincount(owners, minlength=len(names)).tolist(), strict=True))
