"""What stepping clients of one kind together brings: ``python -m simulations.benchmarks.speed.batched [--quick]``.

FedHe's clients with batches of 32, 4, 20 and 100 of them, all with one model: client-steps a second of the local engine
with ``batched = true`` over those with ``batched = false``, one worker and one thread, by the processor's seconds of
whole rounds: messages, checks and client state are in them. Both take turns. Models: LeNet-5, the perceptron of two
layers of 200 units, and a random one for tables (`tabular:4`). MNIST where HETFL_DATA_DIR names a folder that has it,
else the bundled digits.
"""

import os
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer

from hetfl_flwr.config import Value
from simulations.benchmarks.measure import Row, ratios, run, show

STEPS, REPEATS = 10, 3


def main(quick: Annotated[bool, typer.Option("--quick", help="Few rounds, and no 100 clients.")] = False) -> None:
    """Measure each model with each number of clients and print the table."""
    torch.set_num_threads(1)
    rows = []
    with TemporaryDirectory() as folder:
        for model in ("lenet5", "mlp", "tabular:4"):
            for clients in (4, 20) if quick else (4, 20, 100):
                rows.append(faster(model, clients, 3 if quick else 6, Path(folder)))
    show(rows)


def faster(model: str, clients: int, rounds: int, folder: Path) -> Row:
    """Measure client-steps a second, together over one by one."""
    settings: dict[str, Value] = {"algorithm": "fedhe", "models": model, "clients": clients, "rounds": rounds}
    settings |= {"batch-size": 32, "local-batches": STEPS, "evaluate-every": rounds, "checkpoint-every": 0}
    if "HETFL_DATA_DIR" in os.environ:
        settings |= {"dataset": "mnist", "data-dir": os.environ["HETFL_DATA_DIR"]}
    alone: list[float] = []
    together: list[float] = []
    for repeat in range(REPEATS):
        for batched, rates in ((False, alone), (True, together)):
            out = folder / f"{model}-{clients}-{repeat}-{batched}"
            rates.append(median(run({**settings, "batched": batched}, out)[:-1]))
    return Row(f"{model}, {clients} clients: together over one by one", "times", ratios(together, alone))


if __name__ == "__main__":
    typer.run(main)
