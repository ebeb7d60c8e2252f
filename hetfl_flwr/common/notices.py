"""Messages that are printed even if Flower's log is hidden, and how they name options."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_IN_PYTHON = ContextVar("in-python", default=False)
_RUN = ContextVar("run", default="")


def called_in_python(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that messages name options as Python arguments, not as flags of ``hetfl``."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        before = _IN_PYTHON.set(True)
        try:
            return function(*args, **kwargs)
        finally:
            _IN_PYTHON.reset(before)

    return called


def option(flag: str, argument: str) -> str:
    """Return an option as the user writes it: a flag of ``hetfl``, or an argument in Python.

    Examples
    --------
    >>> option("--resume", "resume=True")
    '--resume'
    >>> called_in_python(option)("--resume", "resume=True")
    'resume=True'
    """
    return argument if _IN_PYTHON.get() else flag


def accepting() -> str:
    """Return the name of the option that accepts the loss of a client's state."""
    return option("--accept-loss (accept-loss = true)", "accept_loss=True")


@contextmanager
def speaking_of(run: str) -> Iterator[None]:
    """Let `warn` name a run, for runs that share standard error."""
    before = _RUN.set(f"{run}: ")
    try:
        yield
    finally:
        _RUN.reset(before)


def warn(text: str) -> None:
    """Print a line on standard error, as the ``hetfl`` command does."""
    print(f"hetfl: {_RUN.get()}{text}", file=sys.stderr)
