"""Long tables, a row for each point in time: the rows of one series become one row with lists of numbers."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hetfl_flwr.data.columns import FloatArray, as_written, cleaned, decide, read
from hetfl_flwr.data.frame import Frame, IntArray
from hetfl_flwr.data.reading import Reading, parse_names
from hetfl_flwr.errors import ConfigError, DataError


def parse_pivot(text: str) -> tuple[str, str, str, str] | None:
    """Return the columns of a long table: series, time, channel (empty where there is one alone) and value.

    Parameters
    ----------
    text : str
        Comma list of the columns ``SERIES, TIME, VALUE`` or ``SERIES, TIME, CHANNEL, VALUE``. Empty: None.

    Raises
    ------
    ConfigError
        If it is neither.

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


def pivoted(frame: Frame, place: str, reading: Reading) -> tuple[Frame, tuple[str, ...]]:
    """Return the rows of a long table with one row a series, in the order of their first rows, and the channels.

    The column of values then holds lists of numbers: one in order of time, or one a channel, the channels sorted. Rows
    of one series in two files are two series. Other columns have the cell of its first row.

    Raises
    ------
    DataError
        A column is not there; a cell of series, time or channel is missing; a channel has no value, or two, at a time;
        or the label, the owner or the domain differs within a series.
    """
    series, time, channel, value = parse_pivot(reading.pivot) or ("",) * 4
    for name in filter(None, (series, time, channel, value)):
        if name not in frame:
            raise DataError(f"{place} has no column '{name}', which pivot names; it has: {', '.join(frame.names)}")
    codes, firsts = _numbered(frame, series)
    (times, _), (values, unit) = (_numbers(frame, place, name, reading) for name in (time, value))
    kinds, names = _codes(frame, place, channel) if channel else (np.zeros(len(frame), np.int64), (value,))
    _codes(frame, place, series)
    if np.isnan(times).any():
        raise DataError(f"row {_row(frame, int(np.isnan(times).argmax()))} of {place} has no {time}: fill it in")
    order = np.lexsort((times, kinds, codes))
    ends = _checked(frame, place, (series, time, channel or value), (codes, times, kinds), (order, firsts, names))
    lists: pa.Array = pa.ListArray.from_arrays(pa.array(ends), pa.array(values[order], from_pandas=True))
    if channel:
        outer = np.arange(0, len(ends), len(names), dtype=np.int32)
        lists = pa.ListArray.from_arrays(pa.array(outer), lists)
    labels = [reading.label_column] if reading.label_column else ["y", *frame.classes]
    for name in (*labels, reading.id_column, reading.domain_column):
        if name in frame and name != value and not _constant(frame, name, codes, firsts):
            raise DataError(f"column '{name}' of {place} differs within one {series}: give each one value")
    whole = frame.take(firsts).having({value: pa.chunked_array([lists])})
    called = tuple(f"{name} ({unit})" if unit else name for name in names)
    return whole.without([name for name in (time, channel) if name]), called


def _numbered(frame: Frame, series: str) -> tuple[IntArray, IntArray]:
    """Return the number of each row's series, in the order of their first rows (S,), and these."""
    own = _dictionary(as_written(frame[series]))
    _, first, codes = np.unique(np.stack([frame.in_file, own]), axis=1, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return rank[codes.ravel()], np.sort(first)


def _dictionary(cells: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return a number (N,) for each different cell."""
    coded = cells.unify_dictionaries().dictionary_encode("encode").combine_chunks()
    numbers: npt.NDArray[np.int64] = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _constant(frame: Frame, name: str, codes: IntArray, firsts: IntArray) -> bool:
    own = _dictionary(frame[name])
    return bool((own == own[firsts][codes]).all())


def _row(frame: Frame, row: int) -> str:
    number, file = frame.place_of(row)
    return f"{number} of {file}" if file else str(number)


def _numbers(frame: Frame, place: str, name: str, reading: Reading) -> tuple[FloatArray, str]:
    """Return the numbers (N,) of a column, or its dates as days, and their unit; NaN where one is missing."""
    cells = cleaned(frame[name], reading.missing)
    decision = decide(
        name, cells, "number", lambda rows: f"row {_row(frame, int(rows.argmax()))}", missing=reading.missing
    )
    if decision.column is None:
        raise DataError(f"column '{name}' of {place} {decision.problem}: {decision.way_out}")
    return read(decision.column, cells)[0], decision.column.unit


def _codes(frame: Frame, place: str, name: str) -> tuple[IntArray, tuple[str, ...]]:
    """Return the number of each cell's value, and the sorted values; none may be missing."""
    cells = cleaned(frame[name])
    if cells.null_count:
        row = int(np.argmax(cells.is_null().to_numpy()))
        raise DataError(f"row {_row(frame, row)} of {place} has no {name}: fill it in, or leave the row out")
    names, codes = np.unique([str(cell) for cell in cells.to_pylist()], return_inverse=True)
    return codes.astype(np.int64), tuple(map(str, names))


def _checked(
    frame: Frame,
    place: str,
    called: tuple[str, str, str],
    keys: tuple[IntArray, FloatArray, IntArray],
    found: tuple[IntArray, IntArray, tuple[str, ...]],
) -> npt.NDArray[np.int32]:
    """Return where the list of each channel of each series ends; each has one value at each time of its series."""
    (series, time, channel), (codes, times, kinds), (order, firsts, names) = called, keys, found
    sorted_keys = np.stack([codes[order], kinds[order], times[order]])
    twice = np.flatnonzero((sorted_keys[:, 1:] == sorted_keys[:, :-1]).all(axis=0))
    if len(twice):
        row = int(max(order[twice[0]], order[twice[0] + 1]))
        raise DataError(
            f"row {_row(frame, row)} of {place} has a second {channel} of its {series} at one {time}: leave one out"
        )
    moments = np.unique(np.stack([codes, times]), axis=1)[0].astype(np.int64)
    wanted = np.repeat(np.bincount(moments, minlength=len(firsts)), len(names))
    counts = np.bincount(codes * len(names) + kinds, minlength=len(wanted))
    if len(odd := np.flatnonzero(counts != wanted)):
        number, kind = divmod(int(odd[0]), len(names))
        raise DataError(
            f"{series} {frame[series][int(firsts[number])].as_py()} of {place} has {channel} '{names[kind]}' at "
            f"{counts[odd[0]]} of {wanted[odd[0]]} times: give each a value at each {time}, or leave it out"
        )
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
