"""One run of a study, in the process that does it; such a process does not outlive the one that started it."""

import _thread
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from threading import Lock, Thread

from hetfl_flwr.common.errors import HetflError, Interrupted
from hetfl_flwr.config import Value
from hetfl_flwr.node.machine.allocation import keep_freed_memory
from hetfl_flwr.runs.schema import CHECKPOINTS

STOPPED = "stopped; the same command goes on with it"
"""Why a run has not ended that was interrupted."""


def run_one(folder: Path, settings: dict[str, Value]) -> str:
    """Run one, or go on with it, in this process; return why it did not end, if so."""
    from simulations.engine.run import run_locally

    chosen: dict[str, Value] = {**settings, "output-dir": str(folder)}
    resume = any((folder / CHECKPOINTS).glob("round-*"))
    try:
        with _BUSY:
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
    """Return so many processes for `run_one`, none of which outlives this one.

    Raises
    ------
    ConfigError
        The program is a script on standard input.
    """
    from simulations.engine.workers import check_starts_processes

    check_starts_processes(f"workers = {count}")
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)


_BUSY = Lock()
"""Held while this process runs one."""


def _begin() -> None:
    """Set this process up. Nobody else would tell it to stop when the one that started it is gone."""
    keep_freed_memory()
    Thread(target=_outlive_nobody, daemon=True).start()


def _outlive_nobody() -> None:
    """Wait for the end of the process that started this one; then stop what runs here, as Ctrl-C does, and end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    if not _BUSY.acquire(blocking=False):
        _thread.interrupt_main()
        _BUSY.acquire()
    os._exit(1)
