"""Errors that a user can mend: each carries one clear line that names what is wrong, and where."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb, walk_tb

from hetfl_flwr.common.text import printable

_OPEN, _CLOSE = "\x02", "\x03"  # around what stays on its node
_PRIVATE = re.compile(f"{_OPEN}[^{_CLOSE}]*{_CLOSE}?")
_PATH = re.compile(r"(?P<url>https?://[\w./-]+(?![\w./:@-]))|(?<![\w/.>])(~[\w-]*|\.{0,2})/\S.*", re.DOTALL)

EXIT_OF_FLOWER = "flwr.supercore.exit"
"""Where Flower ends a process, as after SIGTERM."""

WITHHELD = "(not shown)"
"""What stands in `HetflError.outward` in place of what stays on its node."""


class HetflError(Exception):
    """Base of all errors of this project. Its text is one line, fit for standard error.

    Parameters
    ----------
    text : str
        The line. Paths, and values and names of a data set, stand in `private`.

    Attributes
    ----------
    marked : str
        The line as it was given, to be part of another error's text.
    outward : str
        The line as others may read it: without what is private. Where a path is not marked, nobody knows where it ends,
        so all that follows is left out as well.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(plain(text))
        self.marked = text
        self.outward = _PATH.sub(lambda found: found["url"] or WITHHELD, _PRIVATE.sub(WITHHELD, text))

    def __str__(self) -> str:
        """Return the text as `printable` shows it, whatever was put into it."""
        return printable(super().__str__())


def private(value: object) -> str:
    """Mark part of an error's text, such as a path, a label or a cell, as what others must not read.

    Examples
    --------
    >>> error = DataError(f"row 3 of '{private('/data/ward')}' has label {private('Jane Doe')}")
    >>> print(error)
    row 3 of '/data/ward' has label Jane Doe
    >>> error.outward
    "row 3 of '(not shown)' has label (not shown)"
    """
    return f"{_OPEN}{plain(str(value))}{_CLOSE}"


def plain(text: str) -> str:
    """Return a text without the marks of `private`."""
    return text.replace(_OPEN, "").replace(_CLOSE, "")


class ConfigError(HetflError):
    """A run-config key or command-line argument that is unknown, of the wrong type or out of range."""


class DataError(HetflError):
    """A data set that cannot be found, read or split as asked."""


class ModelError(HetflError):
    """A model that is unknown, cannot be built, or does not fit the data."""


class PayloadError(HetflError):
    """Arrays received over the wire that are not what was declared."""


class DivergedError(HetflError):
    """Training whose loss or weights are no numbers any more, or infinite."""


class StateError(HetflError):
    """Saved client state that belongs to something else, or cannot be read or written."""


class DamagedError(StateError):
    """Saved state that is not as it was written."""


class FederationError(HetflError):
    """Clients that cannot be federated as asked, or too few of them."""


class TooFewClients(FederationError):
    """A round that too few clients have finished; what was reached before is kept."""


class RunFolderError(HetflError):
    """A run folder that cannot be written, holds another run, or holds none."""


def reason(error: BaseException) -> str:
    """Return what an error says; one of syntax without its place, which `place` says in full.

    Examples
    --------
    >>> try:
    ...     compile("def loss(:", "my_pkg/client.py", "exec")
    ... except SyntaxError as error:
    ...     print(reason(error), "in", plain(place(error)))
    invalid syntax in my_pkg/client.py, line 1
    """
    return error.msg if isinstance(error, SyntaxError) and error.filename else str(error)


def place(error: BaseException) -> str:
    """Return the file and the line that an error comes from; of a syntax error, the line that is wrong.

    It is not inside of torch, NumPy or Python's import. Empty where there is none.

    Examples
    --------
    >>> import numpy
    >>> try:
    ...     numpy.ones(3).reshape(2, 2)
    ... except ValueError as error:
    ...     print(plain(place(error)))
    <doctest hetfl_flwr.common.errors.place[1]>, line 2
    """
    if isinstance(error, SyntaxError):
        return f"{private(error.filename)}, line {error.lineno}" if error.filename else ""
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen ")]
    own = [frame for frame in frames if not {"torch", "numpy"} & set(Path(frame.filename).parts)] or frames
    return f"{private(own[-1].filename)}, line {own[-1].lineno}" if own else ""


def ends_process(error: BaseException) -> bool:
    """Say whether an exit is Flower's own, and not one of somebody's model or callback."""
    frames = walk_tb(error.__traceback__)
    return isinstance(error, SystemExit) and any(
        str(frame.f_globals.get("__name__")).startswith(EXIT_OF_FLOWER) for frame, _ in frames
    )


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """Return the line for a name, which may be `private`, that is not among the valid ones, with the nearest of them.

    Examples
    --------
    >>> unknown("dataset", "mnsit", ["digits", "mnist"])
    "unknown dataset 'mnsit': did you mean 'mnist'? Known: digits, mnist"
    """
    names = sorted(valid)
    near = get_close_matches(plain(name), names, n=1)
    hint = f" did you mean '{near[0]}'?" if near else ""
    return f"unknown {kind} '{name}':{hint} Known: {', '.join(names)}"


INTERRUPTED = "interrupted; what was written before stays"
"""What a command says that the user has ended at once."""


class Interrupted(KeyboardInterrupt):
    """The user asked to stop, and no round is half done."""
