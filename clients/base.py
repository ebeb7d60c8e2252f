"""Base of the client halves: Flower's ``fit`` and ``evaluate``, written once."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, final

import torch
from flwr.common import Scalar
from flwr.compat.client.numpy_client import NumPyClient
from numpy.typing import NDArray
from torch import nn

from hetfl_flwr.data import Batches
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.learning.lockstep import together
from hetfl_flwr.learning.metrics import domain_scores
from hetfl_flwr.learning.training import Loss, draw_epochs, evaluate, make_optimizer, train
from hetfl_flwr.models import SplitModel
from hetfl_flwr.node.node import Node
from hetfl_flwr.node.state import ClientState, load_optimizer, optimizer_tensors
from hetfl_flwr.seeding import generator, seeded
from hetfl_flwr.wire.messages import EXAMPLES, ROUND
from hetfl_flwr.wire.spec import EMPTY, Arrays, PayloadSpec

Metrics = dict[str, Scalar]
"""Names and values of what a client reports."""


class KnowledgeClient(NumPyClient, ABC):
    """A client that learns from its own data and from what it is sent.

    An algorithm writes `download_spec`, `upload_spec` and `learn`. It finds its model, data and run config in
    ``self.node``; the `modules` and everything in ``self.numbers`` survive between rounds, and so does each optimizer
    that `optimizer` has handed out.

    Parameters
    ----------
    node : Node
        The client's model, data, run config and state store.

    Raises
    ------
    ConfigError
        ``keep-best`` on a client without validation samples.
    """

    keeps_state = True
    """Whether anything survives between rounds. False where each download brings all that is needed."""

    two_terms = False
    """Whether the loss has a term of the own data and one of what others teach: then ``projection`` has a meaning."""

    def __init__(self, node: Node) -> None:
        if node.config.keep_best and len(node.data.validation) == 0:
            raise ConfigError("keep-best = true, but there are no validation samples here: raise validation-fraction")
        self.node = node
        self.numbers: dict[str, int | float] = {}
        self._saved = ClientState()
        self._optimizers: dict[str, torch.optim.Optimizer] = {}

    def modules(self) -> Mapping[str, nn.Module]:
        """Return what survives between rounds besides optimizers and numbers: by default the client's model."""
        return {"model": self.node.model}

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
        others = {name: model for name, model in vars(self).items() if isinstance(model, SplitModel)}
        models = {f"model {self.node.model_name}": self.node.model, **others}
        seed, batched = self.node.config.seed, self.node.config.projection == "none" and self.node.config.batched
        with seeded(seed, self.node.partition, round, "train"), together(models, batched):
            self.node.model.train()
            upload, metrics = self.learn(download, round)
        checked = self.upload_spec().check_named(upload, str(self.node))
        self._save(round)
        return list(checked.values()), int(metrics.pop(EXAMPLES)), metrics

    @final
    def evaluate(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> tuple[float, int, Metrics]:
        """Check the download, take up the state and measure; with ``keep-best``, keep the best model so far."""
        download = self.assess_spec().check(parameters, "server")
        self._restore()
        metrics = self.assess(download)
        metrics = {**metrics, **self._measure_elsewhere(float(metrics["accuracy"]))}
        if self.node.config.keep_best:
            metrics = self._best(metrics, int(config.get(ROUND, self._saved.round)))
        if not metrics[EXAMPLES]:  # without test samples there is no accuracy, not one of 0
            metrics = {name: value for name, value in metrics.items() if name not in ("accuracy", "global-accuracy")}
        return float(metrics.pop("loss")), int(metrics.pop(EXAMPLES)), metrics

    def epochs(self, round: int, *, samples: int | None = None, times: int = 1) -> Iterator[list[torch.Tensor]]:
        """Draw this round's mini-batches as the run config says, pass by pass over the data.

        Parameters
        ----------
        round : int
            The round, from 1.
        samples : int, optional
            Number of samples to draw from; default: the client's training samples.
        times : int
            How many times the local work that the run config names, 1 or more.
        """
        config = self.node.config
        return draw_epochs(
            generator(config.seed, self.node.partition, round, "batches"),
            len(self.node.data.train) if samples is None else samples,
            config.batch_size,
            epochs=config.local_epochs * times,
            batches=config.local_batches * times,
        )

    def batches(self, round: int, *, samples: int | None = None, times: int = 1) -> Iterator[torch.Tensor]:
        """Draw the mini-batches of `epochs`, one after the other."""
        return chain.from_iterable(self.epochs(round, samples=samples, times=times))

    def train(
        self, batches: Iterable[torch.Tensor], loss: Loss, optimizer: torch.optim.Optimizer | None = None
    ) -> tuple[int, float]:
        """Step down a loss on the own training samples, as `hetfl_flwr.learning.training.train`.

        Parameters
        ----------
        batches : iterable of Tensor
            Positions (B,) of each mini-batch, as `batches` draws them.
        loss : callable
            From inputs and labels to a scalar, or to two `Terms`, of which the run config's ``projection`` takes care.
        optimizer : Optimizer, optional
            Default: the one whose moments survive between rounds.

        Returns
        -------
        tuple of int and float
            Samples seen, and the mean loss over them.
        """
        projection = self.node.config.projection
        return train(self.node.data.train, batches, optimizer or self.optimizer(), loss, projection=projection)

    def optimizer(
        self, name: str = "optimizer", parameters: Iterable[nn.Parameter] | None = None
    ) -> torch.optim.Optimizer:
        """Return an optimizer with the moments that it had after the last round.

        Parameters
        ----------
        name : str
            Its name in the client's state.
        parameters : iterable of Parameter, optional
            What it steps; default: the model's. The same in each round.
        """
        built = make_optimizer(self.node.config, self.node.model.parameters() if parameters is None else parameters)
        load_optimizer(built, _under(f"{name}.", self._saved.tensors))
        self._optimizers[name] = built
        return built

    def _measure_elsewhere(self, accuracy: float) -> Metrics:
        """Measure the assessed model on the validation samples and, where the data has domains, on all of them."""
        model, data = self.node.model, self.node.data
        metrics: Metrics = {}
        if len(data.validation):
            metrics["validation-accuracy"] = evaluate(model, data.validation).accuracy
        if self.node.config.keep_best and self.node.config.best_on == "domains":
            metrics["validation-acc"] = _pooled(model, (data.validation, *data.others_validation))
        if data.others:
            measured = dict(enumerate(evaluate(model, other) for other in data.others))
            accuracies = {domain: one.accuracy for domain, one in measured.items()}
            samples = {domain: one.samples for domain, one in measured.items()}
            own = len(measured)
            scores = domain_scores({**accuracies, own: accuracy}, own, {**samples, own: len(data.test)})
            metrics |= {name: value for name in ("acc", "fwt") if (value := getattr(scores, name)) is not None}
        return metrics

    def _best(self, metrics: Metrics, round: int) -> Metrics:
        """Return the metrics of the best model so far on the validation samples, after keeping it if it is this one."""
        prefix, score = "best.", {"own": "validation-accuracy", "domains": "validation-acc"}[self.node.config.best_on]
        before = {key.removeprefix(prefix): n for key, n in self._saved.numbers.items() if key.startswith(prefix)}
        if before and before[score] >= float(metrics[score]):
            return dict(before)
        model = {f"{prefix}{name}": tensor for name, tensor in self.node.model.state_dict().items()}
        numbers = {f"{prefix}{name}": float(value) for name, value in metrics.items()}
        self._write(ClientState({**self._saved.tensors, **model}, {**self._saved.numbers, **numbers}, round))
        return metrics

    def _restore(self) -> None:
        saved = self.node.read_state()
        if saved is None:
            return
        self._saved = saved
        self.numbers = dict(saved.numbers)
        for name, module in self.modules().items():
            tensors = _under(f"{name}.", saved.tensors)
            if tensors and not (module is self.node.model and self.node.restored):
                module.load_state_dict(tensors)

    def _save(self, round: int) -> None:
        if not self.keeps_state:
            return
        tensors = {key: tensor for key, tensor in self._saved.tensors.items() if key.startswith("best.")}
        for name, module in self.modules().items():
            tensors |= {f"{name}.{key}": tensor for key, tensor in module.state_dict().items()}
        for name, optimizer in self._optimizers.items():
            tensors |= {f"{name}.{key}": tensor for key, tensor in optimizer_tensors(optimizer).items()}
        self._write(ClientState(tensors, self.numbers, round))

    def _write(self, state: ClientState) -> None:
        """Save the state; that of the server's last checkpoint is kept until the next one, for ``resume``."""
        every = self.node.config.checkpoint_every
        checkpoint = (state.round - 1) // every * every if every else -1
        if self._saved.tensors and self._saved.round <= checkpoint < state.round:
            self.node.store.keep()
        self.node.write_state(state)


def _pooled(model: nn.Module, several: Iterable[Batches]) -> float:
    """Return a model's accuracy over several sets of samples, all taken together."""
    measured = [evaluate(model, samples) for samples in several]
    return sum(one.accuracy * one.samples for one in measured) / max(sum(one.samples for one in measured), 1)


def _under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's values as an array of its own."""
    array: NDArray[Any] = tensor.detach().cpu().numpy().copy()
    return array
