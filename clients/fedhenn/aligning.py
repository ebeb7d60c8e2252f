"""What both modes of FedHeNN share on the client: training that is pulled towards a kernel, whosever it is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import sqrt
from typing import Annotated, Any, Literal

import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from hetfl_flwr.client import KnowledgeClient, Metrics
from hetfl_flwr.common.seeding import generator
from hetfl_flwr.learning.alignment.similarity import FEWEST_SAMPLES, median_scaled
from hetfl_flwr.learning.training import EVALUATION_BATCH, Terms
from hetfl_flwr.node.node import Node
from hetfl_flwr.wire.messages import SEEN
from hetfl_flwr.wire.samples import stored
from hetfl_flwr.wire.spec import Dim, PayloadSpec, row_numbers


def _all_or_enough(rows: int) -> int:
    if rows != 0 and rows < FEWEST_SAMPLES:
        raise ValueError(f"expected 0 (all), or {FEWEST_SAMPLES} or more")
    return rows


class AligningClient(KnowledgeClient):
    """Trains on ``CE + eta(t) (1 - CKA(K, K_target))``, where K is the kernel of its representations.

    What both modes share: Eq. (4)-(5) over the round's alignment set, towards any target.

    The body sees the alignment set in evaluation mode, in the loss as for the upload: running statistics are those of
    the client's own samples, and dropout is no difference between clients. Each mini-batch costs one pass of the
    body over the set (``align-batch`` of its R rows), forward and backward, and products of matrices (R, D) and (R, r),
    for the RBF kernel (R, R) too.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    kernel, sigma, sigma_unit, rad, rad_size
        As in `strategies.fedhenn.FedHeNN`.
    eta0 : float
        Weight of the alignment, 0 or more. 0 is local training (heterogeneous) or FedAvg (homogeneous).
    schedule : {"sqrt", "constant"}
        "sqrt": ``eta(t) = eta0 sqrt(t)`` with t = 0 in the first round; representations of untrained models are a poor
        guide. "constant": ``eta(t) = eta0``.
    align_batch : int
        Rows of the alignment set drawn for each mini-batch, 4 or more. 0, or as many as there are: all.
    """

    has_distillation_term = True
    tuned = "eta0"

    def __init__(
        self,
        node: Node,
        *,
        kernel: Literal["linear", "rbf"] = "linear",
        sigma: Annotated[float, Field(gt=0)] = 10.0,
        sigma_unit: Literal["one", "median"] = "one",
        rad: Literal["index", "value"] = "index",
        rad_size: Annotated[int, Field(ge=FEWEST_SAMPLES)] = 512,
        eta0: Annotated[float, Field(ge=0)] = 0.01,
        schedule: Literal["sqrt", "constant"] = "sqrt",
        align_batch: Annotated[int, AfterValidator(_all_or_enough)] = 0,
    ) -> None:
        super().__init__(node)
        self.kernel, self.sigma, self.sigma_unit = kernel, sigma, sigma_unit
        self.rad, self.rad_size = rad, rad_size
        self.eta0, self.schedule, self.align_batch = eta0, schedule, align_batch

    def eta(self, round: int) -> float:
        """Return the weight of the alignment in a round, from 1."""
        return self.eta0 * (sqrt(round - 1) if self.schedule == "sqrt" else 1.0)

    def train_aligned(
        self, round: int, aligned: Tensor, target: Tensor, cka: Callable[[Tensor, Tensor], Tensor]
    ) -> Metrics:
        """Train for one round.

        Parameters
        ----------
        round : int
            The round, from 1.
        aligned : Tensor
            The alignment set (R, *shape), ready for the model.
        target : Tensor
            What stands for K_target, a row for each of the R samples. Without entries: there is none yet.
        cka : callable
            From representations (R, D) and the target to the CKA of their kernels.
        """
        eta, body, measured = self.eta(round), self.node.model.body, list[Tensor]()
        rng = generator(self.node.config.seed, self.node.client_id, round, "align")

        def loss(inputs: Tensor, labels: Tensor) -> Tensor | Terms:
            private = self.node.data_loss(self.node.model(inputs), labels)
            if eta == 0 or target.numel() == 0:
                return private
            rows: Tensor | slice = slice(None)
            if 0 < self.align_batch < len(aligned):
                rows = torch.from_numpy(rng.choice(len(aligned), self.align_batch, replace=False)).to(aligned.device)
            with _evaluating(body):
                own = body(aligned[rows])
            similarity = cka(own, target[rows])
            measured.append(similarity.detach())
            return Terms(private, eta * (1 - similarity))

        samples, mean_loss = self.train(self.batches(round), loss)
        metrics: Metrics = {SEEN: samples, "train-loss": mean_loss, "eta": eta}
        return metrics | ({"cka": float(torch.stack(measured).mean())} if measured else {})

    def in_units(self, representations: Tensor) -> Tensor:
        """Return representations (R, D) in the units of the RBF kernel's sigma."""
        return median_scaled(representations) if self.sigma_unit == "median" else representations

    @torch.no_grad()
    def represent(self, inputs: Tensor) -> Tensor:
        """Return what the body makes of samples, as a tensor (R, D)."""
        body = self.node.model.body
        with _evaluating(body):
            return torch.cat([body(some) for some in torch.split(inputs, EVALUATION_BATCH)]).float()

    def set_spec(self, name: str, letter: str) -> PayloadSpec:
        """Declare an alignment set, of R rows or whatever the letter is."""
        rows = Dim(letter, self.rad_size)
        if self.rad == "index":
            return PayloadSpec((row_numbers(name, rows, len(self.node.pool)),))
        return PayloadSpec((stored(name, rows, self.node.data.spec, self.node.dtype),))

    def samples_of(self, rows: NDArray[Any]) -> Tensor:
        """Return the samples of an alignment set (R, *shape), ready for the model."""
        if self.rad == "index":
            return self.node.pool.samples.batch(torch.from_numpy(rows).long())[0]
        samples = self.node.data.train.like(torch.from_numpy(rows), torch.zeros(len(rows)).long())
        return samples.batch(torch.arange(len(rows)))[0]


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    module.eval()
    yield
    module.train()
