"""Base of the client sides that train one part of the model for all and keep the rest to themselves."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from hetfl_flwr import Arrays, KnowledgeClient, Metrics, ModelError, Node, PayloadSpec, outputs, seeded, weights


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
    """Is sent a part of its model, sends that part trained, and is measured with it and the rest of its own.

    An algorithm writes `shared` and `learn`.

    Raises
    ------
    ModelError
        Body and head have a weight in common.
    """

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        node.check_untied()

    @property
    @abstractmethod
    def shared(self) -> nn.Module:
        """The part of the model that travels."""

    def download_spec(self) -> PayloadSpec:
        """Expect the shared part."""
        return weights(self.shared)

    def upload_spec(self) -> PayloadSpec:
        """Send the trained part."""
        return weights(self.shared)

    def assess_spec(self) -> PayloadSpec:
        """Expect the shared part."""
        return weights(self.shared)

    def assess(self, download: Arrays) -> Metrics:
        """Measure the shared part with the own one, on the own test set."""
        self.load(self.shared, download)
        return super().assess(download)
