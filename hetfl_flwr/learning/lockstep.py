"""Clients of one architecture that take their training steps together, as one model with an axis more.

Each client's code runs as it is, in a coroutine of its own that waits in two places: where its model is called in
training, and where `hetfl_flwr.learning.training.train` takes a step. When all have come as far as they can, the models
are called as one by ``torch.func.vmap`` over their stacked parameters, all losses are differentiated in one backward
pass, and one optimizer steps all parameters. A client's own parameters are views of the stacked ones meanwhile, so that
what else it does with them (a proximal term, a projection of its gradient, a call of the body alone) holds as before.

Sums are taken in another order than one by one, so results are equal within float tolerance, not bit by bit.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any, NamedTuple

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.optim import Optimizer

from hetfl_flwr.models.split_model import as_laid_out_by_itself

LAYERS = (
    *(nn.Linear, nn.Conv2d, nn.Flatten, nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LayerNorm, nn.GroupNorm),
)
"""Layers that can be stacked: they keep no buffers, draw nothing at random and take each sample for itself."""

LARGEST_GROUP = 128
"""Clients that run together at most: each has its model in memory."""

LARGEST, FEWEST = 50_000, 20
"""Parameters of a model up to which, and clients from which on, stacked steps are faster on a processor."""


class Call(NamedTuple):
    """What a client waits for where its model is called: its outputs, or None to call it by itself."""

    model: nn.Module
    inputs: Tensor


class Gradient(NamedTuple):
    """What a client waits for where it differentiates a loss."""

    loss: Tensor


class Step(NamedTuple):
    """What a client waits for where it takes a step."""

    optimizer: Optimizer


Wait = Call | Gradient | Step


class Client(greenlet):
    """One client's coroutine, with its place among those that run together, and their number.

    Attributes
    ----------
    functions : dict
        What is called together with others: for each of its models what function it is, models of one being alike.
    stacks : list of Stack
        Where its parameters lie meanwhile.
    """

    def __init__(self, work: Callable[[], object], slot: int, number: int) -> None:
        super().__init__(work)
        self.slot, self.number = slot, number
        self.functions: dict[nn.Module, object] = {}
        self.stacks: list[Stack] = []

    def wait(self, what: Wait) -> Any:
        """Go on when the others have come as far; return what came of it."""
        assert self.parent is not None
        return self.parent.switch(what)


def current() -> Client | None:
    """Return the client that runs together with others here, if one does."""
    client = getcurrent()
    return client if isinstance(client, Client) else None


def run_together(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Let clients work, their steps together, and return what each of them returns.

    Parameters
    ----------
    works : sequence of callables
        None of them raises.
    """
    results: dict[Client, Any] = {}
    waiting: dict[Client, Wait] = {}

    def advance(client: Client, *answer: object, error: Exception | None = None) -> None:
        waiting.pop(client, None)
        what = client.throw(error) if error else client.switch(*answer)
        (results if client.dead else waiting)[client] = what

    clients = [Client(work, slot, len(works)) for slot, work in enumerate(works)]
    for client in clients:
        advance(client)
    stacks: dict[object, Stack] = defaultdict(Stack)
    optimizers = Optimizers()
    while waiting:
        if calls := [(client, what) for client, what in waiting.items() if isinstance(what, Call)]:
            for client, outputs in _called(calls, stacks):
                advance(client, outputs)
        elif losses := {client: what.loss for client, what in waiting.items() if isinstance(what, Gradient)}:
            error = _differentiate(list(losses.values()), stacks.values())
            for client in losses:
                advance(client, error=error)
        else:
            steps = {client: what.optimizer for client, what in waiting.items() if isinstance(what, Step)}
            optimizers.step(tuple(steps.values()))
            for client in steps:
                advance(client)
    return [results[client] for client in clients]


