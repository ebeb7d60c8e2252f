"""CHFL, client side: the own head learns from the sum of all heads, on the client's own features.

Liu, Yang, Cai, Ding and Lu, "Completely Heterogeneous Federated Learning", 2022 (arXiv 2210.15865).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from clients.base_parts import check_head
from hetfl_flwr import (
    EVALUATION_BATCH,
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
)
from strategies.chfl import Mode, linear_head, summed_heads

Head = tuple[Tensor, Tensor]
"""Weight (C, D) and bias (C,)."""


class CHFLClient(KnowledgeClient):
    """Trains on ``CE + alpha * (target term + non-target term)``, the teacher being the global head on own features.

    Eq. (5)-(7), Algorithm 1, with the losses of `hetfl_flwr.learning.distillation.decoupled_kd`. From round 2 on.

    The temperature falls with the epochs of the whole run, counted from 1 to ``rounds * local-epochs``; where
    ``local-batches`` is above 0, a round counts as one. It acts on the non-target term alone: nothing with 2 classes.
    The teacher's logits are computed at the start of each epoch ("the fixed teacher signal within a training epoch"),
    in evaluation mode: one more forward pass an epoch, of the images as they are before ``augment``.

    Wire   as in `strategies.chfl.CHFL`.
    State  the model, the optimizer's moments; in "avg" and "avgkd" the head's with ``moments = "kept"`` alone.
    Departs from the paper: by default the teacher is the mean of the heads: see ``reduce``. The length of a round is
    the run config's (the paper's is one epoch: ``local-batches = 0``). Each client's head begins with weights of its
    own; Algorithm 1 has one global head and leaves the local ones open. A client is measured with its own head as it
    has trained it, also where the next round begins with the mean.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    mode : {"kd", "avg", "avgkd"}
        "kd": the paper's method. "avg": the mean of all heads replaces the own one at the start of each round; with one
        client and ``moments = "kept"`` this is local training. "avgkd": both at once. The paper's SOLO is ``local``.
    reduce : {"sum", "mean"}
        What the teacher is: the sum of the heads, or their mean. No meaning where nothing is distilled. The paper's
        Eq. (4) has the sum, as many times a head as there are clients: it makes the teacher's softmax the sharper the
        more they are, and in the leaderboard costs 1 to 15 points, where the mean gains 1 to 4 or loses one.
    alpha : float
        Weight of the distillation, 0 or more. With 0, "kd" is local training and "avgkd" is "avg". Algorithm 1 (line 8)
        weighs by alpha a loss that Eq. (6) has weighed by alpha already; here it counts once, and the other reading is
        alpha squared.
    beta : float
        Half the height of the temperature's fall, which begins at nearly ``2 beta + 1`` and ends at 1; 0 or more. 0: a
        temperature of 1 throughout.

    Raises
    ------
    ModelError
        The model's head has no bias.
    """

    has_distillation_term = True

    def __init__(
        self,
        node: Node,
        *,
        mode: Mode = "kd",
        reduce: Literal["sum", "mean"] = "mean",
        alpha: Annotated[float, Field(ge=0)] = 0.5,
        beta: Annotated[float, Field(ge=0)] = 5.0,
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
        teacher, lessons = self._take_up(download), deque[tuple[Tensor, float]]()
        distances, right = list[Tensor](), list[Tensor]()

        def batches() -> Iterator[Tensor]:
            for number, rows in enumerate(self.epochs(round)):
                if teacher is not None:
                    temperature = self._temperature(round, number)
                    lessons.extend((logits, temperature) for logits in self._taught(teacher, rows))
                yield from rows

        def loss(inputs: Tensor, labels: Tensor) -> Tensor | Terms:
            logits = self.node.model(inputs)
            private = self.node.data_loss(logits, labels)
            if teacher is None:
                return private
            target, temperature = lessons.popleft()
            on_target, among_rest = decoupled_kd(logits, target, labels, temperature)
            distance = on_target + among_rest
            distances.append(distance.detach() * len(labels))
            right.append((target.argmax(1) == labels).sum())
            return Terms(private, self.alpha * distance)

        samples, mean_loss = self.train(batches(), loss)
        metrics: Metrics = {SEEN: samples, "train-loss": mean_loss}
        if teacher is not None:
            metrics["distillation-loss"] = float(torch.stack(distances).sum()) / samples
            metrics["teacher-accuracy"] = int(torch.stack(right).sum()) / samples
        return model_arrays(self.node.model.head), metrics

    def _take_up(self, download: Arrays) -> Head | None:
        """Begin with the mean of all heads, if the mode says so, and return the teacher, if there is one."""
        heads, sums = int(download["heads"]), {name: download[name] for name in ("weight", "bias")}
        if heads == 0:
            return None
        means = {name: array / heads for name, array in sums.items()}
        if self.mode != "kd":
            self.load(self.node.model.head, means)
        if self.mode == "avg" or self.alpha == 0:
            return None
        weight, bias = (means if self.reduce == "mean" else sums).values()
        return torch.from_numpy(weight).to(self.node.device), torch.from_numpy(bias).to(self.node.device)

    @torch.no_grad()
    def _taught(self, teacher: Head, batches: Sequence[Tensor]) -> list[Tensor]:
        """Return the teacher's logits of each batch, (B, C), with the body as it is now."""
        model, rows = self.node.model.eval(), torch.cat(list(batches))
        features = (model.body(self.node.data.train.batch(some)[0]) for some in torch.split(rows, EVALUATION_BATCH))
        logits = torch.cat([functional.linear(some, *teacher) for some in features])
        model.train()
        return list(torch.split(logits, [len(batch) for batch in batches]))

    def _temperature(self, round: int, number: int) -> float:
        """Return the temperature of a round's pass over the data, counted from 0: Eq. (7)."""
        config = self.node.config
        if config.local_batches > 0:
            return cosine_temperature(round, config.rounds, self.beta)
        epoch = (round - 1) * config.local_epochs + number + 1
        return cosine_temperature(epoch, config.rounds * config.local_epochs, self.beta)
