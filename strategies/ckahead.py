"""CKAHead, server half: the mean kernel of the clients' representations, and the sum of their heads.

A combination of FedHeNN (Makhija et al. 2022) and CHFL (Liu et al. 2022) by this project, and of no paper.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hetfl_flwr.aggregation import total_heads
from hetfl_flwr.alignment import FEWEST_SAMPLES, centred_rows, check_enough, stack_factor, thin_factor, unit_factor
from hetfl_flwr.federation import Member, Roster, Sharing
from hetfl_flwr.payloads import Arrays, PayloadSpec, linear_head, representations
from hetfl_flwr.pool import draw_rows, row_numbers
from hetfl_flwr.seeding import generator
from strategies.base import KnowledgeStrategy, Upload


class CKAHead(KnowledgeStrategy):
    """Averages kernels over the same public samples as FedHeNN does, and adds up heads as CHFL does.

    FedHeNN Eq. (5), heterogeneous, linear kernel: the mean of the kernels of the last round's clients, over that
    round's alignment set, R of all public rows, drawn anew for each round. It travels as a factor F (R, r). CHFL Eq.
    (4): the heads of the last round. Classes and embedding widths D are equal; with ``width = 0`` in the run config D
    is 64, and a body of another width gets a projection to it.

    Wire   down: aligned (R,) int32, factor (R, r) float32, asked (R,) int32, weight (C, D) float32, bias (C,) float32,
                 heads () int32: 4 R (r + 2) + 4 C (D + 1) + 4 bytes, r at most R - 1 and the sum of the D; in round 1
                 without aligned and factor
           up:   representations (R, D) float32, weight (C, D) float32, bias (C,) float32: 4 R D + 4 C (D + 1) bytes
           Once, before round 1: each client's public rows, up and down to all others.
    Needs  equal classes
    State  set (), the number of the set that the factor is over, its rows aligned (R, 2) int32 (client, row), factor
           (R, r) float32; weight, bias and heads as it sends them down.
    Departs from the papers: as FedHeNN, and as CHFL.

    Parameters
    ----------
    rad_size : int
        R, 4 or more. Where there are fewer public rows, all of them.
    """

    width = 64
    sharing = Sharing(labelled=False)

    def __init__(self, *, rad_size: Annotated[int, Field(ge=FEWEST_SAMPLES)] = 512) -> None:
        self.rad_size = rad_size

    def check(self, roster: Roster) -> None:
        """Refuse clients unlike in classes, embedding widths or shapes of inputs, and too few public rows.

        Raises
        ------
        FederationError
            Names the clients that differ, or how many rows there are.
        """
        super().check(roster)
        roster.check_sharing("ckahead", labelled=False)
        roster.check_same_width("ckahead", self.width)
        check_enough("ckahead", sum(member.public for member in roster))

    def initial(self, roster: Roster) -> Arrays:
        """Know no kernel and no head."""
        kernel = {"set": np.array(1), "aligned": np.zeros((0, 2), np.int32), "factor": np.zeros((0, 0), np.float32)}
        return {**kernel, **total_heads([], (roster.classes, next(iter(roster)).width))}

    def download_for(self, member: Member, knowledge: Arrays, round: int) -> Arrays:
        """Send the set to align on, what to align with, the set to represent after training, and the sum of heads."""
        asked = self._draw(int(knowledge["set"]) + 1)
        heads = {name: knowledge[name] for name in ("weight", "bias", "heads")}
        aligned = row_numbers(knowledge["aligned"], self._sizes)
        return {"aligned": aligned, "factor": knowledge["factor"], "asked": row_numbers(asked, self._sizes), **heads}

    def upload_spec(self, member: Member) -> PayloadSpec:
        """Expect representations of the set asked for, and a head."""
        rows = min(self.rad_size, sum(self._sizes.values()))
        return representations(rows, member.width) + linear_head(member.classes, member.width)

    def absorb(self, knowledge: Arrays, uploads: Sequence[Upload]) -> Arrays:
        """Average the kernels of this round, as a factor, and put its heads in the place of those before."""
        sent = [upload.arrays for upload in uploads]
        stacked = stack_factor([own["representations"] for own in sent], [1 / len(sent)] * len(sent))
        factor, _ = thin_factor(centred_rows(stacked))
        number = int(knowledge["set"]) + 1
        kernel = {"set": np.array(number), "aligned": self._draw(number), "factor": unit_factor(factor)}
        return {**kernel, **total_heads(sent, knowledge["weight"].shape)}

    @property
    def _sizes(self) -> dict[int, int]:
        """How many public rows each client has shared, by partition."""
        return {partition: len(block["inputs"]) for partition, block in self.roster.seeds.items()}

    def _draw(self, number: int) -> NDArray[np.int32]:
        """Draw an alignment set (R, 2): whose row, and which."""
        check_enough("ckahead", sum(self._sizes.values()))
        return draw_rows(generator(self.config.seed, number, "rad"), self._sizes, self.rad_size)
