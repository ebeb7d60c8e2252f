"""Handle one message of a client: restore its state, train or evaluate, save its state.

A client is built for each message or stays in memory. Both give bit-identical results: before each message, a client
that stays is reset to the attributes it was built with, and its saved state is loaded.
"""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import cached_property
from hashlib import blake2b
from operator import attrgetter, is_
from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import Context
from torch import Tensor, nn

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import Samples
from hetfl_flwr.errors import ConfigError, StateError
from hetfl_flwr.learning.metrics import Metrics, weighted_mean
from hetfl_flwr.learning.optimizers import load_optimizer, optimizer_tensors
from hetfl_flwr.learning.quality import baseline
from hetfl_flwr.learning.training import evaluate, make_optimizer
from hetfl_flwr.methods import build_client, names
from hetfl_flwr.models import ZOO, network_of
from hetfl_flwr.models.split_model import constant_buffers, constants_held
from hetfl_flwr.node.meter import Meter
from hetfl_flwr.node.node import INPUTS, Node, kept_of
from hetfl_flwr.node.state import ClientState
from hetfl_flwr.seeding import seeded
from hetfl_flwr.text import brief
from hetfl_flwr.wire.codec import check_halves, halved
from hetfl_flwr.wire.messages import EXAMPLES
from hetfl_flwr.wire.privacy import private_upload
from hetfl_flwr.wire.spec import Arrays, PayloadSpec, interned, under

if TYPE_CHECKING:
    from hetfl_flwr.client import KnowledgeClient

BEST = "best."
"""Prefix of the best model's tensors and metrics."""

WITH_BEST, DOWNLOAD = "best+", "download"
"""Prefixes of what the best model was evaluated with: the client's other networks, and the server's download; in a
state folder, the first is also that of the digest of what was evaluated."""

MEASURED = "measured."
"""Prefix of the download of the last evaluation, which is saved in a state folder."""

ASIDE = (BEST, WITH_BEST, MEASURED)
"""Prefixes of what a client keeps in addition to its state of the last round."""

REQUIRES_GRAD, IN_TRAINING = attrgetter("requires_grad"), attrgetter("training")
"""Whether a parameter requires gradients, and whether a layer is in training mode."""


