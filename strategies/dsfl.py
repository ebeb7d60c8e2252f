"""DS-FL, server side: the mean of the clients' softmax scores on unlabeled public samples, sharpened.

Itahara, Nishio, Koda, Morikura and Yamamoto, "Distillation-Based Semi-Supervised Federated Learning for
Communication-Efficient Collaborative Training With Non-IID Private Data", IEEE Transactions on Mobile Computing 2023.
"""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import softmax

from hetfl_flwr import Sharing
from strategies.base_answers import AnswersStrategy


class DSFL(AnswersStrategy):
    """Averages the clients' softmax scores on a random subset of the public samples, and may sharpen the average.

    Simple aggregation (SA): ``consensus = mean_k p_k(x)`` for each x of the subset, over the clients that have uploaded
    scores; entropy reduction aggregation (ERA): ``softmax(mean_k p_k(x) / temperature)``. The public set is the union
    of the clients' public samples, without labels, and all clients have it.

    Wire   down: digested (R,) int32, consensus (R, C) float32, asked (A,) int32: 4 R (C + 1) + 4 A bytes
           up:   softmax (A, C) float32: 4 A C bytes
           R is the number of rows to digest, and A of rows requested: ``public-samples`` each, but R = 0 in round 1.
           Once, before round 1: each client's public samples without their labels, up and down to all others.
    Needs  equal classes, one shape of input
    State  consensus (R, C) float32; rows (R, 2) int64, the client id and position of each of its public samples;
           subsets (1,) int64, the number of subsets with predictions so far.
    Robust the scores on all rows are one point: their geometric median (Pillutla et al., IEEE Transactions on Signal
           Processing 2022) is a distribution, unlike a median of single scores; "trimmed" averages the points nearest
           to it. Public samples themselves are not checked.
    Departs from the paper: by default the mean is not sharpened: see ``aggregation``. The public set consists of the
    clients' own rows. There is one message per round: the consensus of a round is digested at the beginning of the next
    one, and that of the last round is not. The server has no model.

    Parameters
    ----------
    public_samples : int
        Number of rows in a subset, 1 or more. If there are fewer public samples, all are used.
    aggregation : {"sa", "era"}
        Whether the plain mean is sent ("sa"), or a sharpened one as in the paper's method ("era"). Before models have
        learned to distinguish samples, the sharpened mean predicts one or two classes for all samples; clients learn
        this, and it persists. In the leaderboard, with three mini-batches per round, it is 60 to 70 points below the
        plain mean.
    temperature : float
        The temperature of "era", 0.001 or more; the lower, the sharper. The softmax is applied to scores between 0 and
        1, so that at 1 the consensus is nearly uniform.
    """

    sharing = Sharing(labelled=False, to_clients=True)

    def __init__(
        self,
        *,
        public_samples: Annotated[int, Field(ge=1)] = 1000,
        aggregation: Literal["sa", "era"] = "sa",
        temperature: Annotated[float, Field(ge=0.001)] = 0.1,
    ) -> None:
        super().__init__(public_samples, "softmax")
        self.aggregation, self.temperature = aggregation, temperature

    def consensus_of(self, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean, sharpened with "era"."""
        if self.aggregation == "sa":
            return mean
        sharpened: NDArray[np.float64] = softmax(mean / self.temperature, axis=1)
        return sharpened
