"""FedKD, client side: the own model and a small one that travels teach each other, the more the surer they are.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature Communications 13, 2022.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr import (
    AUTO,
    EXAMPLES,
    SEEN,
    Arrays,
    KnowledgeClient,
    Metrics,
    Node,
    PayloadSpec,
    Terms,
    bounded,
    descend,
    evaluate,
    factor,
    kl_divergence,
    load_model_arrays,
    model_arrays,
    multiplied,
    seeded,
    small_model,
    weights,
)
from strategies.fedkd import DOWN, Compress, Energy, compressed_mentee, energy, global_mentee


class FedKDClient(KnowledgeClient):
    """Trains its own model, the mentor, and the mentee on the same batches, and sends what the mentee has learnt.

    Section "Methods", with p the softmax scores, H the embeddings (B, D), and W (D, D') a learnt matrix of the client's
    that takes the mentee's embeddings to the mentor's; a prime marks the mentee::

        L_mentor = CE  + [KL(p' || p) + MSE(H, W H')] / (CE + CE')
        L_mentee = CE' + [KL(p || p') + MSE(H, W H')] / (CE + CE')

    Both are of the logits from before either model's step. No gradient flows to a teacher or to a denominator; W learns
    from the mentor's loss, so that each of the three has the gradient of the squared error once. Each model has an
    optimizer as the run config says: that of mentor and W goes on, the mentee's starts again each round, or as the run
    config's ``moments`` says.
    Costs the mentee's passes over each batch, and a singular value decomposition of each of its matrices a round.

    A client that has lost its state may be sent an update of a mentee that it does not hold. Its models then teach each
    other as they are, and its upload weighs nothing (``num-examples`` 0): so in the next round it is sent the mentee.
    Reports ``accuracy`` of the mentor and ``global-accuracy`` of the global mentee, on the client's test set.

    Wire   as in `strategies.fedkd.FedKD`.
    State  the mentor, W, their optimizer's moments; the global mentee as it was sent last, and the round that it is of;
           ``moments = "kept"``: the mentee's moments, too.
    Departs from the paper: its transformers' attention is compared as well. In its code and in HtFLlib gradients flow
    through teachers and denominators; HtFLlib clips them to a norm of 10. Its code has no W, takes the mean of the
    divergence over the classes, too, and one Adam for both models, which goes on from round to round; both are
    pretrained there.

    Parameters
    ----------
    node, mentee, compress, energy_start, energy_end
        As in `strategies.fedkd.FedKD`, beside the client's surroundings.
    hidden : bool
        False leaves the squared error of the embeddings, and W, out.

    Raises
    ------
    ModelError
        The mentee does not fit the client's data.
    """

    has_distillation_term = True
    tuned = ""  # its numbers say how much is compressed

    def __init__(
        self,
        node: Node,
        *,
        mentee: str = AUTO,
        compress: Compress = "update",
        energy_start: Energy = 0.95,
        energy_end: Energy = 0.98,
        hidden: bool = True,
    ) -> None:
        super().__init__(node)
        self.compress, self.hidden = compress, hidden
        self.energy = energy_start, energy_end
        self.mentee = small_model("fedkd.mentee", mentee, node)
        with seeded(node.config.seed, node.client_id, "hidden"):
            matrix = nn.Linear(self.mentee.width, node.model.width, bias=False)
        self.matrix = matrix.to(node.device).requires_grad_(hidden)
        self._weights = weights(self.mentee)

    def modules(self) -> Mapping[str, nn.Module]:
        """Keep the mentor, the matrix W, and the mentee as the server sent it."""
        return {"model": self.node.model, "mentee": self.mentee, "hidden": self.matrix}

    def download_spec(self) -> PayloadSpec:
        """Expect the global mentee, or its update."""
        return global_mentee(self._weights)

    def upload_spec(self) -> PayloadSpec:
        """Send the mentee's update, or the mentee."""
        return compressed_mentee(self._weights, self.compress)

    def assess_spec(self) -> PayloadSpec:
        """Expect the global mentee."""
        return self._weights

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Take up the global mentee, let it and the mentor teach each other, and send what it has learnt."""
        known, mentor, mentee_loss = self._take_up(download), self.node.model, torch.zeros((), dtype=torch.float64)
        start = model_arrays(self.mentee)
        of_mentor = self.optimizer(parameters=[*mentor.parameters(), *self.matrix.parameters()])
        of_mentee = self.optimizer("mentee-optimizer", self.mentee.parameters())

        def loss(inputs: Tensor, labels: Tensor) -> Terms:
            """Take the mentee's step; return the mentor's loss."""
            features, hidden = mentor.body(inputs), self.mentee.body(inputs)
            logits, others = mentor.head(features), self.mentee.head(hidden)
            truth, its = self.node.data_loss(logits, labels), self.node.data_loss(others, labels)
            surer = 1 / (truth + its).detach().clamp(min=1e-6)  # both may be sure and right
            taught, teaching = kl_divergence(others, logits), kl_divergence(logits, others)
            if self.hidden:
                taught = taught + functional.mse_loss(self.matrix(hidden.detach()), features)
                fixed = functional.linear(hidden, self.matrix.weight.detach())
                teaching = teaching + functional.mse_loss(fixed, features.detach())
            of_mentee.zero_grad(set_to_none=True)
            descend(of_mentee, value := its + surer * teaching)
            mentee_loss.add_(value.detach().double().cpu() * len(labels))
            return Terms(truth, surer * taught)

        samples, mean_loss = self.train(self.batches(round), loss, of_mentor)
        learnt = model_arrays(self.mentee)
        load_model_arrays(self.mentee, start)
        if self.compress == "update":
            learnt = {name: array - start[name] for name, array in learnt.items()}
        share = energy(*self.energy, round, self.node.config.rounds)
        metrics: Metrics = {SEEN: samples, "train-loss": mean_loss, "mentee-loss": float(mentee_loss) / samples}
        return factor(learnt, self._weights, share), metrics if known else {**metrics, EXAMPLES: 0}

    def assess(self, download: Arrays) -> Metrics:
        """Measure the mentor, and the global mentee."""
        self.load(self.mentee, download)
        return {**super().assess(download), "global-accuracy": evaluate(self.mentee, self.node.data.test).accuracy}

    def _take_up(self, download: Arrays) -> bool:
        """Load the global mentee, or add its update, and return True; False: it is one of a mentee that is not here."""
        came, round, before = multiplied(download, self._weights, DOWN), download["round"], download["before"]
        held, own = self.numbers.get("mentee-round", -1), model_arrays(self.mentee)
        if before >= 0 and held == before:
            came = bounded({name: array + came[name] for name, array in own.items()}, self._weights)
        elif before >= 0:
            return bool(held == round)  # then it was sent before, in a round that came to nothing
        self.load(self.mentee, came)
        self.numbers["mentee-round"] = int(round)
        return True
