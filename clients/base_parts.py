"""Base of the client sides that train one part of the model for all and keep the rest to themselves."""

from abc import abstractmethod

from torch import nn

from hetfl_flwr import Arrays, KnowledgeClient, Metrics, Node, PayloadSpec, weights


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
