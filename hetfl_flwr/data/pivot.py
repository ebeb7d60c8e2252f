"""Pivot long tables, with a row for each point in time, to one row with lists of numbers for each series."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from hetfl_flwr.data.columns import FloatArray, as_written, cleaned, decide, read
from hetfl_flwr.data.frame import Frame, IntArray
from hetfl_flwr.data.reading import Reading, parse_names
from hetfl_flwr.data.spec import Column
from hetfl_flwr.errors import ConfigError, DataError

Numbers = Callable[[str], tuple[FloatArray, Column, Sequence[str]]]
"""Returns the numbers (N,) of a column by its name, with NaN for missing values; how it was read; and notes."""


def parse_pivot(text: str) -> tuple[str, str, str, str] | None:
    """Parse ``pivot`` of the run config: return the columns of series, time, channel and value; None if it is empty.

    It is a comma-separated list ``SERIES,TIME,VALUE`` or ``SERIES,TIME,CHANNEL,VALUE``; the channel is empty in the
    first form. Anything else raises `ConfigError`.

    Examples
    --------
    >>> parse_pivot("patient, hour, pulse"), parse_pivot("")
    (('patient', 'hour', '', 'pulse'), None)
    """
    names = parse_names(text)
    if not names:
        return None
    if len(names) not in (3, 4) or len({*names}) < len(names):
        raise ConfigError(f"pivot {text!r} is not one of: SERIES,TIME,VALUE or SERIES,TIME,CHANNEL,VALUE")
    return names[0], names[1], names[2] if len(names) > 3 else "", names[-1]


def pivoted(
    frame: Frame,
    place: str,
    columns: tuple[str, str, str, str],
    reading: Reading,
    numbers: Numbers | None = None,
) -> tuple[Frame, tuple[str, ...], tuple[Column, Column], tuple[str, ...]]:
    """Return a table with one row for each series, in the order of their first rows, its channels, and notes.

    The columns of time and value come before the notes. `numbers` reads them; by default, their notation is inferred.

    The value column then holds lists of numbers in order of time, or a list of such lists for the sorted channels.
    Other columns keep the cell of the first row of a series. Rows with the same series in two files are two series.
    """
    series, time, channel, value = columns
    named = [name for name in (series, time, channel, value) if name]
    for name in named:
        if name not in frame:
            raise DataError(f"{place} has no column '{name}', named by pivot; its columns: {', '.join(frame.names)}")
    numbers = numbers or partial(_numbers, frame, place, reading)
    (times, when, said), (values, what, more) = numbers(time), numbers(value)
    for name in named[:-1]:
        empty = np.isnan(times) if name == time else cleaned(frame[name]).is_null().to_numpy()
        if empty.any():
            rows = frame.rows_said(empty)
            raise DataError(f"column '{name}' of {place} is empty in {rows}: fill it in, or leave the row out")
    of_file = np.stack([frame.in_file, _coded(as_written(frame[series]))])
    _, first, own = np.unique(of_file, axis=1, return_index=True, return_inverse=True)
    firsts, owners = np.sort(first), np.argsort(np.argsort(first))[own.ravel()]
    cells = cleaned(frame[channel]).to_pylist() if channel else [value] * len(frame)
    names, kinds = np.unique([*map(str, cells)], return_inverse=True)
    order = np.lexsort((times, kinds, owners))

    keys = np.stack([owners, kinds, times])[:, order]
    twice = np.flatnonzero((keys[:, 1:] == keys[:, :-1]).all(axis=0))
    if len(twice):
        row = frame.where(int(order[twice[0] : twice[0] + 2].max()))
        raise DataError(
            f"row {row} of {place} has a second {channel or value} for its {series} at the same {time}: remove one"
        )
    moments = np.unique(keys[::2], axis=1)[0].astype(np.int64)
    wanted = np.repeat(np.bincount(moments, minlength=len(firsts)), len(names))
    counts = np.bincount(owners * len(names) + kinds, minlength=len(wanted))
    gaps = np.flatnonzero(counts != wanted)
    for odd in gaps[:1]:
        number, kind = divmod(int(odd), len(names))
        raise DataError(
            f"{series} {frame[series][int(firsts[number])].as_py()} of {place} has {channel or value} '{names[kind]}' "
            f"at {counts[odd]} of {wanted[odd]} times"
            + f" ({len(gaps) - 1} more such)" * (len(gaps) > 1)
            + f": give each series a value at each {time}, or leave it out"
        )
    labels = [reading.label_column] if reading.label_column else ["y", *frame.classes]
    for name in (*labels, reading.id_column, reading.domain_column):
        if name in frame and name != value and not ((codes := _coded(frame[name])) == codes[firsts][owners]).all():
            raise DataError(f"column '{name}' of {place} differs within one {series}: give each {series} one value")

    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    lists: pa.Array = pa.ListArray.from_arrays(pa.array(ends), pa.array(values[order], from_pandas=True))
    if channel:
        outer = np.arange(0, len(ends), len(names), dtype=np.int32)
        lists = pa.ListArray.from_arrays(pa.array(outer), lists)
    whole = frame.take(firsts).having({value: pa.chunked_array([lists])})
    called = tuple(f"{name} ({what.unit})" if what.unit else str(name) for name in names)
    whole = whole.without([name for name in (time, channel) if name])
    several = len(firsts) - len(np.unique(of_file[1]))
    note = f"{several} values of column '{series}' of {place} occur in several files: each file has its own series"
    return whole, called, (when, what), (*said, *more, *(note,) * (several > 0 and not reading.by_file))


def _coded(cells: pa.ChunkedArray) -> IntArray:
    """Return an index (N,) for each distinct cell."""
    coded = cells.unify_dictionaries().dictionary_encode("encode").combine_chunks()
    numbers: IntArray = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _numbers(frame: Frame, place: str, reading: Reading, name: str) -> tuple[FloatArray, Column, list[str]]:
    """Return the numbers of a column, or its dates as days; see `Numbers`."""
    cells = cleaned(frame[name], reading.missing)
    decision = decide(name, cells, "number", frame.rows_said, missing=reading.missing)
    if decision.column is None:
        raise DataError(f"column '{name}' of {place} {decision.problem}: {decision.way_out}")
    notes = [f"column '{name}' of {place}: {note}" for note in decision.notes]
    return read(decision.column, cells)[0], decision.column, notes
