"""What happens around an algorithm's own work when a client answers a message.

The state is restored and saved, and the upload is checked. After measuring, the best model so far is kept on
demand, and the samples of other domains are measured, too.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from hetfl_flwr.data import Batches
from hetfl_flwr.errors import ConfigError, StateError
from hetfl_flwr.learning.metrics import Metrics, domain_scores
from hetfl_flwr.learning.optimizers import load_optimizer, optimizer_tensors
from hetfl_flwr.learning.quality import baseline
from hetfl_flwr.learning.training import evaluate
from hetfl_flwr.models.split_model import constant_buffers, constants_held
from hetfl_flwr.node.measured import Measured, digest_of
from hetfl_flwr.node.node import Node
from hetfl_flwr.node.state import ClientState
from hetfl_flwr.seeding import seeded
from hetfl_flwr.wire.forms import Form
from hetfl_flwr.wire.messages import EXAMPLES
from hetfl_flwr.wire.spec import Arrays

if TYPE_CHECKING:
    from hetfl_flwr.client import KnowledgeClient

T = TypeVar("T")

BEST = "best."
"""Prefix of the best model's tensors and metrics."""

BESIDE, DOWNLOAD = "best+", "download"
"""What the names begin with of what the best model was measured with: other networks, and what the server sent."""


