"""A client's node: run config, data, model and state store, and what of them is cached between messages."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from flwr.app import ArrayRecord, Context
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr.config import BUNDLED, FIT, RunConfig, Value, for_node, one_model
from hetfl_flwr.data import Augmented, ClientData, Samples, load_client_data
from hetfl_flwr.errors import ConfigError, ModelError
from hetfl_flwr.learning.quality import balanced_weights
from hetfl_flwr.methods import chosen, resolve_models
from hetfl_flwr.models import SplitModel, assign, build_model, check_pretrained, drawn_order, has_batch_norm, mixed
from hetfl_flwr.node.fitting import Fit, device_speed, fit, fit_once
from hetfl_flwr.node.machine import find_device
from hetfl_flwr.node.pool import Pool, PublicSampleStore
from hetfl_flwr.node.state import ClientState, ContextStore, MemoryStore, Stamp, StateStore, run_store
from hetfl_flwr.server.global_model import small_model_for
from hetfl_flwr.wire.codec import check_halves, halved, to_record
from hetfl_flwr.wire.privacy import private_rows, simulated
from hetfl_flwr.wire.samples import public_samples
from hetfl_flwr.wire.spec import Arrays

if TYPE_CHECKING:
    from hetfl_flwr.node.holder import Holder

KEEP = "HETFL_KEEP"
"""Environment variable, set to ``resident`` in a process that answers several messages of one app."""

INPUTS = "inputs."
"""Prefix of the tensors in a state folder that describe a client's inputs."""


class NodeContext(TypedDict):
    """The fields of a `Node` besides its model."""

    config: RunConfig
    client_id: int
    clients: int
    model_name: str
    why: str
    data: ClientData
    store: StateStore
    stamp: Stamp
    public_samples: PublicSampleStore


class Kept:
    """What is cached of a client for its next message; `stays` if it answers more than one.

    `store` keeps the client's state if no state folder is set. `around` holds the node's fields besides the model, and
    `holder` the client; each is None until it is built.
    """

    def __init__(self, store: StateStore, *, stays: bool) -> None:
        self.store, self.stays = store, stays
        self.around: NodeContext | None = None
        self.holder: Holder | None = None

    def move(self, context: Context) -> None:
        """Continue with the Context of another message."""
        if self.around is not None:
            self.around["public_samples"].move(context)
            if isinstance(store := self.around["store"], ContextStore):
                store.context = context


