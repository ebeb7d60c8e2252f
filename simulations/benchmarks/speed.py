"""Overhead of the engine: ``python -m simulations.benchmarks.speed``.

The local engine and a plain PyTorch loop of the same method take turns. A loop has no messages, checks, state,
checkpoints or byte counts. It draws the same batches as the clients, and its results are bit-identical.

Figures are milliseconds of processor time per round with one thread, over all rounds except the first two and the last.
Those of the engine include checkpoints and the files of the run folder. The ratio is the loop's time divided by the
engine's in the same turn; without overhead it is 1. Figures are mean and standard deviation over turns.

With ``--workers``, one and two worker processes take turns instead: FedHe at two numbers of steps per round, by
wall-clock time.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np
import torch
import typer
from flwr.app import Context, RecordDict
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr import RoundCallback, small_model, to_numpy
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.data import Samples
from hetfl_flwr.learning.gradients import flat_gradient, project, set_gradient
from hetfl_flwr.learning.training import draw_batches, make_optimizer
from hetfl_flwr.methods import resolve
from hetfl_flwr.node.machine import keep_freed_memory
from hetfl_flwr.node.node import Node
from hetfl_flwr.runs.record import Round
from hetfl_flwr.seeding import generator
from hetfl_flwr.wire.spec import Arrays
from simulations.engine.run import run_locally

SETTINGS: Mapping[str, Value] = {
    **{"models": "lenet5", "clients": 4, "dataset": "rotated-digits", "batch-size": 32, "local-batches": 1},
    **{"optimizer": "amsgrad"},
}
"""Config keys of both: rounds of one step of 32 rows, for which the overhead is largest."""

WARM_UP = 2
"""First rounds, which are not measured."""

Rows = tuple[Tensor, Tensor]
"""Model inputs (N, *shape) and labels (N,)."""

Play = Callable[[int], Arrays]
"""Runs a round, and returns the server state after it."""


class Client:
    """A client of a loop: its node, optimizer and training rows."""

    def __init__(self, config: RunConfig, client_id: int) -> None:
        own: dict[str, Value] = {"partition-id": client_id, "num-partitions": config.clients}
        self.node = Node.from_context(Context(1, 1, own, RecordDict(), config.to_flat()))
        self.config, self.client_id, self.model = config, client_id, self.node.model
        self.optimizer = make_optimizer(config, self.model.parameters())
        self.rows = ready(self.node.data.train)

    def batch(self, round: int) -> Rows:
        """Return the batch of a round."""
        draw, (inputs, labels) = generator(self.config.seed, self.client_id, round, "batches"), self.rows
        rows = next(iter(draw_batches(draw, len(labels), self.config.batch_size, epochs=1, batches=1)))
        return inputs[rows], labels[rows]


def ready(samples: Samples) -> Rows:
    """Return samples as model inputs and labels."""
    return samples.batch(torch.arange(len(samples)))


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take a gradient step."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def fedhe(config: RunConfig) -> Play:
    """FedHe: cross-entropy and the distance to the mean logits of each sample's class."""
    clients = [Client(config, client_id) for client_id in range(config.clients)]
    classes = clients[0].node.data.spec.classes
    sums, uploads = np.zeros((classes, classes)), np.zeros(classes, np.int64)

    def play(round: int) -> Arrays:
        mean = torch.from_numpy((sums / np.maximum(uploads, 1)[:, None]).astype(np.float32))
        known = torch.from_numpy(uploads > 0)
        for client in clients:
            inputs, labels = client.batch(round)
            logits = client.model.train()(inputs)
            total = torch.zeros(classes, classes).index_add_(0, labels, logits.detach())
            counts, covered = torch.bincount(labels, minlength=classes), known[labels]
            loss = functional.cross_entropy(logits, labels)
            if covered.any():
                distance = functional.mse_loss(logits[covered], mean[labels[covered]])
                loss = loss + distance * covered.float().mean()
            step(client.optimizer, loss)
            seen = to_numpy(counts > 0)
            sums[seen] += to_numpy(total / (counts + 1)[:, None])[seen]
            uploads[:] += seen
        return {"sums": sums, "uploads": uploads}

    return play


