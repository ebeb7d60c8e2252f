"""FedTGP, server side: a prototype of each class, trained on the server to separate the clients' prototypes.

Zhang, Liu, Hua and Cao, "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for
Data and Model Heterogeneity in Federated Learning", AAAI 2024.
"""

from collections.abc import Sequence
from math import inf
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr import Arrays, Member, Roster, ServerTraining, Tensors, Upload, check_size, seeded, torch_threads
from strategies.base_prototypes import PrototypeStrategy
from strategies.prototypes import Predict, distances

MARGIN_CAP = 100.0  # that of the authors' published code


class FedTGP(PrototypeStrategy):
    """Trains global prototypes on the clients' prototypes, with an adaptive margin between classes.

    Two layers compute a global prototype from an embedding of each class, ``W2 relu(W1 e + b1) + b2``, all of width D:
    64 if ``width = 0``; a body of another width gets a projection to it. Embeddings and layers are trained on the
    clients' prototypes P of class c: cross-entropy of the logits ``-(|P - G_j| + margin [j = c])`` over the global
    prototypes G_j of all classes j (adaptive-margin-enhanced contrastive learning).

    For the margin, the round's prototypes are averaged over clients. It is the largest, over classes, of the distance
    to the nearest other class, and at most 100, as in the authors' code; it is 100 if fewer than two classes were sent.

    Wire   down: prototypes (C, D) float32, known (C,) bool: 4 C D + C bytes
           up:   classes (S,) int32, prototypes (S, D) float32, present (S,) int8: 4 S D + 5 S bytes
           S is as in `strategies.fedproto.FedProto`
           for evaluation, unless ``predict = "head"``: down the same
    Needs  equal classes
    State  embedding.weight (C, D), hidden.weight and output.weight (D, D), hidden.bias and output.bias (D,), and the
           resulting prototypes (C, D), all float32; known (C,) bool, the classes that were sent so far.
    Robust each prototype is replaced by the robust mean of its class, also for the margin.
    Departs from the paper: the global prototype of a class that no client has sent yet is trained, but not used by
    clients, for training or prediction; in the authors' published code, the source of this margin, all are used. There
    the server takes 100 passes per round. The authors recommend to continue for as many rounds as its loss needs to
    fall below 0.001; no rule ends a round's training at that.

    Parameters
    ----------
    server_epochs : int
        Passes over the prototypes of a round, 0 or more. With 0, the global prototypes keep their initial values. With
        rounds of a few mini-batches, 5 are about as good as the authors' 100.
    server_learning_rate : float
        Learning rate of the global prototypes, with plain SGD, above 0.
    predict : {"head", "prototype", "own-prototype"}
        As in `clients.fedtgp.FedTGPClient`.
    """

    def __init__(
        self,
        *,
        server_epochs: Annotated[int, Field(ge=0)] = 5,
        server_learning_rate: Annotated[float, Field(gt=0)] = 0.01,
        predict: Predict = "prototype",
    ) -> None:
        super().__init__(predict=predict)
        self.server_training = ServerTraining("fedtgp", server_epochs, server_learning_rate)

    def check(self, roster: Roster) -> None:
        """Refuse what `PrototypeStrategy` refuses, and layers that are too large for the server."""
        super().check(roster)
        check_size("fedtgp: a layer of the global prototypes", *[next(iter(roster)).width] * 2)

    def initial(self, roster: Roster) -> Arrays:
        """Draw an embedding of each class and the two layers."""
        classes, width = roster.classes, next(iter(roster)).width
        with seeded(self.config.seed, "prototypes"):
            parts = nn.ModuleDict({"embedding": nn.Embedding(classes, width)})
            parts.update({name: nn.Linear(width, width) for name in ("hidden", "output")})
        layers = {name: tensor.numpy() for name, tensor in parts.state_dict().items()}
        return _with_prototypes(layers, np.zeros(classes, np.bool_))

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Train the global prototypes on the uploads."""
        means, here = self.averaged([upload.client_id for upload in uploads], self.class_means(uploads))
        margin = _margin(torch.from_numpy(means[here]))

        def loss(arrays: Tensors, points: Tensor, labels: Tensor) -> Tensor:
            apart = distances(points, _prototypes(arrays))
            own = functional.one_hot(labels, apart.shape[1])
            return functional.cross_entropy(-(apart + margin * own), labels)

        layers = {name: array for name, array in server_state.items() if name not in ("prototypes", "known")}
        scope = (round, *(upload.client_id for upload in uploads))
        trained = self.server_training.train(layers, self.pairs(uploads), loss, self.config, scope)
        return _with_prototypes(trained, here | server_state["known"])

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send all global prototypes; mark a class that no client has sent yet as unknown."""
        return {name: server_state[name] for name in ("prototypes", "known")}


def _prototypes(arrays: Tensors) -> Tensor:
    """Return the global prototypes (C, D)."""
    hidden = functional.linear(arrays["embedding.weight"], arrays["hidden.weight"], arrays["hidden.bias"]).relu()
    return functional.linear(hidden, arrays["output.weight"], arrays["output.bias"])


def _with_prototypes(layers: Arrays, known: NDArray[np.bool_]) -> Arrays:
    """Return the server state: layers, prototypes and known classes."""
    with torch_threads(1), torch.no_grad():
        prototypes = _prototypes({name: torch.from_numpy(array) for name, array in layers.items()}).numpy()
    return {**layers, "prototypes": prototypes, "known": known}


def _margin(means: Tensor) -> float:
    """Return the largest distance of a class's mean (C, D) to the nearest other class, at most `MARGIN_CAP`."""
    if len(means) < 2:
        return MARGIN_CAP
    return min(float(distances(means, means).fill_diagonal_(inf).amin(1).max()), MARGIN_CAP)
