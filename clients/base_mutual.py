"""Base class of client sides that train a small model together with their own, each teaching the other."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

from hetfl_flwr import SEEN, Arrays, KnowledgeClient, Metrics, ModelName, Node, Terms, descend, evaluate, small_model

Losses = Callable[[Tensor, Tensor], tuple[Terms, Tensor]]
"""A function from inputs and labels to the losses of the own and the small model, both before either one's step."""


class MutualClient(KnowledgeClient):
    """Trains its own model and a small model, which all clients have, on the same batches.

    Each model has an optimizer as set in the run config. That of the own model keeps its moments between rounds. That
    of the small model, which is part of each download, is reset unless ``moments = "kept"``. ``projection`` affects
    only the own model's loss. The additional cost is the small model's passes over each batch. Reports ``accuracy`` of
    the own model and ``global-accuracy`` of the global small model, on the client's test set.

    Parameters
    ----------
    node : Node
        The client's node.
    key : str
        The config key that sets the small model, for error messages.
    name : str
        The value of that key.

    Raises
    ------
    ModelError
        If the small model does not fit the client's data.
    """

    has_distillation_term = True

    def __init__(self, node: Node, key: str, name: ModelName) -> None:
        super().__init__(node)
        self.small = small_model(key, name, node)

    def train_both(self, round: int, losses: Losses, optimizer: Optimizer | None = None) -> Metrics:
        """Train both models for one round; the own model's optimizer is the client's unless another is given."""
        small_optimizer = self.optimizer("small-optimizer", self.small.parameters())
        total = torch.zeros((), dtype=torch.float64)

        def loss(inputs: Tensor, labels: Tensor) -> Terms:
            """Take the small model's step; return the own model's loss."""
            own, its = losses(inputs, labels)
            descend(small_optimizer, its)
            total.add_(its.detach().double().cpu() * len(labels))
            return own

        samples, mean_loss = self.train(self.batches(round), loss, optimizer)
        return {SEEN: samples, "train-loss": mean_loss, "small-loss": float(total) / samples}

    def assess(self, download: Arrays) -> Metrics:
        """Evaluate the own model and the global small model."""
        self.take(download)
        return {**super().assess(download), "global-accuracy": evaluate(self.small, self.node.data.test).accuracy}

    def take(self, download: Arrays) -> None:
        """Load a download into the small model or a part of it."""
        self.load(self.small, download)
