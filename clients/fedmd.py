"""FedMD, client side: transfer learning, then rounds of digesting the consensus and revisiting the own data.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS workshop 2019 (arXiv 1910.03581).
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer

from clients.base import KnowledgeClient, Metrics, to_numpy
from hetfl_flwr.common.seeding import generator
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.learning.training import EVALUATION_BATCH, draw_batches, train
from hetfl_flwr.node.node import Node
from hetfl_flwr.wire.messages import SEEN
from hetfl_flwr.wire.spec import Arrays, Dim, PayloadSpec
from strategies.fedmd import Consensus, public_answers, public_consensus


class FedMDClient(KnowledgeClient):
    """Learns from the mean answer of all on public samples, in turn with its own data.

    Algorithm 1. In its first round: cross-entropy on all public samples, then on the own ones ("Transfer learning"). In
    each: ``mean |logits - consensus|`` over the digested rows and the classes ("Digest"; nothing in the first round of
    a federation), then the round's own batches with cross-entropy ("Revisit"), then logits in evaluation mode on the
    rows asked for ("Communicate"). ``consensus`` and ``digest`` have other readings of answer and distance.

    Wire   as in `strategies.fedmd.FedMD`.
    State  the model; the moments of two optimizers, for cross-entropy and for digesting; whether it has pre-trained.
    Departs from the paper: pre-training is a number of epochs, not "to convergence". Both optimizers are those of the
    run config and go on from round to round (in the authors' code both are Adam at 1e-3, the defaults here, and do so).
    By default a client's own rows include those that it has made public; in the paper the public set is another data
    set, so that no row is in both (``private = "without-public"``).

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
    private : {"with-public", "without-public"}
        Whether the client's own public rows are among the own rows that it pre-trains on and revisits.
    consensus : {"logits", "softmax"}
        As in `strategies.fedmd.FedMD`.
    digest : {"l1", "kl"}
        Distance from the consensus. "l1": mean absolute difference of logits or of softmax scores, as the consensus is;
        the authors' code takes logits. "kl": KL(consensus || own) of softmax scores; the paper names no loss.

    Raises
    ------
    ConfigError
        All training rows are public, and ``private`` leaves these out.
    """

    def __init__(
        self,
        node: Node,
        *,
        pretrain_epochs: Annotated[int, Field(ge=0)] = 20,
        pretrain_private_epochs: Annotated[int, Field(ge=0)] = 25,
        digest_epochs: Annotated[int, Field(ge=0)] = 1,
        private: Literal["with-public", "without-public"] = "with-public",
        consensus: Consensus = "logits",
        digest: Literal["l1", "kl"] = "l1",
    ) -> None:
        super().__init__(node)
        self.pretrain_epochs = pretrain_epochs
        self.pretrain_private_epochs = pretrain_private_epochs
        self.digest_epochs = digest_epochs
        self.consensus, self.digest = consensus, digest
        self.own = node.data.train if private == "with-public" else node.data.private
        if not len(self.own):
            raise ConfigError(
                f"{node}: fedmd.private = '{private}', but all {len(node.data.train)} training samples are public: "
                "lower public-fraction"
            )

    def download_spec(self) -> PayloadSpec:
        """Expect the consensus on some public samples, and which rows to answer."""
        return public_consensus(len(self.node.pool), self.node.data.spec.classes, self.consensus)

    def upload_spec(self) -> PayloadSpec:
        """Send answers on the rows asked for."""
        return public_answers(Dim("A", len(self.node.pool)), self.node.data.spec.classes, self.consensus)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Pre-train if this is the first time; digest, revisit, answer."""
        optimizer = self.optimizer()
        if "pretrained" not in self.numbers:
            self._pretrain(optimizer, round)
            self.numbers["pretrained"] = 1
        digest_loss = self._digest(download, round)
        batches = self.batches(round, samples=len(self.own))
        samples, mean_loss = train(self.node.training(self.own), batches, optimizer, self._own_loss)
        asked = torch.from_numpy(download["asked"]).long()
        answers = self._answer(asked)
        right = answers.argmax(1) == self.node.pool.samples.labels[asked.to(answers.device)]
        metrics: Metrics = {"digest-loss": digest_loss, "public-accuracy": float(right.double().mean())}
        return {self.consensus: to_numpy(answers)}, {SEEN: samples, "train-loss": mean_loss, **metrics}

    def _own_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return self.node.data_loss(self.node.model(inputs), labels)

    def _public_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.node.model(inputs), labels)

    def _pretrain(self, optimizer: Optimizer, round: int) -> None:
        config, public = self.node.config, self.node.pool.samples
        for samples, epochs, purpose, loss in (
            (public, self.pretrain_epochs, "pretrain", self._public_loss),
            (self.own, self.pretrain_private_epochs, "pretrain-private", self._own_loss),
        ):
            order = generator(config.seed, self.node.client_id, round, purpose)
            batches = draw_batches(order, len(samples), config.batch_size, epochs=epochs, batches=0)
            train(self.node.training(samples), batches, optimizer, loss)

    def _digest(self, download: Arrays, round: int) -> float:
        """Approach the consensus, and return the mean distance to it before each step; 0 where there is none yet."""
        rows = torch.from_numpy(download["digested"]).long()
        if len(rows) == 0:
            return 0.0
        consensus = torch.from_numpy(download["consensus"]).to(self.node.device)
        if self.digest == "kl" and self.consensus == "logits":
            consensus = consensus.softmax(1)
        config = self.node.config
        order = generator(config.seed, self.node.client_id, round, "digest")
        batches = list(draw_batches(order, len(rows), config.batch_size, epochs=self.digest_epochs, batches=0))
        targets = (consensus[batch.to(consensus.device)] for batch in batches)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            logits, target = self.node.model(inputs), next(targets)
            if self.digest == "kl":
                return functional.kl_div(functional.log_softmax(logits, 1), target, reduction="batchmean")
            return functional.l1_loss(logits if self.consensus == "logits" else logits.softmax(1), target)

        public = self.node.pool.samples
        return train(public, (rows[batch] for batch in batches), self.optimizer("digest"), loss)[1]

    @torch.no_grad()
    def _answer(self, asked: Tensor) -> Tensor:
        """Return logits or softmax scores of the rows asked for, in evaluation mode: (A, C)."""
        model, public = self.node.model.eval(), self.node.pool.samples
        logits = torch.cat([model(public.batch(rows)[0]) for rows in torch.split(asked, EVALUATION_BATCH)])
        model.train()
        return logits if self.consensus == "logits" else logits.float().softmax(1)
