"""FedProx, server side: the mean of the clients' weights.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv 1812.06127).
"""

from strategies.fedavg import FedAvg


class FedProx(FedAvg):
    """Averages weights as FedAvg does; a proximal term keeps clients near the global model. One model for all.

    Wire   as in `strategies.fedavg.FedAvg`.
    Needs  one model
    State  the global model.

    Parameters
    ----------
    exchange_every
        As in `strategies.fedavg.FedAvg`.
    """
