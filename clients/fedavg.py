"""FedAvg, client side: local training of the global model.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from torch import Tensor

from clients.base_weights import GlobalModelClient
from hetfl_flwr.learning.training import Loss


class FedAvgClient(GlobalModelClient):
    """Trains the global model on its own data.

    Wire   as in `strategies.fedavg.FedAvg`.
    State  as in `clients.base_weights.GlobalModelClient`.
    Departs from the paper: the optimizer is the run config's, by default Adam; the paper's is SGD without momentum.

    Parameters
    ----------
    node, exchange_every, fine_tune_epochs
        As in `clients.base_weights.GlobalModelClient`.
    """

    def objective(self) -> Loss:
        """Return the cross-entropy."""

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            return self.node.data_loss(self.node.model(inputs), labels)

        return loss