class Session:
    """What a client has besides what its algorithm writes: the state that it goes on with, and its optimizers.

    A client may be built anew for each message, or stay: then it is brought back to the state that was saved only where
    it does not have it already.

    Parameters
    ----------
    node : Node
        The client's model, data, run config and state store.
    """

    def __init__(self, node: Node) -> None:
        if node.config.keep_best and len(node.data.train) and not len(node.data.validation):
            raise ConfigError("keep-best = true, but there are no validation samples here: raise validation-fraction")
        self._node = node
        self._name = str(node)
        self._constants: list[nn.Module] | None = None
        self._saved = ClientState()
        self._has: ClientState | None = None
        self._built: Built | None = None
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._options: dict[str, list[dict[str, Any]]] = {}
        self._handed: set[str] = set()
        self._idle: set[str] = set()  # optimizers of earlier rounds that nobody has asked for in this one
        self._replaced = set[nn.Parameter]()
        self._layers: dict[nn.Module, list[tuple[str, nn.Module]] | None] = {}

    def stay(self, client: "KnowledgeClient") -> None:
        """Remember what a client is that has just been built: it stays, and begins there until it has saved a state."""
        self._built = Built(client)

    def learn(self, client: "KnowledgeClient", download: Arrays, round: int, form: Form) -> tuple[Arrays, Metrics]:
        """Let a client learn for a round; return its upload, which has this form, and metrics."""
        node = self._node
        self.restore(client)
        self._has = None
        with seeded(node.config.seed, node.client_id, round, "train"):
            if self._built is None:
                node.model.train()
            if self._constants is None:
                networks = dict.fromkeys((node.model, *client.modules().values()))
                self._constants = [one for one in networks if constant_buffers(one)]
            with constants_held(self._constants) if self._constants else nullcontext():
                upload, metrics = client.learn(download, round)
        self._check_weighted()
        form.check(upload, self._name)
        self.save(client, round)
        if EXAMPLES not in metrics:
            metrics[EXAMPLES] = len(node.data.train)
        return upload, metrics

    def assess(self, client: "KnowledgeClient", download: Arrays, round: int | None) -> Metrics:
        """Let a client measure; return its metrics, with ``loss`` and ``num-examples``. `round` None: the last."""
        self.restore(client)
        self._has = None  # measuring may change what a client has
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
        return {**metrics, "loss": float(metrics["loss"]), EXAMPLES: int(metrics[EXAMPLES])}

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

    def optimizer(self, name: str, make: Callable[[], torch.optim.Optimizer]) -> torch.optim.Optimizer:
        """Return an optimizer with its moments of the last round: one that is there already, else one that is made."""
        optimizer = self._optimizers.get(name)
        if optimizer is None or name in self._handed:
            optimizer = make()
            self.load(name, optimizer)
            self._options[name] = [{**group, "params": None} for group in optimizer.param_groups]
        for group, options in zip(optimizer.param_groups, self._options[name], strict=True):
            group.update(options, params=group["params"])
        self._handed.add(name)
        self._idle.discard(name)
        self._drop_moments()
        return optimizer

    def load(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        """Give an optimizer its moments of the last round; `save` saves those of this one."""
        load_optimizer(optimizer, _under(f"{name}.", self._saved.tensors))
        self._optimizers[name] = optimizer
        self._idle.discard(name)
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
        """Bring a client to what was saved after the last round; where nothing was, to what it was built as."""
        self._handed.clear()
        self._idle = {*self._optimizers}
        self._replaced.clear()
        saved = self._node.read_state()
        if self._built is not None:
            self._built.reset(saved is None)
        if saved is None or saved is not self._has:
            self._optimizers, self._idle = {}, set()
            self._saved = saved or ClientState()
            if saved is not None:
                client.numbers = dict(saved.numbers)
                for name, module in client.modules().items():
                    self._load(name, module, _under(f"{name}.", saved.tensors))
            elif self._built is not None:
                client.numbers = dict(self._built.numbers)

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
            tensors |= self._tensors(name, module)
        self._drop_moments()
        for name in self._idle:
            del self._optimizers[name]
        self._idle = set()
        for name, optimizer in self._optimizers.items():
            tensors |= optimizer_tensors(optimizer, f"{name}.")
        self._has = self._write(self._node, ClientState(tensors, client.numbers, round))
        if self._has is not None:
            self._saved = self._has

    def _tensors(self, name: str, module: nn.Module) -> dict[str, torch.Tensor]:
        """Return a network's state dict, under the network's name."""
        if module not in self._layers:
            self._layers[module] = plain_layers(module)
        layers = self._layers[module]
        if layers is None:
            return {f"{name}.{key}": tensor for key, tensor in module.state_dict().items()}
        return {
            f"{name}.{path}{key}": tensor
            for path, layer in layers
            for own in (layer._parameters, layer._buffers)
            for key, tensor in own.items()
            if tensor is not None and key not in layer._non_persistent_buffers_set
        }

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

    def _write(self, node: Node, state: ClientState) -> ClientState | None:
        """Save the state; that of the server's last checkpoint is kept until the next one, for ``resume``."""
        every = node.config.checkpoint_rounds
        checkpoint = (state.round - 1) // every * every if every else -1
        if self._saved.tensors and self._saved.round <= checkpoint < state.round:
            node.store.keep()
        return node.write_state(state)


class Built:
    """What a client is that has just been built, and stays: its numbers, its networks, and what each is set to.

    Parameters
    ----------
    client : KnowledgeClient
        It has answered nothing yet.
    """

    def __init__(self, client: "KnowledgeClient") -> None:
        kept = client.modules().values()
        networks = [*dict.fromkeys((client.node.model, *kept, *_networks(client)))]
        self.numbers = dict(client.numbers)
        self._parameters = [(one, one.requires_grad) for one in _unique(networks, nn.Module.parameters)]
        client.node.model.train()
        self._layers = [(one, one.training) for one in _unique(networks, nn.Module.modules)]
        tensors = {module: [*module.state_dict(keep_vars=True).values()] for module in networks}
        unsaved = [one for module, own in tensors.items() if module not in kept for one in own]
        saved = {id(one) for module in kept for one in tensors[module]}
        self._unsaved = Copies([one for one in unsaved if id(one) not in saved])
        self._saved: Copies | None = Copies([one for module in kept for one in tensors[module]])
        self._used = False

    def reset(self, whole: bool) -> None:
        """Set networks to what they were set to, and those that no state holds, or all, to their first weights."""
        for parameter, learns in self._parameters:
            parameter.grad = None
            parameter.requires_grad = learns
        for layer, training in self._layers:
            if layer.training is not training:  # setting it takes torch longer than all the rest here
                layer.training = training
        if self._used:
            self._unsaved.put_back()
        if not whole:
            self._saved = None
        elif self._used and self._saved is not None:
            self._saved.put_back()
        self._used = True


class Copies:
    """Copies of tensors, to be put back."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._copies = [one.detach().clone() for one in tensors]

    def put_back(self) -> None:
        """Give the tensors the values that they had."""
        if self._tensors:
            with torch.no_grad():
                torch._foreach_copy_(self._tensors, self._copies)


def _networks(client: "KnowledgeClient") -> list[nn.Module]:
    return [one for one in vars(client).values() if isinstance(one, nn.Module)]


def _unique(networks: Iterable[nn.Module], parts: Callable[[nn.Module], Iterable[T]]) -> list[T]:
    return [*dict.fromkeys(part for network in networks for part in parts(network))]


def plain_layers(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """Return a network's layers, with what their names begin with; None where its state dict is more than theirs."""
    layers = [(f"{path}." if path else "", layer) for path, layer in module.named_modules(remove_duplicate=False)]
    names = [
        f"{path}{key}"
        for path, layer in layers
        for own in (layer._parameters, layer._buffers)
        for key, tensor in own.items()
        if tensor is not None and key not in layer._non_persistent_buffers_set
    ]
    return layers if names == list(module.state_dict()) else None


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
