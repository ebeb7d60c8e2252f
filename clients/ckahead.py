"""CKAHead, client half: representations are aligned with those of the others, and their mean head teaches the own one.

A combination of FedHeNN (Makhija et al. 2022) and CHFL (Liu et al. 2022) by this project, and of no paper.
"""

from math import sqrt
from typing import Annotated, Any, Literal

import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from clients.base import KnowledgeClient, Metrics, to_numpy
from hetfl_flwr.alignment import FEWEST_SAMPLES
from hetfl_flwr.federation import EXAMPLES
from hetfl_flwr.node import Node
from hetfl_flwr.payloads import (
    Arrays,
    Dim,
    PayloadSpec,
    kernel_factor,
    linear_head,
    numbered_rows,
    representations,
    summed_heads,
)
from hetfl_flwr.teachers import HeadTeacher, KernelTeacher, check_bias, head_arrays, represent
from hetfl_flwr.training import Terms


class CKAHeadClient(KnowledgeClient):
    """Trains on ``CE + eta(t) (1 - CKA(K, K_mean)) + alpha * (target term + non-target term)``.

    - CE: cross-entropy on the client's own labels.
    - 1 - CKA: FedHeNN Eq. (5), between the linear kernels of the own representations of the round's alignment set and
      of the mean over the last round's clients; nothing in the first round.
    - target and non-target term: CHFL Eq. (5)-(7), decoupled distillation from the head of all, on the client's own
      features, to the own head; nothing while there is no head of others.

    Alignment is to let heads see features alike. CKA knows no rotation of the features, to which a head is not
    indifferent; so it is only a part of the way. Each mini-batch costs one pass of the body over the alignment set,
    forward and backward.

    Wire   as in `strategies.ckahead.CKAHead`.
    State  the model, the optimizer's moments.
    Departs from the papers: as `clients.fedhenn.FedHeNNClient` and `clients.chfl.CHFLClient`; the head of all is the
    mean by default, not the sum. CHFL's beta, for the temperature, is 5.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    rad_size
        As in `strategies.ckahead.CKAHead`.
    eta0 : float
        Weight of the alignment, ``eta(t) = eta0 sqrt(t)`` with t = 0 in the first round, 0 or more; ten times
        FedHeNN's by default. 0 leaves CHFL with the same ``reduce``.
    alpha : float
        Weight of the distillation, 0 or more. 0 leaves FedHeNN, on models of equal width. Both 0: local training.
    reduce : {"mean", "sum"}
        Which head teaches: the mean of all, or their sum, which is surer the more clients there are.

    Raises
    ------
    ModelError
        The model's head has no bias.
    """

    two_terms = True

    def __init__(
        self,
        node: Node,
        *,
        rad_size: Annotated[int, Field(ge=FEWEST_SAMPLES)] = 512,
        eta0: Annotated[float, Field(ge=0)] = 0.1,
        alpha: Annotated[float, Field(ge=0)] = 0.5,
        reduce: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__(node)
        check_bias(node, "ckahead")
        self.rad_size, self.eta0, self.alpha, self.reduce = rad_size, eta0, alpha, reduce

    def download_spec(self) -> PayloadSpec:
        """Expect the set to align on with a factor, the set to represent, the sum of all heads, and their number."""
        most, pool = self.rad_size, len(self.node.pool)
        aligned, asked = numbered_rows("aligned", Dim("R", most), pool), numbered_rows("asked", Dim("Q", most), pool)
        heads = summed_heads(self.node.model.classes, self.node.model.width)
        return aligned + kernel_factor(Dim("R", most), Dim("r", most)) + asked + heads

    def upload_spec(self) -> PayloadSpec:
        """Send representations of the set asked for, and the own head."""
        width = self.node.model.width
        return representations(Dim("Q", self.rad_size), width) + linear_head(self.node.model.classes, width)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train, and represent the next set."""
        body, eta = self.node.model.body, self.eta0 * sqrt(round - 1)
        kernel = head = None
        if eta > 0 and download["factor"].size > 0:
            factor = torch.from_numpy(download["factor"]).to(self.node.device)
            kernel = KernelTeacher(body, self._inputs(download["aligned"]), factor)
        if self.alpha > 0:
            head = HeadTeacher.of(self.node, download, self.reduce)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor | Terms:
            logits = self.node.model(inputs)
            private = functional.cross_entropy(logits, labels)
            taught = []
            if kernel is not None:
                taught.append(eta * kernel.distance())
            if head is not None:
                taught.append(self.alpha * head.distance(logits, labels))
            return Terms(private, torch.stack(taught).sum()) if taught else private

        batches = self.batches(round) if head is None else head.batches(self.epochs(round), round)
        samples, mean_loss = self.train(batches, loss)
        metrics: Metrics = {EXAMPLES: samples, "train-loss": mean_loss, "eta": eta}
        metrics |= kernel.metrics() if kernel is not None else {}
        metrics |= head.metrics(samples) if head is not None else {}
        represented = {"representations": to_numpy(represent(body, self._inputs(download["asked"])))}
        return {**represented, **head_arrays(self.node.model)}, metrics

    def _inputs(self, rows: NDArray[Any]) -> Tensor:
        """Return public rows (R, *shape) by number, ready for the model."""
        return self.node.pool.samples.batch(torch.from_numpy(rows).long())[0]
