"""Cost of many clients: ``python -m simulations.benchmarks.scale``.

FedAvg on a table with ten rows per client; in each round 20 clients train and 20 are measured. For each number of
clients, one process reports its processor time and peak memory: seconds until round 1 begins, including the data set,
the first evaluation and the first checkpoint; milliseconds of the median round; peak memory after the start and after
the rounds. The run is stopped before its last round, after which all clients would be measured.
"""

import signal
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer
from pyarrow import parquet

from hetfl_flwr import RoundCallback
from hetfl_flwr.config import Value
from hetfl_flwr.errors import Interrupted
from hetfl_flwr.runs.record import Round
from simulations.engine.run import run_locally

DRAWN, ROWS, COLUMNS = 20, 10, 8
"""Clients per round, rows per client, and numeric columns."""


class Recorder(RoundCallback):
    """Records processor time and peak memory (MB) after each round, and stops the run after `rounds` rounds."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self.ends: list[float] = []
        self.memory: list[float] = []

    def round(self, entry: Round) -> None:
        """Record them."""
        self.ends.append(process_time())
        self.memory.append(getrusage(RUSAGE_SELF).ru_maxrss / 1024)
        if entry.round == self._rounds:
            signal.raise_signal(signal.SIGINT)


def measured(clients: int, rounds: int) -> tuple[float, float, float, float]:
    """Run a federation; return the seconds of start and round, and the peak memory (MB) after start and end."""
    draw, meter = np.random.default_rng(0), Recorder(rounds)
    with TemporaryDirectory() as folder:
        classes = draw.integers(0, 3, ROWS * clients)
        columns = {f"x{number}": draw.normal(classes, 1.0) for number in range(COLUMNS)}
        parquet.write_table(pa.table({**columns, "label": classes}), Path(folder) / "rows.parquet")
        del columns, classes
        settings: dict[str, Value] = {
            **{"algorithm": "fedavg", "dataset": f"{folder}/rows.parquet", "label-column": "label", "models": "mlp"},
            **{"clients": clients, "fraction": DRAWN / clients, "evaluate-fraction": DRAWN / clients},
            **{"rounds": rounds + 1, "batch-size": ROWS, "output-dir": f"{folder}/run"},
        }
        began = process_time()
        with suppress(Interrupted):
            run_locally(settings, verbose=False, progress=False, callbacks=[meter])
    steps = [end - before for before, end in zip(meter.ends, meter.ends[1:], strict=False)]
    return meter.ends[0] - began, median(steps), meter.memory[0], meter.memory[-1]


def main(
    clients: Annotated[list[int] | None, typer.Argument(help="Numbers of clients.")] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of each run.")] = 30,
) -> None:
    """Measure, and print a table."""
    print("| clients | start, s | round, ms | memory after the start, MB | after the rounds, MB |\n|" + " --- |" * 5)
    for number in clients or [1_000, 10_000, 100_000]:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:  # a new one, for its memory
            start, step, before, after = process.submit(measured, number, rounds).result()
        print(f"| {number:,} | {start:.1f} | {1e3 * step:.0f} | {before:.0f} | {after:.0f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
