"""What a client is made of besides its model, and who keeps it between two messages."""

from collections.abc import Callable
from typing import Protocol, TypedDict, runtime_checkable

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import ClientData
from hetfl_flwr.models import SplitModel
from hetfl_flwr.node.pool import PublicSampleStore
from hetfl_flwr.node.state import Stamp, StateStore


class NodeContext(TypedDict):
    """What a `Node` has besides its model."""

    config: RunConfig
    client_id: int
    clients: int
    model_name: str
    why: str
    data: ClientData
    store: StateStore
    stamp: Stamp
    public_samples: PublicSampleStore


@runtime_checkable
class ClientCache(Protocol):
    """A Context that an engine keeps in its own process, with what can be used again for the next message."""

    @property
    def store(self) -> StateStore:
        """Where the client's state lies if no state folder is set."""

    def surroundings(self, make: Callable[[], NodeContext]) -> NodeContext:
        """Return what `make` makes, or has made for an earlier message."""

    def trained_model(self, around: NodeContext) -> SplitModel | None:
        """Return a model with the weights that were saved last, ready for training; None: one is to be built."""
