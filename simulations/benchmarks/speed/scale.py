"""What many clients cost: ``python -m simulations.benchmarks.speed.scale [--quick]``.

Measurements, some of them against a target; seconds but those of *workers* are the processor's, for the machine may be
busy:

- *round*: a round in which 20 clients train, of 100, 1,000 and 10,000 that are registered, checkpoints among it. FedHe
  with LeNet-5 in the local engine, one worker, each size in a process of its own. Every client has as many batches of 4
  to train on: from its own rows of MNIST, 7 or more, where HETFL_DATA_DIR names a folder that has it, else from all of
  the bundled digits (``partition = "all"``). The evaluation of all clients, before the first round and after the last,
  grows with them and is left out.
- *memory*: that process's resident memory when its last round begins, and its growth over the second half of the
  rounds. Clients keep 64 MB in memory (`LocalGrid`'s ``memory``, 2 GB by default), so that some of every size rest.
- *start*: all that comes before the first evaluation, most of it the client registration.
- *workers*: rounds a second of FedH2L, 4 clients on rotated domains, two workers over one; runs take turns.
- *state pickled*: what Flower's simulation has Ray pickle of a client's state for a message, and once more for its
  reply: ``Context.state`` after a round with Adam. The ClientApp is called as Flower's backend calls it, without Ray.

How to read the table: as that of `simulations.benchmarks.speed.engine`. Memory needs Linux's ``/proc``.
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Annotated, Any, NamedTuple

import typer
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

from hetfl_flwr.common.flower import TaskIdentity
from hetfl_flwr.config import RunConfig, Value
from simulations.benchmarks.measure import Row, ratios, run, show
from simulations.engine.grid import LocalGrid

SAMPLED, SIZES, ROUNDS = 20, (100, 1_000, 10_000), 40
MEMORY = 2**26
RUN = 2**62


class Figures(NamedTuple):
    """What a run of some size has cost."""

    start: float
    rounds: list[float]
    memory: list[int]


class Watched(LocalGrid):
    """A grid that notes when the first round begins to train, and the resident memory before each."""

    def __init__(self, *args: Any, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self.memory: list[int] = []
        self.began: list[float] = []
        self.asked, self.called = process_time(), 0.0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Note, and push."""
        pushed = list(messages)
        kinds = {message.metadata.message_type for message in pushed}
        if MessageType.TRAIN in kinds:
            self.began.append(process_time())
            self.memory.append(resident())
        elif MessageType.EVALUATE in kinds and not self.called:
            self.called = process_time()
        return super().push_messages(pushed)


def measured(clients: int, rounds: int) -> Figures:
    """Run a federation in this process."""
    from hetfl_flwr.algorithms import resolve
    from hetfl_flwr.server_app import app

    settings: dict[str, Value] = {"algorithm": "fedhe", "models": "lenet5", "clients": clients, "rounds": rounds}
    settings |= {"fraction": SAMPLED / clients, "local-batches": 10, "batch-size": 4, "evaluate-every": rounds}
    if "HETFL_DATA_DIR" in os.environ:
        settings |= {"dataset": "mnist", "data-dir": os.environ["HETFL_DATA_DIR"]}
    else:
        settings |= {"partition": "all", "test-fraction": 0.01, "validation-fraction": 0.01}
    with TemporaryDirectory() as folder:
        config = resolve(RunConfig.from_flat({**settings, "output-dir": folder}))
        with Watched(config.to_flat(), clients, RUN, memory=MEMORY) as grid:
            app(grid, Context(RUN, 1, {}, RecordDict(), config.to_flat()))
    seconds = [end - start for start, end in pairwise(grid.began[1:])]
    return Figures((grid.called - grid.asked) / clients, seconds, grid.memory)


