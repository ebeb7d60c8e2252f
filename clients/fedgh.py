"""FedGH, client side: training with the global head, and prototypes on which the server trains this head.

Yi, Wang, Liu, Shi and Yu, "FedGH: Heterogeneous Federated Learning with Generalized Global Header", MM 2023.
"""

from clients.base_parts import check_head
from clients.base_prototypes import own_prototypes
from hetfl_flwr import SEEN, Arrays, KnowledgeClient, Metrics, Node, PayloadSpec
from strategies.fedgh import global_head
from strategies.prototypes import local_prototypes


class FedGHClient(KnowledgeClient):
    """Replaces its head by the global head, trains body and head with cross-entropy, and sends its prototypes.

    Prototypes are mean embeddings of a class, over all of its training samples, in evaluation mode, after training. The
    authors' published code averages mini-batches, and then these means.

    Wire   as in `strategies.fedgh.FedGH`.
    State  the model, of which the next download replaces the head; the optimizer's moments of the body, and with
           ``moments = "kept"`` of the head.
    Departs from the paper: in the authors' code one optimizer trains all clients, so that its momentum carries over
    from one client to the next. As there, clients of one architecture start with the same weights, and are evaluated
    with their own trained head; in HtFLlib, with the server's.

    Parameters
    ----------
    node : Node
        The client's node.

    Raises
    ------
    ModelError
        If the model's head has no bias.
    """

    starts_alike = True

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        check_head(node, bias=True)

    def download_spec(self) -> PayloadSpec:
        """Expect the global head."""
        return global_head(self.node.model.classes, self.node.model.width)

    def upload_spec(self) -> PayloadSpec:
        """Send the client's prototypes."""
        return local_prototypes(self.node.model.classes, self.node.model.width, counted=False)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Load the head, train for one round, and compute the client's prototypes."""
        self.load(self.node.model.head, download)
        samples, mean_loss = self.train(self.batches(round), self.own_loss)
        return own_prototypes(self.node, counted=False), {SEEN: samples, "train-loss": mean_loss}
