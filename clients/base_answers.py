"""Base class of client sides that send predictions on public samples, and learn from the consensus of all clients."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer

from hetfl_flwr import (
    Arrays,
    Dim,
    KnowledgeClient,
    Node,
    PayloadSpec,
    draw_batches,
    generator,
    outputs,
    train,
)
from strategies.base_answers import Answers, public_answers, public_consensus


class AnswersClient(KnowledgeClient):
    """Digests the consensus on some public samples, trains on its own rows, and predicts other public samples.

    Parameters
    ----------
    node : Node
        The client's node.
    digest_epochs : int
        Passes over the digested rows in a round, 0 or more.
    answers : {"logits", "softmax"}
        As in `strategies.base_answers.AnswersStrategy`.

    Attributes
    ----------
    own : Samples
        The client's own rows, by default all training rows.
    """

    def __init__(self, node: Node, *, digest_epochs: int, answers: Answers) -> None:
        super().__init__(node)
        self.digest_epochs, self._answers = digest_epochs, answers
        self.own = node.data.train

    def download_spec(self) -> PayloadSpec:
        """Expect the consensus on some public samples, and the numbers of the requested rows."""
        return public_consensus(len(self.node.pool), self.node.data.spec.classes, self._answers)

    def upload_spec(self) -> PayloadSpec:
        """Send predictions on the requested rows."""
        return public_answers(Dim("A", len(self.node.pool)), self.node.data.spec.classes, self._answers)

    def digested(
        self, download: Arrays, consensus: Tensor, distance: Callable[[Tensor, Tensor], Tensor], round: int
    ) -> float:
        """Train toward the consensus, and return the mean distance before each step; 0 without a consensus.

        Parameters
        ----------
        download : mapping of str to array
            The download, as `download_spec` declares it.
        consensus : Tensor
            The target of each digested row, (R, C).
        distance : callable
            A function from logits (B, C) and their targets (B, C) to a scalar.
        round : int
            The number of the round.
        """
        rows = torch.from_numpy(download["digested"]).long()
        if len(rows) == 0:
            return 0.0
        config = self.node.config
        order = generator(config.seed, self.node.client_id, round, "digest")
        batches = list(draw_batches(order, len(rows), config.batch_size, epochs=self.digest_epochs, batches=0))
        targets = (consensus[batch.to(consensus.device)] for batch in batches)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            return distance(self.node.model(inputs), next(targets))

        public = self.node.pool.samples
        return train(public, (rows[batch] for batch in batches), self.optimizer("digest"), loss)[1]

    def revisited(self, optimizer: Optimizer, round: int) -> tuple[int, float]:
        """Train on the client's own rows for one round; return what `hetfl_flwr.learning.training.train` returns."""
        batches = self.batches(round, samples=len(self.own))
        return train(self.node.training(self.own), batches, optimizer, self.own_loss)

    def answered(self, asked: Tensor) -> Tensor:
        """Return the logits or softmax scores (A, C) of the requested rows, in evaluation mode."""
        logits = outputs(self.node.model, self.node.pool.samples, asked)
        return logits if self._answers == "logits" else logits.float().softmax(1)


def divergence(logits: Tensor, scores: Tensor) -> Tensor:
    """Return KL(scores || softmax(logits)), averaged over the batch; both are (B, C)."""
    return functional.kl_div(functional.log_softmax(logits, 1), scores, reduction="batchmean")
