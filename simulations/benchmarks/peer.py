"""FML of the engine beside HtFLlib's own loop: ``python -m simulations.benchmarks.peer PATH``.

PATH is a clone of HtFLlib (TsingZ0 on GitHub), whose ``PATH/system`` is imported as it is. Its server trains in a
process of its own, without evaluation. The engine and the peer take turns; the ratio is the peer's time over the
engine's in one turn. Of one worker it is by processor time, of two by the clock. Mean and standard deviation over
turns.

Both have 4 clients with the same rows, LeNet-5 as one torch module, an epoch of batches of 32 rows a round, SGD with
learning rate 0.01, and one thread a process. These differ:

- The engine checks, counts and records what is exchanged. HtFLlib loads and saves each model with torch, and reads each
  client's compressed file, in each round.
- HtFLlib puts an average pooling behind the body, which here maps D features to D. It goes back through the network
  that teaches, clips gradients, and divides the KL term by batch and classes.
- HtFLlib collates batches row by row, in the order of the file.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from copy import deepcopy
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from time import process_time, time
from typing import Annotated, NamedTuple

import numpy as np
import torch
import typer
from torch import Tensor, nn

from hetfl_flwr import RoundCallback
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.methods import resolve
from hetfl_flwr.node.machine import keep_freed_memory
from hetfl_flwr.runs.record import Round
from simulations.benchmarks.speed import Client, ready
from simulations.engine.run import run_locally

SETTINGS: Mapping[str, Value] = {
    **{"algorithm": "fml", "fml.alpha": 0.5, "fml.beta": 0.5, "fml.meme": "lenet5", "models": "lenet5", "clients": 4},
    **{"optimizer": "sgd", "learning-rate": 0.01, "batch-size": 32, "validation-fraction": 0.0},
}


class Seconds(NamedTuple):
    """What a round takes, of one process and by the clock."""

    processor: float
    clock: float


class Trunk(nn.Module):
    """A body with a last layer ``fc``, which HtFLlib replaces."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.fc = body, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (B, D) of inputs (B, ...)."""
        features: Tensor = self.fc(self.body(x))
        return features


class Clock(RoundCallback):
    """Notes both times at the end of each round."""

    def __init__(self) -> None:
        self.ends: list[Seconds] = []

    def round(self, entry: Round) -> None:
        """Note them."""
        self.ends.append(Seconds(process_time(), time()))


def of_engine(settings: Mapping[str, Value], workers: int) -> Seconds:
    """Run the engine; return what a round takes, the first two and the last left out."""
    clock = Clock()
    with TemporaryDirectory() as folder:
        own = {**settings, "output-dir": folder}
        run_locally(own, workers=workers, verbose=False, progress=False, callbacks=[clock])
    first, last = clock.ends[3], clock.ends[-2]
    rounds = len(clock.ends) - 5
    return Seconds((last.processor - first.processor) / rounds, (last.clock - first.clock) / rounds)


def of_peer(path: Path, settings: dict[str, Value]) -> Seconds:
    """Train by HtFLlib in this process, which is for that alone; return what a round takes."""
    torch.set_num_threads(1)
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # it loads whole modules, which it has just saved
    sys.path.insert(0, str(path / "system"))
    config = resolve(RunConfig.from_flat(settings))
    with TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        (Path(folder) / "system").mkdir()
        clients = [Client(config, client_id) for client_id in range(config.clients)]
        for client in clients:
            _write(Path(folder) / "dataset" / "own", client, config.local_batches * config.batch_size)
        os.chdir(Path(folder) / "system")
        server = import_module("flcore.servers.serverfml").FML(_arguments(config, clients[0]), 0)
        server.evaluate = lambda *_, **__: server.rs_test_acc.append(0.0)
        server.save_results = lambda: None
        server.train()  # what is not measured
        before = Seconds(process_time(), time())
        server.train()
        after = Seconds(process_time(), time())
        os.chdir(path)
    rounds = server.global_rounds + 1
    return Seconds((after.processor - before.processor) / rounds, (after.clock - before.clock) / rounds)


