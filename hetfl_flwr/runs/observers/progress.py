"""What a person sees while a run goes on: a bar in a terminal or a notebook, a line a minute in a file or a pipe.

Where Flower's log is shown, it has a line a round instead.
"""

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from logging import INFO, WARNING
from time import monotonic
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hetfl_flwr.common.flower import FLOWER_LOGGER, log
from hetfl_flwr.runs.callbacks import RoundCallback, RunInfo
from hetfl_flwr.runs.schema import Round, Summary

visible: ContextVar[bool] = ContextVar("visible", default=True)
"""Whether bars, and lines in their place, are shown."""

EVERY = 60.0
"""Seconds between two lines."""


class Bar(AbstractContextManager["Bar"]):
    """A bar that moves: in a terminal, and in a notebook, where it needs no widgets. Elsewhere a line a minute.

    The lines go to standard error: "round 12 of 50, accuracy 81.3 %, 340 s left".

    Parameters
    ----------
    *columns : ProgressColumn
        What it is made of, after its label.
    console : Console
        Where it is shown.
    label : str
        What it is about.
    total : int
        Where it ends.
    lines : bool
        Whether there are lines where no bar can be.
    period : float
        Seconds of the past by which the time left is estimated.
    **fields
        What the columns show besides.
    """

    def __init__(
        self,
        *columns: ProgressColumn,
        console: Console,
        label: str,
        total: int,
        lines: bool = True,
        period: float = 30.0,
        **fields: Any,
    ) -> None:
        times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *columns,
            *times,
            console=console,
            speed_estimate_period=period,
        )
        self._task = self._progress.add_task(label, total=total, **fields)
        self._in_terminal = visible.get() and console.is_terminal
        self._in_notebook = visible.get() and console.is_jupyter
        self._display: Any = None
        self._in_lines = lines and visible.get() and not console.quiet and not (self._in_terminal or self._in_notebook)
        self._label, self._total = label, total
        self._began: tuple[int, float] | None = None
        self._last = monotonic()

    def __enter__(self) -> Self:
        """Begin."""
        if self._in_terminal:
            self._progress.start()
        elif self._in_notebook:
            from IPython.display import display

            self._display = display(self._progress, display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        if self._in_terminal:
            self._progress.stop()

    def update(self, completed: int, **fields: Any) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=completed, **fields)
        if self._display is not None:
            self._display.update(self._progress)
        if self._in_lines:
            self._write(completed, fields)

    def _write(self, completed: int, fields: Mapping[str, Any]) -> None:
        """Write a line, if it is time for one and nothing has ended."""
        now = monotonic()
        self._began = self._began or (completed, now)
        if now - self._last < EVERY or completed >= self._total:
            return
        first, began = self._began
        left = (now - began) / (completed - first) * (self._total - completed) if completed > first else None
        said = [f"round {completed} of {self._total}", str(fields.get("figures", "")).strip().replace("  ", ", ")]
        said.append("" if left is None else f"{left:.0f} s left")
        label = fields.get("description", self._label)
        print(f"{label}: {', '.join(part for part in said if part)}", file=sys.stderr, flush=True)
        self._last = now


class Watch(RoundCallback):
    """Shows rounds as they are finished."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._bytes = 0
        self._rounds = 0
        self._bar: Bar | None = None

    def begin(self, run: RunInfo) -> None:
        """Show the bar; say after which round a resumed run goes on."""
        if run.after is not None:
            log(INFO, "goes on after round %d of %d", run.after, run.config.rounds)
        self._rounds = run.config.rounds
        columns = MofNCompleteColumn(), TextColumn("{task.fields[figures]}")
        label = f"{run.config.algorithm} on {run.dataset}"
        lines = not FLOWER_LOGGER.isEnabledFor(INFO)  # else the log has one a round
        self._bar = Bar(*columns, console=self._console, label=label, total=self._rounds, lines=lines, figures="")
        self._bar.__enter__()

    def end(self, summary: Summary, error: BaseException | None) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.__exit__(None, error, None)

    def round(self, entry: Round) -> None:
        """Show one round."""
        self._bytes += entry.bytes_up + entry.bytes_down
        for failure in entry.failures:
            if FLOWER_LOGGER.isEnabledFor(WARNING):
                where = f"client={failure.client_id} node={failure.node} stage={failure.stage!r}"
                log(WARNING, "round=%d %s reason=%r", entry.round, where, failure.reason)
            else:  # `hetfl run`, which shows a person no log
                self._console.print(f"round {entry.round}: {failure.reason}", style="yellow", markup=False)
        accuracy = "" if entry.accuracy is None else f"accuracy {entry.accuracy:.1%}  "
        if self._bar is not None:
            self._bar.update(entry.round, figures=accuracy + decimal(self._bytes))
        log(
            INFO,
            "round=%d/%d accuracy=%s bytes_up=%d bytes_down=%d seconds=%.3f failures=%d",
            entry.round,
            self._rounds,
            "-" if entry.accuracy is None else f"{entry.accuracy:.4f}",
            entry.bytes_up,
            entry.bytes_down,
            entry.seconds,
            len(entry.failures),
        )
