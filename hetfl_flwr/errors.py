"""Errors that a user can fix: each has one line that names what is wrong, and where."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb, walk_tb
from typing import Annotated

from pydantic import Field

from hetfl_flwr.text import printable

EXIT_OF_FLOWER = "flwr.supercore.exit"
"""Where Flower ends a process, as after SIGTERM."""


class HetflError(Exception):
    """Base of all errors of this project. Its text is one line, fit for standard error.

    Attributes
    ----------
    outward : str
        Class attribute: the text that leaves a node in place of the line, which may name paths, columns and cells.
    """

    outward = "it cannot do what it was asked"

    def __str__(self) -> str:
        """Return the text as `printable` shows it, whatever was put into it."""
        return printable(super().__str__())


class ConfigError(HetflError):
    """A run-config key or command-line argument that is unknown, of the wrong type or out of range."""

    outward = "a key of its config is not what it may be"


class DataError(HetflError):
    """A data set that cannot be found, read or split as asked."""

    outward = "its data cannot be read or split as asked"


class ModelError(HetflError):
    """A model that is unknown, cannot be built, or does not fit the data."""

    outward = "its model cannot be built, or does not fit its data"


class PayloadError(HetflError):
    """Arrays received over the wire that are not what was declared."""

    outward = "arrays are not what was declared"


class DivergedError(HetflError):
    """Training whose loss or weights are no numbers any more, or infinite."""

    outward = "training diverged: lower learning-rate"


class StateError(HetflError):
    """Saved client state that belongs to something else, or cannot be read or written."""

    outward = "its saved state cannot be read or written, or is not of this run"


class DamagedError(StateError):
    """Saved state that is not as it was written."""


class FederationError(HetflError):
    """Clients that cannot be federated as asked, or too few of them."""

    outward = "its federation cannot run as asked"


class WorkerError(FederationError):
    """A worker process of the local engine that has ended, or cannot go on."""


class TooFewClients(FederationError):
    """A round that too few clients have finished; what was reached before is kept."""

    outward = "too few clients have finished a round"


class RunFolderError(HetflError):
    """A run folder that cannot be written, holds another run, or holds none."""

    outward = "its run folder cannot be read or written"


@dataclass(frozen=True)
class Failure:
    """Why an answer of one client was not used in a round: it failed, or the guard has left its upload out.

    `client_id` is ``partition`` in the files of a run folder, and -1 where the client is unknown.
    """

    client_id: Annotated[int, Field(ge=-1, lt=10**9, alias="partition")]
    stage: str
    reason: str
    node: Annotated[int, Field(ge=0, lt=2**64)]


def reason(error: BaseException) -> str:
    """Return the text of an error; of a syntax error without its place, which `place` returns.

    Examples
    --------
    >>> try:
    ...     compile("def loss(:", "my_pkg/client.py", "exec")
    ... except SyntaxError as error:
    ...     print(reason(error), "in", place(error))
    invalid syntax in my_pkg/client.py, line 1
    """
    return error.msg if isinstance(error, SyntaxError) and error.filename else str(error)


def cause(error: BaseException) -> str:
    """Return an error in one line: its text, and of one that is not this project's its type, too."""
    if isinstance(error, HetflError):
        return str(error)
    try:
        said = reason(error)
    except Exception:
        said = "its text cannot be shown"
    return printable(f"{type(error).__name__}: {' '.join(said.split())}", 300)


def place(error: BaseException) -> str:
    """Return the file and the line that an error comes from; of a syntax error, the line that is wrong.

    It is not inside of torch, NumPy or Python's import. Empty where there is none.

    Examples
    --------
    >>> import numpy
    >>> try:
    ...     numpy.ones(3).reshape(2, 2)
    ... except ValueError as error:
    ...     print(place(error))
    <doctest hetfl_flwr.errors.place[1]>, line 2
    """
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}" if error.filename else ""
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen ")]
    own = [frame for frame in frames if not {"torch", "numpy"} & set(Path(frame.filename).parts)] or frames
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def ends_process(error: BaseException) -> bool:
    """Return whether an exit is Flower's own, and not one of the user's model or callback."""
    frames = walk_tb(error.__traceback__)
    return isinstance(error, SystemExit) and any(
        str(frame.f_globals.get("__name__")).startswith(EXIT_OF_FLOWER) for frame, _ in frames
    )


def unknown(kind: str, name: str, valid: Iterable[str], listed: str = "") -> str:
    """Return the line for a name that is not among the valid ones, with the nearest of them.

    All are named, or the command is that lists them.

    Examples
    --------
    >>> unknown("dataset", "mnsit", ["digits", "mnist"])
    "unknown dataset 'mnsit': did you mean 'mnist'? Known: digits, mnist"
    """
    names = sorted(valid)
    near = get_close_matches(name, names, n=1)
    hint = f": did you mean '{near[0]}'?" if near else ":" if listed else "."
    return f"unknown {kind} '{name}'{hint} " + (f"`{listed}` shows all" if listed else f"Known: {', '.join(names)}")


INTERRUPTED = "interrupted; finished work is kept"
"""Message of a command that the user has ended at once."""


class Interrupted(KeyboardInterrupt):
    """The user asked to stop; no round is incomplete."""
