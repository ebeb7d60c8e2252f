"""AGG, client side: local training on own data and the public samples of all other clients.

A baseline of Li et al., "FedH2L: Federated Learning with Model and Statistical Heterogeneity", 2021.
"""

from clients.local import LocalClient
from hetfl_flwr import SEEN, Arrays, Metrics, train


class AGGClient(LocalClient):
    """Trains on its own data and all public samples with cross-entropy; the optimizer keeps its moments between rounds.

    All samples have the same weight, whichever client they come from. A single client trains as in
    `clients.local.LocalClient`.

    Wire   as in `strategies.agg.AGG`.
    State  the model, the optimizer's moments.
    """

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for one round."""
        everything = self.node.pool.everything
        batches = self.batches(round, samples=len(everything))
        samples, mean_loss = train(self.node.training(everything), batches, self.optimizer(), self.own_loss)
        return {}, {SEEN: samples, "train-loss": mean_loss}
