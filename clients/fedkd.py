"""FedKD, client side: the client's model and a small shared one teach each other, more so the smaller their losses.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature Communications 13, 2022.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from clients.base_mutual import MutualClient
from hetfl_flwr import (
    AUTO,
    EXAMPLES,
    Arrays,
    Metrics,
    ModelName,
    Node,
    PayloadSpec,
    Terms,
    bounded,
    factor,
    factored,
    kl_divergence,
    linear_schedule,
    load_model_arrays,
    model_arrays,
    multiplied,
    seeded,
    weights,
)
from strategies.fedkd import DOWN, Energy, global_mentee


class FedKDClient(MutualClient):
    """Trains its own model, the mentor, and the mentee on the same batches, and sends the update of the mentee.

    Section "Methods": p are the softmax scores, and H the embeddings (B, D). W (D, D') is a trainable matrix of the
    client that maps the mentee's embeddings to the mentor's. A prime marks the mentee::

        L_mentor = CE  + [KL(p' || p) + MSE(H, W H')] / (CE + CE')
        L_mentee = CE' + [KL(p || p') + MSE(H, W H')] / (CE + CE')

    No gradient flows to a teacher or to a denominator. W is trained on the mentor's loss, so that mentor, mentee and W
    each have the gradient of the squared error once. Each round costs a singular value decomposition of each of the
    mentee's matrices. Otherwise as in `clients.base_mutual.MutualClient`.

    A client that has lost its state may receive an update of a mentee that it does not have. Then its upload is not
    counted (``num-examples`` 0), and it receives the whole mentee in the next round.

    Wire   as in `strategies.fedkd.FedKD`.
    State  the mentor, W, their optimizer's moments; the last global mentee and its round; the mentee's moments with
           ``moments = "kept"``.
    Departs from the paper: the paper also compares the attention of its transformers. In its code and in HtFLlib,
    gradients flow through teachers and denominators; HtFLlib clips them to a norm of 10. The paper's code has no W,
    averages the divergence over the classes, too, and has one Adam for both models, which are pretrained there, that
    keeps its moments.

    Parameters
    ----------
    node, mentee, energy_start, energy_end
        The client's node; the others as in `strategies.fedkd.FedKD`.
    """

    @classmethod
    def tuned(cls, options: Mapping[str, Any]) -> str:
        """Return none: its numeric options set the compression."""
        return ""

    def __init__(
        self, node: Node, *, mentee: ModelName = AUTO, energy_start: Energy = 0.95, energy_end: Energy = 0.98
    ) -> None:
        super().__init__(node, "fedkd.mentee", mentee)
        self.energy, self._weights = (energy_start, energy_end), weights(self.small)
        with seeded(node.config.seed, node.client_id, "hidden"):
            self.matrix = nn.Linear(self.small.width, node.model.width, bias=False).to(node.device)

    def modules(self) -> Mapping[str, nn.Module]:
        """Keep the mentor, the matrix W, and the mentee as received from the server."""
        return {"model": self.node.model, "mentee": self.small, "hidden": self.matrix}

    def download_spec(self) -> PayloadSpec:
        """Expect the global mentee or its update."""
        return global_mentee(self._weights)

    def upload_spec(self) -> PayloadSpec:
        """Send the mentee's update."""
        return factored(self._weights, changes=True)

    def assess_spec(self) -> PayloadSpec:
        """Expect the global mentee."""
        return self._weights

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Load the global mentee, train it and the mentor together, and send the mentee's update."""
        known, mentor, mentee = self._load_mentee(download), self.node.model, self.small
        start, share = model_arrays(mentee), linear_schedule(self.energy, round, self.node.config.rounds)

        def losses(inputs: Tensor, labels: Tensor) -> tuple[Terms, Tensor]:
            features, hidden = mentor.body(inputs), mentee.body(inputs)
            logits, others = mentor.head(features), mentee.head(hidden)
            truth, its = self.node.data_loss(logits, labels), self.node.data_loss(others, labels)
            surer = 1 / (truth + its).detach().clamp(min=1e-6)  # both losses may be 0
            taught = kl_divergence(others, logits) + functional.mse_loss(self.matrix(hidden.detach()), features)
            fixed = functional.linear(hidden, self.matrix.weight.detach())
            teaching = kl_divergence(logits, others) + functional.mse_loss(fixed, features.detach())
            return Terms(truth, surer * taught), its + surer * teaching

        of_both = self.optimizer(parameters=[*mentor.parameters(), *self.matrix.parameters()])
        metrics = self.train_both(round, losses, of_both)
        learnt = {name: np.asarray(array - start[name]) for name, array in model_arrays(mentee).items()}
        load_model_arrays(mentee, start)
        return factor(learnt, self._weights, share), metrics if known else {**metrics, EXAMPLES: 0}

    def _load_mentee(self, download: Arrays) -> bool:
        """Load the global mentee or add its update; return False if the update is of a mentee that is missing here."""
        came, round, before = multiplied(download, self._weights, DOWN), download["round"], download["before"]
        if before >= 0 and (held := self.numbers.get("mentee-round", -1)) != before:
            return bool(held == round)  # then the update was received before, in a round that failed
        if before >= 0:
            came = bounded({name: it + came[name] for name, it in model_arrays(self.small).items()}, self._weights)
        self.load(self.small, came)
        self.numbers["mentee-round"] = int(round)
        return True
