"""FedHe, server side: a running mean of class-average logits.

Chan and Ngai, "FedHe: Heterogeneous Models and Communication-Efficient Federated Learning", MSN 2021.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hetfl_flwr.learning.aggregation import parse_robust
from hetfl_flwr.models.bounds import check_size
from hetfl_flwr.server.messaging.roster import Member, Roster
from hetfl_flwr.wire.spec import Arrays, ArraySpec, PayloadSpec, learnt, sample_counts
from strategies.base import KnowledgeStrategy, Upload


def class_logits(classes: int) -> PayloadSpec:
    """Declare what goes up: average logits of each class, (C, C), and the number of samples behind them, (C,)."""
    no_limit = inf  # of what honest clients may count: no mean is weighted by it
    return PayloadSpec((learnt("logits", (classes, classes)), sample_counts("counts", (classes,), usual=no_limit)))


def known_class_logits(classes: int) -> PayloadSpec:
    """Declare what goes down: average logits of each class, (C, C), and whether any are known for it, (C,)."""
    return PayloadSpec((ArraySpec("logits", (classes, classes), "float32"), ArraySpec("known", (classes,), "bool")))


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
    robust : {"none", "median", "trimmed:SHARE"}
        How wrong logits are kept from the averages; coordinate-wise median or trimmed mean of Yin et al., ICML 2018, as
        in `hetfl_flwr.learning.aggregation.parse_robust`. "none": not at all. Averaged are the logits of a class over
        the clients that have seen it: with ``store = "latest"`` over the latest of each; with "all" over the uploads of
        one round, as many times as they are, which then go into the running mean like honest ones. It takes three of
        them to outvote one, so classes that few clients have are hardly protected.

    Raises
    ------
    ConfigError
        ``robust`` is none of these.
    ValueError
        ``robust`` with ``mode = "async"`` and ``store = "all"``: uploads that come one by one outvote nobody.
    """

    def __init__(
        self,
        *,
        mode: Literal["sync", "async"] = "sync",
        store: Literal["all", "latest"] = "all",
        robust: str = "none",
    ) -> None:
        self.store = store
        self.asynchronous = mode == "async"
        self.robust = parse_robust(robust)
        if self.asynchronous and store == "all" and self.robust.form != "none":
            raise ValueError(f"robust = '{robust}' compares clients, so mode = 'async' needs store = 'latest' with it")

    def check(self, roster: Roster) -> None:
        """Refuse different numbers of classes, or one whose C x C logits the server cannot keep.

        Raises
        ------
        FederationError
            One line that names who differs, or how many classes there are.
        """
        classes = roster.classes
        check_size(f"fedhe: logits of {classes} classes", classes, classes)

    def initial(self, roster: Roster) -> Arrays:
        """Know nothing of any class: the cold start."""
        classes = roster.classes
        return {} if self.store == "latest" else _nothing(classes)

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect class-average logits and their counts; with ``clipping-norm`` set, these are 1 or 0."""
        return class_logits(member.classes)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Take uploads in: Eq. (9). Classes with no sample behind them are passed over."""
        if self.store == "latest":
            return self._replace(server_state, uploads)
        logits = [upload.arrays["logits"] for upload in uploads]
        seen = [upload.arrays["counts"] > 0 for upload in uploads]
        return self._added(server_state, logits, seen)

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Average what is stored for each class: Eq. (10). A class that no client has seen is marked as not known."""
        if self.store == "latest":
            logits = [array for name, array in server_state.items() if name.startswith("logits.")]
            known = [array for name, array in server_state.items() if name.startswith("known.")]
            server_state = self._added(_nothing(member.classes), logits, known)
        sums, count = server_state["sums"], server_state["uploads"]
        mean = sums / np.maximum(count, 1)[:, None]
        return {"logits": mean.astype(np.float32), "known": count > 0}

    def _added(self, stored: Arrays, logits: Sequence[NDArray[Any]], seen: Sequence[NDArray[np.bool_]]) -> Arrays:
        """Add clients' logits (C, C) to the sums, class by class, each over the clients that have seen it (C,)."""
        sums, uploads = stored["sums"].copy(), stored["uploads"].copy()
        for own, has in zip(logits, seen, strict=True):
            sums[has] += own[has]
            uploads[has] += 1
        if self.robust.form != "none":
            for label in range(len(sums)):
                rows = [own[label] for own, has in zip(logits, seen, strict=True) if has[label]]
                sums[label] = self.robust.total(rows, stored["sums"][label])
        return {"sums": sums, "uploads": uploads}

    @staticmethod
    def _replace(server_state: Arrays, uploads: Sequence[Upload]) -> Arrays:
        newest = dict(server_state)
        for upload in uploads:
            key, seen = f"{upload.client_id:06d}", upload.arrays["counts"] > 0
            before = newest.get(f"logits.{key}", np.zeros_like(upload.arrays["logits"]))
            known = newest.get(f"known.{key}", np.zeros(len(seen), bool))
            newest[f"logits.{key}"] = np.where(seen[:, None], upload.arrays["logits"], before)
            newest[f"known.{key}"] = known | seen
        return dict(sorted(newest.items()))


def _nothing(classes: int) -> Arrays:
    return {"sums": np.zeros((classes, classes)), "uploads": np.zeros(classes, np.int64)}
