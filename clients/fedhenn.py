"""FedHeNN, client side: local training whose representations are pulled towards those of the others.

Makhija, Han, Ho and Ghosh, "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from math import sqrt
from typing import Annotated, Any, Literal

import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from torch import Tensor, nn
from torch.nn import functional

from clients.base import KnowledgeClient, Metrics, to_numpy
from hetfl_flwr.learning.alignment import FEWEST_SAMPLES, linear_cka, rbf_cka, rbf_to_factor_cka
from hetfl_flwr.learning.training import EVALUATION_BATCH, Terms, evaluate, make_optimizer
from hetfl_flwr.node.node import Node
from hetfl_flwr.seeding import generator
from hetfl_flwr.wire.messages import EXAMPLES
from hetfl_flwr.wire.samples import stored
from hetfl_flwr.wire.spec import EMPTY, Arrays, Dim, PayloadSpec, row_numbers
from hetfl_flwr.wire.weights import load_model_arrays, model_arrays, weights
from strategies.fedhenn import kernel_factor, representations


def _all_or_enough(rows: int) -> int:
    if rows != 0 and rows < FEWEST_SAMPLES:
        raise ValueError(f"expected 0 (all), or {FEWEST_SAMPLES} or more")
    return rows


class FedHeNNClient(KnowledgeClient):
    """Trains on ``CE + eta(t) (1 - CKA(K, K_target))``, where K is the kernel of its representations.

    Eq. (4)-(5), over the round's alignment set. Heterogeneous: K_target is the mean kernel of the last round's clients
    (none in the first); after training, the client uploads its representations of the next set. Homogeneous: the client
    starts from the global model, K_target is that model's kernel, and the trained model is both uploaded and kept.

    The body sees the alignment set in evaluation mode, in the loss as for the upload: running statistics are those of
    the client's own samples, and dropout is no difference between clients. Each mini-batch costs one pass of the
    body over the set (``align-batch`` of its R rows), forward and backward, and products of matrices (R, D) and (R, r),
    for the RBF kernel (R, R) too.

    Wire   as in `strategies.fedhenn.FedHeNN`.
    State  the model; heterogeneous: the optimizer's moments; homogeneous: whether it has trained yet.
    Departs from the paper: heterogeneous clients go on with their optimizer from round to round (homogeneous ones
    start it again, as in FedAvg). A homogeneous client that has not trained yet is measured with the global model.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    mode, kernel, sigma, rad, rad_size
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

    def __init__(
        self,
        node: Node,
        *,
        mode: Literal["heterogeneous", "homogeneous"] = "heterogeneous",
        kernel: Literal["linear", "rbf"] = "linear",
        sigma: Annotated[float, Field(gt=0)] = 10.0,
        rad: Literal["index", "value"] = "index",
        rad_size: Annotated[int, Field(ge=FEWEST_SAMPLES)] = 512,
        eta0: Annotated[float, Field(ge=0)] = 0.01,
        schedule: Literal["sqrt", "constant"] = "sqrt",
        align_batch: Annotated[int, AfterValidator(_all_or_enough)] = 0,
    ) -> None:
        super().__init__(node)
        self.homogeneous = mode == "homogeneous"
        self.kernel, self.sigma = kernel, sigma
        self.rad, self.rad_size = rad, rad_size
        self.eta0, self.schedule, self.align_batch = eta0, schedule, align_batch

    def download_spec(self) -> PayloadSpec:
        """Expect the set to align on with the global model; or with a factor, and the set to represent."""
        aligned = self._rows_spec("aligned", "R")
        if self.homogeneous:
            return weights(self.node.model) + aligned
        most = self.rad_size
        return aligned + kernel_factor(Dim("R", most), Dim("r", most)) + self._rows_spec("asked", "Q")

    def upload_spec(self) -> PayloadSpec:
        """Send the trained model, or representations of the set asked for."""
        if self.homogeneous:
            return weights(self.node.model)
        return representations(Dim("Q", self.rad_size), self.node.model.width)

    def assess_spec(self) -> PayloadSpec:
        """Expect the global model, where there is one."""
        return weights(self.node.model) if self.homogeneous else EMPTY

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train with the alignment term for one round."""
        model, config = self.node.model, self.node.config
        if self.homogeneous:
            load_model_arrays(model, {name: download[name] for name in weights(model).names})
            self.numbers["trained"] = 1
        optimizer = make_optimizer(config, model.parameters()) if self.homogeneous else self.optimizer()
        eta = self.eta0 * (sqrt(round - 1) if self.schedule == "sqrt" else 1.0)
        similarity = self._similarity(download, round) if eta > 0 else None
        measured: list[Tensor] = []

        def loss(inputs: Tensor, labels: Tensor) -> Tensor | Terms:
            private = functional.cross_entropy(model(inputs), labels)
            if similarity is None:
                return private
            cka = similarity()
            measured.append(cka.detach())
            return Terms(private, eta * (1 - cka))

        samples, mean_loss = self.train(self.batches(round), loss, optimizer)
        metrics: Metrics = {EXAMPLES: samples, "train-loss": mean_loss, "eta": eta}
        if measured:
            metrics["cka"] = float(torch.stack(measured).mean())
        if self.homogeneous:
            return model_arrays(model), metrics
        return {"representations": to_numpy(self._represent(self._inputs(download["asked"])))}, metrics

    def assess(self, download: Arrays) -> Metrics:
        """Measure the own model on the own test set, and the global model where there is one."""
        if not self.homogeneous:
            return super().assess(download)
        shared = deepcopy(self.node.model)
        load_model_arrays(shared, download)
        if "trained" not in self.numbers:
            load_model_arrays(self.node.model, download)
        return {**super().assess(download), "global-accuracy": evaluate(shared, self.node.data.test).accuracy}

    def _similarity(self, download: Arrays, round: int) -> Callable[[], Tensor] | None:
        """Return the CKA of the model as it is by then with the target, or None where there is no target yet."""
        inputs = self._inputs(download["aligned"])
        if self.homogeneous:
            target = self._represent(inputs)
        else:
            target = torch.from_numpy(download["factor"]).to(self.node.device)
        if target.numel() == 0:
            return None
        body, size = self.node.model.body, self.align_batch
        rng = generator(self.node.config.seed, self.node.client_id, round, "align")

        def similarity() -> Tensor:
            if not 0 < size < len(inputs):
                return self._cka(body, inputs, target)
            rows = torch.from_numpy(rng.choice(len(inputs), size, replace=False)).to(inputs.device)
            return self._cka(body, inputs[rows], target[rows])

        return similarity

    def _cka(self, body: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
        with _evaluating(body):
            own = body(inputs)
        if self.kernel == "linear":
            return linear_cka(own, target)
        return (rbf_cka if self.homogeneous else rbf_to_factor_cka)(own, target, self.sigma)

    @torch.no_grad()
    def _represent(self, inputs: Tensor) -> Tensor:
        """Return what the body makes of samples, as a tensor (R, D)."""
        body = self.node.model.body
        with _evaluating(body):
            return torch.cat([body(some) for some in torch.split(inputs, EVALUATION_BATCH)]).float()

    def _rows_spec(self, name: str, letter: str) -> PayloadSpec:
        rows = Dim(letter, self.rad_size)
        if self.rad == "index":
            return PayloadSpec((row_numbers(name, rows, len(self.node.pool)),))
        return PayloadSpec((stored(name, rows, self.node.data.spec, self.node.dtype),))

    def _inputs(self, rows: NDArray[Any]) -> Tensor:
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
