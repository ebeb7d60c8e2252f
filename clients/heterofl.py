"""HeteroFL, client side: local training of the part of the global model that the client's own width has.

Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021 (arXiv 2010.01264).
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from hetfl_flwr import (
    EVALUATION_BATCH,
    SEEN,
    Arrays,
    KnowledgeClient,
    Metrics,
    Node,
    PayloadSpec,
    SplitModel,
    has_batch_norm,
    model_arrays,
    take_statistics,
)
from strategies.widths import down, part_weights, scaled_parameters, up


class HeteroFLClient(KnowledgeClient):
    """Trains its part of the global model on its own data: the leading channels of each layer, r of the width.

    Algorithm 1, ClientUpdate. Each layer of the body divides what it gives by r, since it adds up r of as
    many numbers: in training, and wherever the part is measured, exported or predicts. For that, the client's model
    has weights and biases that are divided by r once it has been trained or loaded; what travels is not divided. The
    logits of classes of which the client has no training sample are 0 in its loss (``mask``), so that it does not
    unlearn them. Batch norm comes behind the division. It takes the statistics of each batch in training; when the
    model is measured, those of all the client's training samples, with the weights as they are then.

    Reports ``accuracy`` of the client's part of the global model on its test set, and the same as ``global-accuracy``.

    Wire   as in `strategies.heterofl.HeteroFL`.
    State  the own part as it was trained last, with batch norm's statistics; it begins each round as the server has it.
           With ``moments = "kept"``: the optimizer's moments.
    Departs from the paper: there the server asks the clients in turn for batch norm's statistics, once, after training,
    and all use the same; here each has its own. Its code measures the whole network alone, never a part; what it calls
    local accuracy has the client's mask on the logits. It clips gradients to a norm of 1, and divides what is added up
    with a shortcut, where here each convolution divides.

    Parameters
    ----------
    node : Node
        The client's node.
    mask : bool
        Whether logits of classes that the client does not have are 0 in its loss. Softmax scores of them count still.
    """

    fine_tunes = True

    def __init__(self, node: Node, *, mask: bool = True) -> None:
        super().__init__(node)
        self.mask = mask
        self._part = part_weights(node.model)

    def download_spec(self) -> PayloadSpec:
        """Expect the own part of the global model."""
        return down(self._part)

    assess_spec = download_spec

    def upload_spec(self) -> PayloadSpec:
        """Send it as it was trained."""
        return up(self._part, self.node.data.spec.classes, mask=self.mask)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train the own part of the global model."""
        model, counts = self.node.model, self.node.data.train.class_counts(self.node.data.spec.classes)
        self._take_up(download)
        absent, forward = counts == 0, self.forward_of(model, download)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            logits = forward(inputs)
            return self.node.data_loss(logits.masked_fill(absent, 0.0) if self.mask else logits, labels)

        samples, mean_loss = self.train(self.batches(round), loss)
        trained = {name: array for name, array in model_arrays(model).items() if name in self._part.names}
        has = {"classes": (~absent).cpu().numpy().astype(np.uint8)} if self.mask else {}
        self._settle(float(download["rate"]))
        return {**has, **trained}, {SEEN: samples, "train-loss": mean_loss}

    def forward_of(self, model: SplitModel, download: Arrays) -> Callable[[Tensor], Tensor]:
        """Return what a part computes: the layers of its body divide by r."""
        rate = float(download["rate"])
        scaled = {} if rate == 1 else {f"body.{name}": one for name, one in scaled_parameters(model.body).items()}

        def divided(inputs: Tensor) -> Tensor:
            logits: Tensor = functional_call(model, {name: one / rate for name, one in scaled.items()}, (inputs,))
            return logits

        return divided if scaled else model

    def assess(self, download: Arrays) -> Metrics:
        """Measure the own part of the global model on the own test set."""
        self._take_up(download)
        self._settle(float(download["rate"]))
        return super().assess(download)

    def _take_up(self, download: Arrays) -> None:
        self.load(self.node.model, {name: array for name, array in download.items() if name != "rate"})

    def _settle(self, rate: float) -> None:
        """Make the model by itself what was trained: divide weights, take batch norm's statistics of all samples."""
        with torch.no_grad():
            for parameter in scaled_parameters(self.node.model.body).values():
                parameter.div_(rate)
        if has_batch_norm(self.node.model):
            samples = self.node.data.train
            parts = torch.arange(len(samples)).tensor_split(-(-len(samples) // EVALUATION_BATCH))
            take_statistics(self.node.model, (samples.batch(rows)[0] for rows in parts))
