"""What the benchmarks share: rows of figures, their table, and runs in this process or in another."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from hetfl_flwr.config import Value
from hetfl_flwr.node.machine.allocation import keep_freed_memory


class Row(NamedTuple):
    """One line of the table."""

    what: str
    unit: str
    samples: list[float]
    target: str = ""


def show(rows: Sequence[Row]) -> None:
    """Print the table of some measurements: the median of each, and its smallest and largest sample."""
    shown = Table("what", "unit", *("median", "smallest", "largest", "target"))
    for row in rows:
        figures = (median(row.samples), min(row.samples), max(row.samples))
        shown.add_row(row.what, row.unit, *(f"{figure:.3g}" for figure in figures), row.target)
    Console(width=None if sys.stdout.isatty() else 140).print(shown)


def seconds(act: Callable[[], object]) -> float:
    """Return how long something takes."""
    started = perf_counter()
    act()
    return perf_counter() - started


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of each pair of neighbours: what was measured in turns, so that a busy machine meets both."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def run(settings: Mapping[str, Value], folder: Path, *, workers: int = 1) -> list[float]:
    """Run the local engine, with one worker in this process, and return the rounds a second of each round.

    Rounds 0 and 1, which load data and start workers, are left out.
    """
    from simulations.engine.run import run_locally

    keep_freed_memory()
    run_locally({**settings, "output-dir": str(folder)}, resume=False, workers=workers, verbose=False)
    return rates(folder)


def in_turns(repeats: int, *measures: Callable[[Path], float]) -> list[list[float]]:
    """Let some measures take turns, each in a folder of the turn, and return the figures of each."""
    with TemporaryDirectory() as folder:
        turns = [[measure(Path(folder) / str(turn)) for measure in measures] for turn in range(repeats)]
    return [list(figures) for figures in zip(*turns, strict=True)]


def engine_rate(settings: Mapping[str, Value], folder: Path, workers: int = 1) -> float:
    """Run the local engine and return its rounds a second, the median of those that only train."""
    once: dict[str, Value] = {"evaluate-every": settings["rounds"], "checkpoint-every": 0}
    figures = run({**settings, **once}, folder, workers=workers)
    if failures := json.loads((folder / "summary.json").read_text())["failures"]:
        raise RuntimeError(f"{failures} failures of clients, whose work is not in the rounds")
    return median(figures[:-1])  # the last one also evaluates


def rates(folder: Path) -> list[float]:
    """Return the rounds a second of each round of a run folder, without rounds 0 and 1."""
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [1 / json.loads(line)["seconds"] for line in lines[2:]]


def hetfl_run(*options: str) -> int:
    """Call ``hetfl run`` in a process of its own and return its peak memory in bytes."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from simulations.cli.command import main; main()", "run", *options],
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise RuntimeError(f"hetfl run {' '.join(options)} failed")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
