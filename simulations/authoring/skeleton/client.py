"""Skeleton, client side: what a client learns, and what it sends."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from hetfl_flwr import SEEN, Arrays, KnowledgeClient, Metrics, Node, PayloadSpec, Terms, to_numpy

from .strategy import downloaded, uploaded


class SkeletonClient(KnowledgeClient):
    """Trains on its own samples, with logits drawn to the average ones of their class.

    Wire   as on the server side.
    State  the model, the optimizer's moments.

    Parameters
    ----------
    node : Node
        The client's model, data and run config.
    weight : float
        Weight of the distillation term, 0 or more. 0 is local training.
    """

    # `learn` returns Terms, so users may set `projection`; leave this out where the loss is a scalar.
    has_distillation_term = True

    def __init__(self, node: Node, *, weight: Annotated[float, Field(ge=0)] = 1.0) -> None:
        super().__init__(node)
        self.weight = weight

    def download_spec(self) -> PayloadSpec:
        """Expect what the server side declares."""
        return downloaded(self.node.data.spec.classes)

    def upload_spec(self) -> PayloadSpec:
        """Send what the server side declares."""
        return uploaded(self.node.data.spec.classes)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for one round, and return what is uploaded.

        ``self.node`` has model, data and run config. The model, the optimizers of ``self.optimizer()`` and
        ``self.numbers`` survive until the next round, and so does every network that ``modules()`` names; nothing else.
        """
        averages = torch.from_numpy(download["logits"]).to(self.node.device)
        known = torch.from_numpy(download["known"]).to(self.node.device)
        sums, counts = torch.zeros_like(averages), torch.zeros(len(known), dtype=torch.int64, device=self.node.device)

        def loss(inputs: Tensor, labels: Tensor) -> Terms:
            """Return the loss of a batch. The paper's loss goes here: the term of the own labels, the distillation."""
            logits: Tensor = self.node.model(inputs)
            sums.index_add_(0, labels, logits.detach())
            counts.add_(torch.bincount(labels, minlength=len(counts)))
            distances = (logits - averages[labels]).square().mean(1) * known[labels]
            return Terms(self.node.data_loss(logits, labels), self.weight * distances.mean())

        samples, mean_loss = self.train(self.batches(round), loss)

        # The upload goes here: now the mean logits of each class, as they were in training.
        upload = {"logits": to_numpy(sums / counts.clamp(min=1)[:, None]), "counts": to_numpy(counts)}
        return upload, {SEEN: samples, "train-loss": mean_loss}

    # To measure something other than the own model, override `assess`. What it needs of the server is declared in
    # `assess_spec`, and sent by the server side's `assess_download_for`.
