"""FedGH, client side: training under the head of all, and prototypes for the server to train it on.

Yi, Wang, Liu, Shi and Yu, "FedGH: Heterogeneous Federated Learning with Generalized Global Header", MM 2023.
"""

from typing import Literal

from torch import Tensor

from clients.base_prototypes import own_prototypes
from hetfl_flwr import EMPTY, SEEN, Arrays, KnowledgeClient, Metrics, ModelError, Node, PayloadSpec
from strategies.base_prototypes import local_prototypes
from strategies.fedgh import global_head


class FedGHClient(KnowledgeClient):
    """Puts the head of all in the place of its own, trains body and head with cross-entropy, and sends its prototypes.

    Prototypes are mean embeddings of a class, over all of its training samples, in evaluation mode, after training. The
    authors' published code takes means of mini-batches, and the mean of these.

    Wire   as in `strategies.fedgh.FedGH`.
    State  the model, of which the next download replaces the head; the optimizer's moments of the body, and with
           ``moments = "kept"`` of the head.
    Departs from the paper: in the authors' code one optimizer takes the steps of all clients, so that its momentum goes
    from one to the next. As there, clients of one architecture begin with the same weights.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    measured : {"trained", "global"}
        Which head a client is measured with: the own one after its training, as in the authors' published code, or the
        server's, which the next round begins with, as in HtFLlib.

    Raises
    ------
    ModelError
        The model's head has no bias.
    """

    starts_alike = True

    def __init__(self, node: Node, *, measured: Literal["trained", "global"] = "trained") -> None:
        super().__init__(node)
        node.check_untied()
        self.measured = measured
        if node.model.head.bias is None:
            remedy = "build it with bias=True" if node.config.head_bias else "set head-bias to true"
            raise ModelError(f"{node}: its head has no bias, but fedgh trains one for all that has: {remedy}")

    def download_spec(self) -> PayloadSpec:
        """Expect the head of all."""
        return global_head(self.node.model.classes, self.node.model.width)

    def upload_spec(self) -> PayloadSpec:
        """Send the own prototypes."""
        return local_prototypes(self.node.model.classes, self.node.model.width, counted=False)

    def assess_spec(self) -> PayloadSpec:
        """Expect the same as for training, where the head of all is measured."""
        return self.download_spec() if self.measured == "global" else EMPTY

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Take the head, train for one round, then take the own prototypes."""
        self._take(download)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            return self.node.data_loss(self.node.model(inputs), labels)

        samples, mean_loss = self.train(self.batches(round), loss)
        return own_prototypes(self.node, counted=False), {SEEN: samples, "train-loss": mean_loss}

    def assess(self, download: Arrays) -> Metrics:
        """Measure the own body, under its own head or that of all."""
        if self.measured == "global":
            self._take(download)
        return super().assess(download)

    def _take(self, download: Arrays) -> None:
        """Put the head of all in the place of the own one."""
        self.load(self.node.model.head, {name: download[name] for name in ("weight", "bias")})
