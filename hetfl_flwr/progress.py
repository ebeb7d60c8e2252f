"""What a person sees while a run goes on: a bar in a terminal, one log line a round elsewhere."""

from contextlib import AbstractContextManager
from logging import INFO, WARNING
from types import TracebackType
from typing import Self

from flwr.supercore import log
from flwr.supercore.logger import FLOWER_LOGGER
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hetfl_flwr.results import Round


class Watch(AbstractContextManager["Watch"]):
    """Shows rounds as they are finished.

    Parameters
    ----------
    rounds : int
        How many there will be.
    label : str
        What runs, for the bar.
    """

    def __init__(self, rounds: int, label: str) -> None:
        self._console = console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._rounds = rounds
        self._bytes = 0
        self._progress = (
            Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=console,
            )
            if console.is_terminal
            else None
        )
        self._task = self._progress.add_task(label, total=rounds, figures="") if self._progress else None

    def __enter__(self) -> Self:
        """Begin."""
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        if self._progress:
            self._progress.stop()

    def show(self, entry: Round) -> None:
        """Show one round."""
        self._bytes += entry.bytes_up + entry.bytes_down
        for failure in entry.failures:
            if FLOWER_LOGGER.isEnabledFor(WARNING):
                told = " ".join(f"{key}={failure[key]!r}" for key in ("partition", "node", "stage", "reason"))
                log(WARNING, "round=%d %s", entry.round, told)
            else:  # `hetfl run`, which shows a person no log
                self._console.print(f"round {entry.round}: {failure['reason']}", style="yellow", markup=False)
        if self._progress is not None and self._task is not None:
            accuracy = "" if entry.accuracy is None else f"accuracy {entry.accuracy:.1%}  "
            self._progress.update(self._task, completed=entry.round, figures=accuracy + decimal(self._bytes))
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
