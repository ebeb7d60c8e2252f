"""Run a federation on this machine with the local engine."""

import multiprocessing
import os
import secrets
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hetfl_flwr.common.notices import option, warn
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.errors import ConfigError, HetflError, Interrupted

if TYPE_CHECKING:
    from hetfl_flwr.runs.callbacks import RoundCallback
    from simulations.engine.grid import LocalEngine


def run_locally(
    chosen: Mapping[str, Value],
    *,
    resume: bool = False,
    workers: int = 1,
    verbose: bool = True,
    progress: bool = True,
    callbacks: Sequence["RoundCallback"] = (),
) -> Path:
    """Run a federation in this process or in worker processes, and return its run folder.

    `chosen` are config keys; other keys have their defaults. With `resume` the run in ``output-dir`` continues from its
    last checkpoint, and only `CHANGEABLE` keys may differ. Results are bit-identical for any number of `workers`.
    `verbose` shows Flower's log. `callbacks` are called in addition to those that the config names. Raises Interrupted
    after Ctrl-C, at the end of the round; its text says how to resume.
    """
    from hetfl_flwr.data import reread
    from hetfl_flwr.runs.record import CHECKPOINTS, resume_command
    from hetfl_flwr.runs.settings import resolved

    run = secrets.randbits(62) | 1 << 62
    if resume:
        config, run = _resumed(chosen)
        reread(config.dataset)
    else:
        reread(str(chosen.get("dataset", "")))
        config = resolved(RunConfig.from_flat(dict(chosen)), "local")
    from flwr.app import Context, RecordDict

    from hetfl_flwr.runs.callbacks import added
    from hetfl_flwr.server_app import app as server_app
    from simulations.engine.grid import LocalEngine
    from simulations.engine.workers import end_unguarded

    end_unguarded()
    _check_threads(config, workers)
    with process_as_it_was(log=verbose, bars=progress), LocalEngine(config, run, workers) as grid:
        try:
            with added(callbacks), _stoppable(grid):
                server_app(grid, Context(run, 1, {}, RecordDict(), config.to_flat()))
        except KeyboardInterrupt as stop:
            folder = Path(config.output_dir)
            if not isinstance(stop, Interrupted) and not any((folder / CHECKPOINTS).glob("round-*")):
                raise  # the second Ctrl-C, and there is no checkpoint
            again = resume_command(folder, "local", config.algorithm)
            raise Interrupted(f"stopped; to continue: {again}") from None
    return Path(config.output_dir)


@contextmanager
def process_as_it_was(*, log: bool, bars: bool) -> Iterator[None]:
    """Set up this process for a federation, and restore it: Flower's log, progress bars, torch's threads and dtype."""
    import torch

    from hetfl_flwr.common.flower import FLOWER_LOGGER
    from hetfl_flwr.runs.progress import visible

    level, threads, shown = FLOWER_LOGGER.level, torch.get_num_threads(), visible.set(bars)
    dtype = torch.get_default_dtype()
    FLOWER_LOGGER.setLevel(level if log else "CRITICAL")
    torch.set_default_dtype(torch.float32)
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
        FLOWER_LOGGER.setLevel(level)
        torch.set_num_threads(threads)
        visible.reset(shown)


def _check_threads(config: RunConfig, workers: int) -> None:
    """Warn if there are more threads than cores; their number changes results, so it is kept."""
    from hetfl_flwr.node.machine import cores

    processes = min(workers, config.clients)
    total = processes * config.threads
    if total > cores():
        remedy = "lower workers, which does not change results, or threads" if processes > 1 else "lower threads"
        warn(
            f"workers ({processes}) times threads ({config.threads}) is {total}, more than the {cores()} cores here: "
            f"they will slow each other down; {remedy}, which changes the lowest bits of results"
        )


def _resumed(chosen: Mapping[str, Value]) -> tuple[RunConfig, int]:
    """Return the config and the id of the run to resume."""
    from hetfl_flwr.methods import resolve
    from hetfl_flwr.runs.checkpoint import choose
    from hetfl_flwr.runs.settings import resolved

    if "output-dir" not in chosen:
        raise ConfigError(f"{option('--resume needs --out', 'resume needs out')}: the run folder to resume")
    folder = Path(str(chosen["output-dir"])).expanduser().resolve()
    checkpoint, _ = choose(folder, accept_loss=chosen.get("accept-loss") is True)
    before = resolve(RunConfig.from_flat(checkpoint.at["config"]))
    rounds = max(before.rounds, _rounds_asked(folder))
    asked = before.with_values({"rounds": rounds, **chosen, "output-dir": str(folder), "resume": True})
    settled = resolved(asked, "local")
    if asked.rounds < checkpoint.round:
        named = option(f"--rounds {asked.rounds}", f"rounds={asked.rounds}")
        less = f"{folder} has reached round {checkpoint.round}, and {named} is less"
        raise ConfigError(f"{less}: give a larger number, or another folder")
    return settled, checkpoint.at["run"]


def _rounds_asked(folder: Path) -> int:
    """Return the rounds in a run's config: more than in its checkpoint if it was then extended; 0 if unreadable."""
    from hetfl_flwr.runs.settings import config_of

    try:
        return config_of(folder).rounds
    except HetflError:
        return 0


@contextmanager
def _stoppable(grid: "LocalEngine") -> Iterator[None]:
    """Stop after the current round at the first Ctrl-C, and immediately at the second."""

    def stop(number: int, frame: object) -> None:
        if grid.stop_requested:
            raise KeyboardInterrupt
        grid.stop_requested = True
        if multiprocessing.parent_process() is None:  # else a study says so for all of its runs
            os.write(2, b"\nFinishing this round. Press Ctrl-C again to stop immediately.\n")

    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)  # None: a handler that C code has set
