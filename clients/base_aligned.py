"""Base class of FedHeNN's clients: local training that aligns representations with a kernel.

Makhija, Han, Ho and Ghosh, "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022.
"""

from math import sqrt
from typing import Annotated, Any

import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from torch import Tensor

from hetfl_flwr import (
    MIN_ALIGNED,
    SEEN,
    Dim,
    KnowledgeClient,
    Metrics,
    Node,
    PayloadSpec,
    Terms,
    generator,
    linear_cka,
    outputs,
    row_numbers,
)
from strategies.fedhenn import RadSize


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
