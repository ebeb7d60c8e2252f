"""What a study asks of the backend on which its runs happen."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from hetfl_flwr.config import Value


class JobLike(Protocol):
    """What a backend gets to know of a run; `simulations.studies.jobs.Job` has it."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def folder(self) -> Path:
        """Its run folder, on the machine of the study."""

    @property
    def settings(self) -> dict[str, Value]:
        """Its config keys, ``output-dir`` not among them."""

    @property
    def done(self) -> int:
        """How many rounds are in its folder."""


class Ended(NamedTuple):
    """A run that is over: its folder, and why it has not ended well, if so."""

    folder: Path
    reason: str


class WorkerPool(Protocol):
    """Room for some runs at a time."""

    def free(self) -> bool:
        """Return whether one more run can begin now."""

    def begin(self, job: JobLike) -> None:
        """Begin a run, or go on with it from what is in its folder. Only where `free` has said so."""

    def ended(self, seconds: float) -> list[Ended]:
        """Wait until a run is over, at most so many seconds, and return which are.

        What is in the folder of one that has ended, well or not, is all there is of it.

        Raises
        ------
        HetflError
            Nothing can run here any longer.
        """

    def done(self, job: JobLike) -> int:
        """Return how many rounds a run that has begun has done, as far as is known here."""


class Backend(Protocol):
    """What runs happen on."""

    def lacks(self, job: JobLike) -> str:
        """Return what a run needs that is not where it would happen, as far as is known here; empty: nothing."""

    def open(self, wanted: Sequence[JobLike]) -> AbstractContextManager[WorkerPool]:
        """Make room for these runs. Where the block is left by an exception, what runs ends its round first.

        Raises
        ------
        HetflError
            Nothing can run here.
        """
