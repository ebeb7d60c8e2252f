"""A run as it stands: how far it is, what it has reached, who has answered, and what has failed."""

import fcntl
import os
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from hetfl_flwr.common.text import printable
from hetfl_flwr.runs.figures.tables import NOTHING, byte_size, percent, table_of
from hetfl_flwr.runs.lock import LOCK_FILE, holder_of
from hetfl_flwr.runs.schema import ClientRecord, name_of
from simulations.reports.runs import Run, load_run

SHOWN = 5
"""Failures that are shown, the newest ones."""

RECENT = 20
"""Rounds by whose seconds the time that is left is estimated."""


@dataclass(frozen=True)
class Standing:
    """A run as it stands.

    Parameters
    ----------
    run : Run
        Its folder, read.
    writer : str
        Which process writes it; empty: none does.
    """

    run: Run
    writer: str

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come: nobody writes it, be it that it has ended or that it was stopped."""
        return not self.writer

    @property
    def line(self) -> str:
        """Where it is, in a line."""
        rounds, wanted = self.run.rounds, int(self.run.config["rounds"])
        done = rounds[-1].round if rounds else 0
        accuracy = next((one.accuracy for one in reversed(rounds) if one.accuracy is not None), None)
        words = [f"{self.run.name}: round {done} of {wanted}"]
        words += [f"accuracy {percent(accuracy)} %"] if accuracy is not None else []
        words += [f"{byte_size(sum(one.bytes_up + one.bytes_down for one in rounds))} of payload"]
        failures = sum(len(one.failures) for one in rounds)
        words += [f"{failures} failure{'s' * (failures != 1)}"] if failures else []
        if self.ended:
            words += ["ended" if done >= wanted else "stopped: nobody writes it"]
        elif recent := [one.seconds for one in rounds[-RECENT:] if one.round]:
            words += [f"{sum(recent) / len(recent):.1f} s a round"]
            words += [f"about {(wanted - done) * sum(recent) / len(recent):.0f} s left"]
        return ", ".join(words)

    @property
    def whole(self) -> Group:
        """The line, who writes it, a row for each client, and the newest failures."""
        parts: list[Text | Table] = [Text(self.line)]
        parts += [Text(f"written by {self.writer}")] if self.writer else []
        parts += [self._clients()]
        failures = [(one.round, failure) for one in self.run.rounds for failure in one.failures]
        parts += [Text(printable(f"round {number}: {what.reason}")) for number, what in failures[-SHOWN:]]
        return Group(*parts)

    def _clients(self) -> Table:
        last: dict[str, int] = {}
        accuracy: dict[str, float] = {}
        failed = Counter[str]()
        for one in self.run.rounds:
            failed.update(str(failure.client_id) for failure in one.failures)
            for client, scores in one.clients.items():
                last[client] = one.round
                if "accuracy" in scores:
                    accuracy[client] = scores["accuracy"]
        columns: dict[str, Callable[[ClientRecord], str]] = {
            "client": lambda client: str(client["partition"]),
            "name": lambda client: name_of(client) or NOTHING,
            "model": lambda client: client["model"] or NOTHING,
            "last round": lambda client: str(last.get(str(client["partition"]), NOTHING)),
            "accuracy %": lambda client: percent(accuracy.get(str(client["partition"]))),
            "failures": lambda client: str(failed[str(client["partition"])]),
        }
        if not any(map(name_of, self.run.clients)):
            del columns["name"]
        return table_of("Clients", columns, self.run.clients, words={"name", "model"}, notes=[])


def standing(folder: Path) -> Standing:
    """Read a run folder as it stands; raises as `simulations.reports.runs.load_run`."""
    return Standing(load_run(folder, tell=lambda line: None), _writer(folder))


def _writer(folder: Path) -> str:
    """Return which process holds the folder; one of this machine that is gone does not."""
    holder = holder_of(folder)
    if holder and holder.host == socket.gethostname():
        with suppress(PermissionError):  # somebody else's, and so there
            try:
                os.kill(holder.pid, 0)
            except ProcessLookupError:
                return ""
        if not _is_locked(folder / LOCK_FILE):
            return ""
    return str(holder or "")


def _is_locked(path: Path) -> bool:
    """Return whether a process holds a lock file, whose id may be a zombie's, or another's since a restart."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # held, or it cannot be known here
        return True
    return False
