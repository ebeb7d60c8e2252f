"""FedHe, server side: a running mean of class-average logits.

Chan and Ngai, "FedHe: Heterogeneous Models and Communication-Efficient Federated Learning", MSN 2021.
"""

from collections.abc import Sequence
from math import inf
from typing import Literal

import numpy as np

from hetfl_flwr import (
    Arrays,
    ArraySpec,
    KnowledgeStrategy,
    Member,
    PayloadSpec,
    Roster,
    Upload,
    check_size,
    learnt,
    sample_counts,
)


def class_logits(classes: int, *, most: int | None = None) -> PayloadSpec:
    """Declare the upload: average logits of each class, (C, C), and their numbers of samples, (C,).

    The mean does not depend on the size of counts, so the guard accepts any. Their sum is at most the number of samples
    that the client has trained on, or the number of classes: with noise, each count may be 1.
    """
    total = None if most is None else max(most, classes)
    counts = sample_counts("counts", (classes,), usual=inf, total=total)
    return PayloadSpec((learnt("logits", (classes, classes)), counts))


def known_class_logits(classes: int) -> PayloadSpec:
    """Declare the download: average logits of each class, (C, C), and for which classes they are known, (C,)."""
    return PayloadSpec((ArraySpec("logits", (classes, classes), "float32"), ArraySpec("known", (classes,), "bool")))


class FedHe(KnowledgeStrategy):
    """Averages the class-average logits of all clients, class by class.

    Eq. (9)-(10), Algorithm 1 lines 1-6. Unlike FedMD, it needs no public data, and sends one logit vector per class.

    Wire   down: logits (C, C) float32, known (C,) bool: 4 C^2 + C bytes
           up:   logits (C, C) float32, counts (C,) int64: 4 C^2 + 8 C bytes (480 at C = 10)
    Needs  equal classes
    State  sums (C, C) float64 of all received logits, and uploads (C,) int64, their numbers.
    Robust the logits of a class over the clients of a round that have seen it. It takes three clients to outvote one.
           Not with ``mode = "async"``.
    Departs from the paper: by default rounds are synchronous, and all clients of a round receive the same averages
    (the paper's method is ``mode = "async"``). A class that a client did not see in a round is left out of the average
    (the paper's Eq. 8 would send zeros for it).

    Parameters
    ----------
    mode : {"sync", "async"}
        "sync": the server waits for all clients of a round. "async": it answers one client at a time, as uploads
        arrive, with the current averages; no client waits for another. A round is then as many uploads as there are
        clients.
    """

    sends = "logits"
    averages = True

    def __init__(self, *, mode: Literal["sync", "async"] = "sync") -> None:
        self.asynchronous = mode == "async"
        self.averages = not self.asynchronous  # a single upload cannot be compared with others

    def check(self, roster: Roster) -> None:
        """Refuse different numbers of classes, and C x C logits that are too large for the server."""
        classes = roster.classes
        check_size(f"fedhe: logits of {classes} classes", classes, classes)

    def initial(self, roster: Roster) -> Arrays:
        """Return a state without logits of any class: the cold start."""
        return {"sums": np.zeros((roster.classes, roster.classes)), "uploads": np.zeros(roster.classes, np.int64)}

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect class-average logits and their counts, which are 1 or 0 if ``clipping-norm`` is set."""
        return class_logits(member.classes, most=self.sample_limits(member).seen)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Add up the uploads: Eq. (9). Classes without samples are skipped."""
        sums, count = server_state["sums"].copy(), server_state["uploads"].copy()
        for label in range(len(sums)):
            seen = [upload for upload in uploads if upload.arrays["counts"][label] > 0]
            rows = [upload.arrays["logits"][label] for upload in seen]
            self.left_out.kept_rows([upload.client_id for upload in seen], rows)
            sums[label] = self.robust.total(rows, sums[label])
            count[label] += len(seen)
        return {"sums": sums, "uploads": count}

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Average the logits of each class: Eq. (10). A class that no client has seen is marked as unknown."""
        sums, count = server_state["sums"], server_state["uploads"]
        mean = sums / np.maximum(count, 1)[:, None]
        return {"logits": mean.astype(np.float32), "known": count > 0}
