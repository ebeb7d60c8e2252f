"""DS-FL, client side: own data, then the sharpened mean scores of all on unlabelled public samples.

Itahara, Nishio, Koda, Morikura and Yamamoto, "Distillation-Based Semi-Supervised Federated Learning for
Communication-Efficient Collaborative Training With Non-IID Private Data", IEEE Transactions on Mobile Computing 2023.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch.nn import functional

from clients.base_answers import AnswersClient
from hetfl_flwr import SEEN, Arrays, Metrics, Node, to_numpy


class DSFLClient(AnswersClient):
    """Learns from the consensus of all on public samples, in turn with its own data.

    In each round: ``CE(consensus, own softmax scores)``, mean over the digested rows ("Distillation"; nothing in the
    first round of a federation), then the round's own batches with cross-entropy ("Update"), then softmax scores in
    evaluation mode on the rows asked for ("Prediction").

    Wire   as in `strategies.dsfl.DSFL`.
    State  the model; the moments of two optimizers, for the own rows and for digesting.
    Departs from the paper: both optimizers are those of the run config and go on from round to round. A
    client's own rows include those that it has made public; in the paper the public set is another data set.

    Parameters
    ----------
    node : Node
        The client's node.
    digest_epochs : int
        Passes over the digested rows in a round, 0 or more. 0 is local training.
    """

    tuned = ""  # its number says how the mean is sharpened, which it is not by default

    def __init__(self, node: Node, *, digest_epochs: Annotated[int, Field(ge=0)] = 1) -> None:
        super().__init__(node, digest_epochs=digest_epochs, answers="softmax")

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Digest, train on the own rows, answer."""
        consensus = torch.from_numpy(download["consensus"]).to(self.node.device)
        optimizer = self.optimizer()
        digest_loss = self.digested(download, consensus, functional.cross_entropy, round)
        samples, mean_loss = self.revisited(optimizer, round)
        answers = self.answered(torch.from_numpy(download["asked"]).long())
        return {"softmax": to_numpy(answers)}, {SEEN: samples, "train-loss": mean_loss, "digest-loss": digest_loss}