def resident() -> int:
    """Return the bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def many(sizes: Sequence[int], rounds: int) -> list[Row]:
    """Measure each size in a process of its own."""
    found = {clients: _elsewhere(clients, rounds) for clients in sizes}
    first, rows = found[sizes[0]], []
    for clients, figures in found.items():
        what, over = f"{clients:,} clients", f"{clients:,} clients over {sizes[0]}"
        later = figures.memory[rounds // 2 :]
        growth = (later[-1] - later[0]) / (len(later) - 1)
        slower = median(figures.rounds) / median(first.rounds)
        larger = figures.memory[-1] / first.memory[-1]
        rows += [
            Row(f"start, {what}", "ms a client", [figures.start * 1000]),
            Row(f"round, {what}", "s", figures.rounds),
            Row(f"memory, {what}", "MB", [figures.memory[-1] / 1e6]),
            Row(f"memory, {what}, growth", "MB a round", [growth / 1e6], "about 0"),
        ]
        if clients != sizes[0]:
            rows += [
                Row(f"round, {over}", "times", [slower], "<= 1.2 times"),
                Row(f"memory, {over}", "times", [larger], "<= 1.2 times"),
            ]
    return rows


def workers(rounds: int, repeats: int) -> list[Row]:
    """Measure what a second worker brings."""
    settings: dict[str, Value] = {"algorithm": "fedh2l", "models": "lenet5", "clients": 4, "rounds": rounds}
    settings |= {"batch-size": 32, "optimizer": "amsgrad", "evaluate-every": rounds, "checkpoint-every": 0}
    settings["dataset"] = "rotated-digits"
    if "HETFL_DATA_DIR" in os.environ:
        settings |= {"dataset": "rotated-mnist", "data-dir": os.environ["HETFL_DATA_DIR"]}
    speeds: dict[int, list[float]] = {1: [], 2: []}
    with TemporaryDirectory() as folder:
        for repeat in range(repeats + 1):
            for count, speed in speeds.items():
                rates = run(settings, Path(folder) / f"{repeat}-{count}", workers=count)
                speed.append(median(rates[:-1]))  # the last one also evaluates
    one, two = speeds[1][1:], speeds[2][1:]  # the first of each loads data and libraries
    what = f"workers, FedH2L, LeNet-5, {settings['dataset']}"
    return [
        Row(f"{what}: 1", "rounds / s", one),
        Row(f"{what}: 2", "rounds / s", two),
        Row(f"{what}: 2 over 1", "times", ratios(two, one), ">= 1.7 times"),
    ]


def pickled() -> list[Row]:
    """Measure the Context that Flower's simulation pickles for each message, with and without ``state-dir``."""
    from hetfl_flwr.client_app import app
    from hetfl_flwr.wire.messages import ARRAYS, CONFIG, ROUND

    settings: dict[str, Value] = {"algorithm": "local", "models": "resnet18", "local-batches": 1, "batch-size": 20}
    own: dict[str, Value] = {"partition-id": 0, "num-partitions": 4}
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1
    rows = []
    with TemporaryDirectory() as folder:
        for name, keys in (("", {}), (" with state-dir", {"state-dir": folder})):
            flat = RunConfig.from_flat({**settings, **keys}).to_flat()
            context = Context(RUN, 1, own, RecordDict(), flat)
            content = RecordDict({ARRAYS: ArrayRecord(), CONFIG: ConfigRecord({ROUND: 1})})
            reply = app(Message(content, 1, MessageType.TRAIN), context)
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
            state = len(pickle.dumps(context.state)) - len(pickle.dumps(RecordDict()))
            rows.append(Row(f"state pickled a message and way, ResNet-18{name}", "MB", [state / 1e6]))
    return rows


def main(quick: Annotated[bool, typer.Option("--quick", help="Few rounds, and no 10,000 clients.")] = False) -> None:
    """Measure and print the table."""
    rows = many(SIZES[:2] if quick else SIZES, 20 if quick else ROUNDS)
    rows += workers(*((20, 2) if quick else (100, 5)))
    show(rows + pickled())


def _elsewhere(clients: int, rounds: int) -> Figures:
    script = "import json, sys; from simulations.benchmarks.speed.scale import measured; "
    script += "print(json.dumps(measured(*map(int, sys.argv[1:])), allow_nan=False))"
    command = [sys.executable, "-c", script, str(clients), str(rounds)]
    said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    return Figures(*json.loads(said.splitlines()[-1]))


if __name__ == "__main__":
    typer.run(main)
