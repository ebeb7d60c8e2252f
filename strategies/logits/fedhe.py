"""FedHe, server side: a running mean of class-average logits.

Chan and Ngai, "FedHe: Heterogeneous Models and Communication-Efficient Federated Learning", MSN 2021.
"""

from collections.abc import Sequence
from math import inf
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hetfl_flwr.learning.aggregation import parse_robust
from hetfl_flwr.models.bounds import check_size
from hetfl_flwr.server.left_out import LeftOut
from hetfl_flwr.server.messaging.member import Member
from hetfl_flwr.server.messaging.roster import Roster
from hetfl_flwr.wire.spec import Arrays, ArraySpec, PayloadSpec, learnt, sample_counts
from strategies.base import KnowledgeStrategy, Upload


def class_logits(classes: int, *, weighted: bool = False, most: int | None = None) -> PayloadSpec:
    """Declare what goes up: average logits of each class, (C, C), and the number of samples behind them, (C,).

    Only where the mean is weighted by them does it matter how many samples honest clients may count. They count at most
    as many in all as they have trained on, or each class once: so noise may say of counts that are hidden.
    """
    total = None if most is None else max(most, classes)
    counts = sample_counts("counts", (classes,), usual=1.0 if weighted else inf, total=total)
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
    State  "all", "window": sums (C, C) float64, uploads (C,) int64, and of "window" received () int64. "latest":
           logits.K (C, C) float32, known.K (C,) bool of each client K. ``leave-one-out`` with "all": sums.K, uploads.K.
    Departs from the paper: by default rounds are synchronous, all clients of a round are answered with the same
    averages (``mode = "async"`` is the paper's way). A class that a client did not see in a round is not averaged in
    (the paper's Eq. 8 would send zeros for it). "window", ``leave-one-out`` and ``weighting = "samples"`` are not
    in it.

    Parameters
    ----------
    mode : {"sync", "async"}
        "sync": the server waits for all clients of a round. "async": it answers one client at a time, as it comes, with
        what it knows by then; no client waits for another. A round is then as many uploads as there are clients.
    store : {"all", "window", "latest"}
        What Eq. (10) averages for a class: every upload ever received, each with weight one ("all", the paper's);
        the same, but after every ``window`` uploads the mean so far counts as one upload (as the authors' server
        forgets, according to their published scripts); or the newest upload of each client that has that class in it
        ("latest", which forgets outdated logits).
    window : int
        Uploads after which ``store = "window"`` folds its mean into one, 1 or more.
    leave_one_out : bool
        Whether a client is answered with the averages of the others, its own uploads left out (Jeong et al.,
        "Communication-Efficient On-Device Machine Learning", 2018). Not with ``store = "window"``.
    weighting : {"uploads", "samples"}
        Whether each upload of a class counts once, as in Eq. (10), or by the number of samples behind it.
    robust : {"none", "median", "trimmed:SHARE", "multikrum:COUNT"}
        How wrong logits are kept from the averages; coordinate-wise median or trimmed mean of Yin et al., ICML 2018, or
        Multi-Krum mean of Blanchard et al., NIPS 2017, as in `hetfl_flwr.learning.aggregation.parse_robust`. "none":
        not at all. Averaged are the logits of a class over the clients that have seen it: with ``store = "latest"``
        over the latest of each; with "all" over the uploads of one round, as many times as they are, which then go into
        the running mean like honest ones. It takes three of them to outvote one, so classes that few clients have are
        hardly protected.

    Raises
    ------
    ConfigError
        ``robust`` is none of these.
    ValueError
        Options that exclude each other: ``robust`` compares uploads of several clients, and each of them counts once;
        a mean that counts as one upload is nobody's.
    """

    sends = "logits"

    def __init__(
        self,
        *,
        mode: Literal["sync", "async"] = "sync",
        store: Literal["all", "window", "latest"] = "all",
        window: Annotated[int, Field(ge=1)] = 100,
        leave_one_out: bool = False,
        weighting: Literal["uploads", "samples"] = "uploads",
        robust: str = "none",
    ) -> None:
        self.store, self.window, self.leave_one_out, self.weighting = store, window, leave_one_out, weighting
        self.asynchronous = mode == "async"
        self.robust = parse_robust(robust)
        self._left_out = LeftOut("fedhe", self.robust)
        if leave_one_out and store == "window":
            raise ValueError("leave-one-out = true needs store = 'all' or 'latest': a window's mean is nobody's upload")
        if self.robust.form != "none":
            if (self.asynchronous or leave_one_out) and store != "latest":
                alone = "mode = 'async'" if self.asynchronous else "leave-one-out = true"
                raise ValueError(f"robust = '{robust}' compares clients, so {alone} needs store = 'latest' with it")
            if weighting == "samples":
                raise ValueError(f"robust = '{robust}' counts each client once: set weighting = 'uploads'")

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
        if self.store == "latest" or self.leave_one_out:
            return {}
        received = {"received": np.zeros((), np.int64)} if self.store == "window" else {}
        return {**_nothing(roster.classes), **received}

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect class-average logits and their counts; with ``clipping-norm`` set, these are 1 or 0."""
        most = self.most_samples(member).seen
        return class_logits(member.classes, weighted=self.weighting == "samples", most=most)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Take uploads in: Eq. (9). Classes with no sample behind them are passed over."""
        if self.store == "latest":
            if not self.asynchronous:
                self._left_out.tell(round)  # of what clients have been sent
            return self._replaced(server_state, uploads)
        if self.leave_one_out:
            return self._added_to_their_own(server_state, uploads)
        client_ids = [upload.client_id for upload in uploads]
        added = self._added(server_state, client_ids, *self._logits_and_weights(uploads))
        self._left_out.tell(round)
        return self._folded(added, len(uploads), server_state) if self.store == "window" else added

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Average what is stored for each class: Eq. (10). A class that no client has seen is marked as not known."""
        left_out = _key(member.client_id) if self.leave_one_out else ""
        if self.store == "latest":
            names = [name.removeprefix("logits.") for name in server_state if _is_of("logits", name, left_out)]
            server_state = self._added(
                _nothing(member.classes),
                [int(key) for key in names],
                [server_state[f"logits.{key}"] for key in names],
                [server_state[f"known.{key}"] for key in names],
            )
        elif self.leave_one_out:
            total = dict(_nothing(member.classes))
            for name, array in server_state.items():
                for kind in ("sums", "uploads"):
                    total[kind] = total[kind] + array if _is_of(kind, name, left_out) else total[kind]
            server_state = total
        sums, count = server_state["sums"], server_state["uploads"]
        mean = sums / np.maximum(count, 1)[:, None]
        if self.asynchronous:
            self._left_out.tell(round, again=False)
        return {"logits": mean.astype(np.float32), "known": count > 0}

    def _logits_and_weights(self, uploads: Sequence[Upload]) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
        """Return each upload's logits (C, C), and what they weigh, (C,)."""
        counts = [upload.arrays["counts"] for upload in uploads]
        weights = counts if self.weighting == "samples" else [count > 0 for count in counts]
        return [upload.arrays["logits"] for upload in uploads], weights

    def _added(
        self,
        stored: Arrays,
        client_ids: Sequence[int],
        logits: Sequence[NDArray[Any]],
        weights: Sequence[NDArray[Any]],
    ) -> Arrays:
        """Add clients' logits (C, C) to the sums, class by class, each over the clients that have seen it."""
        sums, uploads = stored["sums"].copy(), stored["uploads"].copy()
        for own, weight in zip(logits, weights, strict=True):
            has = weight > 0
            sums[has] += own[has] if weight.dtype == bool else own[has] * weight[has, None].astype(float)
            uploads[has] += weight[has]
        if self.robust.form != "none":
            for label in range(len(sums)):
                seen = [place for place, weight in enumerate(weights) if weight[label] > 0]
                rows = [logits[place][label] for place in seen]
                self._left_out.rows_of_class([client_ids[place] for place in seen], label, rows)
                sums[label] = self.robust.total(rows, stored["sums"][label])
        return {"sums": sums, "uploads": uploads}

    def _folded(self, added: Arrays, new: int, before: Arrays) -> Arrays:
        """Let the mean of each class count as one upload, once a window is full."""
        sums, uploads, received = added["sums"], added["uploads"], int(before["received"]) + new
        if received >= self.window:
            sums, uploads, received = sums / np.maximum(uploads, 1)[:, None], np.minimum(uploads, 1), 0
        return {"sums": sums, "uploads": uploads, "received": np.array(received)}

    def _added_to_their_own(self, server_state: Arrays, uploads: Sequence[Upload]) -> Arrays:
        """Add each upload to the sums of its own client."""
        sums = dict(server_state)
        for upload, logits, weight in zip(uploads, *self._logits_and_weights(uploads), strict=True):
            key = _key(upload.client_id)
            nothing = _nothing(len(weight))
            before = {kind: sums.get(f"{kind}.{key}", nothing[kind]) for kind in nothing}
            sums |= {
                f"{kind}.{key}": array
                for kind, array in self._added(before, [upload.client_id], [logits], [weight]).items()
            }
        return dict(sorted(sums.items()))

    def _replaced(self, server_state: Arrays, uploads: Sequence[Upload]) -> Arrays:
        """Put each upload in the place of its client's last one, class by class."""
        newest = dict(server_state)
        for upload, logits, weight in zip(uploads, *self._logits_and_weights(uploads), strict=True):
            key, seen = _key(upload.client_id), weight > 0
            before = newest.get(f"logits.{key}", np.zeros_like(logits))
            known = newest.get(f"known.{key}", np.zeros_like(weight))
            newest[f"logits.{key}"] = np.where(seen[:, None], logits, before)
            newest[f"known.{key}"] = np.where(seen, weight, known)
        return dict(sorted(newest.items()))


def _nothing(classes: int) -> Arrays:
    return {"sums": np.zeros((classes, classes)), "uploads": np.zeros(classes, np.int64)}


def _key(client_id: int) -> str:
    return f"{client_id:06d}"


def _is_of(kind: str, name: str, left_out: str) -> bool:
    """Say whether an array of that name is of a kind, and not of the client that is left out."""
    return name.startswith(f"{kind}.") and name != f"{kind}.{left_out}"
