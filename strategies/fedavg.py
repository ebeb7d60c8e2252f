"""FedAvg, server half: Flower's own strategy.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from hetfl_flwr.algorithms import for_unlike_models
from hetfl_flwr.config import RunConfig
from hetfl_flwr.models import SplitModel, build_model
from hetfl_flwr.payloads import PayloadSpec, model_arrays, to_record, weights
from hetfl_flwr.roster import Member, Roster


class FedAvg(FlowerFedAvg):
    """Averages the clients' weights by their numbers of samples. One model for all.

    A round is one exchange, whatever the clients' ``exchange-every``.

    Wire   the floating-point entries of the model's state dict, both ways: 4 bytes a parameter and running statistic.
           When the clients are evaluated they are sent the global model once more, which is counted as evaluation.
    Needs  one model
    State  the global model.
    """

    unlike_models = False

    def __init__(self) -> None:
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)

    def check(self, roster: Roster) -> None:
        """Refuse unlike models.

        Raises
        ------
        FederationError
            Names the clients that differ and the algorithms for unlike models.
        """
        roster.check_same_weights("fedavg", for_unlike_models())

    def prepare(self, roster: Roster, config: RunConfig) -> ArrayRecord:
        """Check the federation; draw the global model's initial weights."""
        self.check(roster)
        model = first_model(roster, config)
        self._uploads = weights(model)
        return to_record(model_arrays(model))

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect weights like the global model's."""
        return self._uploads


def first_model(roster: Roster, config: RunConfig) -> SplitModel:
    """Return the global model before round 1, of the clients' one kind."""
    first = next(iter(roster))
    return build_model(
        first.model,
        first.spec,
        seed=config.seed,
        scope=("global",),
        width=config.width,
        pretrained=config.pretrained,
    )
