"""FedHe, server side: a running mean of class-average logits.

Chan and Ngai, "FedHe: Heterogeneous Models and Communication-Efficient Federated Learning", MSN 2021.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

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
    """Declare what goes up: average logits of each class, (C, C), and the number of samples behind them, (C,).

    The size of counts does not enter the mean, so none is unusual. A client counts at most as many in all as it has
    trained on, or each class once: so noise may say of counts that are hidden.
    """
    total = None if most is None else max(most, classes)
    counts = sample_counts("counts", (classes,), usual=inf, total=total)
    return PayloadSpec((learnt("logits", (classes, classes)), counts))


def known_class_logits(classes: int) -> PayloadSpec:
    """Declare what goes down: average logits of each class, (C, C), and whether any are known for it, (C,)."""
    return PayloadSpec((ArraySpec("logits", (classes, classes), "float32"), ArraySpec("known", (classes,), "bool")))


class FedHe(KnowledgeStrategy):
    """Averages the class-average logits of all clients, class by class.

    Eq. (9)-(10), Algorithm 1 lines 1-6. Differs from FedMD: no public data; one logit vector a class.

    Wire   down: logits (C, C) float32, known (C,) bool: 4 C^2 + C bytes
           up:   logits (C, C) float32, counts (C,) int64: 4 C^2 + 8 C bytes (480 at C = 10)
    Needs  equal classes
    State  "all": sums (C, C) float64, uploads (C,) int64. "latest": logits.K (C, C) float32, known.K (C,) bool of each
           client K.
    Robust the logits of a class over the clients that have seen it: of the round, with ``store = "latest"`` the latest
           of each. It takes three clients to outvote one. Not with ``mode = "async"`` and ``store = "all"``.
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

    sends = "logits"
    averages = True

    def __init__(
        self,
        *,
        mode: Literal["sync", "async"] = "sync",
        store: Literal["all", "latest"] = "all",
    ) -> None:
        self.store = store
        self.asynchronous = mode == "async"
        self.averages = store == "latest" or not self.asynchronous  # one upload can be compared with no other

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
        return {} if self.store == "latest" else _nothing(roster.classes)

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect class-average logits and their counts; with ``clipping-norm`` set, these are 1 or 0."""
        return class_logits(member.classes, most=self.most_samples(member).seen)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Take uploads in: Eq. (9). Classes with no sample behind them are passed over."""
        if self.store == "latest":
            return self._replaced(server_state, uploads)
        client_ids = [upload.client_id for upload in uploads]
        logits = [upload.arrays["logits"] for upload in uploads]
        return self._added(server_state, client_ids, logits, [upload.arrays["counts"] > 0 for upload in uploads])

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Average what is stored for each class: Eq. (10). A class that no client has seen is marked as not known."""
        if self.store == "latest":
            names = [name.removeprefix("logits.") for name in server_state if name.startswith("logits.")]
            server_state = self._added(
                _nothing(member.classes),
                [int(key) for key in names],
                [server_state[f"logits.{key}"] for key in names],
                [server_state[f"known.{key}"] for key in names],
            )
        sums, count = server_state["sums"], server_state["uploads"]
        mean = sums / np.maximum(count, 1)[:, None]
        return {"logits": mean.astype(np.float32), "known": count > 0}

    def _added(
        self,
        stored: Arrays,
        client_ids: Sequence[int],
        logits: Sequence[NDArray[Any]],
        seen: Sequence[NDArray[np.bool_]],
    ) -> Arrays:
        """Add clients' logits (C, C) to the sums, class by class, each over the clients that have seen it."""
        sums, uploads = stored["sums"].copy(), stored["uploads"].copy()
        for own, has in zip(logits, seen, strict=True):
            sums[has] += own[has]
            uploads[has] += 1
        if self.robust.form != "none":
            for label in range(len(sums)):
                places = [place for place, has in enumerate(seen) if has[label]]
                rows = [logits[place][label] for place in places]
                self.left_out.rows_of_class([client_ids[place] for place in places], label, rows)
                sums[label] = self.robust.total(rows, stored["sums"][label])
        return {"sums": sums, "uploads": uploads}

    def _replaced(self, server_state: Arrays, uploads: Sequence[Upload]) -> Arrays:
        """Put each upload in the place of its client's last one, class by class."""
        newest = dict(server_state)
        for upload in uploads:
            key, logits, seen = f"{upload.client_id:06d}", upload.arrays["logits"], upload.arrays["counts"] > 0
            before = newest.get(f"logits.{key}", np.zeros_like(logits))
            newest[f"logits.{key}"] = np.where(seen[:, None], logits, before)
            newest[f"known.{key}"] = seen | newest.get(f"known.{key}", np.zeros_like(seen))
        return dict(sorted(newest.items()))


def _nothing(classes: int) -> Arrays:
    return {"sums": np.zeros((classes, classes)), "uploads": np.zeros(classes, np.int64)}
