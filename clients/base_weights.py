"""Client sides that train the global model and send it back."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from torch import nn

from clients.base_parts import SharedPartClient
from hetfl_flwr import Node


class GlobalModelClient(SharedPartClient):
    """Trains the global model on its own data.

    An algorithm may override `objective`. Averaging was published with plain SGD, which has no moments: what becomes of
    an optimizer's between rounds, where another model replaces the one that it has stepped, is the run config's
    ``moments``.

    State  none; with ``moments = "kept"`` the optimizer's moments.

    Parameters
    ----------
    node : Node
        The client's node.
    exchange_every : int
        How many times the local work of the run config (``local-batches`` or ``local-epochs``) lies between two
        exchanges, 1 or more. A round stays one exchange: it has the same bytes and so many times the steps, so that
        bytes a local step can be made to match another method's (Li et al., "FedH2L", Table 2).
    """

    fine_tunes = True

    def __init__(self, node: Node, *, exchange_every: Annotated[int, Field(ge=1)] = 1) -> None:
        super().__init__(node)
        self.exchange_every = exchange_every
        self.keeps_state = node.config.moments == "kept"

    def modules(self) -> Mapping[str, nn.Module]:
        """Keep no network: the model comes with each download."""
        return {}

    def local_steps(self, samples: int) -> int:
        """Return as many steps as ``exchange-every`` lets lie between two exchanges."""
        return self.exchange_every * super().local_steps(samples)
