"""Records of runs that a benchmark makes once: a line of JSON each, by row, column and seed; and figures over seeds."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import typer

from hetfl_flwr.common.versions import environment

Records = dict[tuple[str, str, int], dict[str, Any]]
"""What was measured, by row, column and seed."""

FEWEST = 3
"""Seeds that a standard deviation is told of, at least."""


def read(path: Path) -> Records:
    """Return the records of a file; none where there is no file."""
    if not path.exists():
        return {}
    return {(one["row"], one["column"], one["seed"]): one for one in map(json.loads, path.open())}


def keep(path: Path, records: Records, record: Mapping[str, Any]) -> None:
    """Add a record, with the versions that made it, to those that are known, and to their file."""
    whole = {**record, "versions": environment()}
    records[record["row"], record["column"], record["seed"]] = whole
    with path.open("a") as file:
        file.write(json.dumps(whole, allow_nan=False) + "\n")


def chosen(names: list[str] | None, known: Mapping[str, object], option: str) -> list[str]:
    """Return the names that an option gives, or all that are known; refuse another one."""
    for name in names or ():
        if name not in known:
            raise typer.BadParameter(f"'{name}', expected one of: {'; '.join(known)}", param_hint=f"--{option}")
    return names or list(known)


def spread(values: Sequence[float], written: Callable[[float], str]) -> str:
    """Return the mean over seeds and, of `FEWEST` seeds or more, the standard deviation; nothing of none.

    Examples
    --------
    >>> spread([1.0, 2.0, 3.0], "{:.1f}".format), spread([1.0, 2.0], "{:.1f}".format), spread([], str)
    ('2.0 ± 1.0', '1.5', '')
    """
    if not values:
        return ""
    return written(fmean(values)) + (f" ± {written(stdev(values))}" if len(values) >= FEWEST else "")
