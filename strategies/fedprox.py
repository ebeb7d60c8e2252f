"""FedProx, server half: Flower's own strategy.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv 1812.06127).
"""

from typing import Annotated

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedProx as FlowerFedProx
from pydantic import Field

from hetfl_flwr.algorithms import for_unlike_models
from hetfl_flwr.config import RunConfig
from hetfl_flwr.payloads import PayloadSpec, model_arrays, to_record, weights
from hetfl_flwr.roster import Member, Roster
from strategies.fedavg import first_model


class FedProx(FlowerFedProx):
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
    """

    unlike_models = False

    def __init__(self, *, mu: Annotated[float, Field(ge=0)] = 0.01) -> None:
        # Flower warns of a mu of 0 at construction, and a strategy is constructed more than once a run.
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1, proximal_mu=1.0)
        self.proximal_mu = mu

    def check(self, roster: Roster) -> None:
        """Refuse unlike models.

        Raises
        ------
        FederationError
            Names the clients that differ and the algorithms for unlike models.
        """
        roster.check_same_weights("fedprox", for_unlike_models())

    def prepare(self, roster: Roster, config: RunConfig) -> ArrayRecord:
        """Check the federation; draw the global model's initial weights."""
        self.check(roster)
        model = first_model(roster, config)
        self._uploads = weights(model)
        return to_record(model_arrays(model))

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect weights like the global model's."""
        return self._uploads
