"""CHFL, client side: the own head learns from the sum of all heads, on the client's own features.

Liu, Yang, Cai, Ding and Lu, "Completely Heterogeneous Federated Learning", 2022 (arXiv 2210.15865).
"""

from collections import deque
from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
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
    seeded,
)
from strategies.chfl import Mode, linear_head, summed_heads


class CHFLClient(KnowledgeClient):
    """Trains on ``CE + alpha * (target term + non-target term)``, the teacher being the global head on own features.

    Eq. (5)-(7), Algorithm 1, with the losses of `hetfl_flwr.learning.distillation.decoupled_kd`, from round 2 on. The
    temperature falls with the epochs of the whole run, counted from 1 to ``rounds * local-epochs``; where
    ``local-batches`` is above 0, a round counts as one. It acts on the non-target term alone: nothing with 2 classes.
    The teacher's logits are computed at the start of each epoch ("the fixed teacher signal within a training epoch"),
    in evaluation mode: one more forward pass an epoch, of the images as they are before ``augment``.

    Wire   as in `strategies.chfl.CHFL`.
    State  the model, the optimizer's moments; in "avg" and "avgkd" the head's with ``moments = "kept"`` alone.
    Departs from the paper: by default the teacher is the mean of the heads: see ``reduce``. The paper's round is one
    epoch: ``local-batches = 0``. A client is measured with its own head as it has trained it, also where the next round
    begins with the mean.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    mode : {"kd", "avg", "avgkd"}
        "kd": the paper's method. "avg": the mean of all heads replaces the own one at the start of each round. "avgkd":
        both at once. The paper's SOLO is ``local``.
    reduce : {"sum", "mean"}
        What the teacher is: the sum of the heads, as in the paper's Eq. (4), or their mean. The sum makes the teacher's
        softmax the sharper the more clients there are, and in the leaderboard costs 1 to 15 points, where the mean
        gains 1 to 4 or loses one.
    alpha : float
        Weight of the distillation, 0 or more. With 0, "kd" is local training and "avgkd" is "avg". It counts once: line
        8 of Algorithm 1 weighs again what Eq. (6) has weighed.
    initial_head : {"own", "shared"}
        What the head's first weights are: drawn for each client, as its body's are, or for all clients the same.
        Algorithm 1 begins with one global head (line 2 of the server) and leaves open what local heads begin with.
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
        alpha: Annotated[float, Field(ge=0)] = 0.5,
        initial_head: Literal["own", "shared"] = "own",
        beta: Annotated[float, Field(ge=0)] = 5.0,
    ) -> None:
        super().__init__(node)
        check_head(node, bias=True)
        self.mode, self.reduce, self.alpha, self.beta = mode, reduce, alpha, beta
        if initial_head == "shared":
            with seeded(node.config.seed, "head"):
                first = nn.Linear(node.model.width, node.model.classes)
            node.model.head.load_state_dict(first.state_dict())

    def download_spec(self) -> PayloadSpec:
        """Expect the sum of all heads, and their number."""
        return summed_heads(self.node.model.classes, self.node.model.width)

    def upload_spec(self) -> PayloadSpec:
        """Send the own head."""
        return linear_head(self.node.model.classes, self.node.model.width)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train, epoch by epoch; each begins with the teacher's logits on its samples."""
        teacher, lessons = self._take_up(download), deque[tuple[Tensor, float]]()
        distances, right, config = list[Tensor](), list[Tensor](), self.node.config
        passes = 1 if config.local_batches else config.local_epochs

        def batches() -> Iterator[Tensor]:
            for number, rows in enumerate(self.epochs(round), 1):
                if teacher is not None:
                    epoch = (round - 1) * passes + min(number, passes)
                    temperature = cosine_temperature(epoch, config.rounds * passes, self.beta)
                    features = outputs(self.node.model.body, self.node.data.train, torch.cat(rows))
                    logits = torch.split(functional.linear(features, *teacher), [len(batch) for batch in rows])
                    lessons.extend((some, temperature) for some in logits)
                yield from rows

        def loss(inputs: Tensor, labels: Tensor) -> Tensor | Terms:
            logits = self.node.model(inputs)
            private = self.node.data_loss(logits, labels)
            if not lessons:
                return private
            target, temperature = lessons.popleft()
            on_target, among_rest = decoupled_kd(logits, target, labels, temperature)
            distances.append((on_target + among_rest).detach() * len(labels))
            right.append((target.argmax(1) == labels).sum())
            return Terms(private, self.alpha * (on_target + among_rest))

        samples, mean_loss = self.train(batches(), loss)
        metrics: Metrics = {SEEN: samples, "train-loss": mean_loss}
        if teacher is not None:
            metrics["distillation-loss"] = float(torch.stack(distances).sum()) / samples
            metrics["teacher-accuracy"] = int(torch.stack(right).sum()) / samples
        return model_arrays(self.node.model.head), metrics

    def _take_up(self, download: Arrays) -> tuple[Tensor, ...] | None:
        """Begin with the mean of all heads, if the mode says so, and return the teacher, if there is one."""
        if download["heads"] == 0:
            return None
        sums = {name: download[name] for name in ("weight", "bias")}
        means = {name: array / int(download["heads"]) for name, array in sums.items()}
        if self.mode != "kd":
            self.load(self.node.model.head, means)
        taught, head = self.mode != "avg" and self.alpha > 0, means if self.reduce == "mean" else sums
        return tuple(torch.from_numpy(array).to(self.node.device) for array in head.values()) if taught else None
