"""What one check has found, and the table of all of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from operator import attrgetter
from typing import ParamSpec

from rich.table import Table

from hetfl_flwr.text import printable
from simulations.reports.terminal import table_of

P = ParamSpec("P")


class State(StrEnum):
    """How a check has ended. Only a failure keeps a node from taking part."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Finding:
    """The end of one check. Its texts may quote a server: they become one printable line each, of bounded length.

    Parameters
    ----------
    name : str
        What was checked.
    state : State
        How it has ended.
    found : str
        What was seen; of what was not checked, why not.
    fix : str
        What to do about a warning or a failure.
    """

    name: str
    state: State
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        """Make the texts printable."""
        object.__setattr__(self, "found", printable(self.found))
        object.__setattr__(self, "fix", printable(self.fix))


class Fault(Exception):
    """What a check raises that does not end well: what it has found, what to do about it, and how it ends."""

    def __init__(self, found: str, fix: str = "", state: State = State.FAILURE) -> None:
        super().__init__(found)
        self.found, self.fix, self.state = found, fix, state


def check(name: str) -> Callable[[Callable[P, str]], Callable[P, Finding]]:
    """Make a check of a function that returns what it has found, or raises `Fault`."""

    def decorate(look: Callable[P, str]) -> Callable[P, Finding]:
        @wraps(look)
        def examined(*arguments: P.args, **options: P.kwargs) -> Finding:
            try:
                return Finding(name, State.OK, look(*arguments, **options))
            except Fault as fault:
                return Finding(name, fault.state, fault.found, fault.fix)

        return examined

    return decorate


@contextmanager
def fault_of(found: str, fix: str, *errors: type[Exception]) -> Iterator[None]:
    """Let errors of the system, and others that are named, be a fault, with their reason behind what was found."""
    kinds: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except kinds as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise Fault(f"{found}: {why}", fix) from error


def finding_table(findings: Sequence[Finding]) -> Table:
    """Return one row a check, and below them how many have ended in which way."""
    counts = Counter(finding.state for finding in findings)
    columns = {name: attrgetter(name) for name in ("name", "state", "found", "fix")}
    return table_of(
        "Checks of this node",
        {"check": columns.pop("name"), **columns},
        findings,
        words={"found", "fix"},
        whole={"check", "state"},
        notes=[", ".join(f"{state}: {counts[state]}" for state in State if counts[state])],
    )
