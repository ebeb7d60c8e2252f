"""Base of the client sides that draw embeddings to prototypes."""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clients.base import KnowledgeClient, Metrics, to_numpy
from hetfl_flwr.learning.prototypes import NearestPrototype, Prototypes, class_means, distance_to_prototypes
from hetfl_flwr.learning.training import Terms
from hetfl_flwr.node.node import Node
from hetfl_flwr.wire.messages import SEEN
from hetfl_flwr.wire.prototypes import global_prototypes, local_prototypes, packed
from hetfl_flwr.wire.spec import EMPTY, Arrays, PayloadSpec

Predict = Literal["head", "prototype", "own-prototype"]
"""What predicts when a client is measured."""


def own_prototypes(node: Node, *, counted: bool) -> Arrays:
    """Return the upload of a client: the prototypes of its training samples, as its body is now."""
    means, counts = class_means(node.model, node.data.train)
    return packed(to_numpy(means), to_numpy(counts), counted=counted, hidden=node.config.clipping_norm > 0)


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
