"""Local training, client side: nothing is exchanged. The papers call it IND, SOLO or Private."""

from hetfl_flwr import EMPTY, SEEN, Arrays, KnowledgeClient, Metrics, PayloadSpec


class LocalClient(KnowledgeClient):
    """Trains on its own data with cross-entropy; the optimizer keeps its moments between rounds.

    Wire   nothing either way.
    State  the model, the optimizer's moments.
    """

    def download_spec(self) -> PayloadSpec:
        """Expect nothing."""
        return EMPTY

    def upload_spec(self) -> PayloadSpec:
        """Send nothing."""
        return EMPTY

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for one round."""
        samples, mean_loss = self.train(self.batches(round), self.own_loss)
        return {}, {SEEN: samples, "train-loss": mean_loss}
