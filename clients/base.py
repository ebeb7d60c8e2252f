"""Base of the client halves: Flower's ``fit`` and ``evaluate``, written once."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from flwr.common import Scalar
from flwr.compat.client.numpy_client import NumPyClient
from numpy.typing import NDArray

from hetfl_flwr.federation import EXAMPLES, ROUND
from hetfl_flwr.node import Node
from hetfl_flwr.payloads import EMPTY, Arrays, PayloadSpec
from hetfl_flwr.seeding import generator, seeded
from hetfl_flwr.state import ClientState, load_optimizer, optimizer_tensors
from hetfl_flwr.training import draw_batches, evaluate, make_optimizer

Metrics = dict[str, Scalar]
"""Names and values of what a client reports."""


class KnowledgeClient(NumPyClient, ABC):
    """A client that learns from its own data and from what it is sent.

    An algorithm writes `download_spec`, `upload_spec` and `learn`. It finds its model, data and run config in
    ``self.node``; the model and everything in ``self.numbers`` survive between rounds, and so does the optimizer that
    `optimizer` has handed out.

    Parameters
    ----------
    node : Node
        The client's model, data, run config and state store.
    """

    keeps_state = True
    """Whether anything survives between rounds. False where each download brings all that is needed."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.numbers: dict[str, int | float] = {}
        self._saved = ClientState()
        self._optimizers: dict[str, torch.optim.Optimizer] = {}

    @abstractmethod
    def download_spec(self) -> PayloadSpec:
        """Return what the server sends."""

    @abstractmethod
    def upload_spec(self) -> PayloadSpec:
        """Return what this client sends."""

    @abstractmethod
    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for one round.

        Parameters
        ----------
        download : mapping of str to array
            What the server sent, checked against `download_spec`.
        round : int
            The round, from 1.

        Returns
        -------
        tuple
            What to upload, and metrics, among them ``"num-examples"``, the samples trained on.
        """

    def assess(self, download: Arrays) -> Metrics:
        """Measure this client: by default its own model on its own test set."""
        measured = evaluate(self.node.model, self.node.data.test)
        return {"accuracy": measured.accuracy, "loss": measured.loss, EXAMPLES: measured.samples}

    def assess_spec(self) -> PayloadSpec:
        """Return what the server sends along when it asks to `assess`: by default nothing."""
        return EMPTY

    @final
    def fit(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> tuple[list[NDArray[Any]], int, Metrics]:
        """Check the download, take up the state, learn, save the state, upload."""
        round = int(config[ROUND])
        download = self.download_spec().check(parameters, "server")
        self._restore()
        with seeded(self.node.config.seed, self.node.partition, round, "train"):
            self.node.model.train()
            upload, metrics = self.learn(download, round)
        checked = self.upload_spec().check_named(upload, str(self.node))
        self._save()
        return list(checked.values()), int(metrics.pop(EXAMPLES)), metrics

    @final
    def evaluate(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> tuple[float, int, Metrics]:
        """Check the download, take up the state and measure."""
        download = self.assess_spec().check(parameters, "server")
        self._restore()
        metrics = self.assess(download)
        return float(metrics.pop("loss")), int(metrics.pop(EXAMPLES)), metrics

    def batches(self, round: int) -> Iterator[torch.Tensor]:
        """Draw this round's mini-batches of the training data, as the run config says."""
        config = self.node.config
        rng = generator(config.seed, self.node.partition, round, "batches")
        return draw_batches(
            rng,
            len(self.node.data.train),
            config.batch_size,
            epochs=config.local_epochs,
            batches=config.local_batches,
        )

    def optimizer(self, name: str = "optimizer") -> torch.optim.Optimizer:
        """Return the optimizer over the model's parameters, with the moments that it had after the last round."""
        built = make_optimizer(self.node.config, self.node.model.parameters())
        prefix = f"{name}."
        load_optimizer(
            built,
            {key.removeprefix(prefix): tensor for key, tensor in self._saved.tensors.items() if key.startswith(prefix)},
        )
        self._optimizers[name] = built
        return built

    def _restore(self) -> None:
        saved = self.node.read_state()
        if saved is None:
            return
        self._saved = saved
        self.numbers = dict(saved.numbers)
        model = {
            key.removeprefix("model."): tensor for key, tensor in saved.tensors.items() if key.startswith("model.")
        }
        self.node.model.load_state_dict(model)

    def _save(self) -> None:
        if not self.keeps_state:
            return
        tensors = {f"model.{name}": tensor for name, tensor in self.node.model.state_dict().items()}
        for name, optimizer in self._optimizers.items():
            tensors |= {f"{name}.{key}": tensor for key, tensor in optimizer_tensors(optimizer).items()}
        self.node.write_state(ClientState(tensors, self.numbers))


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's values as an array of its own."""
    array: NDArray[Any] = tensor.detach().cpu().numpy().copy()
    return array
