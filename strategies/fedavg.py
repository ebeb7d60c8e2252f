"""FedAvg, server side: the mean of the clients' weights.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from typing import Annotated

from pydantic import Field

from hetfl_flwr import WeightStrategy


class FedAvg(WeightStrategy):
    """Averages the clients' weights by their numbers of training samples. One model for all.

    Wire   the floating-point entries of the model's state dict, both ways: 4 bytes a parameter and running statistic.
           When the clients are evaluated they are sent the global model once more, which is counted as evaluation.
    Needs  one model
    State  the global model.

    Parameters
    ----------
    exchange_every : int
        As in `clients.base_weights.GlobalModelClient`: what a client may say that it has trained on is held against it.
    """

    def __init__(self, *, exchange_every: Annotated[int, Field(ge=1)] = 1) -> None:
        super().__init__(exchange_every=exchange_every)
