"""FedHeNN of models of one architecture, server side: the mean of the clients' weights."""

from collections.abc import Iterable
from typing import Annotated, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from pydantic import Field

from hetfl_flwr.learning.alignment.similarity import FEWEST_SAMPLES
from hetfl_flwr.server.messaging.member import Sharing
from hetfl_flwr.server.messaging.roster import Roster
from hetfl_flwr.wire.codec import to_record
from strategies.base_weights import WeightStrategy
from strategies.fedhenn.alignment_set import as_sent, check_enough, draw, sharing_of


class FedHeNNHomogeneous(WeightStrategy):
    """Averages the weights of like models, and draws the samples whose kernels clients hold to the global model's.

    Eq. (4): the mean of the clients' weights by their numbers of training samples, as in FedAvg.

    Wire   down: the weights, aligned (R,) int32: 4 bytes a parameter and running statistic, and 4 R
           up: the weights
           ``rad = "value"``: aligned is the samples themselves, (R, *shape) as they are stored
           Before round 1 each client sends its public samples, and for ``rad = "index"`` is sent those of all others.
    Needs  one model
    State  the global model.

    Parameters
    ----------
    rad, rad_size
        As in `FedHeNN`.
    robust : {"none", "median", "trimmed:SHARE", "multikrum:COUNT"}
        As in `strategies.fedavg.FedAvg`.

    Raises
    ------
    ConfigError
        ``robust`` is none of these.
    """

    sharing = Sharing(labelled=False)

    def __init__(
        self,
        *,
        rad: Literal["index", "value"] = "index",
        rad_size: Annotated[int, Field(ge=FEWEST_SAMPLES)] = 512,
        robust: str = "none",
    ) -> None:
        super().__init__("fedhenn with mode = 'homogeneous'", robust)
        self.rad, self.rad_size = rad, rad_size
        self.sharing = sharing_of(rad)

    def check(self, roster: Roster) -> None:
        """Refuse heterogeneous models, inputs of different shapes, and too few public samples.

        Raises
        ------
        FederationError
            Names the clients that differ, or how many rows there are.
        """
        roster.check_sharing("fedhenn", labelled=False)
        super().check(roster)
        check_enough(sum(member.public for member in roster))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the weights and the set to align on to each client of the round."""
        shared = self.roster.public_samples
        places = draw(shared, self.rad_size, self.config.seed, server_round)
        aligned = to_record({"aligned": as_sent(shared, places, self.rad)})
        return super().configure_train(server_round, ArrayRecord({**arrays, **aligned}), config, grid)
