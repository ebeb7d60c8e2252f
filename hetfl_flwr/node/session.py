"""What happens around an algorithm's own work when a client answers a message.

The state is restored and saved, and the upload is checked. After measuring, the best model so far is kept on
demand, and the samples of other domains are measured, too.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import nn

from hetfl_flwr.data import Batches
from hetfl_flwr.errors import ConfigError, StateError
from hetfl_flwr.learning.metrics import Metrics, domain_scores
from hetfl_flwr.learning.optimizers import load_optimizer, optimizer_tensors
from hetfl_flwr.learning.quality import baseline
from hetfl_flwr.learning.training import evaluate
from hetfl_flwr.models.split_model import constants_held
from hetfl_flwr.node.measured import Measured, digest_of
from hetfl_flwr.node.node import Node
from hetfl_flwr.node.state import ClientState
from hetfl_flwr.seeding import seeded
from hetfl_flwr.wire.messages import EXAMPLES
from hetfl_flwr.wire.spec import Arrays

if TYPE_CHECKING:
    from hetfl_flwr.client import KnowledgeClient

BEST = "best."
"""Prefix of the best model's tensors and metrics."""

BESIDE, DOWNLOAD = "best+", "download"
"""What the names begin with of what the best model was measured with: other networks, and what the server sent."""


