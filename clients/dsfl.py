"""DS-FL, client side: training on private data, and on the mean scores of all clients on unlabeled public samples.

Itahara, Nishio, Koda, Morikura and Yamamoto, "Distillation-Based Semi-Supervised Federated Learning for
Communication-Efficient Collaborative Training With Non-IID Private Data", IEEE Transactions on Mobile Computing 2023.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch.nn import functional

from clients.base_answers import AnswersClient
from hetfl_flwr import SEEN, Arrays, Metrics, Node, to_numpy


class DSFLClient(AnswersClient):
    """Learns alternately from the consensus of all clients on public samples and from its own data.

    In each round: ``CE(consensus, own softmax scores)``, averaged over the digested rows ("Distillation"; not in the
    first round of a federation), then its own batches with cross-entropy ("Update"), then softmax scores in evaluation
    mode on the requested rows ("Prediction").

    Wire   as in `strategies.dsfl.DSFL`.
    State  the model; the moments of two optimizers, for own rows and for digesting.
    Departs from the paper: both optimizers are those of the run config and keep their moments between rounds. A
    client's own rows include those that it has made public; in the paper the public set is another data set.

    Parameters
    ----------
    node : Node
        The client's node.
    digest_epochs : int
        Passes over the digested rows in a round, 0 or more. 0 is local training.
    """

    @classmethod
    def tuned(cls, options: Mapping[str, Any]) -> str:
        """Return "temperature" if scores are sharpened, else none."""
        return "temperature" if options.get("dsfl.aggregation") == "era" else ""

    def __init__(self, node: Node, *, digest_epochs: Annotated[int, Field(ge=0)] = 1) -> None:
        super().__init__(node, digest_epochs=digest_epochs, answers="softmax")

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Digest, train on the client's own rows, and predict."""
        consensus = torch.from_numpy(download["consensus"]).to(self.node.device)
        optimizer = self.optimizer()
        digest_loss = self.digested(download, consensus, functional.cross_entropy, round)
        samples, mean_loss = self.revisited(optimizer, round)
        answers = self.answered(torch.from_numpy(download["asked"]).long())
        return {"softmax": to_numpy(answers)}, {SEEN: samples, "train-loss": mean_loss, "digest-loss": digest_loss}
