"""HeteroFL, client side: local training of a part of the global model, of the client's own width.

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

    Algorithm 1, ClientUpdate. Each layer of the body divides its output by r, as all but the first sum over only r of
    the inputs: in training, and when the part is evaluated, exported or used for prediction. For the latter, the
    weights and biases of the client's model are divided by r after training or loading; payloads are not divided.
    Logits of classes without training samples on the client are 0 in its loss (``mask``), so that it does not unlearn
    them. Batch norm follows the division. In training it uses the statistics of each batch; in evaluation, those of all
    the client's training samples with the current weights.

    Reports ``accuracy`` of the client's part of the global model on its test set, and the same as ``global-accuracy``.

    Wire   as in `strategies.heterofl.HeteroFL`.
    State  the own part as trained last, with the statistics of batch norm; each round starts from the server's weights.
           With ``moments = "kept"``: the optimizer's moments.
    Departs from the paper: there the server queries the clients one after the other for batch norm's statistics, once
    after training, and all use the same; here each client has its own. The paper's code evaluates only the whole
    network, never a part; its local accuracy applies the client's mask to the logits. It clips gradients to a norm of
    1, and divides the sum with a shortcut, where here each convolution divides.

    Parameters
    ----------
    node : Node
        The client's node.
    mask : bool
        Whether logits of classes that the client does not have are 0 in its loss. Their softmax scores still count.
    """

    fine_tunes = True

    def __init__(self, node: Node, *, mask: bool = True) -> None:
        super().__init__(node)
        self.mask = mask
        self._part = part_weights(node.model)

    def download_spec(self) -> PayloadSpec:
        """Expect the client's part of the global model."""
        return down(self._part)

    assess_spec = download_spec

    def upload_spec(self) -> PayloadSpec:
        """Send the trained part."""
        return up(self._part, self.node.data.spec.classes, mask=self.mask)

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train the client's part of the global model for one round."""
        model, counts = self.node.model, self.node.data.train.class_counts(self.node.data.spec.classes)
        self._load_part(download)
        absent, forward = counts == 0, self.forward_of(model, download)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            logits = forward(inputs)
            return self.node.data_loss(logits.masked_fill(absent, 0.0) if self.mask else logits, labels)

        samples, mean_loss = self.train(self.batches(round), loss)
        trained = {name: array for name, array in model_arrays(model).items() if name in self._part.names}
        has = {"classes": (~absent).cpu().numpy().astype(np.uint8)} if self.mask else {}
        self._complete(float(download["rate"]))
        return {**has, **trained}, {SEEN: samples, "train-loss": mean_loss}

    def forward_of(self, model: SplitModel, download: Arrays) -> Callable[[Tensor], Tensor]:
        """Return the forward function of a part, in which the layers of the body divide by r."""
        rate = float(download["rate"])
        scaled = {} if rate == 1 else {f"body.{name}": one for name, one in scaled_parameters(model.body).items()}

        def divided(inputs: Tensor) -> Tensor:
            logits: Tensor = functional_call(model, {name: one / rate for name, one in scaled.items()}, (inputs,))
            return logits

        return divided if scaled else model

    def assess(self, download: Arrays) -> Metrics:
        """Evaluate the client's part of the global model on the client's test set."""
        self._load_part(download)
        self._complete(float(download["rate"]))
        return super().assess(download)

    def _load_part(self, download: Arrays) -> None:
        self.load(self.node.model, {name: array for name, array in download.items() if name != "rate"})

    def _complete(self, rate: float) -> None:
        """Divide the weights by r, and take batch norm's statistics over all samples, so that the model is complete."""
        with torch.no_grad():
            for parameter in scaled_parameters(self.node.model.body).values():
                parameter.div_(rate)
        if has_batch_norm(self.node.model):
            samples = self.node.data.train
            parts = torch.arange(len(samples)).tensor_split(-(-len(samples) // EVALUATION_BATCH))
            take_statistics(self.node.model, (samples.batch(rows)[0] for rows in parts))
