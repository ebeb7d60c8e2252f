"""FedDF, client side: local training of the model of the client's group.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020 (arXiv 2006.07242).
"""

from clients.base_weights import GlobalModelClient
from hetfl_flwr import Node


class FedDFClient(GlobalModelClient):
    """Trains the shared model of its architecture on its own data, as FedAvg's clients do.

    Algorithm 1, Client-LocalUpdate. Everything new is on the server. Reports ``accuracy`` of its group's model on its
    test set, and the same as ``global-accuracy``.

    Wire   as in `strategies.feddf.FedDF`.
    State  as in `clients.base_weights.GlobalModelClient`.
    Departs from the paper: the optimizer is the run config's, by default Adam; the paper's is SGD without momentum.

    Parameters
    ----------
    node
        As in `clients.base_weights.GlobalModelClient`.
    """

    def __init__(self, node: Node) -> None:
        super().__init__(node)
