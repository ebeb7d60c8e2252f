"""Client sides that train the global model and send it back."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from clients.base_parts import SharedPartClient
from hetfl_flwr import (
    Arrays,
    Metrics,
    Node,
    draw_batches,
    evaluate,
    generator,
    make_optimizer,
    seeded,
    train,
)


class GlobalModelClient(SharedPartClient):
    """Trains the global model on its own data.

    An algorithm may write `objective`. Averaging was published with plain SGD, which has no moments: what becomes of an
    optimizer's between rounds, where another model replaces the one that it has stepped, is the run config's
    ``moments``.

    State  none; with ``moments = "kept"`` the optimizer's moments.

    Parameters
    ----------
    node : Node
        The client's surroundings.
    exchange_every : int
        How many times the local work of the run config (``local-batches`` or ``local-epochs``) lies between two
        exchanges, 1 or more. A round stays one exchange: it has the same bytes and so many times the steps, so that
        bytes a local step can be made to match another method's (Li et al., "FedH2L", Table 2).
    """

    fine_tunes = True

    def __init__(self, node: Node, *, exchange_every: Annotated[int, Field(ge=1)] = 1) -> None:
        super().__init__(node)
        self.exchange_every = exchange_every
        self._tuned: nn.Module | None = None
        self.keeps_state = node.config.moments == "kept"

    def modules(self) -> Mapping[str, nn.Module]:
        """Keep no network: the model comes with each download."""
        return {}

    def local_steps(self, samples: int) -> int:
        """Return as many steps as ``exchange-every`` lets lie between two exchanges."""
        return self.exchange_every * super().local_steps(samples)

    def assess(self, download: Arrays) -> Metrics:
        """Measure the global model, or what it becomes with fine-tuning, on the own test set."""
        if self.node.config.fine_tune_epochs:
            self.load(self.shared, download)
            self._tuned = self._fine_tuned()
        measured = super().assess(download)
        if not self.node.config.fine_tune_epochs:
            return {**measured, "global-accuracy": measured["accuracy"]}
        return {**measured, "global-accuracy": evaluate(self.node.model, self.node.data.test).accuracy}

    def predictor(self) -> nn.Module:
        """Return the global model, or its fine-tuned copy."""
        return self.node.model if self._tuned is None else self._tuned

    def _fine_tuned(self) -> nn.Module:
        """Return a copy of the global model, trained on the own samples."""
        copy, config, samples = deepcopy(self.node.model), self.node.config, self.node.training(self.node.data.train)
        scope = config.seed, self.node.client_id, "fine-tune"
        passes = {"epochs": self.node.config.fine_tune_epochs, "batches": 0}
        batches = draw_batches(generator(*scope), len(samples), config.batch_size, **passes)

        def loss(inputs: Tensor, labels: Tensor) -> Tensor:
            return self.node.data_loss(copy(inputs), labels)

        with seeded(*scope):
            train(samples, batches, make_optimizer(config, copy.train().parameters()), loss)
        return copy
