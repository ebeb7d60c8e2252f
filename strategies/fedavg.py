"""FedAvg, server side: Flower's own strategies.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from typing import Annotated

from pydantic import Field

from strategies.base_weights import WeightStrategy


class FedAvg(WeightStrategy):
    """Averages the clients' weights by their numbers of training samples. One model for all.

    Wire   the floating-point entries of the model's state dict, both ways: 4 bytes a parameter and running statistic.
           When the clients are evaluated they are sent the global model once more, which is counted as evaluation.
    Needs  one model
    State  the global model.

    Parameters
    ----------
    robust : {"none", "median", "trimmed:SHARE", "multikrum:COUNT"}
        How wrong weights are kept from the global model: it is their coordinate-wise median or trimmed mean (Yin et
        al., ICML 2018; Flower's FedMedian and FedTrimmedAvg), in which each client counts alike, whatever its number of
        samples; or the mean, by numbers of training samples as with "none", of those that Multi-Krum keeps (Blanchard
        et al., NIPS 2017). As in `hetfl_flwr.learning.aggregation.parse_robust`.
    exchange_every : int
        As in `clients.base_weights.GlobalModelClient`: what a client may say that it has trained on is held against it.

    Raises
    ------
    ConfigError
        ``robust`` is none of these.
    """

    def __init__(self, *, robust: str = "none", exchange_every: Annotated[int, Field(ge=1)] = 1) -> None:
        super().__init__("fedavg", robust, exchange_every=exchange_every)
