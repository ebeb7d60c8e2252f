"""CHFL, client half: the own head learns from the sum of all heads, on the client's own features.

Liu, Yang, Cai, Ding and Lu, "Completely Heterogeneous Federated Learning", 2022 (arXiv 2210.15865).
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from clients.base import KnowledgeClient, Metrics
from hetfl_flwr.federation import EXAMPLES
from hetfl_flwr.node import Node
from hetfl_flwr.payloads import EMPTY, Arrays, PayloadSpec, linear_head, summed_heads
from hetfl_flwr.teachers import HeadTeacher, check_bias, head_arrays
from hetfl_flwr.training import Terms


class CHFLClient(KnowledgeClient):
    """Trains on ``CE + alpha * (target term + non-target term)``, the teacher being the global head on own features.

    Eq. (5)-(7), Algorithm 1, with the losses of `hetfl_flwr.distillation.decoupled_kd`. From round 2 on. The teacher's
    logits are fixed within an epoch: computed once at its start, in evaluation mode (no dropout, batch norm by its
    running statistics), so that they depend on no other sample of the batch and training consumes the same random
    numbers as without them. That is one more forward pass an epoch.

    The temperature falls with the epochs of the whole run, counted from 1 to ``rounds * local-epochs``; where
    ``local-batches`` is above 0, a round counts as one. It acts on the non-target term alone: nothing with 2 classes.

    Wire   as in `strategies.chfl.CHFL`.
    State  the model, the optimizer's moments.
    Departs from the paper: the length of a round is the run config's (the paper's is one epoch: ``local-batches = 0``).
    By default a client is measured with its own head as it has trained it, also where the next round begins with the
    mean: see ``measured``.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    mode : {"kd", "solo", "avg", "avgkd"}
        "kd": the paper's method. "avg": the mean of all heads replaces the own one at the start of each round, whose
        optimizer's moments stay; with one client this is local training. "avgkd": both at once. "solo": local training.
    reduce : {"sum", "mean"}
        What the teacher is: the sum of the heads (Eq. 4 as printed, which sharpens the teacher's softmax as clients
        become more) or their mean. No meaning where nothing is distilled.
    alpha : float
        Weight of the distillation, 0 or more. With 0, "kd" is local training and "avgkd" is "avg".
    measured : {"trained", "averaged"}
        Which head a client is measured with in the modes "avg" and "avgkd", the paper does not say: the own one after
        its training, or the mean of all that the next round begins with. No meaning in other modes.
    beta : float
        Half the height of the temperature's fall, which begins at nearly ``2 beta + 1`` and ends at 1; 0 or more. 0: a
        temperature of 1 throughout.

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
        mode: Literal["kd", "solo", "avg", "avgkd"] = "kd",
        reduce: Literal["sum", "mean"] = "sum",
        alpha: Annotated[float, Field(ge=0)] = 0.5,
        measured: Literal["trained", "averaged"] = "trained",
        beta: Annotated[float, Field(ge=0)] = 5.0,
    ) -> None:
        super().__init__(node)
        if mode != "solo":
            check_bias(node, "chfl")
        self.mode = mode
        self.reduce = reduce
        self.alpha = alpha
        self.measured = measured
        self.beta = beta

    def download_spec(self) -> PayloadSpec:
        """Expect the sum of all heads, and their number."""
        return EMPTY if self.mode == "solo" else summed_heads(self.node.model.classes, self.node.model.width)

    def upload_spec(self) -> PayloadSpec:
        """Send the own head."""
        return EMPTY if self.mode == "solo" else linear_head(self.node.model.classes, self.node.model.width)

    def assess_spec(self) -> PayloadSpec:
        """Expect the same as for training, where the mean of the heads is measured."""
        return self.download_spec() if self.measured == "averaged" else EMPTY

    def assess(self, download: Arrays) -> Metrics:
        """Measure the own model, or the own body with the mean of all heads."""
        if self.measured == "averaged":
            self._take_up(download)
        return super().assess(download)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train, epoch by epoch, each beginning with the teacher's logits on its samples."""
        teacher = self._take_up(download)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor | Terms:
            logits = self.node.model(inputs)
            private = functional.cross_entropy(logits, labels)
            if teacher is None:
                return private
            return Terms(private, self.alpha * teacher.distance(logits, labels))

        batches = self.batches(round) if teacher is None else teacher.batches(self.epochs(round), round)
        samples, mean_loss = self.train(batches, loss)
        metrics: Metrics = {EXAMPLES: samples, "train-loss": mean_loss}
        if teacher is not None:
            metrics |= teacher.metrics(samples)
        return {} if self.mode == "solo" else head_arrays(self.node.model), metrics

    def _take_up(self, download: Arrays) -> HeadTeacher | None:
        """Begin with the mean of all heads, if the mode says so, and return the teacher, if there is one."""
        heads = int(download["heads"]) if self.mode != "solo" else 0
        if heads == 0:
            return None
        if self.mode in ("avg", "avgkd"):
            with torch.no_grad():
                self.node.model.head.weight.copy_(torch.from_numpy(download["weight"]) / heads)
                self.node.model.head.bias.copy_(torch.from_numpy(download["bias"]) / heads)
        if self.mode == "avg" or self.alpha == 0:
            return None
        return HeadTeacher.of(self.node, download, self.reduce, self.beta)
