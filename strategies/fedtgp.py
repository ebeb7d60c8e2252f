"""FedTGP, server side: a prototype of each class that the server trains to tell the clients' prototypes apart.

Zhang, Liu, Hua and Cao, "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for
Data and Model Heterogeneity in Federated Learning", AAAI 2024.
"""

from collections.abc import Sequence
from math import inf
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr import Arrays, Member, Roster, ServerTraining, Tensors, Upload, check_size, seeded, torch_threads
from strategies.base_prototypes import PrototypeStrategy

MARGIN_CAP = 100.0
"""Largest margin: that of the authors' published code."""

EXACT = "donot_use_mm_for_euclid_dist"
"""How distances are computed: number by number, so that equal points are 0 apart."""


class FedTGP(PrototypeStrategy):
    """Trains the global prototypes on those of the clients, with an adaptive margin between classes.

    Global prototypes are made of an embedding of each class by two layers, ``W2 relu(W1 e + b1) + b2``, all of width D.
    Embeddings and layers are trained on the clients' prototypes P of class c: cross-entropy of the logits
    ``-(|P - G_j| + margin [j = c])`` over the global prototypes G_j of all classes j (adaptive-margin-enhanced
    contrastive learning). With ``width = 0`` in the run config D is 64, and a body of another width gets a projection
    to it.

    The margin is the largest over classes of the distance to the nearest other class, of the means of the round's
    prototypes over the clients; at most 100, as in the authors' code, and this where fewer than two classes have come.

    Wire   down: prototypes (C, D) float32, known (C,) bool: 4 C D + C bytes
           up:   classes (S,) int32, prototypes (S, D) float32, present (S,) int8: 4 S D + 5 S bytes
           S is the number of classes that the client has; with ``clipping-norm`` it is C, and which classes it has is
           as private as the prototypes are
           to measure, unless ``predict = "head"``: down the same
    Needs  equal classes
    State  embedding.weight (C, D), hidden.weight and output.weight (D, D), hidden.bias and output.bias (D,), and what
           these make, prototypes (C, D), all float32; known (C,) bool, the classes that have come so far.
    Robust each prototype is replaced by the robust mean of its class; the margin is taken of these.
    Departs from the paper: a global prototype of a class that no client has sent yet takes part in the training, and
    no client is drawn to it or predicts by it; in the authors' published code all do. Rounds are synchronous: the
    margin, which is that of this code, compares all clients. There the server takes 100 passes a round; the authors'
    advice is to go on for so many rounds that its loss falls below 0.001, and no rule ends a round's training at that.

    Parameters
    ----------
    server_epochs : int
        Passes over the prototypes of a round, 0 or more. 0: the global prototypes stay as they were drawn. The
        authors' clients pass over their samples in a round, and 100 are for these: clients of a few mini-batches, as
        by default, cannot follow prototypes that move so far, and the margin grows with what they fall behind.
    server_learning_rate : float
        Learning rate of the global prototypes, by plain SGD; above 0.
    predict : {"head", "prototype", "own-prototype"}
        As in `clients.fedtgp.FedTGPClient`.
    """

    def __init__(
        self,
        *,
        server_epochs: Annotated[int, Field(ge=0)] = 5,
        server_learning_rate: Annotated[float, Field(gt=0)] = 0.01,
        predict: Literal["head", "prototype", "own-prototype"] = "prototype",
    ) -> None:
        super().__init__()
        self.server_training = ServerTraining("fedtgp", server_epochs, server_learning_rate)
        self.predict = predict

    def check(self, roster: Roster) -> None:
        """Refuse what `PrototypeStrategy` does, and layers that the server cannot keep."""
        super().check(roster)
        width = next(iter(roster)).width
        check_size("fedtgp: a layer of the global prototypes", width, width)

    def initial(self, roster: Roster) -> Arrays:
        """Draw an embedding of each class, and the two layers."""
        classes, width = roster.classes, next(iter(roster)).width
        with seeded(self.config.seed, "prototypes"):
            parts = nn.ModuleDict({"embedding": nn.Embedding(classes, width)})
            parts.update({name: nn.Linear(width, width) for name in ("hidden", "output")})
        drawn = {name: tensor.numpy() for name, tensor in parts.state_dict().items()}
        return _with_prototypes(drawn, np.zeros(classes, np.bool_))

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Train the global prototypes on what has come."""
        means, here = self.averaged([upload.client_id for upload in uploads], self.class_means(uploads))
        margin = min(_separation(torch.from_numpy(means[here])), MARGIN_CAP)

        def loss(arrays: Tensors, points: Tensor, labels: Tensor) -> Tensor:
            distances = torch.cdist(points, _prototypes(arrays), compute_mode=EXACT)
            own = functional.one_hot(labels, distances.shape[1])
            return functional.cross_entropy(-(distances + margin * own), labels)

        layers = {name: array for name, array in server_state.items() if name not in ("prototypes", "known")}
        scope = (round, *(upload.client_id for upload in uploads))
        pairs = self.pairs(uploads)
        trained = self.server_training.train(layers, pairs, loss, self.config, scope)
        return _with_prototypes(trained, here | server_state["known"])

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send everybody all global prototypes. A class that no client has sent yet is marked as not known."""
        return {name: server_state[name] for name in ("prototypes", "known")}

    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Send the same along where prototypes predict."""
        return {} if self.predict == "head" else self.download_for(member, server_state, 0)


def _prototypes(arrays: Tensors) -> Tensor:
    """Return the global prototypes (C, D)."""
    hidden = functional.linear(arrays["embedding.weight"], arrays["hidden.weight"], arrays["hidden.bias"]).relu()
    return functional.linear(hidden, arrays["output.weight"], arrays["output.bias"])


def _with_prototypes(layers: Arrays, known: NDArray[np.bool_]) -> Arrays:
    """Return the server state."""
    with torch_threads(1), torch.no_grad():
        prototypes = _prototypes({name: torch.from_numpy(array) for name, array in layers.items()}).numpy()
    return {**layers, "prototypes": prototypes, "known": known}


def _separation(means: Tensor) -> float:
    """Return the largest over classes of the distance of a mean (C, D) to the nearest other one; infinite for one."""
    if len(means) < 2:
        return inf
    distances = torch.cdist(means, means, compute_mode=EXACT).fill_diagonal_(inf)
    return float(distances.amin(1).max())
