"""CHFL, client side: the client's head learns from the sum of all heads, applied to the client's own features.

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
    """Trains on ``CE + alpha * (target term + non-target term)``; the teacher is the global head on own features.

    Eq. (5)-(7), Algorithm 1, from round 2 on. The temperature falls over the epochs of the run; with ``local-batches``
    above 0, a round counts as one epoch. With 2 classes, it has no effect. The teacher's logits are computed at the
    start of an epoch, for images before ``augment``.

    Wire   as in `strategies.chfl.CHFL`.
    State  the model, the optimizer's moments; in "avg" and "avgkd", those of the head only with ``moments = "kept"``.
    Departs from the paper: by default the teacher is the mean of the heads. The paper's round is one epoch. ``alpha``
    is applied once, where line 8 of Algorithm 1 repeats it. A client is evaluated with its own trained head.

    Parameters
    ----------
    node : Node
        The client's node.
    mode : {"kd", "avg", "avgkd"}
        "kd": the paper's method. "avg": a round starts with the mean of all heads. "avgkd": both. SOLO is ``local``.
    reduce : {"sum", "mean"}
        The teacher: the sum of the heads, as in the paper's Eq. (4), with a softmax that is sharper the more clients
        there are, or their mean.
    alpha : float
        Weight of the distillation, 0 or more. With 0, "kd" is local training and "avgkd" is "avg".
    beta : float
        Half the difference between the first and the last temperature, 0 or more. The temperature falls from nearly
        ``2 beta + 1`` to 1.
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
        """Expect the sum of all heads and their number."""
        return summed_heads(self.node.model.classes, self.node.model.width)

    def upload_spec(self) -> PayloadSpec:
        """Send the client's head."""
        return linear_head(self.node.model.classes, self.node.model.width)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for one round; each epoch starts by computing the teacher's logits on its samples."""
        node, config, teacher = self.node, self.node.config, self._load_heads(download) if download["heads"] else []
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

    def _load_heads(self, download: Arrays) -> list[Tensor]:
        """Load the mean of all heads in modes "avg" and "avgkd"; return the teacher, or an empty list without one."""
        total = {name: download[name] for name in ("weight", "bias")}
        mean = {name: array / int(download["heads"]) for name, array in total.items()}
        if self.mode != "kd":
            self.load(self.node.model.head, mean)
        taught = {} if self.mode == "avg" or not self.alpha else mean if self.reduce == "mean" else total
        return [torch.from_numpy(array).to(self.node.device) for array in taught.values()]
