"""FedMD, server side: the mean of the clients' logits on public samples.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS workshop 2019 (arXiv 1910.03581).
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hetfl_flwr.common.seeding import generator
from hetfl_flwr.learning.aggregation import parse_robust
from hetfl_flwr.server.messaging.roster import Member, Roster, Sharing
from hetfl_flwr.wire.samples import Numbers, PublicIndex
from hetfl_flwr.wire.spec import Arrays, ArraySpec, Dim, PayloadSpec, learnt, probabilities, row_numbers
from strategies.base import KnowledgeStrategy, Upload

Consensus = Literal["logits", "softmax"]
"""What the mean is of: logits, or softmax scores."""


def public_consensus(pool: int, classes: int, of: Consensus) -> PayloadSpec:
    """Declare what goes down: the mean answer on some rows of the pool, (R, C), and the numbers of others, (A,).

    The rows' own numbers, (R,), come first; the others are those whose answers are asked for next.
    """
    rows = Dim("R", pool)
    form = (rows, classes)
    return PayloadSpec(
        (
            row_numbers("digested", rows, pool),
            ArraySpec("consensus", form, "float32") if of == "logits" else probabilities("consensus", form),
            row_numbers("asked", Dim("A", pool), pool),
        )
    )


def public_answers(rows: int | Dim, classes: int, of: Consensus) -> PayloadSpec:
    """Declare what goes up: answers on public samples, in the order in which they were asked for, (A, C).

    They are called ``logits`` or ``softmax``, as what they are.
    """
    form = (rows, classes)
    return PayloadSpec((learnt("logits", form) if of == "logits" else probabilities("softmax", form),))


class FedMD(KnowledgeStrategy):
    """Averages the clients' logits on a random subset of the public samples, a new one each round.

    Algorithm 1, "Communicate", "Aggregate" and "Distribute": ``consensus = 1/K sum_k f_k(x)`` for each x of the subset,
    over those that have uploaded. The public set is the union of the clients' public samples; all hold it.

    Wire   down: digested (R,) int32, consensus (R, C) float32, asked (A,) int32: 4 R (C + 1) + 4 A bytes
           up:   logits (A, C) float32: 4 A C bytes; with ``consensus = "softmax"`` they are called softmax
           R and A are the rows digested and asked for: ``public-samples`` each, save that R = 0 in round 1.
           Once, before round 1: each client's public samples with their labels, up and down to all others.
    Needs  equal classes, one shape of input
    State  consensus (R, C) float32; rows (R, 2) int64, the client id and position of each of its public samples;
           subsets (1,) int64, how many subsets have been answered.
    Departs from the paper: the public set is made of the clients' own rows. One message a round: the consensus of one
    round is digested at the beginning of the next one, so that of the last round is not.

    Parameters
    ----------
    public_samples : int
        Rows of a subset, 1 or more; all public samples where there are fewer.
    robust : {"none", "median", "trimmed:SHARE"}
        How wrong logits are kept from the consensus: it is their coordinate-wise median or trimmed mean (Yin et al.,
        ICML 2018), as in `hetfl_flwr.learning.aggregation.parse_robust`. "none": the mean. Public samples are taken as
        they come.
    consensus : {"logits", "softmax"}
        What clients upload and the server averages: logits, as in the authors' code, or softmax scores. The paper's
        "class scores" can be read as either. A robust mean of scores is scaled to a sum of 1.

    Raises
    ------
    ConfigError
        ``robust`` is none of these.
    """

    sends = "public samples"
    sharing = Sharing(labelled=True, to_clients=True)

    def __init__(
        self,
        *,
        public_samples: Annotated[int, Field(ge=1)] = 5000,
        robust: str = "none",
        consensus: Consensus = "logits",
    ) -> None:
        self.public_samples = public_samples
        self.robust = parse_robust(robust)
        self.consensus = consensus

    def check(self, roster: Roster) -> None:
        """Refuse clients without public samples, or with inputs or classes different from the others'.

        Raises
        ------
        FederationError
            Names the clients.
        """
        roster.check_sharing("fedmd")

    def initial(self, roster: Roster) -> Arrays:
        """Have no consensus yet."""
        return {
            "consensus": np.zeros((0, roster.classes), np.float32),
            "rows": np.zeros((0, 2), np.int64),
            "subsets": np.zeros(1, np.int64),
        }

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect answers on all rows of the subset."""
        return public_answers(min(self.public_samples, len(self._index)), member.classes, self.consensus)

    def aggregate(self, server_state: Arrays, uploads: Sequence[Upload], round: int) -> Arrays:
        """Average the answers, each client with the same weight."""
        consensus = self.robust.mean([upload.arrays[self.consensus] for upload in uploads])
        if self.consensus == "softmax":
            consensus = np.maximum(consensus, np.finfo(np.float32).tiny)  # a median can be 0 in all classes
            consensus /= consensus.sum(axis=1, keepdims=True)
        return {
            "consensus": consensus.astype(np.float32),
            "rows": self._index.places(self._asked(server_state)),
            "subsets": server_state["subsets"] + 1,
        }

    def download_for(self, member: Member, server_state: Arrays, round: int) -> Arrays:
        """Send the consensus and the numbers, in the pool as it is now, of its rows and of those to answer next.

        A subset that nobody has answered is asked for again. Numbers change when a client joins, client ids and
        positions do not; rows that are in the pool no longer are left out.
        """
        rows = server_state["rows"]
        held = self._index.held(rows)
        return {
            "digested": self._index.numbers(rows[held]).astype(np.int32),
            "consensus": server_state["consensus"][held],
            "asked": self._asked(server_state).astype(np.int32),
        }

    def _asked(self, server_state: Arrays) -> Numbers:
        """Draw the next subset: numbers in the pool, ascending."""
        pool = len(self._index)
        draw = generator(self.config.seed, int(server_state["subsets"][0]) + 1, "public")
        return np.sort(draw.choice(pool, min(self.public_samples, pool), replace=False))

    @property
    def _index(self) -> PublicIndex:
        """The pool as it is now."""
        return PublicIndex.of(self.roster.public_samples)
