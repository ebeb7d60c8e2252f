"""What one check has found, and the table of all of them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from rich.table import Table

from hetfl_flwr.text import printable
from simulations.reports.terminal import table_of


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


def failed(findings: Iterable[Finding]) -> bool:
    """Say whether any check has failed."""
    return any(finding.state is State.FAILURE for finding in findings)


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
