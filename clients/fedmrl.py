"""FedMRL, client side: two bodies with fused representations, and two heads, one of which uses only a part of them.

Yi, Yu, Ren, Wang, Li, "Federated Model Heterogeneous Matryoshka Representation Learning", NeurIPS 2024 (arXiv
2406.00488).
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr import (
    AUTO,
    SEEN,
    Arrays,
    KnowledgeClient,
    Metrics,
    ModelName,
    Node,
    PayloadSpec,
    SplitModel,
    model_arrays,
    seeded,
    small_model,
    weights,
)


class Fused(nn.Module):
    """The head of a client's own model on the fused representations of its own body and the small model's.

    Parameters
    ----------
    own, small : SplitModel
        The models, with embedding widths d2 and d1.
    projector : nn.Linear
        The projection from d1 + d2 to d2 dimensions.
    """

    def __init__(self, own: SplitModel, small: SplitModel, projector: nn.Linear) -> None:
        super().__init__()
        self.own, self.small, self.projector = own, small, projector

    def fuse(self, inputs: Tensor) -> Tensor:
        """Return the fused representations (B, d2) of inputs (B, ...)."""
        fused: Tensor = self.projector(torch.cat([self.small.body(inputs), self.own.body(inputs)], dim=1))
        return fused

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (B, C) of the own head."""
        logits: Tensor = self.own.head(self.fuse(inputs))
        return logits


class FedMRLClient(KnowledgeClient):
    """Trains its own model, the small model and the projector between them together, and sends the small model.

    For each sample ``r = P [small body(x), own body(x)]``, and the loss is
    ``CE(own head(r)) + small_loss * CE(small head(r[:d1]))``. The own head predicts.

    Wire   as in `strategies.fedmrl.FedMRL`.
    State  the model, the small model as trained last, the projector, the optimizer's moments.
    Departs from the paper: the text of the paper was not available; this follows its authors' code, where both losses
    have weight 1. Weights of 0.5 are equivalent to half of SGD's learning rate. The code clips each network's gradient
    to a norm of 50, carries the small model's momentum from client to client, and weights clients by all of their
    samples, including test samples; none of this is done here. If d1 is above d2 (in the authors' code it is at most
    d2), the small head sees all d2 dimensions, padded with zeros.

    Parameters
    ----------
    node : Node
        The client's node.
    small : str
        As in `strategies.fedmrl.FedMRL`.
    small_loss : float
        Weight of the small head's loss, 0 or more. With 0, the small head has no gradient; the small body still learns
        from the own head's loss.
    """

    def __init__(self, node: Node, *, small: ModelName = AUTO, small_loss: Annotated[float, Field(ge=0)] = 1.0) -> None:
        super().__init__(node)
        self.small_loss = small_loss
        self.small = small_model("fedmrl.small", small, node)
        width = node.model.width
        with seeded(node.config.seed, "fedmrl-projector"):
            projector = nn.Linear(self.small.width + width, width).to(node.device)
        self.fused = Fused(node.model, self.small, projector)

    def modules(self) -> Mapping[str, nn.Module]:
        """Keep the model, the small model and the projector."""
        return {**super().modules(), "small": self.small, "projector": self.fused.projector}

    def upload_spec(self) -> PayloadSpec:
        """Send the small model's weights; expect the same."""
        return weights(self.small)

    download_spec = upload_spec

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Load the averaged small model, and train all three networks."""
        self.load(self.small, download)
        optimizer = self.optimizer(parameters=self.fused.parameters())

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            fused = self.fused.fuse(inputs)
            first = functional.pad(fused, (0, self.small.width - self.node.model.width))
            own = self.node.data_loss(self.node.model.head(fused), labels)
            return own + self.small_loss * self.node.data_loss(self.small.head(first), labels)

        seen, mean_loss = self.train(self.batches(round), loss, optimizer)
        return model_arrays(self.small), {SEEN: seen, "train-loss": mean_loss}

    def predictor(self) -> nn.Module:
        """Return the own head on the fused representations."""
        return self.fused
