"""What many clients cost: ``python -m simulations.benchmarks.scale``.

FedAvg on a table of ten rows a client, of whom 20 are drawn to train in a round and 20 to be measured after it. Figures
are of the processor time and the memory of one process for each number of clients: seconds until round 1 begins, with
the data set, the first evaluation and the first checkpoint; milliseconds of the median round; and the most memory after
the start and after the rounds. The run is stopped then: after its last round all clients would be measured.
"""

import json
import signal
import subprocess
import sys
from contextlib import suppress
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
"""Clients of a round, rows of a client, and columns of numbers."""


class Meter(RoundCallback):
    """Notes processor time and memory after each round, and stops the run after some.

    Parameters
    ----------
    rounds : int
        After how many.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self.ends: list[float] = []
        self.memory: list[float] = []

    def round(self, entry: Round) -> None:
        """Note them."""
        self.ends.append(process_time())
        self.memory.append(getrusage(RUSAGE_SELF).ru_maxrss / 1024)
        if entry.round == self._rounds:
            signal.raise_signal(signal.SIGINT)


def measured(clients: int, rounds: int) -> tuple[float, float, float, float]:
    """Run a federation; return seconds of the start and of a round, and megabytes after the start and at the end."""
    draw, meter = np.random.default_rng(0), Meter(rounds)
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
    clients: Annotated[list[int] | None, typer.Argument(help="How many.")] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Of each run.")] = 30,
    alone: Annotated[bool, typer.Option("--alone", hidden=True)] = False,
) -> None:
    """Measure, and print a table."""
    numbers = clients or [1_000, 10_000, 100_000]
    if alone:
        print(json.dumps(measured(numbers[0], rounds), allow_nan=False))
        return
    print("| clients | start, s | round, ms | memory after the start, MB | after the rounds, MB |\n|" + " --- |" * 5)
    for number in numbers:
        command = [
            sys.executable,
            "-m",
            "simulations.benchmarks.scale",
            str(number),
            "--rounds",
            str(rounds),
            "--alone",
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        start, step, before, after = json.loads(said.splitlines()[-1])
        print(f"| {number:,} | {start:.1f} | {1e3 * step:.0f} | {before:.0f} | {after:.0f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
