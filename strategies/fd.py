"""FD (federated distillation), server side: for each client, the other clients' average scores of each class.

Jeong, Oh, Kim, Park, Bennis and Kim, "Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data", NeurIPS workshop 2018 (arXiv 1811.11479).
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from hetfl_flwr import (
    Arrays,
    ArraySpec,
    Dim,
    KnowledgeStrategy,
    Member,
    PayloadSpec,
    Roster,
    Upload,
    check_size,
    probabilities,
    row_numbers,
)


def class_averages(classes: int) -> PayloadSpec:
    """Declare the upload: the average scores of S classes, (S, C), the classes, (S,), and flags, (S,).

    A flag says whether the client has samples of the class, and is 1. If uploads are clipped, all classes are sent,
    whichever the client has, and a flag is 1 or 0, with noise.
    """
    rows = Dim("S", classes)
    return PayloadSpec(
        (
            row_numbers("classes", rows, classes),
            probabilities("averages", (rows, classes)),
            ArraySpec("present", (rows,), "int8", minimum=0, maximum=1, sensitive=True),
        )
    )


def teacher_averages(classes: int) -> PayloadSpec:
    """Declare the download: the teacher's scores of each class, (C, C), and for which classes there are any, (C,)."""
    return PayloadSpec((ArraySpec("averages", (classes, classes), "float32"), ArraySpec("known", (classes,), "bool")))


class FD(KnowledgeStrategy):
    """Sends each client the other clients' average softmax scores of each class.

    Algorithm 1, "global ensembling phase": the teacher of client i is ``(sum_j F_j,y - F_i,y) / (K_y - 1)`` for each
    class y, where F_j,y are the scores of y from client j, and K_y is the number of clients that have sent scores of y.

    Wire   down: averages (C, C) float32, known (C,) bool: 4 C^2 + C bytes
           up:   classes (S,) int32, averages (S, C) float32, present (S,) int8: 4 S C + 5 S bytes
           S is the number of classes among the samples of the round. With ``clipping-norm`` it is C, and the classes
           that a client has are as private as the averages.
    Needs  equal classes
    State  averages.K (C, C) float32 and known.K (C,) bool for each client K: its last scores of each class.
    Robust the scores of a class over the clients that have it, scaled to a sum of 1 again. It takes three clients to
           outvote one.
    Departs from the paper: K_y counts the clients that have sent class y (in the paper, all clients have all classes).
    If a client does not take part in a round, or sees no samples of a class in it, its earlier scores count. The paper
    has no ``mode = "async"``. HtFLlib averages logits, and includes the client's own.

    Parameters
    ----------
    mode : {"sync", "async"}
        "sync": the server waits for all clients of a round. "async": it answers one client at a time, as uploads
        arrive, with what the others have sent so far. A round is then as many uploads as there are clients.
    """

    sends = "logits"
    averages = True

    def __init__(self, *, mode: Literal["sync", "async"] = "sync") -> None:
        self.asynchronous = mode == "async"

    def check(self, roster: Roster) -> None:
        """Refuse different numbers of classes, and C x C scores that are too large for the server."""
        classes = roster.classes
        check_size(f"fd: scores of {classes} classes", classes, classes)

    def initial(self, roster: Roster) -> Arrays:
        """Return an empty state."""
        return {}

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect the average scores of some classes."""
        return class_averages(member.classes)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Replace each client's last upload, class by class."""
        newest = dict(server_state)
        for upload in uploads:
            key, has = f"{upload.client_id:06d}", upload.arrays["present"] > 0
            rows, classes = upload.arrays["classes"][has], upload.arrays["averages"].shape[1]
            averages = np.array(newest.get(f"averages.{key}", np.zeros((classes, classes), np.float32)))
            known = np.array(newest.get(f"known.{key}", np.zeros(classes, np.bool_)))
            averages[rows], known[rows] = upload.arrays["averages"][has], True
            newest |= {f"averages.{key}": averages, f"known.{key}": known}
        return dict(sorted(newest.items()))

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the average of the others' scores of each class; mark a class that none of them has as unknown."""
        own = f"{member.client_id:06d}"
        names = (name.partition(".") for name in server_state)
        keys = [key for kind, _, key in names if kind == "known" and key != own]
        teacher = np.zeros((member.classes, member.classes), np.float32)
        known = np.zeros(member.classes, np.bool_)
        for label in range(member.classes):
            holders = [key for key in keys if server_state[f"known.{key}"][label]]
            rows = [server_state[f"averages.{key}"][label] for key in holders]
            if rows:
                rows = self.left_out.kept_rows(map(int, holders), rows)
                known[label], teacher[label] = True, self.robust.among_kept.mean(rows)
        if self.robust.form != "none":
            scores = np.maximum(teacher[known], np.finfo(np.float32).tiny)  # a median can be 0 in all classes
            teacher[known] = scores / scores.sum(axis=1, keepdims=True)
        return {"averages": teacher, "known": known}
