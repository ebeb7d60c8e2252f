"""Base of the client sides that exchange a model, or a part of one, and keep the rest on the client."""

from torch import nn

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
    weights,
)


def check_head(node: Node, *, bias: bool) -> None:
    """Refuse a model whose head cannot travel alone: it has a weight of the body's, or no bias where others have one.

    Parameters
    ----------
    node : Node
        The client's node.
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
    """Receives its model or a part of it, returns it trained, and is measured with it and the client's own rest.

    An algorithm may override `shared`, `objective` and `learn`.

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
        """The part that is exchanged: by default the model."""
        return self.node.model

    def objective(self) -> Loss:
        """Return the loss of a round, which starts from the current model: by default the cross-entropy."""
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
        """Measure the received part with the client's own rest, on its own test set."""
        self.load(self.shared, download)
        return super().assess(download)
