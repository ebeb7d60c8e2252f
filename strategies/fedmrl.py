"""FedMRL, server side: the mean of the clients' small homogeneous models.

Yi, Yu, Ren, Wang, Li, "Federated Model Heterogeneous Matryoshka Representation Learning", NeurIPS 2024 (arXiv
2406.00488).
"""

from torch import nn

from hetfl_flwr import AUTO, Arrays, Member, ModelName, Roster, WeightStrategy, small_global_model


class FedMRL(WeightStrategy):
    """Averages the small model that all clients train together with their own; representations stay on the clients.

    ``theta <- sum_k n_k / n * theta_k`` over the clients k of a round; theta is the small model with its head, and n_k
    the number of training samples.

    Wire   both ways the floating-point entries of the small model's state dict: 4 bytes per parameter and running
           statistic
    Needs  one shape of input, equal classes
    State  the small model's entries.
    Robust the small model's weights, as in `hetfl_flwr.WeightStrategy`.
    Departs from the paper: as in `clients.fedmrl.FedMRLClient`.

    Parameters
    ----------
    small : str
        The small homogeneous model, as in ``models``; its embedding width is d1. "auto" is the first model of
        ``models = "auto"``. ``NAME@0.5`` has half of a model's channels, which usually halves d1.
    """

    sends = "small models"
    heterogeneous = True

    def __init__(self, *, small: ModelName = AUTO) -> None:
        super().__init__()
        self.small = small

    def check(self, roster: Roster) -> None:
        """Refuse different shapes of input or classes, because the small model must fit all clients.

        Raises
        ------
        FederationError
            As in `Roster.shape` and `Roster.classes`.
        """
        _ = roster.shape, roster.classes

    def first_shared(self) -> nn.Module:
        """Return the small model with its initial weights."""
        return small_global_model(self.small, self.roster, self.config)

    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Send nothing: a client is evaluated with the small model that it has trained."""
        return {}
