"""FedGH, client side: training under the head of all, and prototypes for the server to train it on.

Yi, Wang, Liu, Shi and Yu, "FedGH: Heterogeneous Federated Learning with Generalized Global Header", MM 2023.
"""

from clients.base_parts import check_head
from clients.base_prototypes import own_prototypes
from hetfl_flwr import SEEN, Arrays, KnowledgeClient, Metrics, Node, PayloadSpec
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
    from one to the next. As there, clients of one architecture begin with the same weights, and are measured with their
    own head after its training; in HtFLlib with the server's.

    Parameters
    ----------
    node : Node
        The client's node.

    Raises
    ------
    ModelError
        The model's head has no bias.
    """

    starts_alike = True

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        check_head(node, bias=True)

    def download_spec(self) -> PayloadSpec:
        """Expect the head of all."""
        return global_head(self.node.model.classes, self.node.model.width)

    def upload_spec(self) -> PayloadSpec:
        """Send the own prototypes."""
        return local_prototypes(self.node.model.classes, self.node.model.width, counted=False)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Take the head, train for one round, then take the own prototypes."""
        self.load(self.node.model.head, download)
        samples, mean_loss = self.train(self.batches(round), self.own_loss)
        return own_prototypes(self.node, counted=False), {SEEN: samples, "train-loss": mean_loss}
