"""FedHeNN, client side: alignment with the mean kernel of all clients, or with the kernel of the averaged model.

Makhija, Han, Ho and Ghosh, "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022.
"""

from copy import deepcopy
from math import sqrt
from typing import Annotated, Any

import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from torch import Tensor

from hetfl_flwr import (
    MIN_ALIGNED,
    SEEN,
    Arrays,
    Dim,
    KnowledgeClient,
    Metrics,
    Node,
    PayloadSpec,
    Terms,
    evaluate,
    generator,
    linear_cka,
    load_model_arrays,
    model_arrays,
    outputs,
    row_numbers,
    to_numpy,
    weights,
)
from strategies.fedhenn import RadSize, kernel_factor, representations


def _all_or_enough(rows: int) -> int:
    if rows != 0 and rows < MIN_ALIGNED:
        raise ValueError(f"expected 0 (all), or {MIN_ALIGNED} or more")
    return rows


class AligningClient(KnowledgeClient):
    """Trains on ``CE + eta(t) (1 - CKA(K, K_target))``, where K is the kernel of its representations.

    This is the base of both modes: Eq. (4)-(5) over the round's alignment set, for any target.

    The body sees the alignment set in evaluation mode, both in the loss and for the upload: running statistics are
    those of the client's own samples, and dropout causes no difference between clients. Each mini-batch costs a forward
    and a backward pass of the body over the set (``align-batch`` of its R rows), and products of matrices (R, D) and
    (R, r).

    Parameters
    ----------
    node : Node
        The client's node.
    rad_size
        As in `strategies.fedhenn.FedHeNN`.
    eta0 : float
        Weight of the alignment, 0 or more: ``eta(t) = eta0 sqrt(t)`` with t = 0 in the first round, because
        representations of untrained models are not useful yet. 0 is local training (heterogeneous) or FedAvg
        (homogeneous).
    align_batch : int
        Number of rows of the alignment set drawn for each mini-batch, 4 or more. 0, or at least the size of the set:
        all.
    """

    has_distillation_term = True

    def __init__(
        self,
        node: Node,
        *,
        rad_size: RadSize = 512,
        eta0: Annotated[float, Field(ge=0)] = 0.01,
        align_batch: Annotated[int, AfterValidator(_all_or_enough)] = 0,
    ) -> None:
        super().__init__(node)
        self.rad_size, self.eta0, self.align_batch = rad_size, eta0, align_batch

    def train_aligned(self, round: int, aligned: Tensor, target: Tensor) -> Metrics:
        """Train for one round.

        ``aligned`` is the alignment set (R, *shape), prepared for the model. ``target`` is a factor of K_target with a
        row for each sample; it is empty if there is no target yet.
        """
        eta = self.eta0 * sqrt(round - 1)
        body, measured = self.node.model.body, list[Tensor]()
        rng = generator(self.node.config.seed, self.node.client_id, round, "align")

        def loss(inputs: Tensor, labels: Tensor) -> Tensor | Terms:
            private = self.node.data_loss(self.node.model(inputs), labels)
            if eta == 0 or target.numel() == 0:
                return private
            rows: Tensor | slice = slice(None)
            if 0 < self.align_batch < len(aligned):
                rows = torch.from_numpy(rng.choice(len(aligned), self.align_batch, replace=False)).to(aligned.device)
            body.eval()
            own = body(aligned[rows])
            body.train()
            similarity = linear_cka(own, target[rows])
            measured.append(similarity.detach())
            return Terms(private, eta * (1 - similarity))

        samples, mean_loss = self.train(self.batches(round), loss)
        metrics: Metrics = {SEEN: samples, "train-loss": mean_loss, "eta": eta}
        return metrics | ({"cka": float(torch.stack(measured).mean())} if measured else {})

    def represent(self, rows: NDArray[Any]) -> Tensor:
        """Return the representations (R, D) of the samples of an alignment set."""
        return outputs(self.node.model.body, self.node.pool.samples, torch.from_numpy(rows).long()).float()

    def set_spec(self, name: str, rows: Dim) -> PayloadSpec:
        """Declare an alignment set: the numbers (R,) of its samples."""
        return PayloadSpec((row_numbers(name, rows, len(self.node.pool)),))

    def samples_of(self, rows: NDArray[Any]) -> Tensor:
        """Return the samples (R, *shape) of an alignment set, prepared for the model."""
        return self.node.pool.samples.batch(torch.from_numpy(rows).long())[0]


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