def fml(config: RunConfig) -> Play:
    """FML: the local model and a copy of the global one teach each other; the copies are averaged."""
    clients = [Client(config, client_id) for client_id in range(config.clients)]
    memes = [small_model("fml.meme", "auto", client.node) for client in clients]
    state: dict[str, Any] = {name: to_numpy(tensor).copy() for name, tensor in memes[0].state_dict().items()}

    def loss(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        logs, targets = functional.log_softmax(student, 1), functional.log_softmax(teacher.detach(), 1)
        divergence = functional.kl_div(logs, targets, reduction="batchmean", log_target=True)
        return 0.5 * functional.cross_entropy(student, labels) + 0.5 * divergence

    def play(round: int) -> Arrays:
        uploads = []
        for client, meme in zip(clients, memes, strict=True):
            meme.train().load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
            inputs, labels = client.batch(round)
            own, small = client.model.train()(inputs), meme(inputs)
            step(make_optimizer(config, meme.parameters()), loss(small, own, labels))
            step(client.optimizer, loss(own, small, labels))
            uploads.append({name: to_numpy(tensor).copy() for name, tensor in meme.state_dict().items()})
        for name, array in state.items():
            state[name] = np.mean([one[name] for one in uploads], axis=0, dtype=np.float64).astype(array.dtype)
        return state

    return play


Signal = tuple[Tensor, Tensor, Tensor]
"""Indices (B,) of a teacher's public samples, its posteriors (B, C) for them, and its accuracy."""


def fedh2l(config: RunConfig) -> Play:
    """FedH2L: a distillation step, projected so that it does not undo the last local step, and a local step."""
    clients = [Client(config, client_id) for client_id in range(config.clients)]
    public = {client.client_id: ready(client.node.data.public) for client in clients}
    local = {client.client_id: torch.zeros_like(flat_gradient(client.model.parameters())) for client in clients}
    for client in clients:  # its own rows, then the public rows of others
        others = [rows for owner, rows in public.items() if owner != client.client_id]
        inputs, labels = (torch.cat(parts) for parts in zip(client.rows, *others, strict=True))
        client.rows = inputs, labels
    signals: dict[int, Signal] = {}

    def turn(client: Client, before: Mapping[int, Signal], round: int) -> Signal:
        client.model.train()
        teachers = [(public[owner], signal) for owner, signal in before.items() if owner != client.client_id]
        if teachers:
            _distil(client.model, client.optimizer, teachers, local[client.client_id])
        inputs, labels = client.batch(round)
        client.optimizer.zero_grad()
        functional.cross_entropy(client.model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        local[client.client_id] = flat_gradient(client.model.parameters())
        client.optimizer.step()
        return _signal(client, public[client.client_id], round)

    def play(round: int) -> Arrays:
        new = {client.client_id: turn(client, dict(signals), round) for client in clients}
        signals.update(new)
        names = ("indices", "posteriors", "accuracy")
        return {
            f"{name}.{owner:06d}": to_numpy(part)
            for owner, signal in new.items()
            for name, part in zip(names, signal, strict=True)
        }

    return play


def _distil(
    model: nn.Module, optimizer: torch.optim.Optimizer, teachers: list[tuple[Rows, Signal]], local: Tensor
) -> None:
    inputs = torch.cat([rows[0][indices] for rows, (indices, _, _) in teachers])
    labels = torch.cat([rows[1][indices] for rows, (indices, _, _) in teachers])
    posteriors = torch.cat([posteriors for _, (_, posteriors, _) in teachers])
    sizes = [len(indices) for _, (indices, _, _) in teachers]
    share = torch.cat([torch.full((size,), 1 / (len(teachers) * size)) for size in sizes])
    trust = torch.cat([signal[2].expand(size) for (_, signal), size in zip(teachers, sizes, strict=True)])
    logs = functional.log_softmax(model(inputs), 1)
    divergence = functional.kl_div(logs, posteriors, reduction="none").sum(1)
    truth = functional.nll_loss(logs, labels, reduction="none")
    optimizer.zero_grad()
    (share * (trust * divergence + truth)).sum().backward()  # type: ignore[no-untyped-call]
    parameters = list(model.parameters())
    set_gradient(parameters, project(flat_gradient(parameters), local))
    optimizer.step()


@torch.no_grad()
def _signal(client: Client, public: Rows, round: int) -> Signal:
    inputs, labels = public
    draw = generator(client.config.seed, client.client_id, round, "seeds")
    rows = torch.from_numpy(draw.choice(len(labels), min(client.config.batch_size, len(labels)), replace=False))
    posteriors = functional.softmax(client.model.eval()(inputs[rows]), 1)
    return rows, posteriors, (posteriors.argmax(1) == labels[rows]).float().mean()


LOOPS: Mapping[str, Callable[[RunConfig], Play]] = {"fedh2l": fedh2l, "fedhe": fedhe, "fml": fml}


STEPS: Mapping[int, int] = {20: 40, 200: 12}
"""Local steps per round for which workers are compared, and the rounds of such a run."""


class Clock(RoundCallback):
    """Records the time `now` in seconds at the end of each round."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.ends: list[float] = []

    def round(self, entry: Round) -> None:
        """Record it."""
        self.ends.append(self._now())


def a_round(ends: list[float]) -> float:
    """Return the mean seconds per round from the times at which rounds ended."""
    measured = ends[WARM_UP:-1]
    return (measured[-1] - measured[0]) / (len(measured) - 1)


def of_engine(settings: Mapping[str, Value], workers: int = 1, now: Callable[[], float] = process_time) -> float:
    """Run the engine; return its seconds per round."""
    clock = Clock(now)
    with TemporaryDirectory() as folder:
        own = {**settings, "output-dir": folder}
        run_locally(own, workers=workers, verbose=False, progress=False, callbacks=[clock])
    return a_round(clock.ends[1:])  # without round 0, the evaluation before training


def of_loop(settings: Mapping[str, Value]) -> float:
    """Run the loop; return its processor seconds per round."""
    config, ends = resolve(RunConfig.from_flat(dict(settings))), list[float]()
    play = LOOPS[config.algorithm](config)
    for round in range(1, config.rounds + 1):
        play(round)
        ends.append(process_time())
    return a_round(ends)


def cells(first: Sequence[float], second: Sequence[float]) -> str:
    """Return table cells: both times in milliseconds and their ratio, as mean and standard deviation over turns."""
    ratios = [one / other for one, other in zip(first, second, strict=True)]
    both = [f"{1e3 * fmean(one):.2f} ± {1e3 * stdev(one):.2f}" for one in (first, second)]
    return f"{' | '.join(both)} | {fmean(ratios):.3f} ± {stdev(ratios):.3f} |"


def main(
    methods: Annotated[list[str] | None, typer.Argument(help="fedh2l, fedhe, fml (default: all).")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with a copy of MNIST (default: bundled digits).")
    ] = None,
    workers: Annotated[bool, typer.Option("--workers", help="Compare one worker with two.")] = False,
    turns: Annotated[int, typer.Option(min=2, help="Number of turns.")] = 5,
    rounds: Annotated[int, typer.Option(min=5, help="Rounds of each run against a loop.")] = 100,
) -> None:
    """Measure, and print a table."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as `hetfl` does
    data: dict[str, Value] = {"dataset": "rotated-mnist", "data-dir": str(data_dir.absolute())} if data_dir else {}
    if workers:
        print("| steps per round | one worker, ms | two workers, ms | ratio |\n| --- | --- | --- | --- |")
        for steps, length in STEPS.items():
            own: dict[str, Value] = {"algorithm": "fedhe", "rounds": length, "evaluate-every": length}
            settings = {**SETTINGS, **data, **own, "local-batches": steps}
            pairs = ((of_engine(settings, 1, perf_counter), of_engine(settings, 2, perf_counter)) for _ in range(turns))
            print(f"| {steps} | {cells(*zip(*pairs, strict=True))}", flush=True)
        return
    print("| method | loop, ms | engine, ms | ratio |\n| --- | --- | --- | --- |")
    for method in methods or LOOPS:
        settings = {**SETTINGS, **data, "algorithm": method, "rounds": rounds, "evaluate-every": rounds}
        pairs = ((of_loop(settings), of_engine(settings)) for _ in range(turns))
        print(f"| `{method}` | {cells(*zip(*pairs, strict=True))}", flush=True)


if __name__ == "__main__":
    typer.run(main)
