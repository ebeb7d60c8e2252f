"""Prototypes on the client side: computing them, the distance to them, and prediction with them."""

from math import inf

import torch
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr import (
    Arrays,
    Node,
    SplitModel,
    class_means,
    to_numpy,
)
from strategies.prototypes import distances, packed


def own_prototypes(node: Node, *, counted: bool) -> Arrays:
    """Return a client's upload: the prototypes of its training samples, computed with its current body."""
    means, counts = class_means(node.model, node.data.train)
    return packed(to_numpy(means), to_numpy(counts), counted=counted, hidden=node.config.clipping_norm > 0)


def distance_to_prototypes(embeddings: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return the squared distance of embeddings from the prototypes of their classes, averaged over batch and width.

    Samples of a class without a prototype contribute 0.

    Parameters
    ----------
    embeddings, labels : Tensor
        (B, D), and (B,) int64.
    prototypes, known : Tensor
        The prototypes (C, D), and for which classes there is one, (C,) bool.

    Examples
    --------
    >>> prototypes, known = torch.tensor([[1.0, 0.0], [9.0, 9.0]]), torch.tensor([True, False])
    >>> distance_to_prototypes(torch.tensor([[3.0, 0.0], [5.0, 5.0]]), torch.tensor([0, 1]), prototypes, known)
    tensor(1.)
    """
    squares = functional.mse_loss(embeddings, prototypes[labels], reduction="none")
    return (squares * known[labels, None]).mean()


class Prototypes(nn.Module):
    """A classifier of embeddings with a prototype of each class.

    The logits are negative squared distances, as in Snell, Swersky and Zemel, "Prototypical Networks for Few-shot
    Learning", NeurIPS 2017, Eq. (2). The logit of a class without a prototype is the smallest of the others minus 1.

    Parameters
    ----------
    classes, width : int
        C and D. Initially, no class has a prototype.

    Attributes
    ----------
    prototypes, known : Tensor
        Buffers: the prototypes (C, D), and for which classes there is one, (C,) bool.

    Examples
    --------
    >>> nearest = Prototypes(3, 1)
    >>> nearest.hold(torch.tensor([[0.0], [2.0], [7.0]]), torch.tensor([True, True, False]))
    >>> nearest(torch.tensor([[1.5]]))
    tensor([[-2.2500, -0.2500, -3.2500]])
    """

    prototypes: Tensor
    known: Tensor

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("prototypes", torch.zeros(classes, width))
        self.register_buffer("known", torch.zeros(classes, dtype=torch.bool))

    def hold(self, prototypes: Tensor, known: Tensor) -> None:
        """Replace the prototypes (C, D), and for which classes there is one, (C,)."""
        self.prototypes.copy_(prototypes)
        self.known.copy_(known)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the logits (B, C) of embeddings (B, D); at least one class must have a prototype."""
        logits = -distances(embeddings, self.prototypes).square()
        farthest = logits.masked_fill(~self.known, inf).amin(1, keepdim=True)
        return torch.where(self.known, logits, farthest - 1)


class NearestPrototype(nn.Module):
    """Predicts the class with the prototype nearest to the embedding; without any prototypes, the head predicts.

    Parameters
    ----------
    model : SplitModel
        The model. Its body computes the embeddings.
    memory : Prototypes
        The prototypes, with the model's classes and width.
    """

    def __init__(self, model: SplitModel, memory: Prototypes) -> None:
        super().__init__()
        self.model, self.memory = model, memory

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (B, C) of inputs (B, ...)."""
        embeddings = self.model.body(inputs)
        return torch.where(self.memory.known.any(), self.memory(embeddings), self.model.head(embeddings))
