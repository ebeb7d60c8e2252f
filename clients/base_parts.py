"""Base of the client sides that train one part of the model for all and keep the rest to themselves."""

from abc import abstractmethod

from torch import nn

from hetfl_flwr import Arrays, KnowledgeClient, Metrics, ModelError, Node, PayloadSpec, weights


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
