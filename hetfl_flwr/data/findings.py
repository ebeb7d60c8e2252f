"""What is found while a data set is decoded: what is wrong with it, and what is done with it unasked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hetfl_flwr.common.problems import Problems

if TYPE_CHECKING:
    from hetfl_flwr.data.hub import Source

MOST_NAMED = 5
"""Columns that one note names."""


@dataclass
class Findings:
    """What is found while a data set is decoded.

    Parameters
    ----------
    source : Source
        The data set.
    done : list of (str, str)
        What was done with a column that nobody has asked for: its name, and a text. The run says it and goes on.

    Attributes
    ----------
    problems : Problems
        Why it cannot be learnt from as it is: the run stops with all of them.
    """

    source: "Source"
    done: list[tuple[str, str]] = field(default_factory=list)
    problems: Problems = field(init=False)

    def __post_init__(self) -> None:
        """Begin with no problem."""
        self.problems = Problems(self.source.place)

    def problem(self, name: str, what: str, way_out: str) -> None:
        """Take down why a column cannot be learnt from, and what to do."""
        self.problems.add(f"column '{name}' of {self.source.place} {what}", way_out)

    def note(self, name: str, text: str) -> None:
        """Take down what is done with a column."""
        self.done.append((name, text))

    @property
    def notes(self) -> tuple[str, ...]:
        """Each of the notes with the columns that it holds of, many of them in short."""
        columns: dict[str, list[str]] = {}
        for name, text in self.done:
            columns.setdefault(text, []).append(name)
        return tuple(f"{_columns(names)} of {self.source.place}: {text}" for text, names in columns.items())

    def rows(self, where: npt.NDArray[np.bool_]) -> str:
        """Return how messages call some rows: the first, and how many more."""
        first, *more = np.flatnonzero(where)
        split, row, file = self.source.place_of(int(first))
        among = f" of split '{split}'" if len(self.source.splits) > 1 else ""
        among = f" of {file}" if file else among
        return f"row {row}{among}" + (f" and {len(more)} more" if more else "")


def _columns(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:MOST_NAMED])
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"column{'s' * (len(names) > 1)} {shown}{more}"
