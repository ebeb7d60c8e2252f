"""FedHeNN of heterogeneous models, client side: towards the mean kernel of all."""

import torch
from torch import Tensor

from clients.fedhenn.aligning import AligningClient
from hetfl_flwr.client import Metrics, to_numpy
from hetfl_flwr.learning.alignment.similarity import linear_cka, rbf_to_factor_cka
from hetfl_flwr.wire.spec import Arrays, Dim, PayloadSpec
from strategies.fedhenn.heterogeneous import kernel_factor, representations


class FedHeNNClient(AligningClient):
    """Is pulled towards the mean kernel of the last round's clients, and says what it makes of the next set.

    Eq. (5): K_target is K_mean over the round's alignment set; there is none in the first round. After training, the
    client uploads its representations of the set that the next round aligns on. Parameters as in `AligningClient`.

    Wire   as in `strategies.fedhenn.FedHeNN`.
    State  the model, the optimizer's moments.
    Departs from the paper: it leaves open what the optimizer keeps between rounds. Here its moments go on with the
    model, which stays with the client; in the authors' scripts they do not.
    """

    def download_spec(self) -> PayloadSpec:
        """Expect the set to align on with a factor of the mean kernel, and the set to represent."""
        most = self.rad_size
        factor = kernel_factor(Dim("R", most), Dim("r", most))
        return self.set_spec("aligned", "R") + factor + self.set_spec("asked", "Q")

    def upload_spec(self) -> PayloadSpec:
        """Send representations of the set asked for."""
        return representations(Dim("Q", self.rad_size), self.node.model.width)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train towards the mean kernel for one round, and represent the next set."""
        factor = torch.from_numpy(download["factor"]).to(self.node.device)
        cka = linear_cka if self.kernel == "linear" else self._rbf_cka
        metrics = self.train_aligned(round, self.samples_of(download["aligned"]), factor, cka)
        return {"representations": to_numpy(self.represent(self.samples_of(download["asked"])))}, metrics

    def _rbf_cka(self, own: Tensor, factor: Tensor) -> Tensor:
        return rbf_to_factor_cka(self.in_units(own), factor, self.sigma)
