"""FedMD, client side: transfer learning, then rounds of digesting the consensus and revisiting the own data.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS workshop 2019 (arXiv 1910.03581).
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer

from clients.base import KnowledgeClient, Metrics, to_numpy
from hetfl_flwr.learning.training import EVALUATION_BATCH, draw_batches, train
from hetfl_flwr.node.node import Node
from hetfl_flwr.seeding import generator
from hetfl_flwr.wire.messages import EXAMPLES
from hetfl_flwr.wire.spec import Arrays, Dim, PayloadSpec
from strategies.fedmd import public_consensus, public_logits


class FedMDClient(KnowledgeClient):
    """Learns from the mean logits of all on public samples, in turn with its own data.

    Algorithm 1. In its first round: cross-entropy on all public samples, then on the own ones ("Transfer learning"). In
    each: ``mean |logits - consensus|`` over the digested rows and the classes ("Digest"; nothing in the first round of
    a federation), then the round's own batches with cross-entropy ("Revisit"), then logits in evaluation mode on the
    rows asked for ("Communicate").

    Wire   as in `strategies.fedmd.FedMD`.
    State  the model; the moments of two optimizers, for cross-entropy and for digesting; whether it has pre-trained.
    Departs from the paper: pre-training is a number of epochs, not "to convergence". Both optimizers are those of the
    run config and go on from round to round (in the authors' code both are Adam at 1e-3, the defaults here, and do so).

    Parameters
    ----------
    node : Node
        The client's surroundings.
    pretrain_epochs : int
        Passes over all public samples before the client's first round, 0 or more. 0 leaves this step out.
    pretrain_private_epochs : int
        Passes over the own training rows after that, 0 or more.
    digest_epochs : int
        Passes over the digested rows in a round, 0 or more. 0, with no pre-training, is local training.
    """

    def __init__(
        self,
        node: Node,
        *,
        pretrain_epochs: Annotated[int, Field(ge=0)] = 20,
        pretrain_private_epochs: Annotated[int, Field(ge=0)] = 25,
        digest_epochs: Annotated[int, Field(ge=0)] = 1,
    ) -> None:
        super().__init__(node)
        self.pretrain_epochs = pretrain_epochs
        self.pretrain_private_epochs = pretrain_private_epochs
        self.digest_epochs = digest_epochs

    def download_spec(self) -> PayloadSpec:
        """Expect the consensus on some public samples, and which rows to answer."""
        return public_consensus(len(self.node.pool), self.node.data.spec.classes)

    def upload_spec(self) -> PayloadSpec:
        """Send logits on the rows asked for."""
        return public_logits(Dim("A", len(self.node.pool)), self.node.data.spec.classes)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Pre-train if this is the first time; digest, revisit, answer."""
        optimizer = self.optimizer()
        if "pretrained" not in self.numbers:
            self._pretrain(optimizer, round)
            self.numbers["pretrained"] = 1
        digest_loss = self._digest(download, round)
        samples, mean_loss = train(self.node.data.train, self.batches(round), optimizer, self._cross_entropy)
        asked = torch.from_numpy(download["asked"]).long()
        logits = self._answer(asked)
        right = logits.argmax(1) == self.node.pool.samples.labels[asked.to(logits.device)]
        metrics: Metrics = {"digest-loss": digest_loss, "public-accuracy": float(right.double().mean())}
        return {"logits": to_numpy(logits)}, {EXAMPLES: samples, "train-loss": mean_loss, **metrics}

    def _cross_entropy(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.node.model(inputs), labels)

    def _pretrain(self, optimizer: Optimizer, round: int) -> None:
        config, public, private = self.node.config, self.node.pool.samples, self.node.data.train
        for samples, epochs, purpose in (
            (public, self.pretrain_epochs, "pretrain"),
            (private, self.pretrain_private_epochs, "pretrain-private"),
        ):
            order = generator(config.seed, self.node.client_id, round, purpose)
            batches = draw_batches(order, len(samples), config.batch_size, epochs=epochs, batches=0)
            train(samples, batches, optimizer, self._cross_entropy)

    def _digest(self, download: Arrays, round: int) -> float:
        """Approach the consensus, and return the mean distance to it before each step; 0 where there is none yet."""
        rows = torch.from_numpy(download["digested"]).long()
        if len(rows) == 0:
            return 0.0
        consensus = torch.from_numpy(download["consensus"]).to(self.node.device)
        config = self.node.config
        order = generator(config.seed, self.node.client_id, round, "digest")
        batches = list(draw_batches(order, len(rows), config.batch_size, epochs=self.digest_epochs, batches=0))
        targets = (consensus[batch.to(consensus.device)] for batch in batches)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            return functional.l1_loss(self.node.model(inputs), next(targets))

        public = self.node.pool.samples
        return train(public, (rows[batch] for batch in batches), self.optimizer("digest"), loss)[1]

    @torch.no_grad()
    def _answer(self, asked: Tensor) -> Tensor:
        """Return logits of the rows asked for, in evaluation mode: (A, C)."""
        model, public = self.node.model.eval(), self.node.pool.samples
        logits = torch.cat([model(public.batch(rows)[0]) for rows in torch.split(asked, EVALUATION_BATCH)])
        model.train()
        return logits