class Optimizers:
    """A client's optimizers, and their moments saved after the last round."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._saved: Mapping[str, Tensor] = {}
        self._spare: dict[str, torch.optim.Optimizer] = {}  # not changed since the last save
        self._handed: dict[str, torch.optim.Optimizer] = {}
        self._replaced: list[nn.Parameter] = []
        self._ended: tuple[list[str], list[object], dict[str, Tensor]] = [], [], {}

    def begin(self, saved: Mapping[str, Tensor], *, same: bool) -> None:
        """Begin a message with the saved state. Set `same` if it is the state that the last `end` was called for."""
        self._saved, self._handed, self._replaced = saved, {}, []
        if not same:
            self._spare = {}

    def end(self) -> dict[str, Tensor]:
        """Return the tensors to save, of the optimizers used since `begin`.

        If none of them has changed since the last call, the same dict is returned again.
        """
        self._drop_moments()
        self._spare = self._handed
        names, states = list(self._handed), [one.state for one in self._handed.values()]
        found = [value for state in states for of in state.values() for value in of.values()]
        if names != self._ended[0] or len(found) != len(self._ended[1]) or not all(map(is_, found, self._ended[1])):
            tensors: dict[str, Tensor] = {}
            for name, optimizer in self._handed.items():
                tensors |= optimizer_tensors(optimizer, f"{name}.")
            self._ended = names, found, tensors
        return self._ended[2]

    @property
    def names(self) -> Iterable[str]:
        """The names of the saved optimizers."""
        return self._spare.keys()

    def get(self, name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer with this name; create it at the first call."""
        optimizer = self._spare.pop(name, None)
        if optimizer is None:
            return self.load(name, make_optimizer(self._config, parameters))
        for group in optimizer.param_groups:
            group.update(optimizer.defaults)
        return self._hand(name, optimizer)

    def load(self, name: str, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Load the moments of the last round into an optimizer, and save its moments after this round."""
        load_optimizer(optimizer, under(f"{name}.", self._saved))
        return self._hand(name, optimizer)

    def replaced(self, parameters: list[nn.Parameter]) -> None:
        """Reset the moments of weights that the server has replaced, unless the run config keeps them."""
        if self._config.moments == "reset":
            self._replaced += parameters
            self._drop_moments()

    def _hand(self, name: str, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        for parameter in self._replaced:
            optimizer.state.pop(parameter, None)
        self._handed[name] = optimizer
        return optimizer

    def _drop_moments(self) -> None:
        for optimizer in self._handed.values():
            for parameter in self._replaced:
                optimizer.state.pop(parameter, None)


class Holder:
    """A client with its saved state; `stays` if it handles more than one message.

    `nbytes` is the size of its networks in bytes, 0 if it does not stay. `pool` identifies the public samples known
    when the client was built, which its declarations may depend on. `half` is whether arrays are sent in half
    precision; `uploads_as_learnt`, whether uploads are sent unchanged: not clipped, without noise, in full precision.
    """

    def __init__(self, client: "KnowledgeClient", *, stays: bool = False) -> None:
        self.client, self.node = client, client.node
        self.pool = self.node.public_samples.current
        config = self.node.config
        self.half, self.uploads_as_learnt = config.half, not (config.half or config.clipping_norm)
        self._costs, self._name, self._checkpoint_every = config.measured, str(self.node), config.checkpoint_rounds
        self._built = _Built(client) if stays else None
        self.nbytes = self._built.nbytes if self._built else 0
        self._saved = ClientState()
        self._live: tuple[object, object, dict[str, Tensor]] | None = None  # tensors to save, while they are the same
        self._untouched = False  # no message since the state was saved

    @cached_property
    def down(self) -> PayloadSpec:
        """The declared download for training."""
        return interned(self.client.download_spec())

    @cached_property
    def up(self) -> PayloadSpec:
        """The declared upload."""
        return interned(self.client.upload_spec())

    @cached_property
    def assess(self) -> PayloadSpec:
        """The declared download for evaluation."""
        return interned(self.client.assess_spec())

    def train(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for a round with a checked download; return the upload as sent, and the metrics."""
        if not self._costs:
            upload, metrics = self.learn(_copy(download), round)
        else:
            with Meter(self._costs, self.node.device) as meter:
                upload, metrics = self.learn(_copy(download), round)
            metrics |= {**meter.costs, EXAMPLES: metrics.pop(EXAMPLES)}
        return upload if self.uploads_as_learnt else self._as_sent(upload, download, round), metrics

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for a round without copying the download; return the checked, unclipped upload and the metrics."""
        client, node = self.client, self.node
        self.restore()
        with seeded(node.config.seed, node.client_id, round, "train"):
            if self._built is None:
                node.model.train()
            with constants_held(self._constants) if self._constants else nullcontext():
                upload, metrics = client.learn(download, round)
        if node.config.class_weights != "none" and "class_weights" not in vars(node):
            raise ConfigError(
                f"class-weights = {node.config.class_weights}, but the algorithm '{node.config.algorithm}' does not "
                "use node.data_loss, which weights the classes: set it to none"
            )
        self.up.check_named(upload, self._name)
        if client.keeps_state:
            self.save(round)
        if EXAMPLES not in metrics:
            metrics[EXAMPLES] = len(node.data.train)
        return upload, metrics

    def measure(self, download: Arrays, round: int | None) -> Metrics:
        """Evaluate with a checked download; return the metrics, with ``loss`` and ``num-examples``.

        If `round` is None, the last round in which the client trained counts.
        """
        client, node = self.client, self.node
        self.restore()
        with seeded(node.config.seed, node.client_id, "evaluate"):
            metrics = client.assess(_copy(download))
            metrics = {**metrics, **baseline(node.data)}
            predictor = client.predictor()
            metrics |= _validation_and_domain_metrics(node, predictor, float(metrics["accuracy"]))
        is_own = predictor is node.model and not download  # then it is what the client keeps
        digest = digest_of(predictor) if node.config.state_dir and client.keeps_state and not is_own else None
        if digest is not None:
            self._keep_measured(download, digest)
        if node.config.keep_best:
            metrics = self._keep_best(download, metrics, max(self._saved.round, int(round or 0)), digest)
        if not metrics[EXAMPLES]:  # without test samples, accuracy is undefined rather than 0
            metrics = {name: value for name, value in metrics.items() if name not in ("accuracy", "global-accuracy")}
        return {**metrics, "loss": float(metrics["loss"]), EXAMPLES: int(metrics[EXAMPLES])}

    def predictor(self, download: Arrays) -> nn.Module:
        """Restore the client's state, evaluate with a download, and return the evaluated model.

        With ``keep-best``, this is the best model, and the client is left with its weights. Raises PayloadError if the
        client expects another download, and StateError if its saved state does not fit.
        """
        client = self.client
        self.restore()
        with_best = under(WITH_BEST, self._saved.tensors)
        if best := under(BEST, self._saved.tensors):
            for name, module in client.modules().items():
                self._load(name, module, under(f"{name}.", with_best))
            self._load("model", self.node.model, best)
            best_download = under(f"{DOWNLOAD}.", with_best)
            download = {name: array.cpu().numpy() for name, array in best_download.items()} or download
        spec = client.assess_spec()
        sent = spec.check_named({name: download[name] for name in spec.names if name in download}, "server")
        with seeded(self.node.config.seed, self.node.client_id, "evaluate"):
            client.assess(sent)
            return client.predictor().eval()

    def restore(self) -> None:
        """Restore the state saved after the last round, or the client's initial state if there is none.

        The client's networks count as changed until the next save.
        """
        client, saved = self.client, self.node.read_state()
        same = saved is not None and saved is self._saved
        untouched, self._untouched = same and self._untouched, False
        self._saved = saved or ClientState()
        client._optimizers.begin(self._saved.tensors, same=same)
        if self._built is not None:
            self._built.put_back(client)
        if saved is not None:
            if numbers := {name: n for name, n in saved.numbers.items() if not name.startswith(ASIDE)}:
                client.numbers = numbers
            for name, module in client.modules().items() if not untouched else ():
                self._load(name, module, under(f"{name}.", saved.tensors))

    def _load(self, name: str, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Load a network's saved tensors, if there are any; raise StateError if they have other names or shapes."""
        if not tensors:
            return
        has = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
        kept = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
        if has != kept:
            odd = min(key for key in has | kept if has.get(key) != kept.get(key))
            found, expected = (shapes.get(odd, "not there") for shapes in (kept, has))
            raise StateError(
                f"{self.node}: its saved state does not fit its {name}: '{odd}' is {found}, expected {expected}; "
                "has its code changed, or an option?"
            )
        module.load_state_dict(tensors)

    def save(self, round: int) -> None:
        """Save the client's state; keep the best model so far and the download of the last evaluation."""
        moments, kept = self.client._optimizers.end(), self._saved.tensors
        live = self._live if self._live and self._live[0] is kept and self._live[1] is moments else None
        aside = {} if live else {key: tensor for key, tensor in kept.items() if key.startswith(ASIDE)}
        tensors = live[2] if live else {**aside, **self._unused(), **networks(self.client), **moments}
        figures = {name: n for name, n in self._saved.numbers.items() if name.startswith(ASIDE)}
        self._write(ClientState(tensors, {**_python_numbers(self.client.numbers, self._name), **figures}, round))
        if live is None and self._built is not None:
            kept = self._saved.tensors
            stays = all(kept[key] is tensor for key, tensor in aside.items())
            self._live = (kept, moments, tensors) if stays else None
        self._untouched = True
        if self._built is not None:
            self._built.weights = None

    def _unused(self) -> dict[str, Tensor]:
        """Return the saved moments of optimizers that the client has not used in this round."""
        names = (*self.client.modules(), *self.client._optimizers.names)
        used = (*ASIDE, INPUTS, *(f"{name}." for name in names))
        return {key: tensor for key, tensor in self._saved.tensors.items() if not key.startswith(used)}

    @cached_property
    def _constants(self) -> list[nn.Module]:
        every = dict.fromkeys((self.node.model, *self.client.modules().values()))
        return [one for one in every if constant_buffers(one)]

    def _write(self, state: ClientState) -> None:
        """Save the state; keep the state of the server's last checkpoint until the next one, for ``resume``."""
        every = self._checkpoint_every
        checkpoint = (state.round - 1) // every * every if every else -1
        if 0 < self._saved.round <= checkpoint < state.round:
            self.node.store.keep()
        self._saved = self.node.write_state(state) or state

    def _keep_measured(self, download: Arrays, digest: int) -> None:
        """Save the download of an evaluation and the digest of the evaluated model in the state folder."""
        saved = self._saved
        others = {name: tensor for name, tensor in saved.tensors.items() if not name.startswith(MEASURED)}
        sent = {f"{MEASURED}{name}": torch.from_numpy(array) for name, array in download.items()}
        numbers = {f"{MEASURED}digest": digest, f"{MEASURED}round": saved.round}
        self._write(ClientState({**others, **sent}, {**saved.numbers, **numbers}, saved.round))

    def _keep_best(self, download: Arrays, metrics: Metrics, round: int, digest: int | None) -> Metrics:
        """Return the metrics of the best model so far; save the current model, and its digest, if it is the best."""
        node, saved = self.node, self._saved
        score = {"own": "validation-accuracy", "domains": "validation-acc"}[node.config.best_on]
        before = {key.removeprefix(BEST): n for key, n in saved.numbers.items() if key.startswith(BEST)}
        if before and before[score] >= float(metrics[score]):
            return dict(before)
        model = {f"{BEST}{name}": tensor for name, tensor in node.model.state_dict().items()}
        for name, module in self.client.modules().items():
            if module is not node.model:
                model |= {f"{WITH_BEST}{name}.{key}": tensor for key, tensor in module.state_dict().items()}
        model |= {f"{WITH_BEST}{DOWNLOAD}.{name}": torch.tensor(array) for name, array in download.items()}
        numbers: dict[str, int | float] = {f"{BEST}{name}": float(value) for name, value in metrics.items()}
        if digest is not None:
            numbers[f"{WITH_BEST}digest"] = digest
        others = {name: n for name, n in saved.numbers.items() if not name.startswith((BEST, WITH_BEST))}
        self._write(ClientState({**saved.tensors, **model}, {**others, **numbers}, round))
        return metrics

    def _as_sent(self, learnt: Arrays, download: Arrays, round: int) -> Arrays:
        """Clip an upload, add noise and convert it to half precision, as set in the run config."""
        node, config = self.node, self.node.config
        if config.clipping_norm:
            learnt = private_upload(learnt, self.up, download, self.down, config, node.client_id, round)
        if self.half:
            check_halves(learnt, self._name)
            learnt = halved(learnt)
        return learnt


class _Built:
    """A snapshot of a client as built: its attributes, and the weights and modes of its networks."""

    def __init__(self, client: "KnowledgeClient") -> None:
        client.node.model.train()
        self._attributes, self._numbers = dict(vars(client)), dict(client.numbers)
        kept = client.modules().values()
        own = [one for one in vars(client).values() if isinstance(one, nn.Module)]
        every = nn.ModuleList(dict.fromkeys((client.node.model, *kept, *own)))
        self._parameters, self._layers = [*every.parameters()], [*every.modules()]
        self._learn, self._train = [*map(REQUIRES_GRAD, self._parameters)], [*map(IN_TRAINING, self._layers)]
        tensors = {id(one): one for one in (*every.parameters(), *every.buffers())}
        saved = {id(one) for one in nn.ModuleList(kept).state_dict(keep_vars=True).values()}
        other = saved | {id(one) for module in client.renewed() for one in renewed_tensors(module)}
        self._unsaved = _copied([one for one in tensors.values() if id(one) not in other])
        self.weights: _Copies | None = _copied([one for one in tensors.values() if id(one) in saved])
        self.nbytes = sum(one.nbytes for one in tensors.values())

    def put_back(self, client: "KnowledgeClient") -> None:
        """Reset the client, except for weights that its saved state replaces."""
        vars(client).clear()
        vars(client).update(self._attributes)
        client.numbers = dict(self._numbers)
        for parameter in self._parameters:
            parameter.grad = None
        if [*map(REQUIRES_GRAD, self._parameters)] != self._learn:
            for parameter, learns in zip(self._parameters, self._learn, strict=True):
                parameter.requires_grad = learns
        if [*map(IN_TRAINING, self._layers)] != self._train:
            for layer, training in zip(self._layers, self._train, strict=True):
                layer.training = training
        for copies in (self._unsaved, self.weights):
            if copies:
                with torch.no_grad():
                    torch._foreach_copy_(*copies)


def renewed_tensors(module: nn.Module) -> list[Tensor]:
    """Return the tensors that a download replaces when it replaces a whole network."""
    constant = constant_buffers(module)
    return [one for name, one in module.state_dict(keep_vars=True).items() if name not in constant]


_Copies = tuple[list[Tensor], list[Tensor]]


def _copied(tensors: list[Tensor]) -> _Copies | None:
    return (tensors, [one.detach().clone() for one in tensors]) if tensors else None


def holder_of(context: Context, before: str = "") -> Holder:
    """Return the client of a Context, from the cache of the Context or the process, or newly built.

    `before` is the run that this one resumes, if any: its state folder records the chosen model. Raises HetflError if
    the config, the data or the model is wrong.
    """
    kept = kept_of(context)
    holder = kept.holder
    if holder is None or holder.pool is not holder.node.public_samples.current:
        node = Node.from_context(context, before)
        ours = network_of(node.model_name) in ZOO and node.config.algorithm in names()
        stays = kept.stays and ours  # a user's class may have attributes that are not part of the state
        holder = Holder(build_client(node.config, node), stays=stays)
        kept.holder = holder if stays else None
    if torch.get_num_threads() != holder.node.config.threads:
        torch.set_num_threads(holder.node.config.threads)
    return holder


def forget(context: Context) -> None:
    """Drop the client, for example after an error: the next message builds it again from its saved state."""
    kept_of(context).holder = None


def networks(client: "KnowledgeClient") -> dict[str, Tensor]:
    """Return the state dicts of the networks that a client keeps between rounds, with the network's name as a prefix.

    Raises ConfigError if the name of a network is reserved.
    """
    modules = client.modules()
    others = [*ASIDE, INPUTS, *(f"{name}." for name in client._optimizers.names)]
    if taken := [name for name in modules if f"{name}.".startswith(tuple(others))]:
        raise ConfigError(f"{client.node}: modules() has a network {taken[0]!r}, a reserved name: choose another")
    return {f"{name}.{key}": tensor for name, module in modules.items() for key, tensor in module.state_dict().items()}


def digest_of(model: nn.Module) -> int:
    """Return a 48-bit digest of a module's weights and buffers."""
    digest = blake2b(digest_size=6)
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest(), "big")


