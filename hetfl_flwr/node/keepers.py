"""What stays of a client between two messages: its Context alone, unless its engine, or its process, keeps more."""

import os
from typing import TYPE_CHECKING, Protocol, TypedDict, runtime_checkable

from flwr.app import Context

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import ClientData
from hetfl_flwr.node.pool import PublicSampleStore
from hetfl_flwr.node.state import Stamp, StateStore
from hetfl_flwr.node.stores import ContextStore

if TYPE_CHECKING:
    from hetfl_flwr.node.resident import Resident

KEEP = "HETFL_KEEP"
"""Environment variable: ``resident`` in a process that answers several messages of one app."""


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
class Keeper(Protocol):
    """Keeps a client, and what it is made of, for its next message. An engine's Context may be one.

    Attributes
    ----------
    store : StateStore
        Where the client's state lies if no state folder is set.
    around : NodeContext or None
        What its node has besides a model. None: not known yet.
    resident : Resident or None
        The client.
    """

    store: StateStore
    around: NodeContext | None
    resident: "Resident | None"


class ProcessKeeper:
    """Keeps the client of a process that answers several messages of one app; its state goes where it would without."""

    key = ""
    around: NodeContext | None = None
    resident: "Resident | None" = None

    def __init__(self) -> None:
        self.store: StateStore

    def of(self, context: Context) -> "ProcessKeeper":
        """Return the keeper of the client of a Context, which is another object for each message."""
        configs = [sorted(config.items()) for config in (context.run_config, context.node_config)]
        key = repr((context.run_id, context.node_id, *configs))
        self.store = ContextStore(context, str(context.run_id))
        if key != self.key:
            self.key, self.around, self.resident = key, None, None
        if self.around is not None:
            self.around["public_samples"].move(context)
            if isinstance(store := self.around["store"], ContextStore):
                store.move(context)
        return self


_process = ProcessKeeper()


def keeper_of(context: Context) -> Keeper | None:
    """Return who keeps what stays of a client: the Context itself where it can, or else the process, if it stays."""
    if isinstance(context, Keeper):
        return context
    return _process.of(context) if os.environ.get(KEEP) == "resident" else None
