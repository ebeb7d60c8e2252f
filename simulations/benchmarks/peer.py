"""FML in the engine and in HtFLlib: ``python -m simulations.benchmarks.peer PATH``.

PATH is a clone of HtFLlib (TsingZ0 on GitHub); ``PATH/system`` is imported unchanged. HtFLlib's server trains in its
own process, without evaluation. Both take turns; the ratio is HtFLlib's time divided by the engine's in the same turn.
Times are processor time for one worker and wall-clock time for two. Figures are mean and standard deviation over turns.

Both have 4 clients with the same rows, LeNet-5 as one torch module, an epoch of batches of 32 rows per round, SGD with
learning rate 0.01, and one thread per process. They differ in this:

- The engine checks, counts and records payloads. HtFLlib loads and saves each model with torch, and reads each client's
  compressed file, in every round.
- HtFLlib adds an average pooling after the body, which here maps D features to D. It backpropagates through the teacher
  network, clips gradients, and divides the KL term by batch size and classes.
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
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor, nn

from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.methods import resolve
from hetfl_flwr.node.machine import keep_freed_memory
from simulations.benchmarks.speed import Client, cells, of_engine, ready

SETTINGS: Mapping[str, Value] = {
    **{"algorithm": "fml", "fml.alpha": 0.5, "fml.beta": 0.5, "fml.meme": "lenet5", "models": "lenet5", "clients": 4},
    **{"optimizer": "sgd", "learning-rate": 0.01, "batch-size": 32, "validation-fraction": 0.0},
}


class Trunk(nn.Module):
    """A body whose last layer ``fc`` HtFLlib replaces."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.fc = body, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (B, D) of inputs (B, ...)."""
        features: Tensor = self.fc(self.body(x))
        return features


def of_peer(path: Path, settings: dict[str, Value], now: Callable[[], float]) -> float:
    """Train with HtFLlib in this process, which must do nothing else; return the seconds per round."""
    torch.set_num_threads(1)
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # it loads complete modules that it has just saved
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
        server.train()  # warm-up
        began = now()
        server.train()
        seconds = now() - began
        os.chdir(path)
    return seconds / (int(server.global_rounds) + 1)


def _write(folder: Path, client: Client, rows: int) -> None:
    """Write a client's rows in HtFLlib's format, which requires a test row."""
    inputs, labels = client.rows
    test = ready(client.node.data.test)
    for part, x, y in (("train", inputs[:rows], labels[:rows]), ("test", test[0][:1], test[1][:1])):
        (folder / part).mkdir(parents=True, exist_ok=True)
        held = np.array({"x": x.numpy(), "y": y.numpy()}, dtype=object)
        np.savez_compressed(folder / part / f"{client.client_id}.npz", data=held)


def _arguments(config: RunConfig, client: Client) -> Namespace:
    """Return HtFLlib's arguments as its ``main.py`` would parse them."""
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
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with a copy of MNIST (default: bundled digits).")
    ] = None,
    turns: Annotated[int, typer.Option(min=2, help="Number of turns.")] = 5,
    rounds: Annotated[int, typer.Option(min=8, help="Rounds of each run.")] = 10,
) -> None:
    """Measure, and print a table."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as `hetfl` does
    data: dict[str, Value] = (
        {"dataset": "mnist", "data-dir": str(data_dir.absolute())} if data_dir else {"dataset": "digits"}
    )
    settings: dict[str, Value] = {**SETTINGS, **data, "rounds": rounds, "evaluate-every": rounds}
    config = resolve(RunConfig.from_flat(settings))
    rows = min(len(Client(config, client_id).rows[1]) for client_id in range(config.clients))
    settings["local-batches"] = rows // config.batch_size
    print("| workers | HtFLlib, ms | engine, ms | ratio |\n| --- | --- | --- | --- |")
    for workers, now in ((1, process_time), (2, perf_counter)):
        pairs = []
        for _ in range(turns):
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                theirs = process.submit(of_peer, path.absolute(), settings, now).result()
            pairs.append((theirs, of_engine(settings, workers, now)))
        print(f"| {workers} | {cells(*zip(*pairs, strict=True))}", flush=True)


if __name__ == "__main__":
    typer.run(main)
