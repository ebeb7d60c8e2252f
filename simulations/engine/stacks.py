"""Models of one architecture called as one model with an axis more, and their optimizers stepped as one."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.optim import Optimizer

from hetfl_flwr.models.split_model import as_laid_out_by_itself

LAYERS = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Flatten, nn.Identity),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LayerNorm, nn.GroupNorm),
)
"""Layers that can be stacked: they keep no buffers, draw nothing at random and take each sample for itself."""

LARGEST_GROUP = 128
"""Clients that run together at most: each has its model in memory."""

LARGEST, FEWEST = 50_000, 20
"""Parameters of a model up to which, and clients from which on, stacked steps are faster on a processor."""


def stackable(model: nn.Module, batched: bool | str, clients: int) -> bool:
    """Return whether models like this one of some clients are to be called together."""
    if batched is False:
        return False
    leaves = [layer for layer in model.modules() if not any(layer.children())]
    if any(True for _ in model.buffers()) or not all(isinstance(layer, LAYERS) for layer in leaves):
        return False
    parameters = list(model.parameters())
    if batched is True or parameters[0].is_cuda:
        return True
    return clients >= FEWEST and sum(parameter.numel() for parameter in parameters) <= LARGEST


class Stack:
    """The parameters of models of one function, stacked; the models' own are views of them."""

    def __init__(self) -> None:
        self._rows: dict[nn.Module, int] = {}
        self._parameters: list[tuple[nn.Parameter, ...]] = []
        self._own: list[tuple[Tensor, ...]] = []
        self._stacked: dict[str, Tensor] = {}
        self._function: Callable[[dict[str, Tensor], Tensor], Tensor] | None = None

    def call(self, models: Sequence[nn.Module], inputs: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Return the outputs of some models; None for each where they cannot be called together."""
        if any(model not in self._rows for model in models):
            self._add(models)
        rows = [self._rows[model] for model in models]
        stacked = self._stacked
        if rows != list(range(len(self._rows))):
            stacked = {name: tensor[rows] for name, tensor in stacked.items()}
        sizes = [len(x) for x in inputs]
        if len(set(sizes)) > 1:  # rows of zeros, whose outputs nobody sees
            inputs = [pad(x, (*(0, 0) * (x.dim() - 1), 0, max(sizes) - len(x))) for x in inputs]
        from torch.func import vmap  # it takes its time to import

        assert self._function is not None
        try:
            outputs = vmap(self._function)(stacked, torch.stack(list(inputs)))
        except RuntimeError:  # a forward that is no plain chain of its layers
            return [None] * len(models)
        return [its[:size] for its, size in zip(outputs.unbind(), sizes, strict=True)]

    def spread(self) -> None:
        """Give each model's parameters their part of the gradient."""
        for stacked, parameters in zip(self._stacked.values(), self._parameters, strict=True):
            if stacked.grad is None:
                continue
            for parameter, gradient in zip(parameters, stacked.grad.unbind(), strict=True):
                if parameter.requires_grad:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
            stacked.grad = None

    def release(self, models: Iterable[nn.Module]) -> None:
        """Give models their own parameters back, with the values that they have now."""
        for model in models:
            if (row := self._rows.get(model)) is not None:
                for parameters, own in zip(self._parameters, self._own, strict=True):
                    parameters[row].data = own[row].copy_(parameters[row].data)

    def _add(self, some: Sequence[nn.Module]) -> None:
        """Stack the parameters of all models so far and of new ones."""
        for model in some:
            self._rows.setdefault(model, len(self._rows))
        models = list(self._rows)
        names = [name for name, _ in models[0].named_parameters()]
        known = len(self._own[0]) if self._own else 0
        self._parameters = list(zip(*(model.parameters() for model in models), strict=True))
        own = self._own or [()] * len(names)
        self._own = [
            (*before, *(parameter.data for parameter in parameters[known:]))
            for before, parameters in zip(own, self._parameters, strict=True)
        ]
        self._stacked = {}
        for name, parameters in zip(names, self._parameters, strict=True):
            self._stacked[name] = torch.stack([parameter.data for parameter in parameters])
            for parameter, row in zip(parameters, self._stacked[name].unbind(), strict=True):
                parameter.data = row
            self._stacked[name].requires_grad_()
        from torch.func import functional_call

        alone = deepcopy(models[0]).to("meta")
        as_laid_out_by_itself(alone)  # a layout of memory is nothing that vmap knows
        self._function = lambda parameters, x: functional_call(alone, parameters, (x,))


class Optimizers:
    """One optimizer in place of several of a kind, which shares their moments and counters."""

    def __init__(self) -> None:
        self._joined: dict[tuple[Optimizer, ...], list[Optimizer]] = {}

    def step(self, optimizers: tuple[Optimizer, ...]) -> None:
        """Take the steps of all of them."""
        if optimizers not in self._joined:
            kinds = defaultdict(list)
            for optimizer in optimizers:
                kinds[type(optimizer)].append(optimizer)
            self._joined[optimizers] = [_joined(those) for those in kinds.values()]
        for joined in self._joined[optimizers]:
            joined.step()


def _joined(optimizers: Sequence[Optimizer]) -> Optimizer:
    groups: dict[str, dict[str, Any]] = {}
    joined = copy(optimizers[0])
    joined.state = defaultdict(dict)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            settings = {name: value for name, value in group.items() if name != "params"}
            groups.setdefault(repr(settings), {**settings, "params": []})["params"] += group["params"]
            for parameter in group["params"]:
                joined.state[parameter] = optimizer.state[parameter]
    joined.param_groups = list(groups.values())
    return joined
