"""FedProx, client side: local training that stays near the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv 1812.06127).
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from clients.base_weights import GlobalModelClient
from hetfl_flwr import Loss, Node, Terms


class FedProxClient(GlobalModelClient):
    """Trains the global model on ``CE + mu / 2 ||w - w_t||^2``.

    Eq. (2): w are the parameters, and w_t their values at the start of the round. The norm is squared (Flower's example
    omits the square). Frozen parameters contribute 0, and running statistics are not included.

    Wire   as in `strategies.fedavg.FedAvg`.
    State  as in `clients.base_weights.GlobalModelClient`.
    Departs from the paper: all clients do the same amount of work, and the average is weighted by their numbers of
    training samples (the paper samples clients in proportion to these numbers, and averages with equal weights).

    Parameters
    ----------
    node, exchange_every
        As in `clients.base_weights.GlobalModelClient`.
    mu : float
        Weight of the proximal term, 0 or more. 0 is FedAvg.
    """

    has_distillation_term = True

    def __init__(
        self,
        node: Node,
        *,
        mu: Annotated[float, Field(ge=0)] = 0.01,
        exchange_every: Annotated[int, Field(ge=1)] = 1,
    ) -> None:
        super().__init__(node, exchange_every=exchange_every)
        self.mu = mu

    def objective(self) -> Loss:
        """Return the cross-entropy, and the proximal term around the weights at the start of the round."""
        model = self.node.model
        start = parameters_to_vector(model.parameters()).detach()

        def loss(inputs: Tensor, labels: Tensor) -> Terms:
            way = parameters_to_vector(model.parameters()) - start
            return Terms(self.node.data_loss(model(inputs), labels), self.mu / 2 * way.square().sum())

        return loss
