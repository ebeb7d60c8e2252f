"""FedH2L, client side: a step on its peers' public samples that does not conflict with its own, then its own step.

Li et al., "FedH2L: Federated Learning with Model and Statistical Heterogeneity", 2021.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from hetfl_flwr import (
    SEEN,
    Arrays,
    KnowledgeClient,
    Metrics,
    Node,
    PayloadError,
    PayloadSpec,
    draw_batches,
    flat_gradient,
    generator,
    make_optimizer,
    outputs,
    pcgrad,
    project,
    set_gradient,
    to_numpy,
    train,
)
from strategies.fedh2l import relayed_signals, teaching_signal


class FedH2LClient(KnowledgeClient):
    """Learns from its peers' posteriors on their public samples, without unlearning its own data, and teaches them.

    Algorithm 1 for client i of N; Acc_j is teacher j's accuracy on the rows of its posteriors p_j:

        local step    g_loc = grad CE on the client's own rows and all public samples                      Eq. (1)-(2)
        exchange      p_i on a random batch of the client's public samples, and Acc_i
        global step   g_pub = grad 1/(N-1) sum_j [Acc_j KL(p_j || p_i) + CE] on the rows of teacher j   Eq. (3)-(6)
                      g = g_pub if <g_loc, g_pub> >= 0, else its component orthogonal to g_loc          Eq. (7)-(15)

    In each round, one message triggers the global step of the round before, with the ``g_loc`` of that round, then the
    local step and the exchange. So the order of steps is the paper's. The signals of the last round are not applied,
    and a model is always evaluated after a local step. N - 1 is the number of teachers. Both steps use training mode;
    posteriors are computed in evaluation mode. ``local-batches`` and ``local-epochs`` are not used.

    Wire   as in `strategies.fedh2l.FedH2L`.
    State  the model, the moments of the optimizers, and ``g_loc`` (P,) for P trainable parameters.
    Departs from the paper: by default one optimizer takes both steps, where Algorithm 1 has two learning rates, beta
    and eta. The steps then share their moments, so that the update is not along g and may violate Eq. (7), and both
    steps have weight decay; ``optimizers`` has other readings. Batch norm treats the rows of all teachers as one batch,
    where Eq. (3) and (5) take them teacher by teacher. With E above 1, the paper's ``g_loc`` is ``(g_E - g_0)`` "over
    these E rounds", read here as the sum of the E gradients.

    Parameters
    ----------
    node : Node
        The client's node.
    exchange_every : int
        E of the paper: the number of local steps in a round, 1 or more. ``g_loc`` is the sum of their gradients.
    public_labels : bool
        Whether public samples of other clients have labels. If False, local batches contain only the client's own rows,
        and the global step has no cross-entropy.
    projection : {"qp", "pcgrad", "none"}
        "qp": Eq. (8). "none": ``g_pub`` without projection. "pcgrad": the update of Yu et al. 2020 for both gradients,
        which repeats part of the step along ``g_loc`` (Table 5).
    kl : bool
        Whether the global step includes Eq. (3). False is an ablation (Table 5).
    optimizers : {"one", "two", "sgd"}
        The optimizer of the global step. "one": that of the local step. "two": a second one of the same kind, with its
        own moments. "sgd": plain SGD, the update of Algorithm 1 as printed, which satisfies Eq. (7). With "two" and
        "sgd", only the local step has weight decay.
    eta : float
        Learning rate of the second optimizer, 0 or more. 0: the run config's ``learning-rate``, the only value for
        "one".
    """

    def __init__(
        self,
        node: Node,
        *,
        exchange_every: PositiveInt = 1,
        public_labels: bool = True,
        projection: Literal["qp", "pcgrad", "none"] = "qp",
        kl: bool = True,
        optimizers: Literal["one", "two", "sgd"] = "one",
        eta: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(node)
        if not (public_labels or kl):
            raise ValueError("public-labels = false and kl = false leave nothing to learn from peers: set one to true")
        if eta and optimizers == "one":
            raise ValueError(f"eta = {eta} is the learning rate of a second optimizer: set optimizers to two or sgd")
        self.exchange_every, self.public_labels = exchange_every, public_labels
        self.projection, self.kl, self.optimizers, self.eta = projection, kl, optimizers, eta
        self._parameters = list(node.model.parameters())
        self._local = nn.Module()
        self._local.register_buffer("gradient", torch.zeros_like(flat_gradient(self._parameters)))

    def modules(self) -> Mapping[str, nn.Module]:
        """Keep the model and the gradient of the last local steps."""
        return {"model": self.node.model, "local": self._local}

    def download_spec(self) -> PayloadSpec:
        """Expect the signals of some peers."""
        return relayed_signals(self.node.clients - 1, self.node.config.batch_size, self.node.data.spec.classes)

    def upload_spec(self) -> PayloadSpec:
        """Send posteriors on a batch of the client's public samples, their numbers, and the accuracy on them."""
        public = len(self.node.pool.shared)
        return teaching_signal(min(self.node.config.batch_size, public), public, self.node.data.spec.classes)

    def local_steps(self, samples: int) -> int:
        """Return the number of steps between two exchanges, whatever the number of samples."""
        return self.exchange_every

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Take the global step of the last round and the local steps of this round, and return a signal."""
        optimizer = self.optimizer()
        metrics = self._global_step(download, optimizer if self.optimizers == "one" else self._second_optimizer())
        samples, mean_loss = self._local_steps(round, optimizer)
        return self._signal(round), {SEEN: samples, "train-loss": mean_loss, **metrics}

    def _second_optimizer(self) -> Optimizer:
        """Return the optimizer of the global step, with its own learning rate and without weight decay."""
        config = self.node.config
        own: dict[str, object] = {"learning_rate": self.eta or config.learning_rate, "weight_decay": 0.0}
        if self.optimizers == "sgd":
            own |= {"optimizer": "sgd", "momentum": 0.0}
        return self.kept("global", make_optimizer(config.model_copy(update=own), self.node.model.parameters()))

    def _global_step(self, download: Arrays, optimizer: Optimizer) -> Metrics:
        teachers, sizes = len(download["teachers"]), download["sizes"]
        if teachers == 0:
            return {"peers": 0, "projected": 0.0, "public-loss": 0.0}
        device, rows = self.node.device, [torch.from_numpy(self._rows_of_signals(download))]
        share = torch.from_numpy(np.repeat(1 / (teachers * sizes), sizes)).float().to(device)
        trust = torch.from_numpy(np.repeat(download["accuracies"], sizes)).to(device)
        posteriors = torch.from_numpy(download["posteriors"]).to(device)
        local = self._local.get_buffer("gradient")
        conflicts = []

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            log_posteriors = functional.log_softmax(self.node.model(inputs), 1)
            each = torch.zeros_like(share)
            if self.kl:
                each = each + trust * functional.kl_div(log_posteriors, posteriors, reduction="none").sum(1)
            if self.public_labels:
                each = each + functional.nll_loss(log_posteriors, labels, reduction="none")
            return (share * each).sum()

        def resolve() -> None:
            gradient = flat_gradient(self._parameters)
            projected = project(gradient, local)
            conflicts.append(not torch.equal(projected, gradient))
            other = pcgrad(gradient, local) if self.projection == "pcgrad" else gradient
            set_gradient(self._parameters, projected if self.projection == "qp" else other)

        _, public_loss = train(self.node.pool.samples, rows, optimizer, loss, before_step=resolve)
        projected = any(conflicts) and self.projection != "none"
        return {"peers": teachers, "projected": float(projected), "public-loss": public_loss}

    def _local_steps(self, round: int, optimizer: Optimizer) -> tuple[int, float]:
        node, config = self.node, self.node.config
        samples = node.pool.everything if self.public_labels else node.data.train
        order = generator(config.seed, node.client_id, round, "batches")
        batches = draw_batches(order, len(samples), config.batch_size, epochs=1, batches=self.exchange_every)
        total = self._local.get_buffer("gradient").zero_()

        def add_up() -> None:
            total.add_(flat_gradient(self._parameters))

        return train(node.training(samples), batches, optimizer, self.own_loss, before_step=add_up)

    def _signal(self, round: int) -> Arrays:
        node, public = self.node, self.node.pool.shared
        draw = generator(node.config.seed, node.client_id, round, "seeds")
        indices = draw.choice(len(public), min(node.config.batch_size, len(public)), replace=False)
        rows = torch.from_numpy(indices)
        posteriors, labels = functional.softmax(outputs(node.model, public, rows), 1), public.labels[rows]
        accuracy = (posteriors.argmax(1) == labels).float().mean()
        indices = indices.astype(np.int32)
        return {"indices": indices, "posteriors": to_numpy(posteriors), "accuracy": to_numpy(accuracy)}

    def _rows_of_signals(self, download: Arrays) -> NDArray[np.int64]:
        """Return the numbers (M,), among all public samples, of the rows of the teachers' signals."""
        index, sizes, indices = self.node.pool.index, download["sizes"], download["indices"]
        if sizes.sum() != len(indices):
            raise PayloadError(f"server: array 'sizes' adds up to {sizes.sum()}, expected {len(indices)}, all indices")
        places = np.stack([np.repeat(download["teachers"], sizes), indices], axis=1)
        strange = ~index.held(places) | (places[:, 0] == self.node.client_id)
        for teacher, row in places[strange].tolist():
            raise PayloadError(f"server: array 'indices' has row {row} of teacher {teacher}, which no peer has shared")
        return index.numbers(places)
