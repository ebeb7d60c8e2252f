"""LogitHead, client half: taught by the average logits of each sample's class and by the mean of all heads.

A combination of FedHe (Chan and Ngai 2021) and CHFL (Liu et al. 2022) by this project, and of no paper.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from clients.base import KnowledgeClient, Metrics, to_numpy
from hetfl_flwr.distillation import class_logit_loss
from hetfl_flwr.federation import EXAMPLES
from hetfl_flwr.node import Node
from hetfl_flwr.payloads import Arrays, PayloadSpec, class_logits, known_class_logits, linear_head, summed_heads
from hetfl_flwr.teachers import HeadTeacher, check_bias, head_arrays
from hetfl_flwr.training import Terms


class LogitHeadClient(KnowledgeClient):
    """Trains on ``CE + alpha * logit_loss(p_i, p_server[y_i]) + beta * (target term + non-target term)``.

    - CE: cross-entropy on the client's own labels.
    - logit_loss: FedHe Eq. (11)-(13), the own logits against the server's average logits of the sample's class; nothing
      for a class that the server knows nothing of.
    - target and non-target term: CHFL Eq. (5)-(7), decoupled distillation from the head of all, on the client's own
      features, to the own head; nothing while there is no head of others.

    Class logits are alike for all samples of a class; a head tells them apart. The upload is FedHe's, Eq. (7)-(8), and
    the own head.

    Wire   as in `strategies.logithead.LogitHead`.
    State  the model, the optimizer's moments.
    Departs from the papers: as `clients.fedhe.FedHeClient` and `clients.chfl.CHFLClient`; the head of all is the mean
    by default, not the sum. CHFL's beta, for the temperature, is 5.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    alpha : float
        Weight of the logit loss, 0 or more. 0 leaves CHFL with ``chfl.alpha = beta`` and the same ``reduce``.
    beta : float
        Weight of the distillation, 0 or more. 0 leaves FedHe, on models of equal width. Both 0: local training.
    logit_loss : {"mse", "kl"}
        As in `clients.fedhe.FedHeClient`.
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
        alpha: Annotated[float, Field(ge=0)] = 1.0,
        beta: Annotated[float, Field(ge=0)] = 0.5,
        logit_loss: Literal["mse", "kl"] = "mse",
        reduce: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__(node)
        check_bias(node, "logithead")
        self.alpha, self.beta = alpha, beta
        self.logit_loss, self.reduce = logit_loss, reduce

    def download_spec(self) -> PayloadSpec:
        """Expect the average logits of each class, which are known, the sum of all heads, and their number."""
        classes = self.node.data.spec.classes
        return known_class_logits(classes) + summed_heads(classes, self.node.model.width)

    def upload_spec(self) -> PayloadSpec:
        """Send class-average logits, their counts and the own head."""
        classes = self.node.data.spec.classes
        return class_logits(classes) + linear_head(classes, self.node.model.width)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train, and sum up the training-mode logits seen on the way, taken before each step."""
        target, known = (torch.from_numpy(download[name]).to(self.node.device) for name in ("logits", "known"))
        sums, counts = torch.zeros_like(target), torch.zeros_like(known, dtype=torch.int64)
        teacher = HeadTeacher.of(self.node, download, self.reduce) if self.beta > 0 else None

        def loss(inputs: Tensor, labels: Tensor) -> Tensor | Terms:
            logits = self.node.model(inputs)
            sums.index_add_(0, labels, logits.detach())
            counts.add_(torch.bincount(labels, minlength=len(counts)))
            taught = []
            distance = class_logit_loss(logits, labels, target, known, self.logit_loss) if self.alpha > 0 else None
            if distance is not None:
                taught.append(self.alpha * distance)
            if teacher is not None:
                taught.append(self.beta * teacher.distance(logits, labels))
            private = functional.cross_entropy(logits, labels)
            return Terms(private, torch.stack(taught).sum()) if taught else private

        batches = self.batches(round) if teacher is None else teacher.batches(self.epochs(round), round)
        samples, mean_loss = self.train(batches, loss)
        metrics: Metrics = {EXAMPLES: samples, "train-loss": mean_loss}
        if teacher is not None:
            metrics |= teacher.metrics(samples)
        upload = {"logits": to_numpy(sums / (counts + 1)[:, None]), "counts": to_numpy(counts)}
        return {**upload, **head_arrays(self.node.model)}, metrics
