"""FML, client side: the own model and a copy of the global one teach each other.

Shen et al., "Federated Mutual Learning", 2020 (arXiv 2006.16765).
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from hetfl_flwr import (
    AUTO,
    SEEN,
    Arrays,
    KnowledgeClient,
    Metrics,
    Node,
    PayloadSpec,
    Terms,
    descend,
    evaluate,
    kl_divergence,
    small_model,
    state_arrays,
    whole_state,
)


class FMLClient(KnowledgeClient):
    """Trains its own model and a meme, which begins as the global model, on the same batches, each taught by the other.

    Eq. (5), Algorithm 1, ClientUpdate::

        L_local = alpha CE + (1 - alpha) KL(p_meme || p_local)
        L_meme  = beta  CE + (1 - beta)  KL(p_local || p_meme)

    Both losses are of the logits from before either model's step, at temperature 1, and no gradient flows to a teacher.
    Each model has an optimizer of its own, as the run config says: the local model's goes on from round to round, the
    meme's begins anew with the forked meme, as in the authors' code, or as the run config's ``moments`` says. The
    paper's is SGD with momentum 0.9, weight decay 5e-4, batches of 128 and 5 epochs a round.

    ``beta = 1`` makes the global model that of federated averaging with equal weights, ``alpha = 1`` the own model that
    of local training. Where the two models are alike, the KL terms have next to no gradient, and a loss that is half
    cross-entropy takes half of FedAvg's step: FedAvg at half the rate tells a gain by distillation from one by smaller
    steps. Costs a second forward and backward pass, the meme's, for each batch.

    Reports ``accuracy`` of the own model and ``global-accuracy`` of the global one, both on the client's test set; with
    ``share = "body"`` the latter is of the global body with the client's own adaptor.

    Wire   as in `strategies.fml.FML`.
    State  the own model, its optimizer's moments; "body": the adaptor and its moments; ``moments = "kept"``: all of the
           meme's.
    Departs from the paper: nothing. That both models' logits are computed once a batch, before either is stepped, is
    left open there, and so is what the optimizers keep between rounds: here what they keep in the authors' code.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    meme, share : str
        As in `strategies.fml.FML`.
    alpha, beta : float or str
        Part of the cross-entropy in the loss of the own model and of the meme, in [0, 1]. ``"FIRST:LAST"``, such as
        ``"0.9:0.3"``, goes linearly from the first round to the last of the run (the paper's "dynamic alphabet"; it
        advises a larger alpha early and a larger beta late).

    Raises
    ------
    ModelError
        The meme does not fit the client's data.
    ValueError
        ``alpha`` or ``beta`` is out of range.
    """

    has_distillation_term = True

    def __init__(
        self,
        node: Node,
        *,
        meme: str = AUTO,
        share: Literal["model", "body"] = "model",
        alpha: float | str = 0.5,
        beta: float | str = 0.5,
    ) -> None:
        super().__init__(node)
        self.share = share
        self.alpha, self.beta = _ends("alpha", alpha), _ends("beta", beta)
        self.meme = small_model("fml.meme", meme, node)
        self._travels: nn.Module = self.meme if share == "model" else self.meme.body

    def modules(self) -> Mapping[str, nn.Module]:
        """Keep the own model, and the adaptor where there is one; the meme comes with each download."""
        return super().modules() if self.share == "model" else {**super().modules(), "adaptor": self.meme.head}

    def download_spec(self) -> PayloadSpec:
        """Expect the global model, or its body."""
        return whole_state(self._travels)

    def upload_spec(self) -> PayloadSpec:
        """Send the trained meme, or its body."""
        return whole_state(self._travels)

    def assess_spec(self) -> PayloadSpec:
        """Expect the global model, or its body."""
        return whole_state(self._travels)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Fork the global model, let it and the own model teach each other, and send it back."""
        self.load(self._travels, download)
        rounds = self.node.config.rounds
        alpha, beta = (float(np.interp(round, (1, max(rounds, 2)), ends)) for ends in (self.alpha, self.beta))
        meme_optimizer = self.optimizer("meme-optimizer", self.meme.parameters())
        meme_loss = torch.zeros((), dtype=torch.float64)

        def loss(inputs: Tensor, labels: Tensor) -> Terms:
            """Take the meme's step; return the own model's loss, for `train` to take its step."""
            own, forked = self.node.model(inputs), self.meme(inputs)
            meme_optimizer.zero_grad(set_to_none=True)
            truth, distillation = self._mutual(beta, labels, student=forked, teacher=own)
            value = truth + distillation
            descend(meme_optimizer, value)
            meme_loss.add_(value.detach().double().cpu() * len(labels))
            return self._mutual(alpha, labels, student=own, teacher=forked)

        samples, mean_loss = self.train(self.batches(round), loss)
        metrics: Metrics = {SEEN: samples, "train-loss": mean_loss, "meme-loss": float(meme_loss) / samples}
        return state_arrays(self._travels), metrics

    def assess(self, download: Arrays) -> Metrics:
        """Measure the own model, and the global one."""
        self.load(self._travels, download)
        return {**super().assess(download), "global-accuracy": evaluate(self.meme, self.node.data.test).accuracy}

    def _mutual(self, part: float, labels: Tensor, *, student: Tensor, teacher: Tensor) -> Terms:
        """Return the loss of one of the two models: Eq. (5)."""
        return Terms(part * self.node.data_loss(student, labels), (1 - part) * kl_divergence(teacher, student))


def _ends(name: str, value: float | str) -> tuple[float, float]:
    """Return the first round's and the last one's."""
    try:
        numbers = [float(part) for part in str(value).split(":")]
    except ValueError:
        numbers = []
    if not (len(numbers) in (1, 2) and all(0 <= number <= 1 for number in numbers)):
        raise ValueError(
            f"{name} = {value!r}: expected a number in [0, 1], or the first and the last, such as '0.9:0.3'"
        )
    return numbers[0], numbers[-1]
