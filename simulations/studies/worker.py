"""One run of a study in the process that does it."""

import _thread
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from threading import Lock, Thread

from hetfl_flwr.common.notices import speaking_of
from hetfl_flwr.config import Value
from hetfl_flwr.errors import HetflError, Interrupted
from hetfl_flwr.node.machine import keep_freed_memory
from hetfl_flwr.runs.record import CHECKPOINTS

STOPPED = "stopped; run the same command again to continue"
"""Why an interrupted run has not ended."""

_BUSY = Lock()
"""Held while this process has a run."""


def run_one(name: str, folder: Path, settings: dict[str, Value]) -> str:
    """Run or resume a run in this process; return why it did not end, or an empty text. Its warnings have its name."""
    from simulations.engine.run import run_locally

    chosen: dict[str, Value] = {**settings, "output-dir": str(folder)}
    resume = any((folder / CHECKPOINTS).glob("round-*"))
    try:
        with _BUSY, speaking_of(name):
            folder.mkdir(parents=True, exist_ok=True)
            run_locally(chosen, resume=resume, verbose=False, progress=False)
    except Interrupted:
        return STOPPED
    except HetflError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def processes(count: int) -> ProcessPoolExecutor:
    """Return processes for `run_one`; none of them outlives this one.

    Raises
    ------
    ConfigError
        The program is a script on standard input.
    """
    from simulations.engine.workers import check_starts_processes

    check_starts_processes(f"workers = {count}")
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)


def _begin() -> None:
    keep_freed_memory()
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of the parent process; then stop the run in this one, as Ctrl-C does, and end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    if not _BUSY.acquire(blocking=False):
        _thread.interrupt_main()
        _BUSY.acquire()
    os._exit(1)
