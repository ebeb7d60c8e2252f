"""FedRep, server half: Flower's own FedAvg strategy, over bodies.

Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for Personalized Federated Learning",
ICML 2021.
"""

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from hetfl_flwr.algorithms import for_unlike_models
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import FederationError
from hetfl_flwr.payloads import PayloadSpec, model_arrays, to_record, weights
from hetfl_flwr.roster import Member, Roster
from strategies.fedavg import first_model


class FedRep(FlowerFedAvg):
    """Averages the weights of the clients' bodies by their numbers of samples. Heads stay at home.

    Clients may have unlike numbers of classes: their heads are their own.

    Wire   the floating-point entries of the body's state dict, both ways: 4 bytes a parameter and running statistic.
           When the clients are evaluated they are sent the body once more, which is counted as evaluation.
    Needs  one body, whatever the heads and classes
    State  the body.
    """

    unlike_models = False

    def __init__(self) -> None:
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)

    def check(self, roster: Roster) -> None:
        """Refuse unlike bodies.

        Raises
        ------
        FederationError
            Names the clients that differ and the algorithms for unlike models.
        """
        roster.check_same_weights("fedrep", for_unlike_models(), bodies=True)

    def prepare(self, roster: Roster, config: RunConfig) -> ArrayRecord:
        """Check the federation; draw the body's initial weights.

        Raises
        ------
        FederationError
            As `check`; or the body has no weights.
        """
        self.check(roster)
        model = first_model(roster, config)
        self._uploads = weights(model.body)
        if not self._uploads.names:
            name = next(iter(roster)).model
            raise FederationError(
                f"fedrep averages the weights of bodies, but the body of '{name}' has none: set models"
            )
        return to_record(model_arrays(model.body))

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect weights like the body's."""
        return self._uploads
