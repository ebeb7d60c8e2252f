"""FedProto, client side: embeddings are pulled toward the mean prototype of their class.

Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI
2022.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clients.base_prototypes import NearestPrototype, Prototypes, distance_to_prototypes, own_prototypes
from hetfl_flwr import EMPTY, SEEN, Arrays, KnowledgeClient, Metrics, Node, PayloadSpec, Terms
from strategies.prototypes import Predict, global_prototypes, local_prototypes


class FedProtoClient(KnowledgeClient):
    """Trains on ``CE + distance-weight * (squared distance of embeddings to the prototypes of their classes)``.

    Eq. (7)-(8). After training it sends its own prototypes: Eq. (3), over all of its training samples.

    Wire   as in `strategies.fedproto.FedProto`.
    State  the model, the optimizer's moments; the last received prototypes if they predict.
    Departs from the paper: the distance is that of each sample in a batch, as in the authors' published code and
    HtFLlib: the mean over batch and width of the squared difference. In Eq. (8) it is that of the client's prototypes,
    which change with each step. Prototypes are computed after training, in evaluation mode; the authors' code averages
    the embeddings of the last epoch and HtFLlib those of all epochs, in training mode. The optimizer keeps its moments
    between rounds; in the authors' code it is reset.

    Parameters
    ----------
    node : Node
        The client's node.
    distance_weight : float
        Weight of the distance, lambda in Eq. (7), 0 or more. 0 is local training. 1 in the authors' code, 10 in
        HtFLlib.
    weighting : {"counts", "uniform"}
        As in `strategies.fedproto.FedProto`.
    predict : {"head", "prototype", "own-prototype"}
        What predicts when the client is evaluated. "head": the model's head. "prototype": the nearest of all prototypes
        that the server knows, Eq. (4), as in HtFLlib. "own-prototype": the nearest prototype of the classes in the
        client's training samples. The authors' code reports "head" and "own-prototype". Before there are any
        prototypes, the head predicts.
    """

    has_distillation_term = True

    def __init__(
        self,
        node: Node,
        *,
        distance_weight: Annotated[float, Field(ge=0)] = 1.0,
        weighting: Literal["counts", "uniform"] = "counts",
        predict: Predict = "head",
    ) -> None:
        super().__init__(node)
        self.distance_weight, self.predict = distance_weight, predict
        self._counted = weighting == "counts"
        self._memory = Prototypes(node.model.classes, node.model.width).to(node.device)

    def modules(self) -> Mapping[str, nn.Module]:
        """Keep the model, and the last received prototypes if they predict."""
        return {"model": self.node.model} | ({} if self.predict == "head" else {"prototypes": self._memory})

    def download_spec(self) -> PayloadSpec:
        """Expect a prototype of each class that the server knows."""
        return global_prototypes(self.node.model.classes, self.node.model.width)

    def upload_spec(self) -> PayloadSpec:
        """Send the client's prototypes."""
        return local_prototypes(self.node.model.classes, self.node.model.width, counted=self._counted)

    def assess_spec(self) -> PayloadSpec:
        """Expect the same as for training if prototypes predict, else nothing."""
        return EMPTY if self.predict == "head" else self.download_spec()

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for one round, then compute the client's prototypes."""
        model, (prototypes, known) = self.node.model, self._receive(download)
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
        """Evaluate the predictor on the client's test set."""
        if self.predict != "head":
            self._receive(download)
        return super().assess(download)

    def predictor(self) -> nn.Module:
        """Return the model, or a module that predicts with the last received prototypes."""
        model = self.node.model
        return model if self.predict == "head" else NearestPrototype(model, self._memory).train(model.training)

    def _receive(self, download: Arrays) -> tuple[Tensor, Tensor]:
        """Return all received prototypes, and keep those that predict."""
        prototypes, known = (torch.from_numpy(download[name]).to(self.node.device) for name in ("prototypes", "known"))
        own = self.node.data.train.class_counts(len(known)).to(known.device) > 0
        self._memory.hold(prototypes, known & own if self.predict == "own-prototype" else known)
        return prototypes, known
