"""What layouts and kept memory save of a training step: ``python -m simulations.benchmarks.speed.step [--turns N]``.

A step is a forward and a backward pass of 50 samples by a network of the zoo, one thread, no optimizer. Each turn
measures it in four processes, one after the other, each the fastest of five:

- *as it is*: channels last in memory, and freed memory stays with the process.
- *channels first*: the layout that torch begins with.
- *given back*: channels last, and the C library gives large freed arrays back to the system.
- *neither*.

Figures are the time of the last three over that of the first, by neighbours.
"""

import subprocess
import sys
from time import perf_counter
from typing import Annotated

import typer

from simulations.benchmarks.measure import Row, ratios, show

NETWORKS = {"fedhe:9": (1, 28, 28), "fedhe:4": (1, 28, 28), "lenet5": (1, 28, 28), "cnn2": (3, 32, 32)}
WAYS = ("as it is", "channels first", "given back", "neither")
STEPS = 5


def step(network: str, way: str) -> float:
    """Return the seconds of the fastest of some steps in this process."""
    import torch
    from torch.nn import functional

    from hetfl_flwr.data import DataSpec
    from hetfl_flwr.models import build_model
    from hetfl_flwr.models.split_model import as_laid_out_by_itself
    from hetfl_flwr.node.machine.allocation import keep_freed_memory

    torch.set_num_threads(1)
    if way in ("as it is", "channels first"):
        keep_freed_memory()
    model = build_model(network, DataSpec(NETWORKS[network], 10), seed=0)
    if way in ("channels first", "neither"):
        as_laid_out_by_itself(model)
    inputs, labels = torch.randn(50, *NETWORKS[network]), torch.arange(50) % 10
    taken = []
    for _ in range(STEPS + 1):  # the first warms up
        model.zero_grad(set_to_none=True)
        started = perf_counter()
        functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        taken.append(perf_counter() - started)
    return min(taken[1:])


def _elsewhere(network: str, way: str) -> float:
    code = f"from simulations.benchmarks.speed.step import step; print(step({network!r}, {way!r}))"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main(turns: Annotated[int, typer.Option(min=1, help="Turns of all ways.")] = 5) -> None:
    """Measure, and print the table."""
    rows = []
    for network in NETWORKS:
        measured: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(turns):
            for way in WAYS:
                measured[way].append(_elsewhere(network, way))
        first = measured[WAYS[0]]
        rows += [Row(f"{network}: {WAYS[0]}", "ms", [1000 * seconds for seconds in first])]
        rows += [Row(f"{network}: {way}", "times", ratios(measured[way], first)) for way in WAYS[1:]]
    show(rows)


if __name__ == "__main__":
    typer.run(main)
