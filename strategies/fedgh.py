"""FedGH, server side: one global head, trained on the clients' prototypes.

Yi, Wang, Liu, Shi and Yu, "FedGH: Heterogeneous Federated Learning with Generalized Global Header", MM 2023.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr import (
    TRAINED_SIZE,
    Arrays,
    ArraySpec,
    Member,
    PayloadSpec,
    Roster,
    ServerTraining,
    Tensors,
    Upload,
    seeded,
)
from strategies.base_prototypes import PrototypeStrategy


def global_head(classes: int, width: int) -> PayloadSpec:
    """Declare the download: a linear head, weight (C, D) and bias (C,)."""
    return PayloadSpec((ArraySpec("weight", (classes, width), "float32"), ArraySpec("bias", (classes,), "float32")))


class FedGH(PrototypeStrategy):
    """Trains a global head on the clients' prototypes, with classes as labels; it replaces the clients' heads.

    The prototypes (the paper's local averaged representations) are mean embeddings of a class, of width D. With
    ``width = 0`` in the run config D is 64, and a body of another width gets a projection to it. Training of the head
    continues from round to round. A class that no client of a round has is not among the labels.

    Wire   down: the head, weight (C, D) float32, bias (C,) float32: 4 C (D + 1) bytes
           up:   classes (S,) int32, prototypes (S, D) float32, present (S,) int8: 4 S D + 5 S bytes
           S is the number of classes that the client has; with ``clipping-norm`` it is C, and the classes that a client
           has are as private as the prototypes
    Needs  equal classes
    State  the head, weight (C, D) float32, bias (C,) float32.
    Robust each prototype is replaced by the robust mean of its class. Not with ``mode = "async"``.
    Departs from the paper: all clients start with the server's initial head, as in HtFLlib. In the authors' published
    code, each client starts with its own head; that code also clips gradients to a norm of 50, and has a weight decay
    of 1e-3. Steps use mini-batches, as in HtFLlib; the authors' code takes the prototypes one by one, in one pass per
    round. There the optimizer on the server has a client's weights and not the head's, so that the head keeps its
    initial weights, as with ``server_epochs = 0``. HtFLlib's script takes one pass at a rate of 0.01: a few steps,
    after which the global head is still close to its initial weights; without the script, HtFLlib takes 100. The
    paper has no ``mode = "async"``.

    Parameters
    ----------
    mode : {"sync", "async"}
        "sync": the server waits for all clients of a round, and trains on all their prototypes. "async": it answers one
        client at a time, as uploads arrive, with the head trained on that client's prototypes. A round is then as many
        uploads as there are clients.
    server_epochs : int
        Passes over the prototypes of a round, 0 or more. With 0, the head keeps its initial weights.
    server_learning_rate : float
        Learning rate of the head, with plain SGD, above 0.
    """

    usual_size = TRAINED_SIZE  # sizes differ between networks from the start, and a head can learn from larger ones

    def __init__(
        self,
        *,
        mode: Literal["sync", "async"] = "sync",
        server_epochs: Annotated[int, Field(ge=0)] = 100,
        server_learning_rate: Annotated[float, Field(gt=0)] = 0.1,
    ) -> None:
        super().__init__()
        self.server_training = ServerTraining("fedgh", server_epochs, server_learning_rate)
        self.asynchronous = mode == "async"
        self.averages = not self.asynchronous  # a single client cannot be compared with others

    def initial(self, roster: Roster) -> Arrays:
        """Draw the initial head."""
        first = next(iter(roster))
        with seeded(self.config.seed, "head"):
            head = nn.Linear(first.width, first.classes)
        return {name: tensor.numpy() for name, tensor in head.state_dict().items()}

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Train the head on the uploads."""
        scope = (round, *(upload.client_id for upload in uploads))
        pairs = self.pairs(uploads)
        return self.server_training.train(server_state, pairs, _cross_entropy, self.config, scope)

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the head."""
        return server_state


def _cross_entropy(head: Tensors, prototypes: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(prototypes, head["weight"], head["bias"]), labels)
