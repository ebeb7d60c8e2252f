"""CHFL, client side: the own head learns from the sum of all heads, on the client's own features.

Liu, Yang, Cai, Ding and Lu, "Completely Heterogeneous Federated Learning", 2022 (arXiv 2210.15865).
"""

from collections import deque
from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn import functional

from clients.base_parts import check_head
from hetfl_flwr import (
    SEEN,
    Arrays,
    KnowledgeClient,
    Metrics,
    Node,
    PayloadSpec,
    Terms,
    cosine_temperature,
    decoupled_kd,
    model_arrays,
    outputs,
)
from strategies.chfl import Mode, linear_head, summed_heads


class CHFLClient(KnowledgeClient):
    """Trains on ``CE + alpha * (target term + non-target term)``, the teacher being the global head on own features.

    Eq. (5)-(7), Algorithm 1, from round 2 on. The temperature falls with the epochs of the run, where with
    ``local-batches`` above 0 a round counts as one; nothing depends on it with 2 classes. The teacher's logits are
    fixed at the start of an epoch, of the images as they are before ``augment``.

    Wire   as in `strategies.chfl.CHFL`.
    State  the model, the optimizer's moments; in "avg" and "avgkd" the head's with ``moments = "kept"`` alone.
    Departs from the paper: by default the teacher is the mean of the heads. The paper's round is one epoch. ``alpha``
    counts once, where line 8 of Algorithm 1 repeats it. A client is measured with its own head as it has trained it.

    Parameters
    ----------
    node : Node
        The client's node.
    mode : {"kd", "avg", "avgkd"}
        "kd": the paper's method. "avg": a round begins with the mean of all heads. "avgkd": both. SOLO is ``local``.
    reduce : {"sum", "mean"}
        What the teacher is: the sum of the heads, as in the paper's Eq. (4), which makes its softmax the sharper the
        more clients there are, or their mean.
    alpha : float
        Weight of the distillation, 0 or more. With 0, "kd" is local training and "avgkd" is "avg".
    beta : float
        Half the height of the temperature's fall, which begins at nearly ``2 beta + 1`` and ends at 1; 0 or more.
    """

    has_distillation_term = True

    def __init__(
        self,
        node: Node,
        *,
        mode: Mode = "kd",
        reduce: Literal["sum", "mean"] = "mean",
        alpha: NonNegativeFloat = 0.5,
        beta: NonNegativeFloat = 5.0,
    ) -> None:
        super().__init__(node)
        check_head(node, bias=True)
        self.mode, self.reduce, self.alpha, self.beta = mode, reduce, alpha, beta

    def download_spec(self) -> PayloadSpec:
        """Expect the sum of all heads, and their number."""
        return summed_heads(self.node.model.classes, self.node.model.width)

    def upload_spec(self) -> PayloadSpec:
        """Send the own head."""
        return linear_head(self.node.model.classes, self.node.model.width)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train, epoch by epoch; each begins with the teacher's logits on its samples."""
        node, config, teacher = self.node, self.node.config, self._take_up(download) if download["heads"] else []
        lessons, right = deque[tuple[Tensor, float]](), list[Tensor]()
        passes = 1 if config.local_batches else config.local_epochs

        def batches() -> Iterator[Tensor]:
            for number, rows in enumerate(self.epochs(round), 1):
                if teacher:
                    epoch = (round - 1) * passes + min(number, passes)
                    temperature = cosine_temperature(epoch, config.rounds * passes, self.beta)
                    features = outputs(node.model.body, node.data.train, torch.cat(rows))
                    logits = torch.split(functional.linear(features, *teacher), [len(batch) for batch in rows])
                    lessons.extend((some, temperature) for some in logits)
                yield from rows

        def loss(inputs: Tensor, labels: Tensor) -> Tensor | Terms:
            logits = node.model(inputs)
            private = node.data_loss(logits, labels)
            if not lessons:
                return private
            target, temperature = lessons.popleft()
            right.append((target.argmax(1) == labels).sum())
            on_target, among_rest = decoupled_kd(logits, target, labels, temperature)
            return Terms(private, self.alpha * (on_target + among_rest))

        samples, mean_loss = self.train(batches(), loss)
        taught = {"teacher-accuracy": int(sum(right)) / samples} if right else {}
        return model_arrays(node.model.head), {SEEN: samples, "train-loss": mean_loss, **taught}

    def _take_up(self, download: Arrays) -> list[Tensor]:
        """Begin with the mean of all heads, if the mode says so, and return the teacher, if it has one."""
        total = {name: download[name] for name in ("weight", "bias")}
        mean = {name: array / int(download["heads"]) for name, array in total.items()}
        if self.mode != "kd":
            self.load(self.node.model.head, mean)
        taught = {} if self.mode == "avg" or not self.alpha else mean if self.reduce == "mean" else total
        return [torch.from_numpy(array).to(self.node.device) for array in taught.values()]
