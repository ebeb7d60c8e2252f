"""FedProto, server side: the mean prototype of each class.

Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI
2022.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from hetfl_flwr import Arrays, Member, Roster, Upload
from strategies.base_prototypes import PrototypeStrategy
from strategies.prototypes import Predict


class FedProto(PrototypeStrategy):
    """Averages the clients' prototypes, class by class.

    Eq. (6), Algorithm 1. A prototype is the mean embedding of a class, of width D. With ``width = 0`` in the run config
    D is 64, and a body of another width gets a projection to it.

    Wire   down: prototypes (C, D) float32, known (C,) bool: 4 C D + C bytes
           up:   classes (S,) int32, prototypes (S, D) float32, counts (S,) int64: 4 S D + 12 S bytes; with
           ``weighting = "uniform"``, present (S,) int8 instead of counts: 4 S D + 5 S bytes
           S is the number of classes that the client has; with ``clipping-norm`` it is C, and the classes that a client
           has are as private as the prototypes
           for evaluation, unless ``predict = "head"``: down the same
    Needs  equal classes
    State  "sync": prototypes (C, D) float32, known (C,) bool. "async": prototypes.K (C, D) float32, counts.K (C,) int64
           for each client K.
    Robust the prototypes of a class, with equal weights. It takes three clients to outvote one.
    Departs from the paper: weights sum to 1, where Eq. (6) as printed divides once more by the number of clients that
    have the class. The prototype of a class that no client in a round has does not change. All clients receive the
    prototypes of all classes. The paper has no ``mode = "async"``.

    Parameters
    ----------
    mode : {"sync", "async"}
        "sync": the server waits for all clients of a round, and averages their prototypes. "async": it answers one
        client at a time, as uploads arrive, with the average of each client's last prototypes. A round is then as many
        uploads as there are clients.
    weighting : {"counts", "uniform"}
        Whether a client's prototype is weighted by its number of samples, as in Eq. (6), or all have the same weight,
        as in the authors' published code and HtFLlib. With "uniform", clients do not send numbers of samples.
    predict : {"head", "prototype", "own-prototype"}
        As in `clients.fedproto.FedProtoClient`.
    """

    def __init__(
        self,
        *,
        mode: Literal["sync", "async"] = "sync",
        weighting: Literal["counts", "uniform"] = "counts",
        predict: Predict = "head",
    ) -> None:
        super().__init__(counted=weighting == "counts", predict=predict)
        self.asynchronous, self.weighting = mode == "async", weighting

    def initial(self, roster: Roster) -> Arrays:
        """Return a state without prototypes."""
        return {} if self.asynchronous else _no_prototypes(next(iter(roster)))

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Average prototypes with `averaged`, Eq. (6); in mode "async", replace each client's last upload."""
        sent = self.class_means(uploads)
        if self.asynchronous:
            newest = {**server_state}
            for upload, (prototypes, counts) in zip(uploads, sent, strict=True):
                key = f"{upload.client_id:06d}"
                newest |= {f"prototypes.{key}": prototypes, f"counts.{key}": counts}
            return dict(sorted(newest.items()))
        means, known = self.averaged([upload.client_id for upload in uploads], sent)
        kept = np.where(known[:, None], means, server_state["prototypes"])
        return {"prototypes": kept.astype(np.float32), "known": known | server_state["known"]}

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send all prototypes to each client; mark a class that no client has as unknown."""
        if not self.asynchronous:
            return server_state
        keys = [name.removeprefix("counts.") for name in server_state if name.startswith("counts.")]
        if not keys:
            return _no_prototypes(member)
        stored = ((server_state[f"prototypes.{key}"], server_state[f"counts.{key}"]) for key in keys)
        means, known = self.averaged([int(key) for key in keys], stored)
        return {"prototypes": means.astype(np.float32), "known": known}


def _no_prototypes(member: Member) -> Arrays:
    return {
        "prototypes": np.zeros((member.classes, member.width), np.float32),
        "known": np.zeros(member.classes, np.bool_),
    }
