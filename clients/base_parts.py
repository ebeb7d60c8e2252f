"""Base of the client sides that train a model, or a part of one, for all and keep the rest to themselves."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr import (
    SEEN,
    Arrays,
    KnowledgeClient,
    Loss,
    Metrics,
    ModelError,
    Node,
    PayloadSpec,
    model_arrays,
    outputs,
    seeded,
    weights,
)


def check_head(node: Node, *, bias: bool) -> None:
    """Refuse a model whose head cannot travel alone: it has a weight of the body's, or no bias where others have one.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    bias : bool
        Whether heads that travel have a bias.

    Raises
    ------
    ModelError
        Says what would do.
    """
    node.check_untied()
    if (node.model.head.bias is not None) != bias:
        has, wanted = ("no", "with") if bias else ("a", "without")
        as_asked = node.config.head_bias == bias
        remedy = f"build it with bias={bias}" if as_asked else f"set head-bias to {str(bias).lower()}"
        raise ModelError(
            f"{node}: its head has {has} bias, but {node.config.algorithm} shares heads {wanted} one: {remedy}"
        )


def draw_head(node: Node) -> None:
    """Give a head the first weights that those of all clients of a run have."""
    with seeded(node.config.seed, "head"):
        first = nn.Linear(node.model.width, node.model.classes)
    node.model.head.load_state_dict(first.state_dict())


def head_logits(node: Node, head: Sequence[Tensor], batches: list[Tensor]) -> tuple[Tensor, ...]:
    """Return the logits (B, C) of some mini-batches of the training samples, by another head on the own body.

    The body is in evaluation mode: one forward pass of all of these samples.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    head : sequence of Tensor
        Weight (C, D) and bias (C,).
    batches : list of Tensor
        Positions (B,) of each.
    """
    features = outputs(node.model.body, node.data.train, torch.cat(batches))
    return torch.split(functional.linear(features, *head), [len(batch) for batch in batches])


class SharedPartClient(KnowledgeClient):
    """Is sent its model or a part of it, sends that back trained, and is measured with it and the rest of its own.

    An algorithm may write `shared`, `objective` and `learn`.

    Raises
    ------
    ModelError
        A part travels, and body and head have a weight in common.
    """

    exchange_every = 1

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        if self.shared is not node.model:
            node.check_untied()

    @property
    def shared(self) -> nn.Module:
        """What travels: the model."""
        return self.node.model

    def objective(self) -> Loss:
        """Return what a round steps down, the model being the one that it begins with: the cross-entropy."""
        return self.own_loss

    def download_spec(self) -> PayloadSpec:
        """Expect what travels."""
        return weights(self.shared)

    upload_spec = assess_spec = download_spec

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train the whole model for one round."""
        self.load(self.shared, download)
        samples, mean_loss = self.train(self.batches(round, times=self.exchange_every), self.objective())
        return model_arrays(self.shared), {SEEN: samples, "train-loss": mean_loss}

    def assess(self, download: Arrays) -> Metrics:
        """Measure what came with the own rest, on the own test set."""
        self.load(self.shared, download)
        return super().assess(download)
