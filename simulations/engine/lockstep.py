"""Clients of one architecture that take their training steps together, as one model with an axis more.

Each client's code runs as it is, in a coroutine of its own that waits in two places: where its model is called in
training, and where it takes a step (`hetfl_flwr.learning.stepping`). When all have come as far as they can, the models
are called as one by ``torch.func.vmap`` over their stacked parameters, all losses are differentiated in one backward
pass, and one optimizer steps all parameters. A client's own parameters are views of the stacked ones meanwhile, so that
what else it does with them (a proximal term, a projection of its gradient, a call of the body alone) holds as before.

Sums are taken in another order than one by one, so results are equal within float tolerance, not bit by bit.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.common.seeding import generators_kept
from hetfl_flwr.learning.stepping import PLAIN, stepper
from simulations.engine.stacks import Optimizers, Stack, stackable

try:
    from greenlet import greenlet
except ModuleNotFoundError:
    raise ConfigError("batched = true or auto needs the package greenlet: pip install 'hetfl[batched]'") from None


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
    """One client's coroutine among those that run together, which takes its steps with theirs: a `Stepper`.

    Parameters
    ----------
    work : callable
        What it does.
    clients : int
        How many run together.
    batched : bool or "auto"
        Which models are called together; "auto": those for which it is known to be faster.

    Attributes
    ----------
    functions : dict
        What is called together with others: for each of its models what function it is, models of one being alike.
    stacks : set of Stack
        Where its parameters lie meanwhile.
    """

    def __init__(self, work: Callable[[], object], clients: int, batched: bool | str) -> None:
        super().__init__(work)
        self.gr_context = copy_context()
        self.gr_context.run(stepper.set, self)
        self._clients, self._batched = clients, batched
        self.functions: dict[nn.Module, object] = {}
        self.stacks: set[Stack] = set()

    def wait(self, what: Wait) -> Any:
        """Go on when the others have come as far; return what came of it."""
        assert self.parent is not None
        return self.parent.switch(what)

    @contextmanager
    def training(self, models: Mapping[str, nn.Module]) -> Iterator[None]:
        """Let the client's models be called, and its steps be taken, together with those of others, if that can be."""
        if not all(stackable(model, self._batched, self._clients) for model in models.values()):
            yield
            return
        classes = {model: type(model) for model in models.values()}
        for name, model in models.items():
            layers = [(type(layer), layer.extra_repr()) for layer in model.modules()]
            self.functions[model] = (name, tuple(layers), next(model.parameters()).device)
            model.__class__ = _in_step(type(model), self)
        try:
            yield
        finally:
            for stack in self.stacks:
                stack.release(self.functions)
            self.functions.clear()
            self.stacks.clear()
            for model, own in classes.items():
                model.__class__ = own

    def descend(self, optimizer: Optimizer, loss: Tensor, before: Callable[[], None]) -> None:
        """Take one step down a loss, together with others if the models are called together."""
        if not self.functions:
            PLAIN.descend(optimizer, loss, before)
            return
        self.wait(Gradient(loss))
        before()
        self.wait(Step(optimizer))


def run_together(works: Sequence[Callable[[], Any]], batched: bool | str) -> list[Any]:
    """Let clients work, their steps together, and return what each of them returns.

    Parameters
    ----------
    works : sequence of callables
        None of them raises.
    batched : bool or "auto"
        Which models are called together, as in `stackable`.
    """
    results: dict[Client, Any] = {}
    waiting: dict[Client, Wait] = {}

    def advance(client: Client, *answer: object, error: Exception | None = None) -> None:
        waiting.pop(client, None)
        what = client.throw(error) if error else client.switch(*answer)
        (results if client.dead else waiting)[client] = what

    clients = [Client(work, len(works), batched) for work in works]
    stacks: dict[object, Stack] = defaultdict(Stack)
    optimizers = Optimizers()
    with generators_kept():  # each client puts them back as another one has left them
        for client in clients:
            advance(client)
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


def _called(calls: Sequence[tuple[Client, Call]], stacks: Mapping[object, Stack]) -> Iterator[tuple[Client, Any]]:
    """Yield each client with its outputs, or with None where its model is to be called alone."""
    alike = defaultdict(list)
    for client, call in calls:
        x = call.inputs
        alike[client.functions[call.model], x.shape[1:], x.dtype, x.device].append((client, call))
    for key, those in alike.items():
        outputs: Sequence[Tensor | None] = [None]
        if len(those) > 1:
            stack = stacks[key[0]]
            for client, _ in those:
                client.stacks.add(stack)
            outputs = stack.call([call.model for _, call in those], [call.inputs for _, call in those])
        yield from zip((client for client, _ in those), outputs, strict=True)


def _differentiate(losses: Sequence[Tensor], stacks: Iterable[Stack]) -> Exception | None:
    try:
        torch.autograd.backward(losses)
    except RuntimeError as error:
        return error
    for stack in stacks:
        stack.spread()
    return None


def _in_step(kind: type[nn.Module], client: Client) -> type[nn.Module]:
    """Return a class of models whose calls in training wait for those of others; a copy of one is called alone."""

    def forward(model: nn.Module, x: Tensor) -> Tensor:
        outputs = None
        if model in client.functions and model.training and torch.is_grad_enabled():
            outputs = client.wait(Call(model, x))
        alone: Callable[[nn.Module, Tensor], Tensor] = kind.forward
        return alone(model, x) if outputs is None else outputs

    return type(kind.__name__, (kind,), {"forward": forward})
