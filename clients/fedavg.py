"""FedAvg, client side: local training of the global model.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from clients.base import KnowledgeClient, Metrics, Moments
from hetfl_flwr.learning.training import evaluate
from hetfl_flwr.node.node import Node
from hetfl_flwr.wire.messages import EXAMPLES, SEEN
from hetfl_flwr.wire.spec import Arrays, PayloadSpec
from hetfl_flwr.wire.weights import load_model_arrays, model_arrays, weights


class FedAvgClient(KnowledgeClient):
    """Trains the global model on its own data, with an optimizer that by default is reset every round.

    Wire   as in `strategies.fedavg.FedAvg`.
    State  none; with ``moments = "kept"`` the optimizer's moments.
    Departs from the paper: the optimizer is the run config's, by default Adam; the paper's is SGD without momentum.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    exchange_every : int
        How many times the local work of the run config (``local-batches`` or ``local-epochs``) lies between two
        exchanges, 1 or more. A round stays one exchange: it has the same bytes and so many times the steps, so that
        bytes a local step can be made to match another method's (Li et al., "FedH2L", Table 2).
    moments : {"reset", "kept"}
        "reset": each round's optimizer begins without moments, as if clients were stateless. "kept": it begins with
        those of the client's last round, although the global model is another one by now. With plain SGD the same.
    """

    def __init__(
        self, node: Node, *, exchange_every: Annotated[int, Field(ge=1)] = 1, moments: Moments = "reset"
    ) -> None:
        super().__init__(node)
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
        load_model_arrays(self.node.model, download)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            return functional.cross_entropy(self.node.model(inputs), labels)

        samples, mean_loss = self.train(
            self.batches(round, times=self.exchange_every), loss, self.optimizer(moments=self.moments)
        )
        return model_arrays(self.node.model), {SEEN: samples, "train-loss": mean_loss}

    def assess(self, download: Arrays) -> Metrics:
        """Measure the global model on the own test set."""
        return measured_as_global(self.node, download)


def measured_as_global(node: Node, download: Arrays) -> Metrics:
    """Put the global model in place of the client's own, and measure it on the client's test set."""
    load_model_arrays(node.model, download)
    measured = evaluate(node.model, node.data.test)
    return {
        "accuracy": measured.accuracy,
        "global-accuracy": measured.accuracy,
        "loss": measured.loss,
        EXAMPLES: measured.samples,
    }
