"""FedAvg, client side: local training of the global model.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from clients.base_weights import GlobalModelClient


class FedAvgClient(GlobalModelClient):
    """Trains the global model on its own data.

    Wire   as in `strategies.fedavg.FedAvg`.
    State  as in `clients.base_weights.GlobalModelClient`.
    Departs from the paper: the optimizer is the run config's, by default Adam; the paper's is SGD without momentum.

    Parameters
    ----------
    node, exchange_every
        As in `clients.base_weights.GlobalModelClient`.
    """
