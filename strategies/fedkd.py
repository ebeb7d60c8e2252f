"""FedKD, server side: the mean of the updates of the clients' small models, compressed both ways.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature Communications 13, 2022.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from hetfl_flwr import (
    AUTO,
    Arrays,
    ArraySpec,
    KnowledgeStrategy,
    Member,
    ModelName,
    PayloadSpec,
    Roster,
    Upload,
    bounded,
    factor,
    factored,
    linear_schedule,
    model_arrays,
    multiplied,
    prefixed,
    small_global_model,
    under,
    weights,
)

Energy = Annotated[float, Field(gt=0, le=1)]

DOWN = "global."
"""Prefix of the server's arrays in a download, so that their names differ from those in an upload."""


def global_mentee(mentee: PayloadSpec) -> PayloadSpec:
    """Declare the download: the mentee after ``round`` (), or its change since ``before`` () if that is not -1."""
    rounds = (ArraySpec("round", (), "int64", minimum=0), ArraySpec("before", (), "int64", minimum=-1))
    return PayloadSpec(rounds) + factored(mentee, DOWN)


class FedKD(KnowledgeStrategy):
    """Averages the updates of mentees, small models that all clients train together with their mentors.

    Section "Methods", dynamic gradient approximation: for each matrix (m, n) of an update, the fewest leading singular
    values that retain a share T of the sum of all squares are sent, K in number. The server multiplies the factors,
    takes the mean with equal weights, and compresses it for the download. Server and clients add the same update to the
    same mentee.

    Wire   down: the mean update: for each matrix left (m, K) and right (K, n) float32, or the whole matrix if K (m + n)
                 is not less than m n; whole vectors: the sum of 4 min(K (m + n), m n) and 4 m bytes, and 16.
                 In round 1, and for a client without a counted upload in the last round: the whole mentee
           up:   the client's update in the same form, without the 16
           Matrices of zeros take no bytes.
           The whole mentee is sent once more for evaluation, and counted as evaluation.
    Needs  one shape of input, equal classes
    State  mentee.NAME; sent.NAME, the last download; round () int64, the round of that download; before () int64, the
           round since which it is a change; held (H,) int64, the clients that have the mentee of that round.
    Robust the updates, after multiplying.
    Departs from the paper: it also sends K singular values, in total K (m + n) + K^2 numbers; here ``left`` includes
    them. It has no convolutions; here they are matrices (out, in x height x width). Its code sends nothing of a matrix
    where all singular values are needed, and T is one round ahead there. HtFLlib compresses weights instead of updates,
    and each kernel (height, width) separately.

    Parameters
    ----------
    mentee : str
        One model, as in ``models``, for all clients' data. "auto" is the first model of ``models = "auto"``. It has its
        own embedding width, and its initial weights are random.
    energy_start, energy_end : float
        T, the share of the squared singular values of each matrix that is kept, in the run's first and last round,
        linear in between, in (0, 1]. With 1, nothing is compressed, and updates are exact.
    """

    sends = "small models"
    averages = True

    def __init__(self, *, mentee: ModelName = AUTO, energy_start: Energy = 0.95, energy_end: Energy = 0.98) -> None:
        self.mentee, self.energy = mentee, (energy_start, energy_end)

    def check(self, roster: Roster) -> None:
        """Refuse different shapes of input or classes, because one mentee must fit all clients."""
        _ = roster.shape, roster.classes

    def initial(self, roster: Roster) -> Arrays:
        """Draw the mentee's initial weights."""
        mentee = small_global_model(self.mentee, roster, self.config)
        self._weights = weights(mentee)
        rounds = {"round": np.array(0), "before": np.array(-1), "held": np.zeros(0, np.int64)}
        return prefixed("mentee.", model_arrays(mentee)) | rounds

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect a mentee's update."""
        return factored(self._weights, changes=True)

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the last update to clients whose upload arrived in the last round, and the whole mentee to others."""
        last = {"round": server_state["round"], "before": server_state["before"]}
        if server_state["round"] == round - 1 and member.client_id in server_state["held"]:
            return last | under("sent.", server_state)
        return last | {"before": np.array(-1)} | factor(under("mentee.", server_state), self._weights, 1.0, DOWN)

    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Send the mentee."""
        return under("mentee.", server_state)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Multiply the factors, take the mean, compress it, and add it to the mentee, as the clients do."""
        sent = [multiplied(upload.arrays, self._weights) for upload in uploads]
        updates = {name: np.stack([arrays[name] for arrays in sent]) for name in self._weights.names}
        client_ids = [upload.client_id for upload in uploads]
        kept, average = self.left_out.kept(client_ids, list(updates.values())), self.robust.among_kept
        means = {name: average.mean(list(arrays[kept])) for name, arrays in updates.items()}
        mean = bounded(means, self._weights, changes=True)
        packed = factor(mean, self._weights, linear_schedule(self.energy, round, self.config.rounds), DOWN)
        update = multiplied(packed, self._weights, DOWN)
        mentee = {name: array + update[name] for name, array in under("mentee.", server_state).items()}
        rounds = {"round": np.array(round), "before": server_state["round"], "held": np.array(client_ids, np.int64)}
        return prefixed("mentee.", bounded(mentee, self._weights)) | prefixed("sent.", packed) | rounds
