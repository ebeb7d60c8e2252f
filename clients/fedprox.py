"""FedProx, client side: local training of the global model, held near it.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv 1812.06127).
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from clients.base import KnowledgeClient, Metrics, Moments
from clients.fedavg import measured_as_global
from hetfl_flwr.learning.training import Terms
from hetfl_flwr.node.node import Node
from hetfl_flwr.wire.messages import SEEN
from hetfl_flwr.wire.spec import Arrays, PayloadSpec
from hetfl_flwr.wire.weights import load_model_arrays, model_arrays, weights


class FedProxClient(KnowledgeClient):
    """Trains the global model on ``CE + mu / 2 ||w - w_t||^2``, with an optimizer that is reset every round by default.

    Eq. (2): w are the parameters, w_t those that the round began with; one that is not trained has not moved. The norm
    is squared (Flower's example leaves the square out). Running statistics have no part in it.

    Wire   as in `strategies.fedavg.FedAvg`.
    State  as in `clients.fedavg.FedAvgClient`.
    Departs from the paper: all clients do the same amount of work, and their weights are averaged by their numbers of
    training samples (the paper draws clients by these and averages them equally).

    Parameters
    ----------
    node : Node
        The client's surroundings.
    mu : float
        Weight of the proximal term, 0 or more. 0 is FedAvg.
    exchange_every, moments
        As in `clients.fedavg.FedAvgClient`.
    """

    has_distillation_term = True

    def __init__(
        self,
        node: Node,
        *,
        mu: Annotated[float, Field(ge=0)] = 0.01,
        exchange_every: Annotated[int, Field(ge=1)] = 1,
        moments: Moments = "reset",
    ) -> None:
        super().__init__(node)
        self.mu = mu
        self.exchange_every = exchange_every
        self.moments = moments
        self.keeps_state = moments == "kept"

    def modules(self) -> Mapping[str, nn.Module]:
        """Keep no network: the model comes with each download."""
        return {}

    def download_spec(self) -> PayloadSpec:
        """Expect the global model."""
        return weights(self.node.model)

    def upload_spec(self) -> PayloadSpec:
        """Send the trained model."""
        return weights(self.node.model)

    def assess_spec(self) -> PayloadSpec:
        """Expect the global model."""
        return weights(self.node.model)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train the global model for one round."""
        model = self.node.model
        load_model_arrays(model, download)
        start = parameters_to_vector(model.parameters()).detach()

        def loss(inputs: Tensor, labels: Tensor) -> Terms:
            way = parameters_to_vector(model.parameters()) - start
            return Terms(functional.cross_entropy(model(inputs), labels), self.mu / 2 * way.square().sum())

        samples, mean_loss = self.train(
            self.batches(round, times=self.exchange_every), loss, self.optimizer(moments=self.moments)
        )
        return model_arrays(model), {SEEN: samples, "train-loss": mean_loss}

    def assess(self, download: Arrays) -> Metrics:
        """Measure the global model on the own test set."""
        return measured_as_global(self.node, download)
