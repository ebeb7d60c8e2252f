"""How a client takes its training steps: by itself, unless an engine lets it step together with others."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer


class Stepper(Protocol):
    """Takes the steps of one client."""

    def training(self, models: Mapping[str, nn.Module]) -> AbstractContextManager[None]:
        """Enclose one round of a client's training.

        Parameters
        ----------
        models : mapping of str to Module
            The client's models. Those of one name and with the same layers are the same function in all clients.
        """

    def descend(self, optimizer: Optimizer, loss: Tensor, before: Callable[[], None]) -> None:
        """Differentiate a loss, call `before`, and let the optimizer step."""


class PlainStepper:
    """Takes each step at once, by itself."""

    def training(self, models: Mapping[str, nn.Module]) -> AbstractContextManager[None]:
        """Enclose nothing."""
        return nullcontext()

    def descend(self, optimizer: Optimizer, loss: Tensor, before: Callable[[], None]) -> None:
        """Take the step."""
        loss.backward()  # type: ignore[no-untyped-call]
        before()
        optimizer.step()


PLAIN = PlainStepper()

stepper: ContextVar[Stepper] = ContextVar("stepper", default=PLAIN)
"""Who takes the steps of the client that runs here."""


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
    stepper.get().descend(optimizer, loss, before)
