"""The local engine against a plain PyTorch loop: ``python -m simulations.benchmarks.speed [--rounds N]``.

FedH2L with LeNet-5 on four rotated domains, 4 clients, batch 32, one thread: rounds a second of the loop in `loops`,
and of the whole engine, from the seconds in its run folder. Both take turns in one process. MNIST where HETFL_DATA_DIR
names a folder that has it, else the bundled digits.
"""

import os
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer
from flwr.app import Context, RecordDict

from hetfl_flwr.algorithms import resolve
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.node import Node
from simulations.benchmarks.loops import fedh2l, learners
from simulations.benchmarks.measure import Row, ratios, run, seconds, show

REPEATS, CLIENTS = 5, 4


def main(rounds: Annotated[int, typer.Option(min=10, help="Rounds of each of the repeats.")] = 100) -> None:
    """Measure both and print the table."""
    torch.set_num_threads(1)
    settings: dict[str, Value] = {"algorithm": "fedh2l", "models": "lenet5", "clients": CLIENTS, "rounds": rounds}
    settings |= {"batch-size": 32, "optimizer": "amsgrad", "evaluate-every": rounds, "checkpoint-every": 0}
    settings["dataset"] = "rotated-digits"
    if "HETFL_DATA_DIR" in os.environ:
        settings |= {"dataset": "rotated-mnist", "data-dir": os.environ["HETFL_DATA_DIR"]}
    with TemporaryDirectory() as folder:
        loop, engine = [], []
        for repeat in range(REPEATS + 1):
            loop.append(_loop(settings, rounds))
            engine.append(median(run(settings, Path(folder) / str(repeat))[:-1]))  # the last one also evaluates
    loop, engine = loop[1:], engine[1:]  # the first of each loads data and libraries
    what = f"FedH2L, LeNet-5, {settings['dataset']}, {CLIENTS} clients"
    rows = [
        Row(f"{what}: loop", "rounds / s", loop),
        Row(f"{what}: engine, 1 worker", "rounds / s", engine),
        Row(f"{what}: engine over loop", "times", ratios(engine, loop), ">= 0.9 times"),
    ]
    show(rows)


def _loop(settings: dict[str, Value], rounds: int) -> float:
    config = resolve(RunConfig.from_flat(settings))
    clients = learners(config, [_node(config, partition) for partition in range(CLIENTS)])
    return rounds / seconds(lambda: fedh2l(config, clients, rounds))


def _node(config: RunConfig, partition: int) -> Node:
    own: dict[str, Value] = {"partition-id": partition, "num-partitions": CLIENTS}
    return Node.from_context(Context(1, 1, own, RecordDict(), config.to_flat()))


if __name__ == "__main__":
    typer.run(main)
