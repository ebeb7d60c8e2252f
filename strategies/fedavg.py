"""FedAvg, server side: the mean of the clients' weights.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from typing import Annotated

from pydantic import Field

from hetfl_flwr import WeightStrategy


class FedAvg(WeightStrategy):
    """Averages the clients' weights, weighted by numbers of training samples. One model for all.

    Wire   the floating-point entries of the model's state dict, both ways: 4 bytes per parameter and running statistic.
           The global model is sent once more for evaluation, and counted as evaluation.
    Needs  one model
    State  the global model.

    Parameters
    ----------
    exchange_every : int
        As in `clients.base_weights.GlobalModelClient`. It limits the number of samples that a client may report.
    """

    def __init__(self, *, exchange_every: Annotated[int, Field(ge=1)] = 1) -> None:
        super().__init__(exchange_every=exchange_every)
