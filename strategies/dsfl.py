"""DS-FL, server side: the mean of the clients' softmax scores on unlabelled public samples, sharpened.

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

    Simple aggregation (SA): ``consensus = mean_k p_k(x)`` for each x of the subset, over those that have uploaded;
    entropy reduction aggregation (ERA): ``softmax(mean_k p_k(x) / temperature)``. The public set is the union of the
    clients' public samples, without labels; all hold it.

    Wire   down: digested (R,) int32, consensus (R, C) float32, asked (A,) int32: 4 R (C + 1) + 4 A bytes
           up:   softmax (A, C) float32: 4 A C bytes
           R and A are the rows digested and asked for: ``public-samples`` each, save that R = 0 in round 1.
           Once, before round 1: each client's public samples without their labels, up and down to all others.
    Needs  equal classes, one shape of input
    State  consensus (R, C) float32; rows (R, 2) int64, the client id and position of each of its public samples;
           subsets (1,) int64, how many subsets have been answered.
    Robust the scores on all rows are one point: their geometric median (Pillutla et al., IEEE Transactions on Signal
           Processing 2022) is a distribution, as a median of single scores is not; "trimmed" averages those nearest to
           it. Public samples are taken as they come.
    Departs from the paper: by default the mean is not sharpened: see ``aggregation``. The public set is made of the
    clients' own rows. One message a round: the consensus of one round is digested at the beginning of the next one, so
    that of the last round is not. The server has no model of its own.

    Parameters
    ----------
    public_samples : int
        Rows of a subset, 1 or more; all public samples where there are fewer.
    aggregation : {"sa", "era"}
        Whether the mean is sent as it is, or sharpened as in the paper's own method. Before models have learnt to tell
        samples apart, the sharpened mean says one class or two of all samples; clients learn that, and it stays. So in
        the leaderboard, after three mini-batches a round: 60 to 70 points below the plain mean.
    temperature : float
        Of "era", 0.001 or more: the lower, the sharper. The softmax is taken of scores, which lie between 0 and 1, so
        that at 1 the consensus is near to uniform.
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
        """Sharpen the mean, or leave it as it is."""
        if self.aggregation == "sa":
            return mean
        sharpened: NDArray[np.float64] = softmax(mean / self.temperature, axis=1)
        return sharpened
