"""Runs in processes of this machine."""

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hetfl_flwr.common.errors import HetflError
from hetfl_flwr.config import RunConfig
from simulations.studies.backends.backend import Ended, JobLike
from simulations.studies.backends.work import processes, run_one


@dataclass(frozen=True)
class LocalBackend:
    """Processes of this machine.

    Parameters
    ----------
    workers : int
        Runs at a time, 1 or more, each in a process of its own.
    """

    workers: int = 1

    def lacks(self, job: JobLike) -> str:
        """Return which data set of a run is not on this machine."""
        from hetfl_flwr.data.domains import check_places

        said = {key: value for key, value in job.settings.items() if key in ("dataset", "data-dir")}
        try:
            config = RunConfig.from_flat(said)
            if config.dataset:  # else a bundled one, by the method
                check_places(config.dataset, config.data_dir)
        except HetflError as error:
            return str(error)
        return ""

    @contextmanager
    def open(self, wanted: Sequence[JobLike]) -> Iterator["ProcessPool"]:
        """Start processes. Ctrl-C reaches them, too; they end their rounds before the block is left."""
        count = min(self.workers, len(wanted))
        with processes(count) as pool:
            yield ProcessPool(pool, count)


class ProcessPool:
    """Some processes, each of which runs one at a time."""

    def __init__(self, pool: ProcessPoolExecutor, count: int) -> None:
        self._pool, self._count = pool, count
        self._running: dict[Future[str], Path] = {}

    def free(self) -> bool:
        """Return whether a process has nothing to do: one that waits in the pool would begin after Ctrl-C."""
        return len(self._running) < self._count

    def begin(self, job: JobLike) -> None:
        """Begin a run."""
        self._running[self._pool.submit(run_one, job.folder, job.settings)] = job.folder

    def ended(self, seconds: float) -> list[Ended]:
        """Wait until a run is over, at most so many seconds, and return which are.

        Raises
        ------
        HetflError
            A process has died.
        """
        over, _ = wait(self._running, timeout=seconds, return_when=FIRST_COMPLETED)
        try:
            return [Ended(self._running.pop(future), future.result()) for future in over]
        except BrokenProcessPool:
            raise HetflError(
                "a process of these runs has died: out of memory, or in a script that starts them outside of "
                'if __name__ == "__main__":; what has ended is kept'
            ) from None

    def done(self, job: JobLike) -> int:
        """Return how many rounds a run has done."""
        return job.done
