"""Our networks in the forms that the peers take, within a peer's process."""

import copy
from argparse import Namespace
from collections.abc import Callable

from torch import Tensor, nn

from hetfl_flwr.models import SplitModel


class Split(nn.Module):
    """A network whose parts are called base and head, as PFLlib calls them."""

    def __init__(self, model: SplitModel) -> None:
        super().__init__()
        self.base, self.head = model.body, model.head

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, C) of inputs (B, ...)."""
        logits: Tensor = self.head(self.base(x))
        return logits


class Trunk(nn.Module):
    """A body with a last layer ``fc``, which HtFLlib takes off and replaces by an average to `feature_dim` features."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.fc = body, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (B, D) of inputs (B, ...)."""
        features: Tensor = self.fc(self.body(x))
        return features


def given_to_htfllib(args: Namespace, model: SplitModel) -> None:
    """Set the network of all clients: HtFLlib evaluates the strings of `models` and `heads` where `args` is known."""
    args.feature_dim = model.width
    args.trunk, args.top = _copies(Trunk(model.body)), _copies(model.head)
    args.models, args.heads = ["args.trunk()"], ["args.top()"]


def given_to_pfllib(args: Namespace, model: SplitModel) -> None:
    """Set the network of all clients, of which each takes a copy."""
    args.model = Split(model)


def _copies(module: nn.Module) -> Callable[[], nn.Module]:
    return lambda: copy.deepcopy(module)