class KeptContext(Context):
    """The Context of a client that stays in this process, with its state in memory.

    `file` is the store of the state while it is not in memory; by default, the Context itself.
    """

    def __init__(self, *args: Any, file: StateStore | None = None, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self.store = MemoryStore(file or ContextStore(self))
        self.kept = Kept(self.store, stays=True)

    @property
    def nbytes(self) -> int:
        """The bytes of the client's networks, its state, and the public samples that it holds, raw and prepared."""
        kept = self.kept
        own = 2 * self.store.nbytes + (kept.holder.nbytes if kept.holder else 0)
        return own + (2 * kept.around["public_samples"].nbytes if kept.around else 0)


_of_process: dict[str, Kept] = {}
"""The client that stays in this process, by the config of its app and its node."""


def kept_of(context: Context) -> Kept:
    """Return what is cached of a client, in its Context if possible, else in the process if the process stays."""
    if isinstance(context, KeptContext):
        return context.kept
    if os.environ.get(KEEP) != "resident":
        return Kept(ContextStore(context), stays=False)
    configs = [sorted(config.items()) for config in (context.run_config, context.node_config)]
    key = repr((context.run_id, context.node_id, *configs))
    if key not in _of_process:
        _of_process.clear()
        _of_process[key] = Kept(ContextStore(context), stays=True)
    _of_process[key].move(context)
    return _of_process[key]


@dataclass(frozen=True)
class Node:
    """One client's data, model and state store.

    Parameters
    ----------
    config : RunConfig
        The run config, with this client's values.
    client_id, clients : int
        The client's id, from 0, and the number of clients.
    model_name : str
        Name of the model.
    model : SplitModel
        The model. It has the same initial weights in each round, until the saved weights are loaded.
    data : ClientData
        Training, validation and test samples, and which of the training samples are public.
    store : StateStore
        Store of the client's state between rounds.
    stamp : Stamp
        Identifies that state by its run, algorithm, model and client.
    public_samples : PublicSampleStore
        Store of the public samples of all clients, as they were sent.
    why : str
        Why this model was chosen, with ``models = "fit"``; else empty.
    predictor : nn.Module, optional
        The evaluated model, from inputs to logits, if the client was loaded from a run. It is often `model`.
    """

    config: RunConfig
    client_id: int
    clients: int
    model_name: str
    model: SplitModel
    data: ClientData
    store: StateStore
    stamp: Stamp
    public_samples: PublicSampleStore
    why: str = ""
    predictor: nn.Module | None = None

    @classmethod
    def from_context(cls, context: Context, before: str = "") -> "Node":
        """Build the node from Flower's Context.

        Parameters
        ----------
        context : Context
            The node's Context.
        before : str
            The run that this one resumes, if any: its state folder records the chosen model.

        Raises
        ------
        HetflError
            If the config, the data or the model is wrong. The message says what is wrong, in one line.
        """
        kept = kept_of(context)
        if kept.around is None:
            kept.around = _node_context(context, kept.store, before=before)
        torch.set_num_threads(kept.around["config"].threads)
        return cls(model=_new_model(kept.around), **kept.around)

    @classmethod
    def without_data(cls, context: Context, data: ClientData) -> "Node":
        """Build the node with data that describes the inputs but has no samples; see `unpack_inputs`."""
        around = _node_context(context, ContextStore(context), data)
        return cls(model=_new_model(around), **around)

    def training(self, samples: Samples) -> Samples:
        """Return samples of this client as used for training, with the augmentation that the run config sets."""
        return (
            samples if self.config.augment == "none" else Augmented(samples.arrays, samples.rows, self.config.augment)
        )

    def data_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy on the client's own labels, a scalar, with the weights of ``class-weights``.

        The weights come from the client's training samples. The sum over a batch is divided by the number of its
        samples, so that over an epoch each class has its intended weight, whatever the batches.

        Parameters
        ----------
        logits, labels : Tensor
            (B, C), and (B,) int64.
        """
        if self.class_weights is None:
            return functional.cross_entropy(logits, labels)
        weights = self.class_weights.to(logits.dtype)
        return functional.cross_entropy(logits, labels, weights, reduction="sum") / len(labels)

    @cached_property
    def class_weights(self) -> Tensor | None:
        """The weight of a sample of each class in `data_loss`, (C,) float32; None if all are equal."""
        if self.config.class_weights == "none":
            return None
        return balanced_weights(self.data.train.class_counts(self.data.spec.classes))

    def check_untied(self) -> None:
        """Check that head and body share no weights, for an algorithm that exchanges only one of them.

        Raises
        ------
        ModelError
            If they share a weight.
        """
        body = {id(weight) for weight in self.model.body.parameters()}
        if any(id(weight) in body for weight in self.model.head.parameters()):
            raise ModelError(
                f"{self}: its head shares a weight with its body, and {self.config.algorithm} exchanges one of the two "
                "without the other: untie them, or use an algorithm that averages whole models or none"
            )

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self.model.head.weight.device

    @property
    def dtype(self) -> str:
        """The dtype of the stored inputs, such as ``"uint8"``."""
        return str(self.data.public.stored()[0].dtype).removeprefix("torch.")

    @property
    def pool(self) -> Pool:
        """The public samples of all clients that have shared theirs, including this client's, as they were sent."""
        return self.public_samples.pool(self.client_id, self.data)

    def own_public_samples(self, *, labelled: bool) -> Arrays:
        """Return this client's public samples as sent: the same for a whole run, also if its data change."""
        half = halved if self.config.half else dict
        if self.client_id not in self.public_samples.client_ids():
            inputs, labels = self.data.public.stored()
            declared = public_samples(len(labels), self.data.spec, self.dtype, labelled=True)
            own: Arrays = {"inputs": inputs.numpy(), "labels": labels.numpy()}
            own = private_rows(own, declared, self.config, self.client_id, "public-rows")
            if self.config.half:
                check_halves(own, str(self))
            self.keep_public_samples(to_record({f"{key}.{self.client_id}": rows for key, rows in half(own).items()}))
        kept = half(self.public_samples.block(self.client_id))
        return {name: rows for name, rows in kept.items() if labelled or name == "inputs"}

    def keep_public_samples(self, record: ArrayRecord) -> int:
        """Check and keep public samples as they were sent; return how many there are.

        Raises
        ------
        PayloadError
            If their shape, dtype or classes differ from this client's.
        """
        return self.public_samples.keep(record, self.data.spec, self.dtype, half=self.config.half)

    def read_state(self) -> ClientState | None:
        """Return the state that was saved after the last round, or None before the first round."""
        return self.store.load(self.stamp, self)

    def write_state(self, state: ClientState) -> ClientState | None:
        """Save the state for the next round; return the object that `read_state` will return, if the store keeps one.

        In a state folder, the client's config and the form of its inputs are saved with it, so that the client can be
        loaded from there.
        """
        if self.config.state_dir:
            values, tensors = self._inputs
            state = replace(state, tensors={**state.tensors, **tensors}, inputs=values)
        return self.store.save(state, self.stamp)

    @cached_property
    def _inputs(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The client's config, the form and scaling of its inputs, and a digest of its data; no samples."""
        arrays = self.data.train.arrays
        values = {
            "config": self.config.model_copy(update={"clients": self.clients, "state_dir": ""}).to_flat(),
            "shape": arrays.spec.shape,
            "classes": arrays.spec.classes,
            "vocabulary": arrays.spec.vocabulary,
            "peak": None if isinstance(arrays.peak, Tensor) else arrays.peak,
            "class names": arrays.class_names,
            "input names": arrays.input_names,
            "columns": [asdict(column) for column in arrays.columns],
            "brightest": arrays.brightest,
            "words": list(arrays.words()) if arrays.words else None,
            "data": self.data.digest,
        }
        tensors = {"centre": arrays.centre, "inputs": arrays.inputs[:0].cpu().to(arrays.dtype)}
        if isinstance(arrays.peak, Tensor):
            tensors["peak"] = arrays.peak
        if arrays.origin is not None:
            tensors["origin"] = arrays.origin
        return values, {f"{INPUTS}{name}": tensor for name, tensor in tensors.items()}

    def __str__(self) -> str:
        """Return the client's name in messages."""
        return f"client {self.client_id} ({self.model_name})"


def _node_context(context: Context, store: StateStore, data: ClientData | None = None, before: str = "") -> NodeContext:
    client_id, clients = _identity(context.node_config)
    config = resolve_models(_with_data(for_node(_parsed(*context.run_config.items()), context.node_config)))
    torch.set_num_threads(config.threads)
    data = (data or load_client_data(config.split(clients), client_id)).to(find_device(config.device))
    if config.augment != "none" and data.spec.kind != "image":
        raise ConfigError(f"augment = {config.augment} is for images, and client {client_id} has a {data.spec.kind}")
    if config.pretrained and "model" not in context.node_config:
        check_pretrained(config.candidates)
    run = str(context.run_id)
    name, why = _model_name(context, config, client_id, clients, data, before)
    return {
        "config": config,
        "client_id": client_id,
        "clients": clients,
        "model_name": name,
        "why": why,
        "data": data,
        "store": run_store(config, run, client_id) if config.state_dir else store,
        "stamp": Stamp(run=run, algorithm=config.algorithm, model=name, client_id=client_id),
        "public_samples": PublicSampleStore(context),
    }


@lru_cache(maxsize=16)
def _parsed(*values: tuple[str, Value]) -> RunConfig:
    """Parse the run config once for all clients of a process."""
    return RunConfig.from_flat(dict(values))


def _model_name(
    context: Context, config: RunConfig, client_id: int, clients: int, data: ClientData, before: str
) -> tuple[str, str]:
    """Return the name of a client's model, and why it was chosen if ``models = "fit"``."""
    if config.models != FIT:
        order = drawn_order(config.seed, clients) if config.assignment == "random" else ()
        return assign(config.models, client_id, order), ""

    def choose() -> Fit:
        runs = (str(context.run_id), before) if config.state_dir else ()
        saved = (run_store(config, run, client_id).model() for run in runs if run)
        if model := next(filter(None, saved), None):
            return Fit(model, f"client {client_id}, models = fit: {model}, because its saved state has this model")
        speed = device_speed(config, client_id) if simulated() else None
        return fit(config, data.train, lambda name: _built(config, name, data, client_id), client_id, speed)

    chosen = fit_once(context, choose)
    return chosen.model, chosen.reason


def _new_model(around: NodeContext) -> SplitModel:
    """Build the client's model with its initial weights."""
    return _built(around["config"], around["model_name"], around["data"], around["client_id"])


def _built(config: RunConfig, name: str, data: ClientData, client_id: int) -> SplitModel:
    model = build_model(
        name,
        data.spec,
        seed=config.seed,
        scope=("global",) if chosen(config).client.starts_alike else (client_id,),
        width=config.width,
        pretrained=config.pretrained,
        head_bias=config.head_bias,
        width_by=config.width_by,
        stem=config.stem,
    ).to(find_device(config.device))
    mixed(model, config.mixed_precision)
    _check_trainable(model, name, len(data.train), client_id)
    return model


def _check_trainable(model: nn.Module, name: str, samples: int, client_id: int) -> None:
    """Raise ConfigError for a model with batch norm if the client has a single training sample."""
    if samples == 1 and has_batch_norm(model):
        raise ConfigError(
            f"client {client_id} has one training sample, and batch norm in its model '{name}' needs two: use fewer "
            "clients, a more even partition or a model without batch norm"
        )


def _with_data(config: RunConfig) -> RunConfig:
    """Return the config with a data set; there is a default only in simulations, not in a deployment."""
    if config.dataset or simulated():
        return config.with_data()
    raise ConfigError(
        "this node has no data set: set dataset in its --node-config, or in the run config for all nodes, such as "
        f"dataset = '{BUNDLED}'"
    )


def _identity(node_config: Mapping[str, Value]) -> tuple[int, int]:
    values = node_config.get("partition-id"), node_config.get("num-partitions")
    for key, value in zip(("partition-id", "num-partitions"), values, strict=True):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(
                f"this node has no {key}: start it with --node-config 'partition-id=0 num-partitions=4', "
                "each node with its own id"
            )
    client_id, clients = int(values[0] or 0), int(values[1] or 0)
    if not 0 <= client_id < clients:
        raise ConfigError(f"partition-id = {client_id} is outside 0 .. {clients - 1} (num-partitions = {clients})")
    return client_id, clients


def small_model(key: str, name: str, node: Node) -> SplitModel:
    """Build the small model that each client has in addition to its own.

    It has its own width, and the same initial weights as the server's (`small_global_model`).

    Parameters
    ----------
    key : str
        The config key that sets the model, for error messages.
    name : str
        A model, as in ``models``. "auto" is the first model of ``models = "auto"``.
    node : Node
        The client's node.

    Raises
    ------
    ModelError
        If the model does not fit the client's data. The message names the key and a model that fits.
    """
    spec = node.data.spec
    try:
        built = small_model_for(spec, name, node.config)
    except ModelError as error:
        fits = one_model(spec.kind)
        raise ModelError(f"{key}: {error}; set {key} to auto, or to a model that fits, such as {fits}") from None
    return mixed(built.to(node.device), node.config.mixed_precision)
