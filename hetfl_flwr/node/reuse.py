"""What stays of a client between two messages: its Context alone, unless its engine, or its process, keeps more."""

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import ClassVar

import torch
from flwr.app import Context

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import HetflError
from hetfl_flwr.models import ZOO, SplitModel, build_model, mixed
from hetfl_flwr.models.building import WidthBy
from hetfl_flwr.models.vision import Stem
from hetfl_flwr.node.client_cache import ClientCache, NodeContext
from hetfl_flwr.node.machine.device import find_device
from hetfl_flwr.node.pool import PublicSampleStore
from hetfl_flwr.node.stores import ContextStore

KEEP = "HETFL_KEEP"
"""Environment variable: ``resident`` in a process that answers several messages of one app."""

MAX_MODELS = 32
"""Models that a process keeps: those of the architectures used last."""


class _Nothing:
    """Keeps nothing: a ClientApp of Flower's engines is rebuilt for each message."""

    def __init__(self, context: Context) -> None:
        self.store = ContextStore(context, str(context.run_id))

    def surroundings(self, make: Callable[[], NodeContext]) -> NodeContext:
        return make()

    def trained_model(self, around: NodeContext) -> None:
        return None


class _Process:
    """Keeps data and models in a process that answers several messages; the state goes where it would without."""

    _made: ClassVar[dict[str, NodeContext]] = {}

    def __init__(self, context: Context) -> None:
        self.store = ContextStore(context, str(context.run_id))
        self._context = context

    def surroundings(self, make: Callable[[], NodeContext]) -> NodeContext:
        context = self._context
        configs = [sorted(config.items()) for config in (context.run_config, context.node_config)]
        key = repr((context.run_id, context.node_id, *configs))
        if key not in self._made:
            self._made.clear()
            self._made[key] = make()
        made = self._made[key]
        store = made["store"] if made["config"].state_dir else self.store
        return {**made, "store": store, "public_samples": PublicSampleStore(context)}

    def trained_model(self, around: NodeContext) -> SplitModel | None:
        stamp = around["stamp"]
        try:
            state = around["store"].load(stamp, f"client {stamp.client_id}")
        except HetflError:
            return None  # a new one is built; who reads the state next says what is wrong with it
        shared = shared_model(around) if state else None
        return shared.with_weights(state.tensors) if state and shared else None


def cache_of(context: Context) -> ClientCache:
    """Return who keeps what stays of a client: the Context itself where it can, or else the process, if it stays."""
    if isinstance(context, ClientCache):
        return context
    return _Process(context) if os.environ.get(KEEP) == "resident" else _Nothing(context)


class Shared:
    """A model that clients of one architecture take turns with.

    Parameters
    ----------
    model : SplitModel
        The model.

    Attributes
    ----------
    model : SplitModel
        As it was left last.
    """

    def __init__(self, model: SplitModel) -> None:
        self.model = model
        self._tensors = model.state_dict()
        self._modules, self._parameters = tuple(model.modules()), tuple(model.parameters())

    def with_weights(self, saved: Mapping[str, torch.Tensor]) -> SplitModel | None:
        """Return the model with the weights of a saved state, ready for training; None where it has none that fit."""
        weights = {key.removeprefix("model."): saved[key] for key in saved if key.startswith("model.")}
        if _shapes(weights) != _shapes(self._tensors):
            return None  # a new one is built, and loading it says what does not fit
        for key, tensor in self._tensors.items():
            tensor.copy_(weights[key])
        for parameter in self._parameters:
            parameter.grad = None
            parameter.requires_grad = True
        for module in self._modules:
            if not module.training:  # setting it takes torch longer than all the rest here
                module.training = True
        return self.model


def shared_model(around: NodeContext) -> Shared | None:
    """Return this process's model of a client's architecture.

    Clients of one architecture take turns with it. Models of the user's own, which may keep what no state holds, are
    not shared: None.
    """
    config, name = around["config"], around["model_name"]
    if name not in ZOO:
        return None
    spec = around["data"].spec
    layout = config.width, config.head_bias, config.width_by, config.stem
    return _model(name, spec, layout, config.device, config.mixed_precision)


@lru_cache(maxsize=MAX_MODELS)
def _model(name: str, spec: DataSpec, layout: tuple[int, bool, WidthBy, Stem], device: str, precision: str) -> Shared:
    width, head_bias, width_by, stem = layout
    built = build_model(name, spec, seed=0, width=width, head_bias=head_bias, width_by=width_by, stem=stem)
    return Shared(mixed(built.to(find_device(device)), precision))


def _shapes(tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, torch.Size]]:
    return [(name, tensor.shape) for name, tensor in tensors.items()]
