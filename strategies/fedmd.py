"""FedMD, server side: the mean of the clients' logits on public samples.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS workshop 2019 (arXiv 1910.03581).
"""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hetfl_flwr import Sharing
from strategies.base_answers import Answers, AnswersStrategy


class FedMD(AnswersStrategy):
    """Averages the clients' logits on a random subset of the public samples, drawn again in each round.

    Algorithm 1, "Communicate", "Aggregate" and "Distribute": ``consensus = 1/K sum_k f_k(x)`` for each x of the subset,
    over the clients that have uploaded logits. The public set is the union of the clients' public samples, and all
    clients have it.

    Wire   down: digested (R,) int32, consensus (R, C) float32, asked (A,) int32: 4 R (C + 1) + 4 A bytes
           up:   logits (A, C) float32: 4 A C bytes; named softmax with ``consensus = "softmax"``
           R is the number of rows to digest, and A of rows requested: ``public-samples`` each, but R = 0 in round 1.
           Once, before round 1: each client's public samples with their labels, up and down to all others.
    Needs  equal classes, one shape of input
    State  consensus (R, C) float32; rows (R, 2) int64, the client id and position of each of its public samples;
           subsets (1,) int64, the number of subsets with predictions so far.
    Robust the logits. Public samples themselves are not checked.
    Departs from the paper: the public set consists of the clients' own rows. There is one message per round: the
    consensus of a round is digested at the beginning of the next one, and that of the last round is not. In round 1,
    clients train on their own rows between pre-training and the first class scores.

    Parameters
    ----------
    public_samples : int
        Number of rows in a subset, 1 or more. If there are fewer public samples, all are used.
    consensus : {"logits", "softmax"}
        What clients upload and the server averages: logits, as in the authors' code, or softmax scores. The paper's
        "class scores" can mean either. Scores are averaged as in `strategies.dsfl.DSFL`.
    """

    sharing = Sharing(labelled=True, to_clients=True)

    def __init__(
        self,
        *,
        public_samples: Annotated[int, Field(ge=1)] = 5000,
        consensus: Answers = "logits",
    ) -> None:
        super().__init__(public_samples, consensus)

    def consensus_of(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean."""
        return mean
