"""FedAvg, client half: local training of the global model.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from torch import Tensor
from torch.nn import functional

from clients.base import KnowledgeClient, Metrics
from hetfl_flwr.federation import EXAMPLES
from hetfl_flwr.payloads import Arrays, PayloadSpec, load_model_arrays, model_arrays, weights
from hetfl_flwr.training import evaluate, train


class FedAvgClient(KnowledgeClient):
    """Trains the global model on its own data, with an optimizer that starts anew in each round.

    Wire   as in `strategies.fedavg.FedAvg`.
    State  none.
    """

    keeps_state = False

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

        samples, mean_loss = train(self.node.data.train, self.batches(round), self.optimizer(), loss)
        return model_arrays(self.node.model), {EXAMPLES: samples, "train-loss": mean_loss}

    def assess(self, download: Arrays) -> Metrics:
        """Measure the global model on the own test set."""
        load_model_arrays(self.node.model, download)
        measured = evaluate(self.node.model, self.node.data.test)
        return {
            "accuracy": measured.accuracy,
            "global-accuracy": measured.accuracy,
            "loss": measured.loss,
            EXAMPLES: measured.samples,
        }
