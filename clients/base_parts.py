"""Base class of client sides that exchange a model or a part of it, and keep the rest on the client."""

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
    """Refuse a model with a head that cannot be exchanged alone: it shares a weight with the body, or its bias differs.

    Parameters
    ----------
    node : Node
        The client's node.
    bias : bool
        Whether exchanged heads have a bias.

    Raises
    ------
    ModelError
        If the head cannot be exchanged alone. The message says how to change the model.
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
    """Receives its model or a part of it, trains and returns it, and is evaluated with it and the rest of its model.

    An algorithm may override `shared`, `objective` and `learn`.

    Raises
    ------
    ModelError
        If only a part is exchanged, and body and head share a weight.
    """

    exchange_every = 1

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        if self.shared is not node.model:
            node.check_untied()

    @property
    def shared(self) -> nn.Module:
        """The exchanged part: by default, the model."""
        return self.node.model

    def objective(self) -> Loss:
        """Return the loss of a round, which starts from the current model; by default, the cross-entropy."""
        return self.own_loss

    def download_spec(self) -> PayloadSpec:
        """Expect the weights of the exchanged part; send the same."""
        return weights(self.shared)

    upload_spec = assess_spec = download_spec

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train the whole model for one round."""
        self.load(self.shared, download)
        samples, mean_loss = self.train(self.batches(round, times=self.exchange_every), self.objective())
        return model_arrays(self.shared), {SEEN: samples, "train-loss": mean_loss}

    def assess(self, download: Arrays) -> Metrics:
        """Evaluate the received part with the rest of the client's model, on the client's test set."""
        self.load(self.shared, download)
        return super().assess(download)
