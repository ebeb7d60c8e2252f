"""FedKD, server side: the mean of the updates of the clients' small models, compressed both ways.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature Communications 13, 2022.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hetfl_flwr import (
    AUTO,
    Arrays,
    ArraySpec,
    KnowledgeStrategy,
    Member,
    PayloadSpec,
    Roster,
    Upload,
    bounded,
    factor,
    factored,
    model_arrays,
    multiplied,
    parse_models,
    small_global_model,
    weights,
)

Compress = Literal["update", "weights"]
Energy = Annotated[float, Field(gt=0, le=1)]

DOWN = "global."
"""What the names of the server's arrays begin with on their way down: they are no start of the clients' own."""


def compressed_mentee(mentee: PayloadSpec, of: Compress) -> PayloadSpec:
    """Declare what goes up: the trained mentee or its change; of each matrix all rows, or two factors."""
    return factored(mentee, changes=of == "update")


def global_mentee(mentee: PayloadSpec) -> PayloadSpec:
    """Declare what goes down: the mentee after ``round`` (), or where ``before`` () is not -1 its change since then."""
    rounds = (ArraySpec("round", (), "int64", minimum=0), ArraySpec("before", (), "int64", minimum=-1))
    return PayloadSpec(rounds) + factored(mentee, DOWN)


def energy(first: float, last: float, round: int, rounds: int) -> float:
    """Return the share T of a round, counted from 1: linear from the run's first round to its last."""
    return float(np.interp(round, (1, max(rounds, 2)), (first, last)))


class FedKD(KnowledgeStrategy):
    """Averages what clients' mentees have learnt, small models that all have beside their own ones, the mentors.

    Section "Methods", dynamic gradient approximation: of each matrix of an update (m, n) the K leading singular values
    travel, as few as hold a share T of the sum of all squares; the server multiplies, takes the mean, each client
    alike, and compresses that for the way down. Server and clients add the same to the same mentee.

    Wire   down: the mean update: of each matrix left (m, K) and right (K, n) float32, or all of it where K (m + n) is
                 not less than m n; vectors whole: the sum of 4 min(K (m + n), m n) and 4 m bytes, and 16.
                 In round 1, and to a client whose upload of the last is missing or weighs nothing, the mentee whole
           up:   the client's update in the same form, without the 16; ``compress = "weights"``: its mentee
           Matrices of zeros take no bytes. ``compress = "weights"``: from round 2 on, down to all the mentee's factors
           When clients are evaluated they are sent the whole mentee once more, which is counted as evaluation.
    Needs  one shape of input, equal classes
    State  mentee.NAME; sent.NAME, what is sent down; round () int64, after which that is; before () int64, the round
           that it is a change since; held (H,) int64, the clients that hold the mentee of then.
    Robust the updates, after multiplying.
    Departs from the paper: it sends K singular values, too, K (m + n) + K^2 numbers; here ``left`` has them. It has no
    convolutions; here these are matrices (out, in x height x width). Its code keeps a value fewer where the squares
    reach T, and T is one round's step farther on there. HtFLlib compresses weights, and each kernel (height, width) by
    itself.

    Parameters
    ----------
    mentee : str
        One model, as in ``models``, for all clients' data. "auto": what ``models = "auto"`` gives clients of one model.
        Its embedding width is its own, and its first weights are random.
    compress : {"update", "weights"}
        What the singular values are of. "weights": the mentee loses what is cut off, and nothing else is cut off it.
    energy_start, energy_end : float
        T in the run's first round and in its last, linear between, in (0, 1]. 1: nothing is compressed, to the bit.

    Raises
    ------
    ConfigError, ModelError, ValueError
        The mentee is no model, or several.
    """

    sends = "small models"
    averages = True

    def __init__(
        self,
        *,
        mentee: str = AUTO,
        compress: Compress = "update",
        energy_start: Energy = 0.95,
        energy_end: Energy = 0.98,
    ) -> None:
        if mentee != AUTO and len(parse_models(mentee)) != 1:
            raise ValueError(f"mentee = {mentee!r}: expected the name of one model, such as 'lenet5'")
        self.mentee, self.compress = mentee, compress
        self.energy_start, self.energy_end = energy_start, energy_end

    def check(self, roster: Roster) -> None:
        """Refuse inputs of different shapes and different classes, which one mentee does not fit."""
        _ = roster.shape, roster.classes

    def initial(self, roster: Roster) -> Arrays:
        """Draw the mentee's initial weights."""
        mentee = small_global_model(self.mentee, roster, self.config)
        self._weights, drawn = weights(mentee), model_arrays(mentee)
        rounds = {"round": np.array(0), "before": np.array(-1), "held": np.zeros(0, np.int64)}
        return {**{f"mentee.{name}": array for name, array in drawn.items()}, **rounds}

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect a mentee's update, or a mentee."""
        return compressed_mentee(self._weights, self.compress)

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the last update to a client whose upload has come in the last round, and to all others the mentee."""
        known = server_state["round"] == round - 1 and member.client_id in server_state["held"]
        packed = {name.removeprefix("sent."): array for name, array in server_state.items() if name.startswith("sent.")}
        before = server_state["before"]
        if not packed or (self.compress == "update" and not known):
            packed, before = factor(self._mentee(server_state), self._weights, 1.0, DOWN), np.array(-1)
        return {"round": server_state["round"], "before": before, **packed}

    def assess_download_for(self, member: Member, server_state: Arrays) -> Arrays:
        """Send the mentee."""
        return self._mentee(server_state)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Multiply the factors, take the mean, compress it, and do with the mentee as the clients will."""
        sent = [multiplied(upload.arrays, self._weights) for upload in uploads]
        updates = {name: np.stack([arrays[name] for arrays in sent]) for name in self._weights.names}
        kept = self.left_out.kept([one.client_id for one in uploads], list(updates.values()))
        average = self.robust.among_kept
        mean = {name: average.mean(list(arrays[kept])) for name, arrays in updates.items()}
        limits = {one.name: one.maximum or np.inf for one in self._weights.arrays}
        mean = {name: np.clip(mean[name], -limit, limit).astype(np.float32) for name, limit in limits.items()}
        share = energy(self.energy_start, self.energy_end, round, self.config.rounds)
        packed, before = factor(mean, self._weights, share, DOWN), np.array(-1)
        mentee = multiplied(packed, self._weights, DOWN)
        if self.compress == "update":
            mentee = {name: array + mentee[name] for name, array in self._mentee(server_state).items()}
            before = server_state["round"]
        mentee = bounded(mentee, self._weights)
        return {
            **{f"mentee.{name}": array for name, array in mentee.items()},
            **{f"sent.{name}": array for name, array in packed.items()},
            **{"round": np.array(round), "before": before},
            "held": np.array([one.client_id for one in uploads], np.int64),
        }

    def _mentee(self, server_state: Arrays) -> Arrays:
        return {name: server_state[f"mentee.{name}"] for name in self._weights.names}
