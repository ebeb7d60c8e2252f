"""FD (federated distillation), client side: local training with the other clients' average scores as the teacher.

Jeong, Oh, Kim, Park, Bennis and Kim, "Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data", NeurIPS workshop 2018 (arXiv 1811.11479).
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from hetfl_flwr import SEEN, Arrays, KnowledgeClient, Metrics, Node, PayloadSpec, Terms, to_numpy
from strategies.fd import class_averages, teacher_averages


class FDClient(KnowledgeClient):
    """Trains on ``CE + gamma * CE(teacher's scores of the sample's class, own scores)``, and sends its own averages.

    Algorithm 1, "local training phase". The averages are over the samples of the round, in training mode, before each
    step.

    Wire   as in `strategies.fd.FD`.
    State  the model, the optimizer's moments.
    Departs from the paper: steps use mini-batches, with each term averaged over the batch (single samples in the
    paper), and the run config's optimizer. Samples of a class that is unknown to the server are trained with
    cross-entropy only. HtFLlib uses the squared difference of logits instead of the cross-entropy.

    Parameters
    ----------
    node : Node
        The client's node.
    gamma : float
        Weight of the distillation term, 0 or more. 0 is local training.
    """

    has_distillation_term = True

    def __init__(self, node: Node, *, gamma: Annotated[float, Field(ge=0)] = 1.0) -> None:
        super().__init__(node)
        self.gamma = gamma

    def download_spec(self) -> PayloadSpec:
        """Expect the teacher's scores of each class, and which classes are known."""
        return teacher_averages(self.node.data.spec.classes)

    def upload_spec(self) -> PayloadSpec:
        """Send the average scores of the classes seen in the round."""
        return class_averages(self.node.data.spec.classes)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for one round, and accumulate the scores before each step."""
        device = self.node.device
        teacher = torch.from_numpy(download["averages"]).to(device)
        known = torch.from_numpy(download["known"]).to(device)
        sums, counts = torch.zeros_like(teacher), torch.zeros(len(known), dtype=torch.int64, device=device)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor | Terms:
            logits = self.node.model(inputs)
            sums.index_add_(0, labels, logits.detach().softmax(1))
            counts.add_(torch.bincount(labels, minlength=len(counts)))
            private = self.node.data_loss(logits, labels)
            covered = known[labels]
            if self.gamma == 0 or not covered.any():
                return private
            distance = functional.cross_entropy(logits[covered], teacher[labels[covered]])
            return Terms(private, self.gamma * (distance * covered.float().mean()))

        samples, mean_loss = self.train(self.batches(round), loss)
        return self._averages(sums, counts), {SEEN: samples, "train-loss": mean_loss}

    def _averages(self, sums: Tensor, counts: Tensor) -> Arrays:
        """Return the averages of the classes seen; if uploads are clipped, of all, with uniform scores if not seen."""
        present = counts > 0
        sent = torch.arange(len(counts)) if self.node.config.clipping_norm > 0 else present.nonzero()[:, 0].cpu()
        averages = torch.where(present[:, None], sums / counts.clamp(min=1)[:, None], 1 / len(counts))
        return {
            "classes": to_numpy(sent.int()),
            "averages": to_numpy(averages[sent.to(averages.device)]),
            "present": to_numpy(present[sent.to(present.device)].to(torch.int8)),
        }
