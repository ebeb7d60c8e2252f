"""What must be read whether Flower's log is shown or not, and how options are called in it."""

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
    """Let messages call options as arguments in Python while a function runs, and not as flags of ``hetfl``."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        before = _IN_PYTHON.set(True)
        try:
            return function(*args, **kwargs)
        finally:
            _IN_PYTHON.reset(before)

    return called


def option(flag: str, argument: str) -> str:
    """Return an option as it is written where the user is: a flag of ``hetfl``, or an argument in Python.

    Examples
    --------
    >>> option("--resume", "resume=True")
    '--resume'
    >>> called_in_python(option)("--resume", "resume=True")
    'resume=True'
    """
    return argument if _IN_PYTHON.get() else flag


def accepting() -> str:
    """Return how a loss is accepted."""
    return option("--accept-loss (accept-loss = true)", "accept_loss=True")


@contextmanager
def speaking_of(run: str) -> Iterator[None]:
    """Let `warn` name a run: for several runs whose lines go to one place."""
    before = _RUN.set(f"{run}: ")
    try:
        yield
    finally:
        _RUN.reset(before)


def warn(text: str) -> None:
    """Say something in a line on standard error, as the ``hetfl`` command does."""
    print(f"hetfl: {_RUN.get()}{text}", file=sys.stderr)
