"""LogitHead, server half: class-average logits and heads, side by side.

A combination of FedHe (Chan and Ngai 2021) and CHFL (Liu et al. 2022) by this project, and of no paper.
"""

from collections.abc import Sequence

from hetfl_flwr.aggregation import add_class_logits, mean_class_logits, no_class_logits, total_heads
from hetfl_flwr.federation import Member, Roster
from hetfl_flwr.payloads import Arrays, PayloadSpec, class_logits, linear_head
from strategies.base import KnowledgeStrategy, Upload


class LogitHead(KnowledgeStrategy):
    """Averages class-average logits as FedHe does, and adds up heads as CHFL does.

    FedHe Eq. (9)-(10): of each class, the running mean of all uploads that have samples behind them. CHFL Eq. (4): the
    heads of the last round. Neither half of this knowledge changes the other. Classes and embedding widths D are equal;
    with ``width = 0`` in the run config D is 64, and a body of another width gets a projection to it.

    Wire   down: logits (C, C) float32, known (C,) bool, weight (C, D) float32, bias (C,) float32, heads () int32:
                 4 C (C + D + 1) + C + 4 bytes (3,014 at C = 10, D = 64)
           up:   logits (C, C) float32, counts (C,) int64, weight (C, D) float32, bias (C,) float32:
                 4 C (C + D + 1) + 8 C bytes (3,080)
    Needs  equal classes
    State  sums (C, C) float64, uploads (C,) int64; weight, bias and heads as it sends them down.
    Departs from the papers: as FedHe with ``mode = "sync"`` and ``store = "all"``, and as CHFL.
    """

    width = 64

    def check(self, roster: Roster) -> None:
        """Refuse clients that differ in their classes or embedding widths.

        Raises
        ------
        FederationError
            One line that names who differs.
        """
        super().check(roster)
        roster.check_same_width("logithead", self.width)

    def initial(self, roster: Roster) -> Arrays:
        """Know nothing of any class, and no head."""
        classes, width = roster.classes, next(iter(roster)).width
        return {**no_class_logits(classes), **total_heads([], (classes, width))}

    def download_for(self, member: Member, knowledge: Arrays, round: int) -> Arrays:
        """Send the mean logits of each class and the sum of the heads."""
        heads = {name: knowledge[name] for name in ("weight", "bias", "heads")}
        return {**mean_class_logits(knowledge), **heads}

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect class-average logits, their counts and a head."""
        return class_logits(member.classes) + linear_head(member.classes, member.width)

    def absorb(self, knowledge: Arrays, uploads: Sequence[Upload]) -> Arrays:
        """Take the logits in, and put the heads of this round in the place of those before."""
        sent = [upload.arrays for upload in uploads]
        logits, seen = [own["logits"] for own in sent], [own["counts"] > 0 for own in sent]
        return {**add_class_logits(knowledge, logits, seen), **total_heads(sent, knowledge["weight"].shape)}
