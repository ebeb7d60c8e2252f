"""Skeleton, client side: local training and the upload."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from hetfl_flwr import SEEN, Arrays, KnowledgeClient, Metrics, Node, PayloadSpec, Terms, to_numpy

from .strategy import downloaded, uploaded


class SkeletonClient(KnowledgeClient):
    """Trains on local samples, with logits pulled toward the average logits of their class.

    Wire   as on the server side.
    State  the model, the optimizer's moments.

    Parameters
    ----------
    node : Node
        The client's model, data and run config.
    weight : float
        Weight of the distillation term, 0 or more. 0 is local training.
    """

    # `learn` returns Terms, so users may set `projection`; leave this out if the loss is a scalar.
    has_distillation_term = True

    def __init__(self, node: Node, *, weight: Annotated[float, Field(ge=0)] = 1.0) -> None:
        super().__init__(node)
        self.weight = weight

    def download_spec(self) -> PayloadSpec:
        """Return the declaration of the server side."""
        return downloaded(self.node.data.spec.classes)

    def upload_spec(self) -> PayloadSpec:
        """Return the declaration of the server side."""
        return uploaded(self.node.data.spec.classes)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for one round, and return the upload and the metrics.

        ``self.node`` has the model, data and run config. Only the model, the optimizers of ``self.optimizer()``,
        ``self.numbers`` and the networks that ``modules()`` names are kept until the next round.
        """
        averages = torch.from_numpy(download["logits"]).to(self.node.device)
        known = torch.from_numpy(download["known"]).to(self.node.device)
        sums, counts = torch.zeros_like(averages), torch.zeros(len(known), dtype=torch.int64, device=self.node.device)

        def loss(inputs: Tensor, labels: Tensor) -> Terms:
            """Return the loss of a batch. Put the paper's loss here: a term of the labels and one of distillation."""
            logits: Tensor = self.node.model(inputs)
            sums.index_add_(0, labels, logits.detach())
            counts.add_(torch.bincount(labels, minlength=len(counts)))
            distances = (logits - averages[labels]).square().mean(1) * known[labels]
            return Terms(self.node.data_loss(logits, labels), self.weight * distances.mean())

        samples, mean_loss = self.train(self.batches(round), loss)

        # Put the upload here. This one is the mean logits of each class during training.
        upload = {"logits": to_numpy(sums / counts.clamp(min=1)[:, None]), "counts": to_numpy(counts)}
        return upload, {SEEN: samples, "train-loss": mean_loss}

    # To measure something other than the client's model, override `assess`. Declare what it needs from the server in
    # `assess_spec`, and send it with the server side's `assess_download_for`.
