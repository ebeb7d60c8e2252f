"""FedHeNN, client side: alignment with the mean kernel of all clients, or with the kernel of the averaged model.

Makhija, Han, Ho and Ghosh, "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022.
"""

from copy import deepcopy

import torch

from clients.base_aligned import AligningClient
from hetfl_flwr import (
    Arrays,
    Dim,
    Metrics,
    PayloadSpec,
    evaluate,
    load_model_arrays,
    model_arrays,
    to_numpy,
    weights,
)
from strategies.fedhenn import kernel_factor, representations


class FedHeNNClient(AligningClient):
    """Aligns with the mean kernel of the last round's clients, and uploads representations of the next alignment set.

    Eq. (5): K_target is K_mean over the round's alignment set; there is none in the first round. After training, the
    client uploads its representations of the set for the next round. Parameters as in `AligningClient`.

    Wire   as in `strategies.fedhenn.FedHeNN`.
    State  the model, the optimizer's moments.
    Departs from the paper: the paper does not say what the optimizer keeps between rounds. Here its moments are kept
    with the model, which stays on the client; in the authors' scripts they are reset.
    """

    def download_spec(self) -> PayloadSpec:
        """Expect the alignment set with a factor of the mean kernel, and the set to represent."""
        rows, rank, asked = (Dim(letter, self.rad_size) for letter in "RrQ")
        return self.set_spec("aligned", rows) + kernel_factor(rows, rank) + self.set_spec("asked", asked)

    def upload_spec(self) -> PayloadSpec:
        """Send representations of the requested set."""
        return representations(Dim("Q", self.rad_size), self.node.model.width)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train toward the mean kernel for one round, and represent the next set."""
        factor = torch.from_numpy(download["factor"]).to(self.node.device)
        metrics = self.train_aligned(round, self.samples_of(download["aligned"]), factor)
        return {"representations": to_numpy(self.represent(download["asked"]))}, metrics


class FedHeNNHomogeneousClient(AligningClient):
    """Trains the global model, and aligns with the kernel of that model.

    Eq. (4): the client starts from the global model; K_target is the kernel of the global model over the round's
    alignment set. The trained model is both uploaded and kept. Parameters as in `AligningClient`.

    Wire   as in `strategies.fedhenn.FedHeNNHomogeneous`.
    State  the model, and whether it has trained yet; with ``moments = "kept"`` the optimizer's moments.
    Departs from the paper: a client that has not trained yet is evaluated with the global model.
    """

    def download_spec(self) -> PayloadSpec:
        """Expect the global model and the alignment set."""
        return weights(self.node.model) + self.set_spec("aligned", Dim("R", self.rad_size))

    def upload_spec(self) -> PayloadSpec:
        """Send the trained model."""
        return weights(self.node.model)

    def assess_spec(self) -> PayloadSpec:
        """Expect the global model."""
        return weights(self.node.model)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train the global model toward its own kernel for one round."""
        model = self.node.model
        self.load(model, {name: download[name] for name in weights(model).names})
        self.numbers["trained"] = 1
        aligned = download["aligned"]
        metrics = self.train_aligned(round, self.samples_of(aligned), self.represent(aligned))
        return model_arrays(model), metrics

    def assess(self, download: Arrays) -> Metrics:
        """Evaluate the client's model and the global model on the client's test set."""
        shared = deepcopy(self.node.model)
        load_model_arrays(shared, download)
        if "trained" not in self.numbers:
            self.load(self.node.model, download)
        return {**super().assess(download), "global-accuracy": evaluate(shared, self.node.data.test).accuracy}


MODES = {"heterogeneous": FedHeNNClient, "homogeneous": FedHeNNHomogeneousClient}
"""The client side in each mode, as in `strategies.fedhenn.MODES`."""
