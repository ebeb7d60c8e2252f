"""What a node asks of an algorithm's client side."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor, nn

from hetfl_flwr.common.flower import Scalar
from hetfl_flwr.models import SplitModel
from hetfl_flwr.wire.spec import Arrays, PayloadSpec

Metrics = dict[str, Scalar]
"""Names and values of what a client reports."""


class FederatedClient(Protocol):
    """As `hetfl_flwr.client.KnowledgeClient` says."""

    keeps_state: bool
    starts_alike: bool
    has_distillation_term: bool
    numbers: dict[str, int | float]

    def modules(self) -> Mapping[str, nn.Module]:
        """Return what survives between rounds."""

    def download_spec(self) -> PayloadSpec:
        """Return what the server sends."""

    def upload_spec(self) -> PayloadSpec:
        """Return what this client sends."""

    def assess_spec(self) -> PayloadSpec:
        """Return what the server sends along to `assess`."""

    def learn(self, download: Arrays, round: int) -> tuple[Arrays, Metrics]:
        """Train for one round."""

    def assess(self, download: Arrays) -> Metrics:
        """Measure."""

    def predictor(self) -> nn.Module:
        """Return what is measured, from inputs to logits."""

    def forward_of(self, model: SplitModel, download: Arrays) -> Callable[[Tensor], Tensor]:
        """Return what a model computes with weights as they travel."""

    def local_steps(self, samples: int) -> int:
        """Return the steps of a round."""

    def fit(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> tuple[list[NDArray[Any]], int, Metrics]:
        """Answer a training message."""

    def evaluate(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> tuple[float, int, Metrics]:
        """Answer an evaluation message."""
