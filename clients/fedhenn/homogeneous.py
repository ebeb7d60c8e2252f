"""FedHeNN of models of one architecture, client side: towards the global model's kernel."""

from copy import deepcopy

from torch import Tensor

from clients.fedhenn.aligning import AligningClient
from hetfl_flwr.client import Metrics
from hetfl_flwr.learning.alignment.similarity import linear_cka, rbf_cka
from hetfl_flwr.learning.training import evaluate
from hetfl_flwr.wire.spec import Arrays, PayloadSpec
from hetfl_flwr.wire.weights import load_model_arrays, model_arrays, weights


class FedHeNNHomogeneousClient(AligningClient):
    """Trains the global model, and is pulled towards that model's kernel.

    Eq. (4): the client starts from the global model, whose kernel over the round's alignment set is K_target. The
    trained model is both uploaded and kept. Parameters as in `AligningClient`.

    Wire   as in `strategies.fedhenn.FedHeNNHomogeneous`.
    State  the model, and whether it has trained yet; with ``moments = "kept"`` the optimizer's moments.
    Departs from the paper: a client that has not trained yet is measured with the global model.
    """

    def download_spec(self) -> PayloadSpec:
        """Expect the global model, and the set to align on."""
        return weights(self.node.model) + self.set_spec("aligned", "R")

    def upload_spec(self) -> PayloadSpec:
        """Send the trained model."""
        return weights(self.node.model)

    def assess_spec(self) -> PayloadSpec:
        """Expect the global model."""
        return weights(self.node.model)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train the global model towards its own kernel for one round."""
        model = self.node.model
        self.load(model, {name: download[name] for name in weights(model).names})
        self.numbers["trained"] = 1
        aligned = self.samples_of(download["aligned"])
        cka = linear_cka if self.kernel == "linear" else self._rbf_cka
        metrics = self.train_aligned(round, aligned, self.represent(aligned), cka)
        return model_arrays(model), metrics

    def assess(self, download: Arrays) -> Metrics:
        """Measure the own model and the global model on the own test set."""
        shared = deepcopy(self.node.model)
        load_model_arrays(shared, download)
        if "trained" not in self.numbers:
            self.load(self.node.model, download)
        return {**super().assess(download), "global-accuracy": evaluate(shared, self.node.data.test).accuracy}

    def _rbf_cka(self, own: Tensor, target: Tensor) -> Tensor:
        return rbf_cka(self.in_units(own), self.in_units(target), self.sigma)
