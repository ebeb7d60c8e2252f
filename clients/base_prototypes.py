"""Base of the client sides that draw embeddings to prototypes."""

from collections.abc import Mapping
from math import inf
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr import (
    EMPTY,
    SEEN,
    Arrays,
    KnowledgeClient,
    Metrics,
    Node,
    PayloadSpec,
    SplitModel,
    Terms,
    class_means,
    to_numpy,
)
from strategies.base_prototypes import Predict, distances, global_prototypes, local_prototypes, packed


def own_prototypes(node: Node, *, counted: bool) -> Arrays:
    """Return the upload of a client: the prototypes of its training samples, as its body is now."""
    means, counts = class_means(node.model, node.data.train)
    return packed(to_numpy(means), to_numpy(counts), counted=counted, hidden=node.config.clipping_norm > 0)


def distance_to_prototypes(embeddings: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return how far embeddings are from the prototypes of their classes.

    The mean over batch and width of the squared difference; samples of a class without a prototype count as 0.

    Parameters
    ----------
    embeddings, labels : Tensor
        (B, D), and (B,) int64.
    prototypes, known : Tensor
        (C, D), and (C,) bool: for which classes there is one.

    Examples
    --------
    >>> prototypes, known = torch.tensor([[1.0, 0.0], [9.0, 9.0]]), torch.tensor([True, False])
    >>> distance_to_prototypes(torch.tensor([[3.0, 0.0], [5.0, 5.0]]), torch.tensor([0, 1]), prototypes, known)
    tensor(1.)
    """
    squares = functional.mse_loss(embeddings, prototypes[labels], reduction="none")
    return (squares * known[labels, None]).mean()


class Prototypes(nn.Module):
    """A prototype of each class, from which the class of an embedding is told.

    The logits are negative squared distances, as in Snell, Swersky and Zemel, "Prototypical Networks for Few-shot
    Learning", NeurIPS 2017, Eq. (2). A class without a prototype is one farther than the farthest that has one.

    Parameters
    ----------
    classes, width : int
        C and D. At first no class has a prototype.

    Attributes
    ----------
    prototypes, known : Tensor
        Buffers: (C, D), and (C,) bool, for which classes there is one.

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
        """Take other prototypes (C, D), and for which classes there is one, (C,)."""
        self.prototypes.copy_(prototypes)
        self.known.copy_(known)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the logits (B, C) of embeddings (B, D); there is a prototype of one class at least."""
        logits = -distances(embeddings, self.prototypes).square()
        farthest = logits.masked_fill(~self.known, inf).amin(1, keepdim=True)
        return torch.where(self.known, logits, farthest - 1)


class NearestPrototype(nn.Module):
    """Predicts the class whose prototype is nearest to the embedding; as long as there is no prototype, by the head.

    Parameters
    ----------
    model : SplitModel
        Its body makes the embeddings.
    memory : Prototypes
        Of the model's classes and width.
    """

    def __init__(self, model: SplitModel, memory: Prototypes) -> None:
        super().__init__()
        self.model, self.memory = model, memory

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (B, C) of inputs (B, ...)."""
        embeddings = self.model.body(inputs)
        return torch.where(self.memory.known.any(), self.memory(embeddings), self.model.head(embeddings))


class PrototypeClient(KnowledgeClient):
    """Trains on ``CE + distance-weight * (squared distance of embeddings to the prototypes of their classes)``.

    Then it sends its own prototypes, over all of its training samples.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    distance_weight : float
        Weight of the distance, 0 or more. 0 is local training.
    predict : {"head", "prototype", "own-prototype"}
        What predicts when the client is measured. "head": the model, by its head. "prototype": the nearest of all
        prototypes that the server knows. "own-prototype": the nearest of those of the classes that the client has
        training samples of. Before there are any, the head.
    counted : bool
        Whether the server is told how many samples are behind each prototype.
    """

    has_distillation_term = True

    def __init__(
        self,
        node: Node,
        *,
        distance_weight: Annotated[float, Field(ge=0)],
        predict: Predict,
        counted: bool = False,
    ) -> None:
        super().__init__(node)
        self.distance_weight, self.predict = distance_weight, predict
        self._counted = counted
        self._memory = Prototypes(node.model.classes, node.model.width).to(node.device)

    def modules(self) -> Mapping[str, nn.Module]:
        """Keep the model and, where they predict, the prototypes that came last."""
        return {"model": self.node.model} | ({} if self.predict == "head" else {"prototypes": self._memory})

    def download_spec(self) -> PayloadSpec:
        """Expect a prototype of each class that the server knows."""
        return global_prototypes(self.node.model.classes, self.node.model.width)

    def upload_spec(self) -> PayloadSpec:
        """Send the own prototypes."""
        return local_prototypes(self.node.model.classes, self.node.model.width, counted=self._counted)

    def assess_spec(self) -> PayloadSpec:
        """Expect the same as for training, where prototypes predict."""
        return EMPTY if self.predict == "head" else self.download_spec()

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for one round, then take the own prototypes."""
        model, (prototypes, known) = self.node.model, self._taken(download)
        untaught = self.distance_weight == 0 or not known.any()

        def loss(inputs: Tensor, labels: Tensor) -> Tensor | Terms:
            embeddings = model.body(inputs)
            private = self.node.data_loss(model.head(embeddings), labels)
            if untaught:
                return private
            distance = distance_to_prototypes(embeddings, labels, prototypes, known)
            return Terms(private, self.distance_weight * distance)

        samples, mean_loss = self.train(self.batches(round), loss)
        return own_prototypes(self.node, counted=self._counted), {SEEN: samples, "train-loss": mean_loss}

    def assess(self, download: Arrays) -> Metrics:
        """Measure what predicts, on the own test set."""
        if self.predict != "head":
            self._taken(download)
        return super().assess(download)

    def predictor(self) -> nn.Module:
        """Return what predicts: the model, or one that also holds the prototypes that came last."""
        model = self.node.model
        return model if self.predict == "head" else NearestPrototype(model, self._memory).train(model.training)

    def _taken(self, download: Arrays) -> tuple[Tensor, Tensor]:
        """Return the prototypes of all, and keep those that predict."""
        prototypes, known = (torch.from_numpy(download[name]).to(self.node.device) for name in ("prototypes", "known"))
        own = self.node.data.train.class_counts(len(known)).to(known.device) > 0
        self._memory.hold(prototypes, known & own if self.predict == "own-prototype" else known)
        return prototypes, known
