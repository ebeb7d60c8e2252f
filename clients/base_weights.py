"""Base class of client sides that train the global model and send it back."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from torch import nn

from clients.base_parts import SharedPartClient
from hetfl_flwr import Node


class GlobalModelClient(SharedPartClient):
    """Trains the global model on its own data.

    An algorithm may override `objective`. Averaging was published with plain SGD, which has no moments. The run
    config's ``moments`` sets what happens to an optimizer's moments between rounds, when another model replaces the
    trained one.

    State  none; with ``moments = "kept"`` the optimizer's moments.

    Parameters
    ----------
    node : Node
        The client's node.
    exchange_every : int
        The local work between two exchanges, as a multiple of that in the run config (``local-batches`` or
        ``local-epochs``), 1 or more. A round is still one exchange, with the same bytes and this many times the steps,
        so that the bytes per local step can match those of another method (Li et al., "FedH2L", Table 2).
    """

    fine_tunes = True

    def __init__(self, node: Node, *, exchange_every: Annotated[int, Field(ge=1)] = 1) -> None:
        super().__init__(node)
        self.exchange_every = exchange_every
        self.keeps_state = node.config.moments == "kept"

    def modules(self) -> Mapping[str, nn.Module]:
        """Keep no network: the model is part of each download."""
        return {}

    def local_steps(self, samples: int) -> int:
        """Return the number of steps between two exchanges."""
        return self.exchange_every * super().local_steps(samples)
