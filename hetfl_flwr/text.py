"""Any text or value as one printable line of bounded length."""

import re
from collections.abc import Sequence
from reprlib import Repr
from typing import Any

LONGEST_TEXT = 2000
"""Characters of an error that are shown."""

LONGEST_NAME = 100
"""Characters of a name that are shown; a metric's name has no more."""

_FORMULA = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20].", re.DOTALL)
"""First characters of a spreadsheet's formula, in full width, too."""

_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


def printable(text: str, longest: int = LONGEST_TEXT) -> str:
    r"""Return a text in one line: what cannot be printed is escaped, and what is longer loses its middle.

    Parameters
    ----------
    text : str
        Any.
    longest : int
        Characters of the line, 10 or more.

    Examples
    --------
    >>> print(printable("no\x1b[31m\n[data] é"))
    no\x1b[31m\n[data] é
    >>> printable("a text that is too long", 15)
    'a t ... oo long'
    """
    text = _shortened(text, longest)
    if text.isprintable():
        return text
    return _shortened("".join(char if char.isprintable() else ascii(char)[1:-1] for char in text), longest)


def brief(value: object) -> str:
    r"""Return the beginning of how a value is written in Python.

    Examples
    --------
    >>> brief([1] * 1000), brief("a\\nb")
    ('[1, 1, 1, 1, 1, 1, ...]', "'a\\\\nb'")
    """
    return _REPR.repr(value)


def quoted(text: str) -> str:
    r"""Return another party's text as a quotation, with its own quotation marks replaced.

    Examples
    --------
    >>> quoted('full"; the server is down')
    '"full\'; the server is down"'
    """
    return '"' + text.replace('"', "'") + '"'


def some(things: Sequence[object], most: int = 5) -> str:
    """Return the first things in a line, and how many more there are.

    Examples
    --------
    >>> some(["a", "b", "c"], 2), some([1, 2]), some([])
    ('a, b and 1 more', '1, 2', '')
    """
    return ", ".join(map(str, things[:most])) + f" and {len(things) - most:,} more" * (len(things) > most)


def as_cell(value: Any) -> Any:
    """Return a cell of a csv file: a text that a spreadsheet would run as a formula gets a ``'`` in front.

    Examples
    --------
    >>> [as_cell(value) for value in ("=1+1", "@sum", "-a", "-1.5", "+", "a=b", -2)]
    ["'=1+1", "'@sum", "'-a", '-1.5', '+', 'a=b', -2]
    """
    if not isinstance(value, str) or not _FORMULA.match(value):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _shortened(text: str, longest: int) -> str:
    half = longest // 2
    return text if len(text) <= longest else f"{text[: longest - half - 5]} ... {text[-half:]}"
