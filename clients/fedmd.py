"""FedMD, client side: transfer learning, then rounds of digesting the consensus and revisiting private data.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS workshop 2019 (arXiv 1910.03581).
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer

from clients.base_answers import AnswersClient, divergence
from hetfl_flwr import SEEN, Arrays, ConfigError, Metrics, Node, draw_batches, generator, to_numpy, train
from strategies.base_answers import Answers


class FedMDClient(AnswersClient):
    """Learns alternately from the consensus of all clients on public samples and from its own data.

    Algorithm 1. In its first round: cross-entropy on all public samples, then on its own rows ("Transfer learning"). In
    each round: ``mean |logits - consensus|`` over the digested rows and the classes ("Digest"; not in the first round
    of a federation), then its own batches with cross-entropy ("Revisit"), then logits in evaluation mode on the
    requested rows ("Communicate"). ``consensus`` and ``digest`` have other readings of prediction and distance.

    Wire   as in `strategies.fedmd.FedMD`.
    State  the model; the moments of two optimizers, for cross-entropy and for digesting; whether it has pre-trained.
    Departs from the paper: pre-training takes a number of epochs, not "to convergence". Both optimizers are those of
    the run config and keep their moments between rounds (in the authors' code, too, where both are Adam at 1e-3, the
    default here). By default a client's own rows include those that it has made public. In the paper the public set is
    another data set, so that no row is in both, as with ``private = "without-public"``.

    Parameters
    ----------
    node : Node
        The client's node.
    pretrain_epochs : int
        Passes over all public samples before the client's first round, 0 or more. 0 skips this step.
    pretrain_private_epochs : int
        Passes over the client's own training rows after that, 0 or more.
    digest_epochs : int
        Passes over the digested rows in a round, 0 or more. 0 without pre-training is local training.
    private : {"with-public", "without-public"}
        Whether the rows that the client pre-trains on and revisits include its own public rows.
    consensus : {"logits", "softmax"}
        As in `strategies.fedmd.FedMD`.
    digest : {"l1", "kl"}
        The distance from the consensus. "l1": mean absolute difference of logits or softmax scores, whichever the
        consensus is; the authors' code uses logits. "kl": KL(consensus || own) of softmax scores. The paper does not
        report the loss.

    Raises
    ------
    ConfigError
        If all training rows are public, and ``private`` excludes these.
    """

    def __init__(
        self,
        node: Node,
        *,
        pretrain_epochs: Annotated[int, Field(ge=0)] = 20,
        pretrain_private_epochs: Annotated[int, Field(ge=0)] = 25,
        digest_epochs: Annotated[int, Field(ge=0)] = 1,
        private: Literal["with-public", "without-public"] = "with-public",
        consensus: Answers = "logits",
        digest: Literal["l1", "kl"] = "l1",
    ) -> None:
        super().__init__(node, digest_epochs=digest_epochs, answers=consensus)
        self.own = node.data.train if private == "with-public" else node.data.private
        if not len(self.own):
            raise ConfigError(
                f"{node}: fedmd.private = '{private}', but all {len(node.data.train)} training samples are public: "
                "lower public-fraction"
            )
        self.pretrain_epochs = pretrain_epochs
        self.pretrain_private_epochs = pretrain_private_epochs
        self.consensus, self.digest = consensus, digest

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Pre-train in the client's first round; then digest, revisit and predict."""
        optimizer = self.optimizer()
        if "pretrained" not in self.numbers:
            self._pretrain(optimizer, round)
            self.numbers["pretrained"] = 1
        digest_loss = self._digest(download, round)
        samples, mean_loss = self.revisited(optimizer, round)
        asked = torch.from_numpy(download["asked"]).long()
        answers = self.answered(asked)
        right = answers.argmax(1) == self.node.pool.samples.labels[asked.to(answers.device)]
        metrics: Metrics = {"digest-loss": digest_loss, "public-accuracy": float(right.double().mean())}
        return {self.consensus: to_numpy(answers)}, {SEEN: samples, "train-loss": mean_loss, **metrics}

    def _public_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.node.model(inputs), labels)

    def _pretrain(self, optimizer: Optimizer, round: int) -> None:
        config, public = self.node.config, self.node.pool.samples
        for samples, epochs, purpose, loss in (
            (public, self.pretrain_epochs, "pretrain", self._public_loss),
            (self.own, self.pretrain_private_epochs, "pretrain-private", self.own_loss),
        ):
            order = generator(config.seed, self.node.client_id, round, purpose)
            batches = draw_batches(order, len(samples), config.batch_size, epochs=epochs, batches=0)
            train(self.node.training(samples), batches, optimizer, loss)

    def _digest(self, download: Arrays, round: int) -> float:
        consensus = torch.from_numpy(download["consensus"]).to(self.node.device)
        if self.digest == "kl" and self.consensus == "logits":
            consensus = consensus.softmax(1)
        return self.digested(download, consensus, self._distance, round)

    def _distance(self, logits: Tensor, consensus: Tensor) -> Tensor:
        if self.digest == "kl":
            return divergence(logits, consensus)
        return functional.l1_loss(logits if self.consensus == "logits" else logits.softmax(1), consensus)
