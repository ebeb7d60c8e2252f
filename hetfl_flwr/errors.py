"""Errors that a user can fix; each is one line that says what is wrong and where."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb, walk_tb
from typing import Annotated

from pydantic import Field

from hetfl_flwr.text import printable

EXIT_OF_FLOWER = "flwr.supercore.exit"
"""Module in which Flower exits the process, for example after SIGTERM."""


class HetflError(Exception):
    """Base class of all errors of this project. The message is one line, ready for standard error.

    Attributes
    ----------
    outward : str
        Class attribute: the text that leaves a node instead of the message, which may name paths, columns and cells.
    """

    outward = "the request failed"

    def __str__(self) -> str:
        """Return the message as one printable line."""
        return printable(super().__str__())


class ConfigError(HetflError):
    """A run-config key or command-line argument that is unknown, of the wrong type or out of range."""

    outward = "a key of its config is invalid"


class DataError(HetflError):
    """A data set that cannot be found, read or split as configured."""

    outward = "its data cannot be read or split as configured"


class ModelError(HetflError):
    """A model that is unknown, cannot be built, or does not fit the data."""

    outward = "its model cannot be built, or does not fit its data"


class PayloadError(HetflError):
    """Received arrays that differ from their declaration."""

    outward = "arrays differ from their declaration"


class DivergedError(HetflError):
    """Training whose loss or weights have become NaN or infinite."""

    outward = "training diverged: lower learning-rate"


class StateError(HetflError):
    """Saved client state that belongs to another run or client, or cannot be read or written."""

    outward = "its saved state cannot be read or written, or is not of this run"


class DamagedError(StateError):
    """Saved state that has changed since it was written."""


class FederationError(HetflError):
    """A federation that cannot run as configured, or has too few clients."""

    outward = "its federation cannot run as configured"


class WorkerError(FederationError):
    """A worker process of the local engine that has ended or cannot continue."""


class TooFewClients(FederationError):
    """A round that too few clients have finished; earlier results are kept."""

    outward = "too few clients have finished a round"


class RunFolderError(HetflError):
    """A run folder that cannot be written, holds another run, or holds no run."""

    outward = "its run folder cannot be read or written"


@dataclass(frozen=True)
class Failure:
    """Why a reply of one client was not used in one round: it failed, or the guard left its upload out.

    ``client_id`` is called ``partition`` in the files of a run folder; it is -1 if the client is unknown.
    """

    client_id: Annotated[int, Field(ge=-1, lt=10**9, alias="partition")]
    stage: str
    reason: str
    node: Annotated[int, Field(ge=0, lt=2**64)]


def reason(error: BaseException) -> str:
    """Return the message of an error; for a syntax error, without the location, which `place` returns.

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
    """Return an error as one line: its message, preceded by the type unless it is an error of this project."""
    if isinstance(error, HetflError):
        return str(error)
    try:
        said = reason(error)
    except Exception:
        said = "its message cannot be shown"
    return printable(f"{type(error).__name__}: {' '.join(said.split())}", 300)


def place(error: BaseException) -> str:
    """Return the file and line where an error was raised; for a syntax error, the line with the error.

    Frames in torch, NumPy and Python's import system are skipped. Empty if there is no such line.

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
    """Return whether an exception is an exit by Flower itself, not by the user's model or callback."""
    frames = walk_tb(error.__traceback__)
    return isinstance(error, SystemExit) and any(
        str(frame.f_globals.get("__name__")).startswith(EXIT_OF_FLOWER) for frame, _ in frames
    )


def unknown(kind: str, name: str, valid: Iterable[str], listed: str = "") -> str:
    """Return the error message for an unknown name, with the nearest valid name.

    It lists all valid names, or gives the command that lists them.

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
"""Message of a command that the user has interrupted."""


class Interrupted(KeyboardInterrupt):
    """The user asked to stop, and the current round was completed."""