def _write(folder: Path, client: Client, rows: int) -> None:
    """Write a client's rows as HtFLlib reads them; it wants a test row."""
    inputs, labels = client.rows
    test = ready(client.node.data.test)
    for part, x, y in (("train", inputs[:rows], labels[:rows]), ("test", test[0][:1], test[1][:1])):
        (folder / part).mkdir(parents=True, exist_ok=True)
        held = np.array({"x": x.numpy(), "y": y.numpy()}, dtype=object)
        np.savez_compressed(folder / part / f"{client.client_id}.npz", data=held)


def _arguments(config: RunConfig, client: Client) -> Namespace:
    """Return HtFLlib's command line as its ``main.py`` would parse it."""
    trunk, head = Trunk(client.model.body), client.model.head
    made: dict[str, Callable[[], nn.Module]] = {"trunk": lambda: deepcopy(trunk), "top": lambda: deepcopy(head)}
    return Namespace(
        **made,
        **{"models": ["args.trunk()"], "heads": ["args.top()"], "feature_dim": client.model.width},
        **{"algorithm": "FML", "dataset": "own", "device": "cpu", "num_clients": config.clients},
        **{"num_classes": client.node.data.spec.classes, "global_rounds": config.rounds - 6, "local_epochs": 1},
        **{"batch_size": config.batch_size, "local_learning_rate": config.learning_rate, "alpha": 0.5, "beta": 0.5},
        **{"learning_rate_decay": False, "learning_rate_decay_gamma": 1.0, "join_ratio": 1.0, "goal": "own"},
        **{"random_join_ratio": False, "time_select": False, "time_threthold": 1e4, "auto_break": False},
        **{"top_cnt": 100, "eval_gap": config.rounds, "client_drop_rate": 0.0, "train_slow_rate": 0.0},
        **{"send_slow_rate": 0.0, "save_folder_name": "temp", "models_folder_name": "", "few_shot": 0},
        **{"batch_num_per_client": 1, "num_new_clients": 0, "fine_tuning_epoch": 0},
    )


def main(
    path: Annotated[Path, typer.Argument(help="A clone of HtFLlib.")],
    data_dir: Annotated[Path | None, typer.Option(help="Folder with a copy of MNIST; else the bundled digits.")] = None,
    turns: Annotated[int, typer.Option(min=2, help="How often both run.")] = 5,
    rounds: Annotated[int, typer.Option(min=8, help="Of each run.")] = 10,
) -> None:
    """Measure, and print a table."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command `hetfl` does
    data: dict[str, Value] = (
        {"dataset": "mnist", "data-dir": str(data_dir.absolute())} if data_dir else {"dataset": "digits"}
    )
    settings: dict[str, Value] = {**SETTINGS, **data, "rounds": rounds, "evaluate-every": rounds}
    config = resolve(RunConfig.from_flat(settings))
    rows = min(len(Client(config, client_id).rows[1]) for client_id in range(config.clients))
    settings["local-batches"] = rows // config.batch_size
    print("| workers | HtFLlib, ms | engine, ms | ratio |\n| --- | --- | --- | --- |")
    for workers in (1, 2):
        taken = []
        for _ in range(turns):
            with ProcessPoolExecutor(1, get_context("spawn")) as alone:
                theirs = alone.submit(of_peer, path.absolute(), settings).result()
            ours = of_engine(settings, workers)
            taken.append((theirs.processor, ours.processor) if workers == 1 else (theirs.clock, ours.clock))
        both = [f"{1e3 * fmean(one):.1f} ± {1e3 * stdev(one):.1f}" for one in zip(*taken, strict=True)]
        ratios = [their / our for their, our in taken]
        print(f"| {workers} | {' | '.join(both)} | {fmean(ratios):.2f} ± {stdev(ratios):.2f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
