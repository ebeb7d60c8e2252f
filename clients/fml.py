"""FML, client side: the client's own model and a copy of the global model teach each other.

Shen et al., "Federated Mutual Learning", 2020 (arXiv 2006.16765).
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from clients.base_mutual import MutualClient
from hetfl_flwr import (
    AUTO,
    Arrays,
    Metrics,
    ModelName,
    Node,
    PayloadSpec,
    Terms,
    kl_divergence,
    linear_schedule,
    state_arrays,
    whole_state,
)

Fraction = Annotated[float, Field(ge=0, le=1)]


class FMLClient(MutualClient):
    """Trains its own model and a meme, which starts as the global model, on the same batches, each teaching the other.

    Eq. (5), Algorithm 1, ClientUpdate::

        L_local = alpha CE + (1 - alpha) KL(p_meme || p_local)
        L_meme  = beta  CE + (1 - beta)  KL(p_local || p_meme)

    Otherwise as in `clients.base_mutual.MutualClient`, at temperature 1. No gradient flows to a teacher. The paper uses
    SGD with momentum 0.9, weight decay 5e-4, batches of 128 and 5 epochs per round.

    With ``beta = 1``, the global model is that of federated averaging with equal weights; with ``alpha = 1``, the own
    model is that of local training. If the two models are similar, the KL terms have almost no gradient, and a loss
    with half the cross-entropy takes half of FedAvg's step: compare with FedAvg at half the learning rate. With
    ``share = "body"``, ``global-accuracy`` is that of the global body with the client's own adaptor.

    Wire   as in `strategies.fml.FML`.
    State  the own model, its optimizer's moments; with "body", the adaptor and its moments; with ``moments = "kept"``,
           all of the meme's.
    Departs from the paper: the paper does not report whether logits are computed once per batch, before both steps, as
    here; the values of alpha and beta; the meme; and what optimizers and adaptors keep between rounds, which here is as
    in the authors' code. ``projection`` affects only the own model's loss.

    Parameters
    ----------
    node : Node
        The client's node.
    meme, share : str
        As in `strategies.fml.FML`.
    alpha, beta : float or str
        Share of the cross-entropy in the loss of the own model (alpha) and of the meme (beta), in [0, 1].
        ``"FIRST:LAST"``, such as ``"0.9:0.3"``, changes linearly from the first to the last round of the run (the
        paper's "dynamic alphabet"; it recommends a larger alpha early and a larger beta late).
    """

    def __init__(
        self,
        node: Node,
        *,
        meme: ModelName = AUTO,
        share: Literal["model", "body"] = "model",
        alpha: Fraction | str = 0.5,
        beta: Fraction | str = 0.5,
    ) -> None:
        super().__init__(node, "fml.meme", meme)
        self.share = share
        self.alpha, self.beta = _ends("alpha", alpha), _ends("beta", beta)
        self._exchanged: nn.Module = self.small if share == "model" else self.small.body

    def modules(self) -> Mapping[str, nn.Module]:
        """Keep the own model, and the adaptor if there is one; the meme is part of each download."""
        return super().modules() if self.share == "model" else {**super().modules(), "adaptor": self.small.head}

    def renewed(self) -> tuple[nn.Module]:
        """Return the meme, or its body, which each download replaces."""
        return (self._exchanged,)

    def download_spec(self) -> PayloadSpec:
        """Expect the global model or its body; send the trained meme or its body."""
        return whole_state(self._exchanged)

    upload_spec = assess_spec = download_spec

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Copy the global model, train it and the own model together, and send it back."""
        self.take(download)
        rounds = self.node.config.rounds
        alpha, beta = linear_schedule(self.alpha, round, rounds), linear_schedule(self.beta, round, rounds)

        def mutual(part: float, labels: Tensor, *, student: Tensor, teacher: Tensor) -> Terms:
            """Return the loss of one of the two models: Eq. (5)."""
            return Terms(part * self.node.data_loss(student, labels), (1 - part) * kl_divergence(teacher, student))

        def losses(inputs: Tensor, labels: Tensor) -> tuple[Terms, Tensor]:
            own, forked = self.node.model(inputs), self.small(inputs)
            truth, distillation = mutual(beta, labels, student=forked, teacher=own)
            return mutual(alpha, labels, student=own, teacher=forked), truth + distillation

        metrics = self.train_both(round, losses)
        return state_arrays(self._exchanged), metrics

    def take(self, download: Arrays) -> None:
        """Load the global model, or its body, into the meme."""
        self.load(self._exchanged, download)


def _ends(name: str, value: float | str) -> tuple[float, float]:
    """Return the values in the first and in the last round."""
    try:
        numbers = [float(part) for part in str(value).split(":")]
    except ValueError:
        numbers = []
    if not (len(numbers) in (1, 2) and all(0 <= number <= 1 for number in numbers)):
        raise ValueError(
            f"{name} = {value!r}: expected a number in [0, 1], or the first and the last, such as '0.9:0.3'"
        )
    return numbers[0], numbers[-1]
