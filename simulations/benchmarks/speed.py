"""What the local engine costs: ``python -m simulations.benchmarks.speed [--only NAME] [--quick]``.

- *loop*: rounds a second of FedH2L, LeNet-5, 4 clients on rotated domains, one step of 32 rows a round, over those of
  `simulations.benchmarks.loop`, which ends with the same bits. One thread.
- *workers*: the same by the engine alone, with 2 worker processes over 1. Two processor cores must be free.
- *clients*: a round in which 20 of 100, 1,000 and 10,000 clients train LeNet-5 by FedHe, in processor time, and the
  memory of the process when the last round begins. Each size runs in a process of its own, and clients keep 64 MB in
  memory, so that some of every size rest in files. Needs Linux's ``/proc``.

Rivals take turns, and a ratio is that of neighbours, so that a busy machine meets both. The data are MNIST where
HETFL_DATA_DIR names a folder that has it, else the bundled digits. ``--quick``: few rounds, no 10,000 clients.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Annotated, Any, Literal, NamedTuple

import torch
import typer
from flwr.app import Context, MessageType, RecordDict
from rich.console import Console
from rich.table import Table

from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.methods import resolve
from hetfl_flwr.server_app import app
from simulations.benchmarks import loop
from simulations.engine.grid import LocalEngine
from simulations.engine.run import run_locally
from simulations.engine.workers import Job

TURNS, SAMPLED, SIZES, MEMORY, RUN = 5, 20, (100, 1_000, 10_000), 2**26, 2**62

Settings = dict[str, Value]


class Row(NamedTuple):
    """One line of the table."""

    what: str
    unit: str
    samples: Sequence[float]


def data(name: str) -> Settings:
    """Return the config keys of MNIST, or of a data set made of it, where there is a folder of it; else of digits."""
    if "HETFL_DATA_DIR" in os.environ:
        return {"dataset": name, "data-dir": os.environ["HETFL_DATA_DIR"]}
    return {"dataset": name.replace("mnist", "digits")}


def fedh2l(rounds: int) -> Settings:
    """Return the config keys of the runs of *loop* and *workers*."""
    settings: Settings = {"algorithm": "fedh2l", "models": "lenet5", "clients": 4, "rounds": rounds, "batch-size": 32}
    return settings | data("rotated-mnist") | {"optimizer": "amsgrad", "evaluate-every": rounds, "checkpoint-every": 0}


def engine_rate(settings: Settings, workers: int = 1) -> float:
    """Run the local engine; return its rounds a second without the first, and the last, which also evaluates."""
    with TemporaryDirectory() as folder:
        run_locally({**settings, "output-dir": folder}, resume=False, workers=workers, verbose=False)
        lines = (Path(folder) / "rounds.jsonl").read_text().splitlines()
    return float(median(1 / json.loads(line)["seconds"] for line in lines[2:-1]))


def loop_rate(settings: Settings) -> float:
    """Run the loop; return its rounds a second without the first."""
    config = resolve(RunConfig.from_flat(settings))
    play = loop.start(config)
    play(1)
    began = perf_counter()
    play(config.rounds - 2)
    return (config.rounds - 2) / (perf_counter() - began)


def rivals(what: str, names: tuple[str, str], turns: int, *rates: Callable[[], float]) -> list[Row]:
    """Let two take turns, and return the rounds a second of each, and the second's over the first's."""
    one, other = zip(*([rate() for rate in rates] for _ in range(turns)), strict=True)
    ratios = [mine / theirs for mine, theirs in zip(other, one, strict=True)]
    rows = [Row(f"{what}, {name}", "rounds / s", rate) for name, rate in zip(names, (one, other), strict=True)]
    return [*rows, Row(f"{what}, {names[1]} over {names[0]}", "times", ratios)]


class Watched(LocalEngine):
    """The engine, which notes processor time and resident memory when a round begins to train."""

    def __init__(self, *args: Any, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self.began: list[float] = []
        self.memory = 0

    def submit(self, jobs: Sequence[Job]) -> list[int]:
        """Note, and submit."""
        if any(job.kind == MessageType.TRAIN for job in jobs):
            self.began.append(process_time())
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.memory = pages * os.sysconf("SC_PAGE_SIZE")
        return super().submit(jobs)


def federation(clients: int, rounds: int) -> tuple[list[float], int]:
    """Run a federation in this process; return the seconds of its rounds, and the bytes of memory at the last."""
    settings: Settings = {"algorithm": "fedhe", "models": "lenet5", "clients": clients, "rounds": rounds}
    settings |= {"fraction": SAMPLED / clients, "local-batches": 10, "batch-size": 4, "evaluate-every": rounds}
    settings |= data("mnist")
    if settings["dataset"] == "digits":
        settings |= {"partition": "all", "test-fraction": 0.01, "validation-fraction": 0.01}
    with TemporaryDirectory() as folder:
        config = resolve(RunConfig.from_flat({**settings, "output-dir": folder}))
        with Watched(config, RUN, memory=MEMORY) as grid:
            app(grid, Context(RUN, 1, {}, RecordDict(), config.to_flat()))
    return [end - start for start, end in pairwise(grid.began[1:])], grid.memory


def many(sizes: Sequence[int], rounds: int) -> list[Row]:
    """Run a federation of each size in a process of its own."""
    script = "import json, sys; from simulations.benchmarks.speed import federation; "
    script += "print(json.dumps(federation(*map(int, sys.argv[1:])), allow_nan=False))"
    rows = []
    for clients in sizes:
        command = [sys.executable, "-c", script, str(clients), str(rounds)]
        said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
        seconds, memory = json.loads(said.splitlines()[-1])
        rows.append(Row(f"round, {SAMPLED} of {clients:,} clients", "s", seconds))
        rows.append(Row(f"memory, {clients:,} clients", "MB", [memory / 1e6]))
    return rows


def show(rows: Sequence[Row]) -> None:
    """Print the median of each measurement, and its smallest and largest sample."""
    shown = Table("what", "unit", "median", "smallest", "largest")
    for row in rows:
        figures = (median(row.samples), min(row.samples), max(row.samples))
        shown.add_row(row.what, row.unit, *(f"{figure:.3g}" for figure in figures))
    Console(width=None if sys.stdout.isatty() else 140).print(shown)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds, and no 10,000 clients.")] = False,
    only: Annotated[Literal["loop", "workers", "clients"] | None, typer.Option(help="One measurement.")] = None,
) -> None:
    """Measure and print the table."""
    torch.set_num_threads(1)
    settings, turns = fedh2l(20 if quick else 100), 2 if quick else TURNS
    rows: list[Row] = []
    if only in (None, "loop"):
        rates = (lambda: loop_rate(settings)), (lambda: engine_rate(settings))
        rows += rivals("FedH2L", ("loop", "engine"), turns, *rates)
    if only in (None, "workers"):
        counts = (lambda: engine_rate(settings)), (lambda: engine_rate(settings, workers=2))
        rows += rivals("FedH2L", ("1 worker", "2 workers"), turns, *counts)
    if only in (None, "clients"):
        rows += many(*((SIZES[:2], 20) if quick else (SIZES, 40)))
    show(rows)


if __name__ == "__main__":
    typer.run(main)
