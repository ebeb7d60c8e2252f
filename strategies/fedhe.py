"""FedHe, server half: a running mean of class-average logits.

Chan and Ngai, "FedHe: Heterogeneous Models and Communication-Efficient Federated Learning", MSN 2021.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.federation import Member, Roster
from hetfl_flwr.payloads import Arrays, PayloadSpec, class_logits
from strategies.base import KnowledgeStrategy, Upload


class FedHe(KnowledgeStrategy):
    """Averages the class-average logits of all clients, class by class.

    Eq. (9)-(10), Algorithm 1 lines 1-6. Differs from FedMD: no public data; one logit vector a class.

    Wire   down: logits (C, C) float32, known (C,) bool: 4 C^2 + C bytes
           up:   logits (C, C) float32, counts (C,) int64: 4 C^2 + 8 C bytes (480 at C = 10)
    Needs  equal classes
    State  "all": sums (C, C) float64, uploads (C,) int64. "latest": logits.K (C, C) float32, known.K (C,) bool of
           each client K.
    Departs from the paper: by default rounds are synchronous, all clients of a round are answered with the same
    averages (``mode = "async"`` is the paper's way). A class that a client did not see in a round is not averaged in
    (the paper's Eq. 8 would send zeros for it).

    Parameters
    ----------
    mode : {"sync", "async"}
        "sync": the server waits for all clients of a round. "async": it answers one client at a time, as it comes, with
        what it knows by then; no client waits for another. A round is then as many uploads as there are clients.
    store : {"all", "latest"}
        What Eq. (10) averages for a class: every upload ever received, each with weight one ("all", the paper's); or
        the newest upload of each client that has that class in it ("latest", which forgets outdated logits).
    """

    def __init__(self, *, mode: Literal["sync", "async"] = "sync", store: Literal["all", "latest"] = "all") -> None:
        self.store = store
        self.asynchronous = mode == "async"

    def initial(self, roster: Roster) -> Arrays:
        """Know nothing of any class: the cold start."""
        classes = roster.classes
        if self.store == "latest":
            return {}
        return {"sums": np.zeros((classes, classes)), "uploads": np.zeros(classes, np.int64)}

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect class-average logits and their counts."""
        return class_logits(member.classes)

    def absorb(self, knowledge: Arrays, uploads: Sequence[Upload]) -> Arrays:
        """Take uploads in: Eq. (9). Classes with no sample behind them are passed over."""
        if self.store == "latest":
            return self._replace(knowledge, uploads)
        sums, count = knowledge["sums"].copy(), knowledge["uploads"].copy()
        for upload in uploads:
            seen = upload.arrays["counts"] > 0
            sums[seen] += upload.arrays["logits"][seen]
            count[seen] += 1
        return {"sums": sums, "uploads": count}

    def download_for(self, member: Member, knowledge: Arrays, round: int) -> Arrays:
        """Average what is stored for each class: Eq. (10). A class that no client has seen is marked as not known."""
        if self.store == "latest":
            sums, count = _totals(knowledge, member.classes)
        else:
            sums, count = knowledge["sums"], knowledge["uploads"]
        mean = sums / np.maximum(count, 1)[:, None]
        return {"logits": mean.astype(np.float32), "known": count > 0}

    @staticmethod
    def _replace(knowledge: Arrays, uploads: Sequence[Upload]) -> Arrays:
        newest = dict(knowledge)
        for upload in uploads:
            key, seen = f"{upload.partition:06d}", upload.arrays["counts"] > 0
            before = newest.get(f"logits.{key}", np.zeros_like(upload.arrays["logits"]))
            known = newest.get(f"known.{key}", np.zeros(len(seen), bool))
            newest[f"logits.{key}"] = np.where(seen[:, None], upload.arrays["logits"], before)
            newest[f"known.{key}"] = known | seen
        return dict(sorted(newest.items()))


def _totals(newest: Arrays, classes: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    sums, count = np.zeros((classes, classes)), np.zeros(classes, np.int64)
    for name, logits in newest.items():
        kind, _, key = name.partition(".")
        if kind == "logits":
            known = newest[f"known.{key}"]
            sums[known] += logits[known]
            count[known] += 1
    return sums, count
