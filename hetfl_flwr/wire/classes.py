"""Metrics per class: one metric for each class on the node, one list for each kind of metric in a message.

On a node, ``recall.3`` is the recall of class 3. In a message, ``recall`` is a list with a number for each class, NaN
if it has no recall; kinds that are true or false are lists of the classes for which they are true.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from math import nan

from hetfl_flwr.common.flower import Scalar

RECALL, UNTESTED, UNPREDICTED = "recall", "untested", "unpredicted"
"""The recall of each class with test samples; classes with training but no test samples; classes with test samples
that are never predicted."""

MAX_CLASSES = 256
"""Maximum number of classes for which clients report metrics per class."""

_OF_CLASS = re.compile(rf"({RECALL}|{UNTESTED}|{UNPREDICTED})\.(0|[1-9][0-9]{{0,2}})")


def of_class(kind: str, label: int) -> str:
    """Return the name of a kind of metric for one class."""
    return f"{kind}.{label}"


def whole(metrics: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return metrics without those per class.

    Examples
    --------
    >>> whole({"auc": 0.5, "recall.0": 1.0, "unpredicted.1": 1})
    {'auc': 0.5}
    """
    return {name: value for name, value in metrics.items() if not _OF_CLASS.fullmatch(name)}


def listed(metrics: Mapping[str, Scalar], classes: int) -> dict[str, Scalar | list[float] | list[int]]:
    """Convert a client's metrics to the form of a message, with one list for each kind of metric per class.

    Examples
    --------
    >>> listed({"auc": 0.5, "recall.0": 1.0, "recall.2": 0.25, "unpredicted.1": 1}, 3)
    {'recall': [1.0, nan, 0.25], 'unpredicted': [1], 'auc': 0.5}
    """
    rest: dict[str, Scalar | list[float] | list[int]] = {}
    found: dict[str, dict[int, float]] = {}
    for name, value in metrics.items():
        if (match := _OF_CLASS.fullmatch(name)) and isinstance(value, int | float):
            found.setdefault(match[1], {})[int(match[2])] = float(value)
        else:
            rest[name] = value
    lists: dict[str, list[float] | list[int]] = {kind: sorted(own) for kind, own in found.items()}
    if recall := found.get(RECALL):
        lists[RECALL] = [recall.get(label, nan) for label in range(classes)]
    return {**lists, **rest}


def wrong_list(kind: str, value: object, classes: int) -> str | None:
    """Return what is expected in place of a received list, or None if the list is valid for the sender's classes.

    Examples
    --------
    >>> wrong_list("recall", [0.5, nan], 2), wrong_list("recall", [0.5, 2.0], 2)
    (None, 'expected 2 fractions from 0 to 1, one per class')
    >>> wrong_list("untested", [0, 7], 2)
    'expected numbers of classes, from 0 to 1, each once and in order'
    """
    if not isinstance(value, list) or kind not in (RECALL, UNTESTED, UNPREDICTED) or classes > MAX_CLASSES:
        return "expected a finite number"
    if kind == RECALL:
        right = len(value) == classes and all(type(one) is float and (one != one or 0 <= one <= 1) for one in value)
        return None if right else f"expected {classes} fractions from 0 to 1, one per class"
    right = len(value) <= classes and all(type(one) is int and 0 <= one < classes for one in value)
    ascending = right and all(one < other for one, other in pairwise(value))
    return None if ascending else f"expected numbers of classes, from 0 to {classes - 1}, each once and in order"


def numbered(lists: Mapping[str, object]) -> dict[str, list[float | None]]:
    """Convert checked lists of a message to the form of a file, with None in place of NaN."""
    return {
        kind: [None if one != one else one for one in value] for kind, value in lists.items() if isinstance(value, list)
    }
