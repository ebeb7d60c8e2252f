"""Base class of server sides that average the weights of one model, or of a part that all clients share."""

from collections.abc import Sequence

from torch.nn import Module

from hetfl_flwr.errors import FederationError
from hetfl_flwr.learning.training import max_drawn
from hetfl_flwr.methods import for_heterogeneous_models
from hetfl_flwr.server.exchange import SampleLimits
from hetfl_flwr.server.global_model import global_model
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.strategy import KnowledgeStrategy, Sends, Upload
from hetfl_flwr.wire.spec import Arrays, PayloadSpec
from hetfl_flwr.wire.weights import model_arrays, weights


class WeightStrategy(KnowledgeStrategy):
    """A strategy whose clients exchange the weights of one model, or of a part that all clients share.

    A client is weighted by the number of its training samples (n_k of McMahan et al. 2017), regardless of how many of
    them the batches of a round contain; the mean equals that of Flower's FedAvg bit for bit. Running statistics are
    averaged like weights; integer buffers stay on the clients.

    With ``robust``, the coordinate-wise median and trimmed mean (Yin et al., ICML 2018) weight all clients equally,
    regardless of their numbers of samples. "multikrum" compares weights in float64: after a small change, such as one
    round of fine-tuning, distances in float32 would be mere rounding errors.

    Parameters
    ----------
    bodies : bool
        Whether only the weights of bodies are exchanged.
    exchange_every : int
        Local work between two exchanges, as a multiple of that in the run config.
    """

    heterogeneous = False
    sends: Sends = "weights"
    averages = True

    def __init__(self, *, bodies: bool = False, exchange_every: int = 1) -> None:
        self.exchange_every, self._bodies = exchange_every, bodies

    def check(self, roster: Roster) -> None:
        """Refuse heterogeneous models, or different bodies.

        Raises
        ------
        FederationError
            Clients differ; the error names them and the algorithms for heterogeneous models.
        """
        roster.check_same_weights(self.name, for_heterogeneous_models(), bodies=self._bodies)

    def initial(self, roster: Roster) -> Arrays:
        """Return the initial weights of the global model, or of its body.

        Raises
        ------
        FederationError
            Raised by `global_model`, or if the body has no weights.
        ModelError
            Raised by `global_model`.
        """
        shared = self.first_shared()
        self._uploads = weights(shared)
        if not self._uploads.names:
            name = next(iter(roster)).model
            raise FederationError(
                f"{self.name} averages the weights of bodies, but the body of '{name}' has none: set models"
            )
        return model_arrays(shared)

    def first_shared(self) -> Module:
        """Return the network whose weights are averaged, the global model or its body, as it is before round 1."""
        model = global_model(self.roster, self.config, bodies=self._bodies)
        return model.body if self._bodies else model

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Return the server state: all clients receive the weights."""
        return server_state

    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Return the server state: all clients receive the weights."""
        return server_state

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Declare the weights of the global model, or of its body."""
        return self._uploads

    def sample_limits(self, member: Member) -> SampleLimits:
        """Return the limits: the client's training samples, and the samples in a round's batches."""
        return SampleLimits(member.train, max_drawn(self.config, member.train, times=self.exchange_every))

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Average the weights."""
        kept = self.left_out.kept_uploads(uploads)
        return self.robust.among_kept.weighted_by_name([one.arrays for one in kept], [one.samples for one in kept])