@contextmanager
def together(models: Mapping[str, nn.Module], batched: bool | str) -> Iterator[None]:
    """Let a client's models be called, and its steps be taken, together with those of others, if that can be.

    Parameters
    ----------
    models : mapping of str to Module
        The client's models. Those of one name and with the same layers are the same function.
    batched : bool or "auto"
        "auto": where it is known to be faster.
    """
    client = current()
    if client is None or not all(stackable(model, batched, client.number) for model in models.values()):
        yield
        return
    classes = {model: type(model) for model in models.values()}
    for name, model in models.items():
        layers = [(type(layer), layer.extra_repr()) for layer in model.modules()]
        client.functions[model] = (name, tuple(layers), next(model.parameters()).device)
        model.__class__ = _in_step(type(model))
    try:
        yield
    finally:
        for stack in client.stacks:
            stack.release(client.functions)
        client.functions.clear()
        client.stacks.clear()
        for model, own in classes.items():
            model.__class__ = own


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


def descend(optimizer: Optimizer, loss: Tensor, before: Callable[[], None] = lambda: None) -> None:
    """Take one step down a loss, together with others where this client runs together with them.

    Parameters
    ----------
    optimizer : Optimizer
        Its gradients are None.
    loss : Tensor
        A scalar.
    before : callable
        Called between gradient and step.
    """
    client = current()
    if client is None or not client.functions:
        loss.backward()  # type: ignore[no-untyped-call]
        before()
        optimizer.step()
    else:
        client.wait(Gradient(loss))
        before()
        client.wait(Step(optimizer))


def _called(calls: Sequence[tuple[Client, Call]], stacks: Mapping[object, "Stack"]) -> Iterator[tuple[Client, Any]]:
    """Yield each client with its outputs, or with None where its model is to be called alone."""
    alike = defaultdict(list)
    for client, call in calls:
        x = call.inputs
        alike[client.functions[call.model], x.shape[1:], x.dtype, x.device].append((client, call))
    for key, those in alike.items():
        outputs = stacks[key[0]].call(those) if len(those) > 1 else [None]
        yield from zip((client for client, _ in those), outputs, strict=True)


def _differentiate(losses: Sequence[Tensor], stacks: Iterable["Stack"]) -> Exception | None:
    try:
        torch.autograd.backward(losses)
    except RuntimeError as error:
        return error
    for stack in stacks:
        stack.spread()
    return None


def _in_step(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a class of models whose calls in training wait for those of others; a copy of one is called alone."""

    def forward(model: nn.Module, x: Tensor) -> Tensor:
        client, outputs = current(), None
        if client is not None and model in client.functions and model.training and torch.is_grad_enabled():
            outputs = client.wait(Call(model, x))
        alone: Callable[[nn.Module, Tensor], Tensor] = kind.forward
        return alone(model, x) if outputs is None else outputs

    return type(kind.__name__, (kind,), {"forward": forward})


class Stack:
    """The parameters of models of one function, stacked; the models' own are views of them."""

    def __init__(self) -> None:
        self._rows: dict[nn.Module, int] = {}
        self._parameters: list[tuple[nn.Parameter, ...]] = []
        self._own: list[tuple[Tensor, ...]] = []
        self._stacked: dict[str, Tensor] = {}
        self._function: Callable[[dict[str, Tensor], Tensor], Tensor] | None = None

    def call(self, those: Sequence[tuple[Client, Call]]) -> Sequence[Tensor | None]:
        """Return the outputs of some models; None for each where they cannot be called together."""
        models, inputs = [call.model for _, call in those], [call.inputs for _, call in those]
        if any(model not in self._rows for model in models):
            self._add(those)
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
            outputs = vmap(self._function)(stacked, torch.stack(inputs))
        except RuntimeError:  # a forward that is no plain chain of its layers
            return [None] * len(those)
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

    def _add(self, those: Sequence[tuple[Client, Call]]) -> None:
        """Stack the parameters of all models so far and of new ones."""
        for client, call in those:
            if call.model not in self._rows:
                client.stacks.append(self)
                self._rows[call.model] = len(self._rows)
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