class Session:
    """One message's work, with the state and the optimizers that it begins with.

    Parameters
    ----------
    node : Node
        The client's model, data, run config and state store.
    """

    def __init__(self, node: Node) -> None:
        if node.config.keep_best and len(node.data.train) and not len(node.data.validation):
            raise ConfigError("keep-best = true, but there are no validation samples here: raise validation-fraction")
        self._node = node
        self._saved = ClientState()
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._replaced = set[nn.Parameter]()

    def fit(
        self, client: "KnowledgeClient", parameters: list[NDArray[Any]], round: int
    ) -> tuple[list[NDArray[Any]], int, Metrics]:
        """Let a client learn for a round; return its upload, number of samples and other metrics."""
        node = self._node
        download = dict(zip(client.download_spec().names, parameters, strict=True))
        self.restore(client)
        self._replaced.clear()
        with seeded(node.config.seed, node.client_id, round, "train"):
            if not node.restored:  # one that is restored has been made ready
                node.model.train()
            with constants_held(dict.fromkeys((node.model, *client.modules().values()))):
                upload, metrics = client.learn(download, round)
        self._check_weighted()
        checked = client.upload_spec().check_named(upload, str(node))
        self.save(client, round)
        return list(checked.values()), int(metrics.pop(EXAMPLES, len(node.data.train))), metrics

    def evaluate(
        self, client: "KnowledgeClient", parameters: list[NDArray[Any]], round: int | None
    ) -> tuple[float, int, Metrics]:
        """Let a client measure; return loss, samples and other metrics. A `round` of None: the last."""
        download = dict(zip(client.assess_spec().names, parameters, strict=True))
        self.restore(client)
        with seeded(self._node.config.seed, self._node.client_id, "evaluate"):
            metrics = client.assess(download)
            metrics = {**metrics, **baseline(self._node.data)}
            predictor = client.predictor()
            metrics |= _elsewhere(self._node, predictor, float(metrics["accuracy"]))
        is_own = predictor is self._node.model and not download  # then it is what the client keeps
        if self._node.config.state_dir and client.keeps_state and not is_own:
            self._node.keep_measured(Measured(download, digest_of(predictor), self._saved.round))
        if self._node.config.keep_best:
            metrics = self._best(client, download, metrics, self._saved.round if round is None else int(round))
        if not metrics[EXAMPLES]:  # without test samples there is no accuracy, not one of 0
            metrics = {name: value for name, value in metrics.items() if name not in ("accuracy", "global-accuracy")}
        return float(metrics.pop("loss")), int(metrics.pop(EXAMPLES)), metrics

    def predictor(self, client: "KnowledgeClient", download: Arrays) -> nn.Module:
        """Return what is measured of a client after it was sent this: what it keeps is taken up, and it measures.

        With ``keep-best`` it is what was measured of the best model; the client then has that.

        Raises
        ------
        PayloadError
            The client expects something else.
        StateError
            What it keeps is another run's, or does not fit it.
        """
        self.restore(client)
        beside = _under(BESIDE, self._saved.tensors)
        if best := _under(BEST, self._saved.tensors):
            for name, module in client.modules().items():
                self._load(name, module, _under(f"{name}.", beside))
            self._load("model", self._node.model, best)
            download = {name: array.cpu().numpy() for name, array in _under(f"{DOWNLOAD}.", beside).items()} or download
        spec = client.assess_spec()
        sent = spec.check_named({name: download[name] for name in spec.names if name in download}, "server")
        with seeded(self._node.config.seed, self._node.client_id, "evaluate"):
            client.assess(sent)
            return client.predictor().eval()

    def _check_weighted(self) -> None:
        """Refuse an algorithm that has trained without the class weights of the run config."""
        if self._node.config.class_weights != "none" and "class_weights" not in vars(self._node):
            raise ConfigError(
                f"class-weights = {self._node.config.class_weights}, but the algorithm '{self._node.config.algorithm}' "
                "computes no node.data_loss, which weighs classes: set it to none"
            )

    def load(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        """Give an optimizer its moments of the last round; `save` saves those of this one."""
        load_optimizer(optimizer, _under(f"{name}.", self._saved.tensors))
        self._optimizers[name] = optimizer
        self._drop_moments()

    def replaced(self, parameters: Iterable[nn.Parameter]) -> None:
        """Take note of what the server has replaced: its moments are lost, unless the run config keeps them."""
        self._replaced.update(parameters)
        self._drop_moments()

    def _drop_moments(self) -> None:
        for optimizer in self._optimizers.values() if self._node.config.moments == "reset" else ():
            for parameter in self._replaced:
                optimizer.state.pop(parameter, None)

    def restore(self, client: "KnowledgeClient") -> None:
        """Take up what was saved after the last round."""
        node = self._node
        saved = node.read_state()
        if saved is None:
            return
        self._saved = saved
        client.numbers = dict(saved.numbers)
        for name, module in client.modules().items():
            tensors = _under(f"{name}.", saved.tensors)
            if not (module is node.model and node.restored):
                self._load(name, module, tensors)

    def _load(self, name: str, module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put what was kept of a network into it, if anything was.

        Raises
        ------
        StateError
            It is of a network with other weights.
        """
        has = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
        kept = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
        if kept and has != kept:
            odd = min(key for key in has | kept if has.get(key) != kept.get(key))
            found, expected = (shapes.get(odd, "not there") for shapes in (kept, has))
            raise StateError(
                f"{self._node}: what it keeps is of another {name} than it has now: '{odd}' is {found}, expected "
                f"{expected}; has its code changed, or an option?"
            )
        if kept:
            module.load_state_dict(tensors)

    def save(self, client: "KnowledgeClient", round: int) -> None:
        """Save what is to survive, beside the best model so far."""
        if not client.keeps_state:
            return
        tensors = {key: tensor for key, tensor in self._saved.tensors.items() if key.startswith((BEST, BESIDE))}
        for name, module in client.modules().items():
            tensors |= {f"{name}.{key}": tensor for key, tensor in module.state_dict().items()}
        self._drop_moments()
        for name, optimizer in self._optimizers.items():
            tensors |= {f"{name}.{key}": tensor for key, tensor in optimizer_tensors(optimizer).items()}
        self._write(self._node, ClientState(tensors, client.numbers, round))

    def _best(self, client: "KnowledgeClient", download: Arrays, metrics: Metrics, round: int) -> Metrics:
        """Return the metrics of the best model so far on the validation samples, after keeping it if it is this one."""
        node = self._node
        score = {"own": "validation-accuracy", "domains": "validation-acc"}[node.config.best_on]
        before = {key.removeprefix(BEST): n for key, n in self._saved.numbers.items() if key.startswith(BEST)}
        if before and before[score] >= float(metrics[score]):
            return dict(before)
        model = {f"{BEST}{name}": tensor for name, tensor in node.model.state_dict().items()}
        for name, module in client.modules().items():
            if module is not node.model:
                model |= {f"{BESIDE}{name}.{key}": tensor for key, tensor in module.state_dict().items()}
        model |= {f"{BESIDE}{DOWNLOAD}.{name}": torch.from_numpy(array) for name, array in download.items()}
        numbers = {f"{BEST}{name}": float(value) for name, value in metrics.items()}
        others = {name: n for name, n in self._saved.numbers.items() if not name.startswith(BEST)}
        self._write(node, ClientState({**self._saved.tensors, **model}, {**others, **numbers}, round))
        return metrics

    def _write(self, node: Node, state: ClientState) -> None:
        """Save the state; that of the server's last checkpoint is kept until the next one, for ``resume``."""
        every = node.config.checkpoint_every
        checkpoint = (state.round - 1) // every * every if every else -1
        if self._saved.tensors and self._saved.round <= checkpoint < state.round:
            node.store.keep()
        node.write_state(state)


def _elsewhere(node: Node, model: nn.Module, accuracy: float) -> Metrics:
    """Measure the assessed model on the validation samples and, where the data has domains, on all of them."""
    data = node.data
    metrics: Metrics = {}
    if len(data.validation):
        metrics["validation-accuracy"] = evaluate(model, data.validation).accuracy
    if node.config.keep_best and node.config.best_on == "domains":
        metrics["validation-acc"] = _pooled(model, (data.validation, *data.others_validation))
    if data.others:
        measured = dict(enumerate(evaluate(model, other) for other in data.others))
        accuracies = {domain: one.accuracy for domain, one in measured.items()}
        samples = {domain: one.samples for domain, one in measured.items()}
        own = len(measured)
        scores = domain_scores({**accuracies, own: accuracy}, own, {**samples, own: len(data.test)})
        metrics |= {name: value for name in ("acc", "fwt") if (value := getattr(scores, name)) is not None}
    return metrics


def _pooled(model: nn.Module, several: Iterable[Batches]) -> float:
    """Return a model's accuracy over several sets of samples together."""
    measured = [evaluate(model, samples) for samples in several]
    return sum(one.accuracy * one.samples for one in measured) / max(sum(one.samples for one in measured), 1)


def _under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
