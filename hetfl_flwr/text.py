"""Formats texts and values as one printable line of bounded length."""

import re
from collections.abc import Sequence
from reprlib import Repr
from typing import Any

LONGEST_TEXT = 2000
"""Maximum length of an error in messages, in characters."""

LONGEST_NAME = 100
"""Maximum length of a name in messages, and of a metric's name, in characters."""

_FORMULA = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20].", re.DOTALL)
"""Texts that a spreadsheet reads as a formula, including those with a full-width first character."""

_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


def printable(text: str, longest: int = LONGEST_TEXT) -> str:
    r"""Return a text as one line with unprintable characters escaped, shortened in the middle if it is too long.

    `longest` is the maximum length in characters, at least 10.

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
    r"""Return the beginning of a value's repr.

    Examples
    --------
    >>> brief([1] * 1000), brief("a\\nb")
    ('[1, 1, 1, 1, 1, 1, ...]', "'a\\\\nb'")
    """
    return _REPR.repr(value)


def quoted(text: str) -> str:
    r"""Return a text of another party in double quotes, with double quotes inside it replaced.

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
    """Return a value for a cell of a CSV file: a text that a spreadsheet would run as a formula is prefixed with ``'``.

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
