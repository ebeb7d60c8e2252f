"""A peer's process: it imports the peer's servers from ``PATH/system`` and runs rounds of theirs when asked.

Each line of standard input asks for rounds of one method, in JSON; each line of standard output answers. The working
directory is ``FOLDER/system``, for the peers read ``../dataset/NAME/train/CLIENT.npz`` and write beside it.

The peer's class is used as it is. Of its server object, three methods are replaced that are no part of training:
`evaluate` does nothing, and neither do `save_results`, which also takes the clients' models away, and
`save_global_model`. The seconds of a round are the server's
own, from its list ``Budget``.
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from hetfl_flwr.models import SplitModel
from simulations.benchmarks.speed.peers.networks import given_to_htfllib, given_to_pfllib


class Method(NamedTuple):
    """Where a peer has a method, and how many optimizers step in one step of a client."""

    server: str
    class_name: str
    optimizers: int = 1


class Peer(NamedTuple):
    """A framework: its name, its methods by the names of our algorithms, and how it takes a network."""

    name: str
    methods: dict[str, Method]
    give: Callable[[Namespace, SplitModel], None]


PEERS = {
    "htfllib": Peer(
        "HtFLlib",
        {
            "fml": Method("serverfml", "FML", optimizers=2),
            "fedproto": Method("serverproto", "FedProto"),
            "fd": Method("serverfd", "FD"),
            "lgfedavg": Method("serverlg", "LG_FedAvg"),
        },
        given_to_htfllib,
    ),
    "pfllib": Peer(
        "PFLlib",
        {"fedavg": Method("serveravg", "FedAvg"), "fedproto": Method("serverproto", "FedProto")},
        given_to_pfllib,
    ),
}


class Server:
    """A server of the peer's, with its clients."""

    def __init__(self, peer: Peer, method: str, asked: dict[str, Any]) -> None:
        self._method = peer.methods[method]
        module = import_module(f"flcore.servers.{self._method.server}")
        args = arguments(algorithm=self._method.class_name, **asked["args"])
        peer.give(args, torch.load(asked["network"], weights_only=False))
        self._server = getattr(module, self._method.class_name)(args, 0)
        self._server.evaluate = lambda *_, **__: self._server.rs_test_acc.append(0.0)
        self._server.save_results = self._server.save_global_model = lambda: None

    def train(self) -> dict[str, Any]:
        """Run its rounds and return the seconds of each but the first, and the steps of all clients in one."""
        steps = 0

        def count(*_: object) -> None:
            nonlocal steps
            steps += 1

        self._server.Budget.clear()
        counting = register_optimizer_step_post_hook(count)
        try:
            self._server.train()
        finally:
            counting.remove()
        rounds = len(self._server.Budget)
        return {"seconds": self._server.Budget[1:], "steps": steps / rounds / self._method.optimizers}


def arguments(
    *,
    algorithm: str,
    dataset: str,
    clients: int,
    classes: int,
    rounds: int,
    batch_size: int,
    learning_rate: float,
    weight: float,
) -> Namespace:
    """Return the peers' command line, as their ``main.py`` would parse it; names that one of them lacks do no harm.

    Parameters
    ----------
    algorithm : str
        The peer's name of the method.
    dataset : str
        Name of the folder in ``../dataset`` where the data lie.
    clients, classes, rounds, batch_size : int
        Sizes, 1 or more. Peers count rounds from 0 to `rounds`, both included.
    learning_rate : float
        Of SGD, which all of them take.
    weight : float
        What each loss gives its cross-entropy, in FML, in [0, 1].
    """
    return Namespace(
        algorithm=algorithm,
        dataset=dataset,
        device="cpu",
        num_clients=clients,
        num_classes=classes,
        global_rounds=rounds,
        local_epochs=1,
        batch_size=batch_size,
        local_learning_rate=learning_rate,
        learning_rate_decay=False,
        learning_rate_decay_gamma=1.0,
        join_ratio=1.0,
        random_join_ratio=False,
        time_select=False,
        time_threthold=1e4,  # as they spell it
        goal="bench",
        auto_break=False,
        top_cnt=100,
        eval_gap=rounds + 1,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        save_folder_name="temp",
        models_folder_name="",
        few_shot=0,
        lamda=1.0,
        alpha=weight,
        beta=weight,
        privacy=False,
        dp_sigma=0.0,
        dlg_eval=False,
        dlg_gap=1,
        batch_num_per_client=1,
        num_new_clients=0,
        fine_tuning_epoch=0,
    )


def main(name: str, path: str) -> None:
    """Answer each line of standard input."""
    torch.set_num_threads(1)
    peer, servers, answers = PEERS[name], dict[str, Server](), sys.stdout
    sys.path.insert(0, str(Path(path, "system")))
    for line in sys.stdin:
        asked = json.loads(line)
        method = asked["method"]
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            try:
                if method not in servers:
                    servers[method] = Server(peer, method, asked)
                answer = servers[method].train()
            except ModuleNotFoundError as error:
                answer = {"error": f"cannot be imported: there is no module {error.name}"}
            except Exception as error:  # whatever another version of theirs may raise
                answer = {"error": f"fails with {method}: {type(error).__name__}: {' '.join(str(error).split())}"}
        print(json.dumps(answer, allow_nan=False), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