def _python_numbers(numbers: Mapping[str, object], where: str) -> dict[str, int | float]:
    """Convert an algorithm's ``self.numbers`` to Python numbers; raise StateError for other values or keys."""
    found = dict[str, int | float]()
    for name, value in numbers.items():
        plain = value.item() if isinstance(value, np.generic) else value
        if not (isinstance(name, str) and isinstance(plain, int | float)):
            raise StateError(f"{where}: self.numbers has {brief(value)} at {brief(name)}: expected numbers by name")
        found[name] = plain
    return found


def _copy(download: Arrays) -> Arrays:
    """Copy the arrays of a download, because other clients receive the same arrays."""
    return {name: array.copy() for name, array in download.items()}


def _validation_and_domain_metrics(node: Node, model: nn.Module, accuracy: float) -> Metrics:
    """Evaluate a model on the validation samples and, if the data has domains, on the other domains.

    ``acc`` is the accuracy on the test samples of all domains together and ``fwt`` that on those of the other domains,
    as in Li et al., "FedH2L: Federated Learning with Model and Statistical Heterogeneity", section "Metrics". A metric
    whose domains have no test samples is left out.
    """
    data = node.data
    metrics: Metrics = {}
    if len(data.validation):
        metrics["validation-accuracy"] = evaluate(model, data.validation).accuracy
    if node.config.keep_best and node.config.best_on == "domains":
        metrics["validation-acc"] = _pooled_accuracy(model, (data.validation, *data.others_validation))
    if data.others:
        measured = dict(enumerate(evaluate(model, other) for other in data.others))
        accuracies = {domain: one.accuracy for domain, one in measured.items()}
        samples = {domain: one.samples for domain, one in measured.items()}
        own = len(measured)
        scores = {
            "acc": weighted_mean({**accuracies, own: accuracy}, {**samples, own: len(data.test)}),
            "fwt": weighted_mean(accuracies, samples),
        }
        metrics |= {name: score for name, score in scores.items() if score is not None}
    return metrics


def _pooled_accuracy(model: nn.Module, several: Iterable[Samples]) -> float:
    """Return the accuracy of a model over several sets of samples as one."""
    measured = [evaluate(model, samples) for samples in several]
    return sum(one.accuracy * one.samples for one in measured) / max(sum(one.samples for one in measured), 1)
