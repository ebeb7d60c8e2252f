"""What makes the figures of runs doubtful: small test sets, single classes, a run that is too short."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import sqrt
from typing import NamedTuple

from hetfl_flwr.config import Value
from hetfl_flwr.runs.record import ClientRecord, Round, name_of
from hetfl_flwr.text import LONGEST_NAME, printable
from hetfl_flwr.wire.naming import called

FEWEST_TEST_ROWS = 30
"""Test samples below which a client's figures are hardly more than chance."""

LAST_PART, LEAST_RISE = 0.75, 0.02
"""The part of a run after which accuracy should not rise any more, and by how much it may, as a fraction."""

MOST_NOTED = 5
"""Clients, and classes of one, that are named one by one."""

DOUBTS = {
    "alone": "all test rows are of {}",
    "untested": "no test row of {}, on which it trains",
    "unpredicted": "never predicts {}",
}
"""What is doubtful about single classes of a client, and how it is said."""


class Doubts(NamedTuple):
    """What makes a client's figures doubtful.

    Parameters
    ----------
    rows : int or None
        How many test samples it has, where these are fewer than `FEWEST_TEST_ROWS`.
    classes : mapping of str to list of str
        Classes by the keys of `DOUBTS`: the one that all of its test samples have, those that it trains on and cannot
        test, and those that it tests and never predicts.
    """

    rows: int | None
    classes: Mapping[str, Sequence[str]]

    def lines(self) -> list[str]:
        """Return each in a few words."""
        rows = [] if self.rows is None else [f"{self.rows or 'no'} test row{'s' * (self.rows != 1)}"]
        return [*rows, *(DOUBTS[kind].format(listed(names)) for kind, names in self.classes.items())]


def doubts(clients: Iterable[ClientRecord]) -> dict[int, Doubts]:
    """Return what makes figures doubtful, by client; a client without test samples counts where others have some."""
    records = list(clients)
    anybody = any(record["test"] for record in records)
    found = {record["partition"]: _doubts(record, anybody) for record in records}
    return {client_id: one for client_id, one in found.items() if one.lines()}


def notes(clients: Iterable[ClientRecord], rounds: Sequence[Round], class_weights: Value = "none") -> list[str]:
    """Return what to mind when the figures are read, a line a client; of many clients, the first ones.

    That is: a test set of fewer than `FEWEST_TEST_ROWS` samples, or of one class alone, classes that are trained on and
    never tested, and classes that are tested and never predicted. Before them, whether the run seems to be too short;
    where it does not, and classes are never predicted, what might help them.

    Parameters
    ----------
    clients : iterable of ClientRecord
        All of a run.
    rounds : sequence of Round
        In ascending order.
    class_weights : str
        The key's value in the run.
    """
    records = list(clients)
    names = {record["partition"]: name_of(record) for record in records}
    doubtful = doubts(records)
    said = [f"{called(client, names[client])}: {'; '.join(one.lines())}" for client, one in doubtful.items()]
    general = still_rising(rounds, sum(record["test"] or 0 for record in records))
    if not general and class_weights == "none" and any("unpredicted" in one.classes for one in doubtful.values()):
        general = ["some classes are never predicted: class-weights=balanced gives rare ones more weight"]
    return general + first_ones(said)


def still_rising(rounds: Sequence[Round], samples: int) -> list[str]:
    """Return a line where accuracy still rose over the last quarter of a run, by more than chance may explain.

    The rise counts from `LEAST_RISE` on, and from two standard errors of an accuracy on so many test samples.

    Parameters
    ----------
    rounds : sequence of Round
        In ascending order.
    samples : int
        Test samples of all clients together.
    """
    known = [(one.round, one.accuracy) for one in rounds if one.accuracy is not None]
    if not known or not samples:
        return []
    last, accuracy = known[-1]
    before = [(number, value) for number, value in known if number <= LAST_PART * last and number < last]
    if not before:
        return []
    since, earlier = before[-1]
    rise, error = accuracy - earlier, 2 * sqrt(accuracy * (1 - accuracy) / samples)
    if rise < max(LEAST_RISE, error):
        return []
    return [f"accuracy still rose by {100 * rise:.1f} points from round {since} to {last}, the last: more may help"]


def first_ones(said: Sequence[str]) -> list[str]:
    """Return lines, of many the first ones and how many more there are."""
    more = len(said) - MOST_NOTED
    return [*said[:MOST_NOTED], *([f"and {more} more"] if more > 0 else [])]


def _doubts(record: ClientRecord, anybody: bool) -> Doubts:
    test, recall = record["test"], record.get("recall") or {}
    few = test is not None and (0 < test < FEWEST_TEST_ROWS or (test == 0 and anybody))
    classes = {
        "alone": [*recall] if len(recall) == 1 else [],
        "untested": record.get("untested") or [],
        "unpredicted": record.get("unpredicted") or [],
    }
    return Doubts(test if few else None, {kind: names for kind, names in classes.items() if names})


def listed(names: Sequence[str]) -> str:
    """Return classes as messages call them; of many the first ones."""
    shown = ", ".join(printable(name, LONGEST_NAME) for name in islice(names, MOST_NOTED))
    more = len(names) - MOST_NOTED
    return ("class " if len(names) == 1 else "classes ") + shown + (f" and {more} more" if more > 0 else "")
