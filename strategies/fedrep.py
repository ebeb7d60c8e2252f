"""FedRep, server side: the mean of the clients' bodies.

Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for Personalized Federated Learning",
ICML 2021.
"""

from hetfl_flwr import WeightStrategy


class FedRep(WeightStrategy):
    """Averages the clients' bodies, weighted by numbers of training samples. Heads stay on the clients.

    Clients may have different numbers of classes: their heads are their own.

    Wire   the floating-point entries of the body's state dict, both ways: 4 bytes per parameter and running statistic.
           The body is sent once more for evaluation, and counted as evaluation.
    Needs  one body, whatever the heads and classes
    State  the body.
    """

    sends = "parts of weights"

    def __init__(self) -> None:
        super().__init__(bodies=True)
