"""What the columns of a data set are taken for, one by one and in a few lines; no row is decoded for it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from hetfl_flwr.data.columns import Decision, cleaned
from hetfl_flwr.data.labels import class_names, read_labels, read_owners
from hetfl_flwr.data.opening import Source
from hetfl_flwr.text import printable

_MOST, _FEW, _LONGEST = 20, 5, 30  # classes or owners that a line counts, columns that it names, letters of a name
_PARTS = ("label", "owner", "domain")
_MANY = {"category": "categories", "series": "series", "refused": "refused"}


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


def facts_of(decision: Decision, cells: pa.ChunkedArray, others: int) -> ColumnFacts:
    """Return what is known of a column of a table, given its cells, and how many are filled and no number or value."""
    column, why = decision.column, "; ".join(decision.notes)
    missing, example = cells.null_count, decision.example
    if decision.problem:
        return ColumnFacts(decision.name, "refused", 0, missing, example, f"{decision.problem}: {decision.way_out}")
    if column is None or column.constant:
        return ColumnFacts(decision.name, "nothing", int(column is not None), missing, example, why)
    if column.kind == "category":
        shown = ", ".join(str(value) for value in column.values[:5]) + ", ..." * (len(column.values) > 5)
        how = f"{len(column.values)} values: {shown}"
        return ColumnFacts(
            decision.name, "category", len(column.input_names), missing, example, "; ".join(filter(None, (how, why)))
        )
    why = "; ".join(filter(None, (why, f"{others} cells are no {column.kind}s" * bool(others))))
    return ColumnFacts(decision.name, column.kind, 1, missing + others, example, why)


def all_facts(source: Source, learnt: Sequence[ColumnFacts] = ()) -> tuple[ColumnFacts, ...]:
    """Return what is known of all columns, in the order of the file, given those of a table that are learnt from."""
    parts = {source.reading.id_column: "owner", source.reading.domain_column: "domain", source.label: "label"}
    if source.kind != "table":
        parts |= dict.fromkeys(source.inputs, source.kind)
    known = {one.name: one for one in learnt}
    return tuple(known.get(name) or _aside(source, name, parts.get(name, "nothing")) for name in source.frame.names)


def _aside(source: Source, name: str, part: str) -> ColumnFacts:
    cells = source.frame[name]
    with suppress(pa.ArrowException):
        cells = cleaned(cells)
    filled = cells.drop_null()
    example = str(filled[0].as_py())[:60] if len(filled) and part != "image" else ""
    why = source.nameless.get(name) or "ignore-columns" * (" ".join(name.split()) in source.reading.ignored)
    return ColumnFacts(name, part, missing=len(cells) - len(filled), example=example, why=why)


def class_counts(source: Source) -> dict[str, int]:
    """Return how many rows each class has, by name."""
    count, labels = read_labels(source)
    return dict(zip(class_names(source), np.bincount(labels, minlength=count).tolist(), strict=True))


def owner_counts(source: Source) -> dict[str, int]:
    """Return how many rows each owner has, by name; nothing where nobody owns the rows."""
    names, owners = read_owners(source, np.arange(len(source)))
    return {} if owners is None else dict(zip(names, np.bincount(owners, minlength=len(names)).tolist(), strict=True))


def lines_on(
    place: str,
    rows: Mapping[str, int],
    columns: Sequence[ColumnFacts],
    classes: Mapping[str, int],
    owners: Mapping[str, int],
) -> tuple[str, ...]:
    """Return in at most five lines what was read, is missing, left out and standardised, and the classes and owners.

    Parameters
    ----------
    place : str
        What messages call the data set.
    rows, classes, owners : mapping
        How many rows each split, class and owner has, by name.
    columns : sequence of ColumnFacts
        All of them; empty: nothing is said of columns.
    """
    said = [" and ".join(f"{count:,} {split}" for split, count in rows.items() if count) + " rows"]
    if columns:
        kinds = Counter(one.becomes for one in columns if one.becomes not in (*_PARTS, "nothing"))
        several = [f"{count:,} {kind if count == 1 else _MANY.get(kind, f'{kind}s')}" for kind, count in kinds.items()]
        learnt = ", ".join(several) or "nothing to learn from"
        aside = [f", {part} {one.name!r}" for part in _PARTS for one in columns if one.becomes == part]
        said[0] += f", {len(columns):,} columns: {learnt}{''.join(aside)}"
        kept = [one for one in columns if one.becomes != "nothing"]
        said += [
            f"missing: {_few([f'{one.name!r} {one.missing:,}' for one in kept if one.missing])}",
            f"left out: {_few([_left_out(one) for one in columns if one.becomes == 'nothing'])}",
            f"standardised: {_few([*map(repr, standardised(columns))])}",
        ]
    counted = {"classes": classes, "owners": owners}
    said += ["; ".join(f"{len(own):,} {what}: {_counted(own)}" for what, own in counted.items() if own)]
    return tuple(f"{place}: {line}" for line in said if line)


def standardised(columns: Sequence[ColumnFacts]) -> tuple[str, ...]:
    """Return the columns that each client brings to mean 0 and deviation 1 over its own training rows."""
    return tuple(one.name for one in columns if one.becomes in ("number", "date", "series"))


def source_lines(source: Source, learnt: Sequence[ColumnFacts] = ()) -> tuple[str, ...]:
    """Return what a run says of a data set at its start; nothing of one of the catalogue, which is known."""
    if source.is_catalogued:
        return ()
    return lines_on(source.place, source.rows, all_facts(source, learnt), class_counts(source), owner_counts(source))


def _few(parts: Sequence[str]) -> str:
    return ", ".join(parts[:_FEW]) + f" and {len(parts) - _FEW:,} more" * (len(parts) > _FEW) or "nothing"


def _left_out(column: ColumnFacts) -> str:
    why = column.why.partition(":")[0]
    about = "; ".join(filter(None, (why, f"such as {column.example!r}" * bool(column.example))))
    return repr(column.name) + f" ({about})" * bool(about)


def _counted(counts: Mapping[str, int]) -> str:
    shown = ", ".join(f"{printable(name, _LONGEST)} {count:,}" for name, count in [*counts.items()][:_MOST])
    return shown + f" and {len(counts) - _MOST:,} more" * (len(counts) > _MOST)
