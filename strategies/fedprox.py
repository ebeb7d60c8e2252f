"""FedProx, server side: Flower's own strategies.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv 1812.06127).
"""

from typing import Annotated

from flwr.serverapp.strategy import FedProx as FlowerFedProx
from pydantic import Field

from strategies.base_weights import WeightStrategy


class FedProx(WeightStrategy):
    """Averages weights as FedAvg does; the clients' training is held near the global model. One model for all.

    Flower's strategy tells the clients its ``proximal-mu`` with each message; the clients of this project have it from
    the run config, where it is the same.

    Wire   as in `strategies.fedavg.FedAvg`.
    Needs  one model
    State  the global model.

    Parameters
    ----------
    mu : float
        Weight of the proximal term, 0 or more; the authors try 0.001 to 1. 0 is FedAvg.
    robust, exchange_every
        As in `strategies.fedavg.FedAvg`.

    Raises
    ------
    ConfigError
        ``robust`` is none of these.
    """

    def __init__(
        self,
        *,
        mu: Annotated[float, Field(ge=0)] = 0.01,
        robust: str = "none",
        exchange_every: Annotated[int, Field(ge=1)] = 1,
    ) -> None:
        self.mu = mu
        # Flower warns of a mu of 0 at construction, and a strategy is constructed more than once a run.
        asking = FlowerFedProx(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1, proximal_mu=1.0)
        asking.proximal_mu = mu
        super().__init__("fedprox", robust, asking=asking, exchange_every=exchange_every)
