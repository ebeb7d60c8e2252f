"""FedHe, client side: local training pulled towards the server's average logits of each sample's class.

Chan and Ngai, "FedHe: Heterogeneous Models and Communication-Efficient Federated Learning", MSN 2021.
"""

from copy import deepcopy
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from clients.base import KnowledgeClient, Metrics, to_numpy
from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.learning.distillation import decoupled_kd, kl_divergence, standardized
from hetfl_flwr.learning.training import Terms, evaluate
from hetfl_flwr.node.node import Node
from hetfl_flwr.wire.messages import SEEN
from hetfl_flwr.wire.spec import Arrays, PayloadSpec
from strategies.logits.fedhe import class_logits, known_class_logits


class FedHeClient(KnowledgeClient):
    """Trains on ``CE + alpha * logit_loss(p_i, p_server[y_i])`` and reports its own class-average logits.

    Eq. (4)-(8) and (11)-(13), Algorithm 1 lines 7-16. The paper's round is 3 random mini-batches of 50 with Adam at
    1e-3 (``local-batches = 3``, its "inner epoch 3"); the optimizer goes on from round to round.

    Wire   as in `strategies.logits.fedhe.FedHe`.
    State  the model, the optimizer's moments.
    Departs from the paper: samples of a class that the server knows nothing of are trained with cross-entropy alone
    (the paper only says so for the very first round). ``divisor``, ``standardize``, ``alpha-ramp``, ``gate`` and
    "non-target" are not in it.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    alpha : float
        Weight of the logit loss, 0 or more. 0 is local training.
    logit_loss : {"mse", "kl", "non-target"}
        "mse": mean over batch and classes of the squared difference of raw logits (the authors' choice); the mean over
        C classes makes the same alpha weigh a tenth with 100 classes of what it weighs with 10. "kl": KL divergence of
        the two softmax distributions, mean over the batch. "non-target": KL divergence among the classes that are not
        the sample's own, as in `hetfl_flwr.learning.distillation.decoupled_kd` at temperature 1.
    standardize : bool
        Whether both logits of a sample are brought to mean 0 and standard deviation 1 over the classes before the
        logit loss (Sun et al., "Logit Standardization in Knowledge Distillation", CVPR 2024): logits of different
        networks differ in scale.
    divisor : {"count + 1", "count"}
        What a class's sum of logits is divided by: Eq. (8), or the count alone, as in the authors' published scripts.
    alpha_ramp : int
        Rounds over which alpha rises linearly from 0, 0 or more. 0: it is there from the first round.
    gate : bool
        Whether each round is trained twice, with the logit loss and without, and the model with the lower loss on the
        own validation samples is kept, so that distillation is never taken where it harms. Twice the training time.

    Raises
    ------
    ConfigError
        ``gate`` on a client without validation samples.
    """

    has_distillation_term = True

    def __init__(
        self,
        node: Node,
        *,
        alpha: Annotated[float, Field(ge=0)] = 1.0,
        logit_loss: Literal["mse", "kl", "non-target"] = "mse",
        standardize: bool = False,
        divisor: Literal["count + 1", "count"] = "count + 1",
        alpha_ramp: Annotated[int, Field(ge=0)] = 0,
        gate: bool = False,
    ) -> None:
        super().__init__(node)
        self.alpha, self.alpha_ramp, self.gate = alpha, alpha_ramp, gate
        self.logit_loss, self.standardize, self.divisor = logit_loss, standardize, divisor
        if gate and len(node.data.validation) == 0:
            raise ConfigError("fedhe.gate = true, but there are no validation samples here: raise validation-fraction")

    def download_spec(self) -> PayloadSpec:
        """Expect the average logits of each class, and which are known."""
        return known_class_logits(self.node.data.spec.classes)

    def upload_spec(self) -> PayloadSpec:
        """Send class-average logits and their counts."""
        return class_logits(self.node.data.spec.classes)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for one round; with ``gate``, twice from the same start, of which the better is kept."""
        alpha = self.alpha * min(1.0, round / self.alpha_ramp if self.alpha_ramp else 1.0)
        if not self.gate or alpha == 0 or not download["known"].any():
            return self._trained(download, round, alpha, self.optimizer())
        model, start = self.node.model, deepcopy(self.node.model.state_dict())
        optimizer = self.optimizer()
        result, loss = self._trained(download, round, alpha, optimizer), self._validation_loss()
        taught = deepcopy((model.state_dict(), optimizer.state_dict()))
        model.load_state_dict(start)
        optimizer = self.optimizer()  # with the moments of the last round
        alone = self._trained(download, round, 0.0, optimizer)
        if self._validation_loss() < loss:
            return alone[0], {**alone[1], "gate": 0.0}
        model.load_state_dict(taught[0])
        optimizer.load_state_dict(taught[1])
        return result[0], {**result[1], "gate": 1.0}

    def _trained(
        self, download: Arrays, round: int, alpha: float, optimizer: torch.optim.Optimizer
    ) -> tuple[Arrays, Metrics]:
        """Train, and sum up the training-mode logits seen on the way, taken before each step: Eq. (7)-(8)."""
        device = self.node.device
        target = torch.from_numpy(download["logits"]).to(device)
        known = torch.from_numpy(download["known"]).to(device)
        sums, counts = torch.zeros_like(target), torch.zeros(len(known), dtype=torch.int64, device=device)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor | Terms:
            logits = self.node.model(inputs)
            sums.index_add_(0, labels, logits.detach())
            counts.add_(torch.bincount(labels, minlength=len(counts)))
            private = self.node.data_loss(logits, labels)
            covered = known[labels]
            if alpha == 0 or not covered.any():
                return private
            distance = self._distance(logits[covered], target[labels[covered]], labels[covered])
            return Terms(private, alpha * (distance * covered.float().mean()))

        samples, mean_loss = self.train(self.batches(round), loss, optimizer)
        divisors = counts + 1 if self.divisor == "count + 1" else counts.clamp(min=1)
        upload = {"logits": to_numpy(sums / divisors[:, None]), "counts": to_numpy(counts)}
        return upload, {SEEN: samples, "train-loss": mean_loss}

    def _distance(self, logits: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        """Return the logit loss of samples whose class is known."""
        if self.standardize:
            logits, target = standardized(logits), standardized(target)
        if self.logit_loss == "mse":
            return functional.mse_loss(logits, target)
        if self.logit_loss == "kl":
            return kl_divergence(target, logits)
        return decoupled_kd(logits, target, labels, temperature=1.0)[1]

    def _validation_loss(self) -> float:
        return evaluate(self.node.model, self.node.data.validation).loss
