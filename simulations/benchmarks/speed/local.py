"""The local engine against plain loops: ``python -m simulations.benchmarks.speed.local [--only NAME] [--turns N]``.

Each loop of `loops` does an algorithm's arithmetic and ends with the same bits. Loop and engine take turns in one
process, with one thread; the engine's figures are those of its run folder, for rounds without evaluation, and each
ratio is of neighbours. MNIST where HETFL_DATA_DIR names a folder that has it, else the bundled digits, whose small
images leave less arithmetic to hide behind.

- *fedh2l*: rounds a second of LeNet-5 on four rotated domains, 4 clients, one local step of 32 rows a round.
- *workers*: the same by the engine alone, with 2 worker processes over 1: two processor cores must be free.
- *fedhe*: steps of clients a second of the paper's ten networks over 100 clients, three steps of 50 rows a round.
- *fml*: epochs a second of 5 clients that share out the whole training split; own model and meme are LeNet-5. An epoch
  of MNIST is 60,000 rows through both models, and one round.

With ``--quick``, the bundled digits and fewer repeats; FedHe has 20 clients. On MNIST, a round of FedHe takes minutes.
"""

import os
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple

import torch
import typer

from hetfl_flwr.algorithms import resolve
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.node.node import Node
from simulations.benchmarks.measure import Row, engine_rate, in_turns, ratios, seconds, show
from simulations.benchmarks.speed.loops import fedh2l, fedhe, fml, node_of

Settings = dict[str, Value]
Start = Callable[[RunConfig, Sequence[Node]], Callable[[int], object]]


class Size(NamedTuple):
    """How much is measured."""

    data: Settings
    rotated: Settings
    quick: bool
    turns: int

    def repeats(self, usual: int) -> int:
        """Return how many turns loop and engine take."""
        return self.turns or (2 if self.quick else usual)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Bundled digits, fewer clients and repeats.")] = False,
    only: Annotated[Literal["fedh2l", "workers", "fedhe", "fml"] | None, typer.Option(help="One comparison.")] = None,
    turns: Annotated[int, typer.Option(min=0, help="Turns of each comparison (default: 2 to 5).")] = 0,
) -> None:
    """Measure the engine against the loops and print the table."""
    torch.set_num_threads(1)
    size = Size({"dataset": "digits"}, {"dataset": "rotated-digits"}, quick, turns)
    if "HETFL_DATA_DIR" in os.environ and not quick:
        folder = {"data-dir": os.environ["HETFL_DATA_DIR"]}
        size = Size({"dataset": "mnist", **folder}, {"dataset": "rotated-mnist", **folder}, quick, turns)
    measures = {"fedh2l": _fedh2l, "workers": _workers, "fedhe": _fedhe, "fml": _fml}
    show([row for name, measure in measures.items() if only in (None, name) for row in measure(size)])


def _fedh2l(size: Size) -> list[Row]:
    settings = _fedh2l_settings(size)
    what = f"FedH2L, LeNet-5, {settings['dataset']}, 4 clients"
    return _against_loop(what, "rounds / s", 0.9, settings, fedh2l.start, repeats=size.repeats(5))


def _workers(size: Size) -> list[Row]:
    settings = _fedh2l_settings(size)
    what = f"FedH2L, LeNet-5, {settings['dataset']}, 4 clients"
    one, two = in_turns(
        size.repeats(5),
        lambda folder: engine_rate(settings, folder / "1"),
        lambda folder: engine_rate(settings, folder / "2", workers=2),
    )
    return [
        Row(f"{what}: engine, 2 workers", "rounds / s", two),
        Row(f"{what}: engine, 2 workers over 1", "times", ratios(two, one), ">= 1.7 times"),
    ]


def _fedh2l_settings(size: Size) -> Settings:
    rounds = 20 if size.quick else 100
    settings: Settings = {"algorithm": "fedh2l", "models": "lenet5", "clients": 4, "rounds": rounds}
    return settings | size.rotated | {"batch-size": 32, "optimizer": "amsgrad"}


def _fedhe(size: Size) -> list[Row]:
    clients = 20 if size.quick else 100
    settings: Settings = {"algorithm": "fedhe", "models": "fedhe", "clients": clients, "rounds": 3, **size.data}
    settings |= {"local-batches": 3, "batch-size": 50, "test-fraction": 0.05, "validation-fraction": 0.0}
    what = f"FedHe, its networks, {settings['dataset']}, {clients} clients"
    return _against_loop(what, "steps / s", 0.9, settings, fedhe.start, each=3 * clients, repeats=size.repeats(2))


def _fml(size: Size) -> list[Row]:
    settings: Settings = {"algorithm": "fml", "models": "lenet5", "fml.meme": "lenet5", "clients": 5, **size.data}
    settings |= {"rounds": 20 if size.data["dataset"] == "digits" else 3, "local-batches": 0, "local-epochs": 1}
    settings |= {"batch-size": 128, "optimizer": "sgd", "learning-rate": 0.01, "momentum": 0.9, "weight-decay": 5e-4}
    settings |= {"validation-fraction": 0.0, "test-set": "global"}
    what = f"FML, LeNet-5, {settings['dataset']}, 5 clients"
    return _against_loop(what, "epochs / s", 0.95, settings, fml.start, repeats=size.repeats(3))


def _against_loop(
    what: str, unit: str, target: float, settings: Settings, start: Start, *, repeats: int, each: int = 1
) -> list[Row]:
    """Measure both: rounds a second, times `each`."""
    loop, engine = in_turns(repeats, lambda _: _loop(settings, start), lambda folder: engine_rate(settings, folder))
    return [
        Row(f"{what}: loop", unit, [each * rate for rate in loop]),
        Row(f"{what}: engine, 1 worker", unit, [each * rate for rate in engine]),
        Row(f"{what}: engine over loop", "times", ratios(engine, loop), f">= {target} times"),
    ]


def _loop(settings: Settings, start: Start) -> float:
    config = resolve(RunConfig.from_flat(settings))
    loop = start(config, [node_of(config, client_id) for client_id in range(config.clients)])
    loop(1)  # the engine's first round does not count either, nor its last
    rounds = config.rounds - 2
    return rounds / seconds(lambda: loop(rounds))


if __name__ == "__main__":
    typer.run(main)
