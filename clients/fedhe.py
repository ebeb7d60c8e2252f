"""FedHe, client side: local training pulled toward the server's average logits of each sample's class.

Chan and Ngai, "FedHe: Heterogeneous Models and Communication-Efficient Federated Learning", MSN 2021.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from hetfl_flwr import SEEN, Arrays, KnowledgeClient, Metrics, Node, PayloadSpec, Terms, to_numpy
from strategies.fedhe import class_logits, known_class_logits


class FedHeClient(KnowledgeClient):
    """Trains on ``CE + alpha * MSE(p_i, p_server[y_i])`` and sends its own class-average logits.

    Eq. (4)-(8) and (11)-(13), Algorithm 1 lines 7-16. The paper's round is 3 random mini-batches at a learning rate of
    1e-3 (``local-batches = 3``, its "inner epoch 3"); it does not report the optimizer or the batch size.

    Wire   as in `strategies.fedhe.FedHe`.
    State  the model, the optimizer's moments.
    Departs from the paper: samples of a class that is unknown to the server are trained with cross-entropy only (the
    paper says this only for the first round). The paper does not specify ``l_logit`` of Eq. (12): here it is the mean
    squared difference over classes. Counts of samples are sent instead of labels. The optimizer's moments are kept.

    Parameters
    ----------
    node : Node
        The client's node.
    alpha : float
        Weight of the squared difference of raw logits, 0 or more. 0 is local training. Because of the mean over C
        classes, the same alpha has a tenth of the effect with 100 classes that it has with 10.
    """

    has_distillation_term = True

    def __init__(self, node: Node, *, alpha: Annotated[float, Field(ge=0)] = 1.0) -> None:
        super().__init__(node)
        self.alpha = alpha

    def download_spec(self) -> PayloadSpec:
        """Expect the average logits of each class, and which classes are known."""
        return known_class_logits(self.node.data.spec.classes)

    def upload_spec(self) -> PayloadSpec:
        """Send class-average logits and their counts."""
        return class_logits(self.node.data.spec.classes)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train, and accumulate training-mode logits before each step, Eq. (7); divide by count plus 1, Eq. (8)."""
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
            if self.alpha == 0 or not covered.any():
                return private
            distance = functional.mse_loss(logits[covered], target[labels[covered]])
            return Terms(private, self.alpha * (distance * covered.float().mean()))

        samples, mean_loss = self.train(self.batches(round), loss)
        upload = {"logits": to_numpy(sums / (counts + 1)[:, None]), "counts": to_numpy(counts)}
        return upload, {SEEN: samples, "train-loss": mean_loss}
