"""CHFL, server side: the mean or the sum of the clients' heads.

Liu, Yang, Cai, Ding and Lu, "Completely Heterogeneous Federated Learning", 2022 (arXiv 2210.15865).
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr import (
    Arrays,
    ArraySpec,
    Average,
    KnowledgeStrategy,
    Member,
    PayloadSpec,
    Roster,
    Upload,
    check_size,
    learnt,
)

Mode = Literal["kd", "avg", "avgkd"]
"""How a client uses the other heads: learn from them, start a round with their mean, or both."""


def linear_head(classes: int, width: int) -> PayloadSpec:
    """Declare the upload: a linear head, weight (C, D) and bias (C,)."""
    return PayloadSpec((learnt("weight", (classes, width), usual=0.0), learnt("bias", (classes,), usual=0.0)))


def summed_heads(classes: int, width: int) -> PayloadSpec:
    """Declare the download: the sum of linear heads, (C, D) and (C,), and their number, (), 0 in the beginning."""
    return PayloadSpec(
        (
            ArraySpec("weight", (classes, width), "float32"),
            ArraySpec("bias", (classes,), "float32"),
            ArraySpec("heads", (), "int32", minimum=0),
        )
    )


class CHFL(KnowledgeStrategy):
    """Averages the clients' heads, or adds them up; bodies and inputs may be of any kind.

    Eq. (4), Algorithm 1 line 7. Clients must only have the same classes and embedding width D. With ``width = 0`` in
    the run config D is 64, and a body of another width gets a projection to it.

    Wire   down: the sum of the heads of the last round, weight (C, D) float32, bias (C,) float32, and their number,
           heads () int32: 4 C (D + 1) + 4 bytes
           up:   the client's head, weight (C, D) float32, bias (C,) float32: 4 C (D + 1) bytes
    Needs  equal classes
    State  the same as the download.
    Robust the sum is the robust mean of the heads times their number.
    Departs from the paper: with ``fraction`` below 1, the sum is over the clients of the last round, not over all.

    Parameters
    ----------
    mode : {"kd", "avg", "avgkd"}
        As in `clients.chfl.CHFLClient`.
    """

    sends = "parts of weights"
    averages = True
    width = 64

    def __init__(self, *, mode: Mode = "kd") -> None:
        self.mode = mode

    def check(self, roster: Roster) -> None:
        """Refuse clients with different classes or embedding widths."""
        super().check(roster)
        roster.check_same_width("chfl", self.width)
        first = next(iter(roster))
        check_size(f"chfl: the head of {first}", first.classes, first.width)

    def initial(self, roster: Roster) -> Arrays:
        """Return a state without heads."""
        return _total(self.robust, [], roster.classes, next(iter(roster)).width)

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the sum of the heads."""
        return server_state

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect a head."""
        return linear_head(member.classes, member.width)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Add up the heads of this round: Eq. (4)."""
        self.left_out.kept([upload.client_id for upload in uploads], [np.stack(_heads(uploads))])
        return _total(self.robust, uploads, *server_state["weight"].shape)


def _heads(uploads: Sequence[Upload]) -> list[NDArray[np.float32]]:
    """Return the received heads as matrices (C, D + 1) of weight and bias."""
    return [np.column_stack([upload.arrays["weight"], upload.arrays["bias"]]) for upload in uploads]


def _total(average: Average, uploads: Sequence[Upload], classes: int, width: int) -> Arrays:
    """Return the sum of the heads, computed in float64, and their number."""
    total = average.total(_heads(uploads), np.zeros((classes, width + 1))).astype(np.float32)
    return {
        "weight": total[:, :-1].copy(),
        "bias": total[:, -1].copy(),
        "heads": np.asarray(len(uploads), np.int32),
    }
