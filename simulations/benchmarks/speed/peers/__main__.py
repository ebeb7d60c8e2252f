"""The local engine against other frameworks' loops.

``python -m simulations.benchmarks.speed.peers [--htfllib PATH] [--pfllib PATH] [--only METHOD] [--quick] [--turns N]``

PATH is a clone of HtFLlib or PFLlib (TsingZ0 on GitHub), of which ``PATH/system`` is imported as it is, in a process of
its own. Its server's own loop trains, without evaluation, and takes the time of each round; our engine trains by the
same method. Both take turns, and each ratio is of neighbours. What a clone imports must be installed: for HtFLlib
torchvision and h5py, for PFLlib h5py, matplotlib and, in some versions, opacus. A path without ``system``, or a module
that is missing, is named in one line, with exit status 2.

The same for both: 4 clients and their rows, LeNet-5 as one torch module of ours, one epoch of batches of 32 rows a
round, SGD with learning rate 0.01, one thread, all clients in each round. MNIST where HETFL_DATA_DIR names a folder
that has it, else (and with ``--quick``) the bundled digits. Rows that do not fill a batch are kept from the peers, who
would drop them; ours draws from them too. Rates are in steps of clients a second, counted in the peer's process, so
that a version of theirs with other rounds would be compared by steps; where rounds hold the same number, the ratio is
that of rounds a second. A step of FML is one of both models.

What is not equal:

- Around the steps, ours checks, counts and packs messages as a deployment would; a round ends with a record on disk.
  The peers call methods of objects. HtFLlib loads and saves each model with torch in each round, and both read a
  client's compressed npz file in each.
- HtFLlib puts an average pooling behind the body, which here maps D features to D.
- Batches: theirs are collated row by row, in HtFLlib in the order of the file, in PFLlib shuffled; ours are drawn.
- FML: HtFLlib does not detach the teacher, goes back through the network it teaches from as well, clips gradients, and
  divides the KL term by batch and classes.
- FedProto: the peers sum prototypes while they train, row by row in Python; ours takes them in a second pass over all
  rows, forward only. PFLlib has such a pass (`collect_protos`), too, which a comment turns off.
- FD: the peers sum logits row by row in Python; ours on the whole batch.
- LG-FedAvg and FedAvg: the steps are the same. For LG-FedAvg, HtFLlib loads and saves each model twice a round.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer

from hetfl_flwr.algorithms import resolve
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.node.node import Node
from simulations.benchmarks.measure import Row, engine_rate, in_turns, ratios, show
from simulations.benchmarks.speed.loops import node_of, ready
from simulations.benchmarks.speed.peers.process import PEERS, Peer

CLIENTS, BATCH_SIZE, LEARNING_RATE, WEIGHT = 4, 32, 0.01, 0.5

OWN: dict[str, dict[str, Value]] = {
    "fml": {"fml.meme": "lenet5", "fml.alpha": WEIGHT, "fml.beta": WEIGHT},
    "fedproto": {"fedproto.weighting": "uniform", "fedproto.distance-weight": 1.0},
    "fd": {"fd.outputs": "logits", "fd.leave-one-out": False, "fd.gamma": 1.0},
    "lgfedavg": {},
    "fedavg": {},
}
"""What makes our methods those of the peers."""


class PeerError(Exception):
    """What is wrong with a peer's clone, in one line."""


