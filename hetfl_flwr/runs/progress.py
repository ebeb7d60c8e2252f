"""Progress of a run: a bar in a terminal or a notebook, a line per minute in a file or a pipe.

Where Flower's log is shown, it has one line per round instead.
"""

import sys
from contextlib import AbstractContextManager
from contextvars import ContextVar
from logging import INFO, WARNING
from time import monotonic
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hetfl_flwr.common.files import replace_file
from hetfl_flwr.common.flower import FLOWER_LOGGER, log, warn_or_log
from hetfl_flwr.runs.callbacks import RoundCallback, RunInfo
from hetfl_flwr.runs.record import NOTES_FILE, Round, Summary
from hetfl_flwr.server.member import MAX_NOTES
from hetfl_flwr.server.roster import Roster, unlike_columns
from hetfl_flwr.text import quoted, some

visible: ContextVar[bool] = ContextVar("visible", default=True)
"""Whether progress bars, or lines in their place, are shown."""

LINE_INTERVAL = 60.0
"""Seconds between two progress lines."""

MAX_SHOWN = 50
"""Maximum number of notes that are shown at once; all are written to the file."""


class Bar(AbstractContextManager["Bar"]):
    """A progress bar in a terminal or a notebook (without widgets), elsewhere one line per minute.

    The lines go to standard error: "round 12 of 50, accuracy 81.3 %, 340 s left". `total` is the number of rounds.
    `lines` says whether lines replace the bar where it cannot be shown. The time left is estimated from the last
    `period` seconds.
    """

    def __init__(self, *, console: Console, label: str, total: int, lines: bool = True, period: float = 30.0) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} rounds {task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=period,
        )
        self._task = self._progress.add_task(label, total=total, figures="")
        self._in_terminal = visible.get() and console.is_terminal
        self._in_notebook = visible.get() and console.is_jupyter
        self._in_lines = lines and visible.get() and not (console.quiet or console.is_terminal or console.is_jupyter)
        self._display: Any = None
        self._label, self._total = label, total
        self._began: tuple[int, float] | None = None
        self._last = monotonic()

    def __enter__(self) -> Self:
        """Show the bar."""
        if self._in_terminal:
            self._progress.start()
        elif self._in_notebook:
            from IPython.display import display

            self._display = display(self._progress, display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the bar."""
        if self._in_terminal:
            self._progress.stop()

    def update(self, completed: int, *, label: str = "", figures: str = "") -> None:
        """Move the bar, or print a line if one is due."""
        self._label = label or self._label
        self._progress.update(self._task, completed=completed, description=self._label, figures=figures)
        if self._display is not None:
            self._display.update(self._progress)
        now = monotonic()
        self._began = self._began or (completed, now)
        if not self._in_lines or now - self._last < LINE_INTERVAL or completed >= self._total:
            return
        self._last, (first, began) = now, self._began
        pace = (now - began) / (completed - first) if completed > first else None
        left = "" if pace is None else f"{pace * (self._total - completed):.0f} s left"
        said = [f"round {completed} of {self._total}", figures, left]
        print(f"{self._label}: {', '.join(part for part in said if part)}", file=sys.stderr, flush=True)


class Watch(RoundCallback):
    """Shows the progress of a run after each round."""

    def __init__(self) -> None:
        self._bytes = self._rounds = 0
        self._bar: Bar | None = None

    def begin(self, run: RunInfo) -> None:
        """Show the bar; log the round after which a resumed run continues."""
        self._bytes = sum(entry.bytes_up + entry.bytes_down for entry in run.rounds)
        if run.after is not None:
            log(INFO, "resuming after round %d of %d", run.after, run.config.rounds)
        self._rounds = run.config.rounds
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        lines = not FLOWER_LOGGER.isEnabledFor(INFO)  # else the log has one per round
        label = f"{run.config.algorithm} on {run.dataset}"
        self._bar = Bar(console=console, label=label, total=self._rounds, lines=lines).__enter__()

    def end(self, summary: Summary, error: BaseException | None) -> None:
        """Stop the bar."""
        if self._bar is not None:
            self._bar.__exit__(None, error, None)

    def round(self, entry: Round) -> None:
        """Show one round."""
        self._bytes += entry.bytes_up + entry.bytes_down
        for failure in (*entry.failures, *entry.outliers):
            if FLOWER_LOGGER.isEnabledFor(WARNING):
                where = f"client={failure.client_id} node={failure.node} stage={failure.stage!r}"
                log(WARNING, "round=%d %s reason=%r", entry.round, where, failure.reason)
            else:
                warn_or_log(f"round {entry.round}: {failure.reason}")
        accuracy = [] if entry.accuracy is None else [f"accuracy {entry.accuracy:.1%}"]
        if self._bar is not None:
            self._bar.update(entry.round, figures=", ".join([*accuracy, decimal(self._bytes)]))
        log(
            INFO,
            "round=%d/%d accuracy=%s bytes_up=%d bytes_down=%d seconds=%.3f failures=%d left_out=%d",
            entry.round,
            self._rounds,
            "-" if entry.accuracy is None else f"{entry.accuracy:.4f}",
            entry.bytes_up,
            entry.bytes_down,
            entry.seconds,
            len(entry.failures),
            entry.left_out,
        )


class Notes(RoundCallback):
    """Shows clients' notes on their data and models, each once, and writes them to ``notes.txt``.

    In a deployment, each line begins with the clients that sent it first. The number of lines from one client is
    limited to that of a single registration, however often it registers. More clients may join `members` later.
    """

    def __init__(self, members: Roster) -> None:
        self._members, self._seen = members, -1
        self._lines: dict[str, None] = {}
        self._lines_of: dict[int, set[str]] = {}
        self._written = 0

    def begin(self, run: RunInfo) -> None:
        """Show the notes of the clients."""
        self._path, self._same_columns = run.folder / NOTES_FILE, run.config.features == "all"
        self._names_clients = run.engine == "deployment"
        self._show()

    def round(self, entry: Round) -> None:
        """Show the notes of clients that have joined since, and write all notes."""
        self._show()
        if len(self._lines) > self._written:
            replace_file(self._path, "".join(f"{line}\n" for line in self._lines).encode())
            self._written = len(self._lines)

    def _show(self) -> None:
        if self._seen == self._members.changes:
            return
        self._seen = self._members.changes
        found: dict[str, list[int]] = {}
        for member in self._members:
            known = self._lines_of.setdefault(member.client_id, set())
            for line in [line for line in member.notes if line not in known][: MAX_NOTES - len(known)]:
                known.add(line)
                found.setdefault(line, []).append(member.client_id)
        lines = [
            f"client {some(ids)} says: {quoted(line)}" if self._names_clients else line for line, ids in found.items()
        ]
        if self._same_columns and (unlike := unlike_columns(list(self._members))):
            self._same_columns = False  # shown once
            lines.insert(0, unlike)
        new = [line for line in lines if line not in self._lines]
        self._lines |= dict.fromkeys(new)
        more = [f"and {len(new) - MAX_SHOWN} more lines, in {NOTES_FILE}"] if len(new) > MAX_SHOWN else []
        if visible.get() or FLOWER_LOGGER.isEnabledFor(WARNING):  # else several runs, shown together
            for line in [*new[:MAX_SHOWN], *more]:
                warn_or_log(line)
