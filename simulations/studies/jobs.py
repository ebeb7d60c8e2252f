"""Several runs in parallel, each in its own folder; stopped runs are resumed, finished ones are not repeated."""

import shlex
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from rich.console import Console

from hetfl_flwr.common.notices import option, warn
from hetfl_flwr.config import HOW_RUN, KEYS, RunConfig, Value
from hetfl_flwr.errors import HetflError, Interrupted
from hetfl_flwr.runs.progress import Bar
from hetfl_flwr.runs.record import CONFIG_FILE, read_notes, read_summary, rounds_written

PLACES = ("data-dir", "device", "threads", "checkpoint-every")
"""Keys for where and when a run is executed, which affect at most its bits: ``versions`` has device and threads."""

ASIDE = {key for key, field in KEYS.items() if HOW_RUN in field.metadata} - {"costs", "keep-uploads"}
"""Keys in which a finished run may differ from a request; the two other keys determine what it records."""


@dataclass(frozen=True)
class Job:
    """A run of a study; `settings` are its config keys, including ``seed`` but not ``output-dir``."""

    name: str
    folder: Path
    settings: dict[str, Value]

    @property
    def rounds(self) -> int:
        """The number of its rounds."""
        return int(self.settings.get("rounds", KEYS["rounds"].default))

    @property
    def config(self) -> RunConfig:
        """Its complete config: keys that the settings lack have their defaults."""
        from hetfl_flwr.runs.settings import resolved

        return resolved(RunConfig.from_flat({**self.settings, "output-dir": str(self.folder)}), "local")

    @property
    def finished(self) -> bool:
        """Whether the run has ended with these settings, the defaults of all others, and the data as they are now.

        A run that has lost the figures of some rounds does not count: its sums and curves would be wrong.
        """
        from hetfl_flwr.runs.settings import config_of, resolved

        summary = read_summary(self.folder)
        if summary is None or summary["rounds"] < self.rounds or not (self.folder / CONFIG_FILE).exists():
            return False
        if "lost_rounds" in summary:
            return False
        made = resolved(config_of(self.folder), "local").to_flat()
        same = all(made.get(key) == value for key, value in self.config.to_flat().items() if key not in ASIDE)
        return same and self.has_data(summary.get("data", []))

    def has_data(self, digests: Sequence[str]) -> bool:
        """Whether a run with these digests had its data as they are now; True if it has none, or files are gone.

        Files that can no longer be read as its settings say are other data.
        """
        from hetfl_flwr.runs.settings import data_of

        if not digests:
            return True
        try:
            now = data_of(RunConfig.from_flat(self.settings))
        except HetflError:
            return False
        return not now or digests == now

    @property
    def asked(self) -> dict[str, Value]:
        """The settings that identify a run: those of `located`, without the keys of other algorithms."""
        own = ("", self.settings.get("algorithm", KEYS["algorithm"].default))
        return {key: value for key, value in located(self.settings).items() if key.rpartition(".")[0] in own}

    @property
    def done(self) -> int:
        """The number of rounds in its folder, without round 0."""
        return rounds_written(self.folder)


def located(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return settings without `PLACES`, with absolute paths of data: the same relative path may be other data."""
    from hetfl_flwr.data.domains import absolute

    known = {key: value for key, value in settings.items() if key not in PLACES}
    return known | {"dataset": absolute(str(known["dataset"]))} if "dataset" in known else known


class Failed(NamedTuple):
    """Why a run has not finished, and whether its settings are the cause, so that it would fail again."""

    reason: str
    by_settings: bool = False


Submit = Callable[[Job], "Future[Failed | None]"]
"""Starts a run; the result is why it did not finish, or None."""


class Backend(Protocol):
    """A place for the runs of a study."""

    @property
    def workers(self) -> int:
        """Maximum number of parallel runs."""

    def open(self, wanted: Sequence[Job]) -> AbstractContextManager[Submit]:
        """Prepare for these runs. After an exception, active runs finish their rounds."""


def run_all(
    wanted: Sequence[Job], backend: Backend, console: Console, ended: Callable[[Job], object] = lambda job: None
) -> dict[Path, Failed]:
    """Execute the runs that have not finished, and return the failures by folder.

    A stopped run is resumed from its last checkpoint; if that has other settings, the run fails.
    `console` shows progress and failures, each reason once. `ended` is called with each run as soon as it has finished
    without an error. Raises `HetflError` if the backend cannot run anything, or no longer can, and `Interrupted` after
    Ctrl-C, when the active runs have finished their rounds; its message says how to continue.
    """
    left = deque(job for job in wanted if not job.finished)
    if not left:
        return {}
    failed, said = dict[Path, Failed](), set[str]()
    done, total = {job.folder: job.done for job in left}, sum(job.rounds for job in left)
    running = dict[Future[Failed | None], Job]()
    try:
        with (
            Bar(console=console, label=_runs_left(len(left), len(left)), total=total, period=600) as bar,
            backend.open(left) as submit,
        ):
            while left or running:
                while left and len(running) < backend.workers:
                    job = left.popleft()
                    running[submit(job)] = job
                for future in wait(running, timeout=1, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    failure, done[job.folder] = future.result(), job.rounds
                    said |= _notes(job, said)
                    if failure is None:
                        ended(job)
                        continue
                    if failure not in failed.values():
                        console.print(f"{job.name}: {failure.reason}", markup=False)
                    failed[job.folder] = failure
                done |= {job.folder: job.done for job in running.values()}
                bar.update(sum(done.values()), label=_runs_left(len(left) + len(running), len(done)))
    except KeyboardInterrupt:
        again = option(shlex.join(["hetfl", *sys.argv[1:]]), "the same call")
        have = f"{sum(job.finished for job in wanted)} of {len(wanted)} runs are finished"
        raise Interrupted(f"stopped, {have}; to continue: {again}") from None
    for failure, count in Counter(failed.values()).items():
        if count > 1:
            console.print(f"{count} runs: {failure.reason}", markup=False)
    return failed


def _runs_left(left: int, runs: int) -> str:
    return f"{left} of {runs} runs left"


def _notes(job: Job, said: set[str]) -> set[str]:
    """Show the notes of a run that have not been shown yet, and return them."""
    new = [line for line in read_notes(job.folder) if line not in said]
    for line in new:
        warn(line)
    return {*new}