class Process:
    """A process with a peer's code in it, which works in ``FOLDER/system`` and has its data in ``FOLDER/dataset``."""

    def __init__(self, name: str, path: Path, folder: Path) -> None:
        self.peer, self.folder, self._path = PEERS[name], folder, path
        (folder / "system").mkdir(parents=True)
        own = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        own |= {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}  # HtFLlib loads whole modules, which it has just saved
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.process", name, str(path.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder / "system",
            env=os.environ | own,
            text=True,
        )

    def ask(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a question: see `simulations.benchmarks.speed.peers.process`.

        Raises
        ------
        PeerError
            If the peer cannot be imported, or fails.
        """
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):
            print(json.dumps(asked, allow_nan=False), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "ended its process"}
        if "error" in answer:
            raise PeerError(f"{self.peer.name} at {self._path} {answer['error']}")
        return answer

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def main(
    htfllib: Annotated[Path | None, typer.Option(help="A clone of HtFLlib.")] = None,
    pfllib: Annotated[Path | None, typer.Option(help="A clone of PFLlib.")] = None,
    only: Annotated[Literal["fml", "fedproto", "fd", "lgfedavg", "fedavg"] | None, typer.Option(help="One.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Bundled digits, fewer rounds and turns.")] = False,
    turns: Annotated[int, typer.Option(min=0, help="Turns of each comparison (default: 2 or 5).")] = 0,
) -> None:
    """Measure the engine against the peers and print the table."""
    torch.set_num_threads(1)
    paths = {name: path for name, path in (("htfllib", htfllib), ("pfllib", pfllib)) if path is not None}
    rows: list[Row] = []
    try:
        if not paths:
            raise PeerError("no peer: name a clone by --htfllib PATH, --pfllib PATH or both")
        for name, path in paths.items():
            check(PEERS[name], path, only)
        for name, path in paths.items():
            methods = [method for method in PEERS[name].methods if only in (None, method)]
            rows += compare(name, path, methods, quick, turns or (2 if quick else 5))
    except PeerError as error:
        typer.echo(error, err=True)
        raise typer.Exit(2) from None
    show(rows)


def check(peer: Peer, path: Path, only: str | None) -> None:
    """Raise PeerError if the path is no clone of the peer's, or the peer is not compared by the only method."""
    if not (path / "system").is_dir():
        raise PeerError(f"{path} is no clone of {peer.name}: it has no folder system")
    if only is not None and only not in peer.methods:
        raise PeerError(f"{peer.name} is not compared by {only}, but by {', '.join(peer.methods)}")


def compare(name: str, path: Path, methods: list[str], quick: bool, turns: int) -> list[Row]:
    """Measure some methods of a peer, in one process of it."""
    with TemporaryDirectory() as folder:
        process = Process(name, path, Path(folder))
        try:
            return [row for method in methods for row in _method(process, method, quick, turns)]
        finally:
            process.end()


def _method(process: Process, method: str, quick: bool, turns: int) -> list[Row]:
    settings = _settings(method, quick)
    config = resolve(RunConfig.from_flat(settings))
    nodes = [node_of(config, client_id) for client_id in range(config.clients)]
    batches = min(len(node.data.train) for node in nodes) // config.batch_size
    settings |= {"local-batches": batches}
    dataset = f"rows-of-{method}"
    write_data(process.folder / "dataset" / dataset, nodes, batches * config.batch_size)
    network = process.folder / f"{method}.pt"
    torch.save(nodes[0].model, network)
    args = {"dataset": dataset, "clients": config.clients, "classes": nodes[0].data.spec.classes, "weight": WEIGHT}
    args |= {"batch_size": config.batch_size, "learning_rate": LEARNING_RATE, "rounds": config.rounds - 3}

    def theirs(_: Path) -> float:
        answer = process.ask({"method": method, "network": str(network), "args": args})
        return float(answer["steps"] / median(answer["seconds"]))

    def ours(at: Path) -> float:
        return config.clients * batches * engine_rate(settings, at)

    their_rates, our_rates = in_turns(turns, theirs, ours)
    what = f"{method}, LeNet-5, {config.dataset}, {config.clients} clients, {batches} steps each"
    return [
        Row(f"{what}: {process.peer.name}", "client steps / s", their_rates),
        Row(f"{what}: engine, 1 worker", "client steps / s", our_rates),
        Row(f"{what}: engine over {process.peer.name}", "times", ratios(our_rates, their_rates)),
    ]


def _settings(method: str, quick: bool) -> dict[str, Value]:
    data: dict[str, Value] = {"dataset": "digits", "rounds": 8 if quick else 23}
    if "HETFL_DATA_DIR" in os.environ and not quick:
        data = {"dataset": "mnist", "data-dir": os.environ["HETFL_DATA_DIR"], "rounds": 8}
    sgd: dict[str, Value] = {"optimizer": "sgd", "learning-rate": LEARNING_RATE, "batch-size": BATCH_SIZE}
    sgd |= {"momentum": 0.0, "weight-decay": 0.0, "validation-fraction": 0.0, "threads": 1}
    return {"algorithm": method, "models": "lenet5", "clients": CLIENTS, **data, **sgd, **OWN[method]}


def write_data(folder: Path, nodes: list[Node], rows: int) -> None:
    """Write the clients' rows as the peers read them: ``FOLDER/train/CLIENT.npz``, and a test row each.

    A file holds one object, ``data``: a dict of inputs ``x`` (N, *shape), float32, as a model takes them, and labels
    ``y`` (N,), int64.

    Parameters
    ----------
    folder : Path
        The data set's.
    nodes : list of Node
        The clients, in the order of their numbers.
    rows : int
        N, how many training rows of each client.
    """
    for client_id, node in enumerate(nodes):
        for part, samples, most in (("train", node.data.train, rows), ("test", node.data.test, 1)):
            inputs, labels = (tensor[:most].numpy() for tensor in ready(samples))
            at = folder / part / f"{client_id}.npz"
            at.parent.mkdir(parents=True, exist_ok=True)
            held = np.array({"x": inputs, "y": labels}, dtype=object)
            np.savez_compressed(at, data=held)


if __name__ == "__main__":
    typer.run(main)
