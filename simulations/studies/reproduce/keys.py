"""Keys of the figures that recipes measure and draw, and the ranges of their values."""

import re
from typing import Literal

from hetfl_flwr.errors import unknown
from hetfl_flwr.runs.record import Count, Epsilon, Fraction, Round, Seconds, Summary

NUMBERS = ("numbers_up", "numbers_down")
"""Counts of numbers in payloads, which ``rounds.jsonl`` has and ``summary.json`` does not."""

GAIN, HARMED, WORST = "gain", "harmed", "worst-tenth"
IMPACT = (GAIN, HARMED, WORST)
"""Measures relative to the baseline's run with the same seed.

They are the mean gain in accuracy over clients, the share of clients that lose more than a point, and the mean gain of
the tenth of the clients that gain least.
"""

PAYLOAD = "payload"
"""The sum of ``bytes_up`` and ``bytes_down`` of ``summary.json``."""

PER_RUN = (
    *(name for name, of in Summary.__annotations__.items() if of in (Count, Seconds, Fraction | None, Epsilon | None)),
    *NUMBERS,
    PAYLOAD,
)
"""Measures that are one number of a run, 0 or more: those of ``summary.json``, `NUMBERS` and `PAYLOAD`."""

MEASURE_KEYS = (*PER_RUN, *(f"before:{one}" for one in NUMBERS), *IMPACT)
"""Keys of measures other than those of what clients report."""

SHARES = {name for kind in (Round, Summary) for name, of in kind.__annotations__.items() if of == Fraction | None}
"""The figures of runs and rounds that are fractions in [0, 1]; a client reports them with dashes in their names."""

NESTED = ("clients", "failures", "classes", "not_averaged")
"""Entries of a line of ``rounds.jsonl`` that are not numbers."""

CLIENTS = re.compile(r"clients?-(\d{1,9})(?:-(\d{1,9}))?")
"""The prefix for client P, or clients P to Q."""

ALL_CLIENTS = ("", "best", "late", "last")
"""The prefixes of figures of all clients."""


Unit = Literal["%", "points", "numbers", "MB", ""]
"""The unit of a measure in tables."""


def unit_of(key: str) -> Unit:
    """Return the usual unit of a measure: "%" for shares and for what clients report.

    Examples
    --------
    >>> unit_of("accuracy"), unit_of("best:accuracy"), unit_of("bytes_up"), unit_of("before:numbers_up")
    ('%', '%', 'MB', 'numbers')
    """
    name = key.rpartition(":")[2]
    if name in (GAIN, WORST):
        return "points"
    if name in NUMBERS:
        return "numbers"
    if name in (PAYLOAD, "bytes_up", "bytes_down", "wire_up", "wire_down"):
        return "MB"
    return "" if key in PER_RUN and name not in SHARES else "%"


def is_reported(key: str) -> bool:
    """Return whether clients report what a key names: since that depends on the method, only runs can tell."""
    return key not in MEASURE_KEYS and key not in Round.__annotations__


def first_client(key: str) -> int:
    """Return the first of the clients that a key refers to.

    Examples
    --------
    >>> first_client("clients-3-5:accuracy"), first_client("best:accuracy")
    (3, 0)
    """
    among = CLIENTS.fullmatch(key.rpartition(":")[0])
    return int(among[1]) if among else 0


def check_measure(key: str) -> str:
    """Return the key of a measure; raises a `ValueError` if no run can have such a figure."""
    where, _, name = key.rpartition(":")
    if where in ("", "before") or name in NUMBERS:
        if key not in MEASURE_KEYS:
            raise ValueError(unknown("figure", key, MEASURE_KEYS))
    elif where not in ("best", "last", "late", "trained") and not CLIENTS.fullmatch(where):
        raise ValueError(f"{key!r}: expected best:, last:, late:, trained:, client-P: or clients-P-Q: before {name}")
    return key


def check_curve(key: str) -> str:
    """Return the key of a curve; raises a `ValueError` if it has no numbers over rounds."""
    where, _, name = key.rpartition(":")
    if where and where != "trained" and not CLIENTS.fullmatch(where):
        raise ValueError(f"{key!r}: expected trained:, client-P: or clients-P-Q: before {name}")
    if not where and name in NESTED:
        raise ValueError(f"{key!r} is not a number that rounds report, such as accuracy")
    return key


def check_value(key: str, value: float) -> None:
    """Raise a `ValueError` if a measure or a curve cannot have this value."""
    name = key.rpartition(":")[2].replace("-", "_")
    if name in SHARES and not 0 <= value <= 1:
        raise ValueError(f"{key} = {value:g}: expected a fraction from 0 to 1")
    if name in PER_RUN and value < 0:
        raise ValueError(f"{key} = {value:g}: expected 0 or more")
