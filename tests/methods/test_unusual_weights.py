"""Methods that send weights, with a model that has all that is unusual in weights."""

from math import prod

import pytest
import torch
from torch import Tensor, nn

from hetfl_flwr.data import DataSpec
from simulations.testing.contract import entries

UNUSUAL = "test_unusual_weights:Unusual"


class Constant(nn.BatchNorm1d):
    """Batch norm that stays in evaluation mode."""

    def train(self, mode: bool = True) -> nn.Module:
        return super().train(False)


class Unusual(nn.Module):
    """A weight without dimensions, a layer without weights, a counter of eight bits, a logarithm whose name ends like
    that of a variance, and batch norm whose variance is always 4."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__()
        self.first, self.none, self.norm = nn.Linear(prod(spec.shape), 16), nn.Linear(16, 0), Constant(16)
        self.norm.running_var.fill_(4.0)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("steps", torch.zeros(2, dtype=torch.uint8))
        self.register_buffer("log_running_var", torch.full((16,), -1.0))
        self.head = nn.Linear(16, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.scale * self.norm(torch.relu(self.first(x.flatten(1))))
        if self.training:
            self.steps += 1
            self.log_running_var.lerp_(hidden.detach().var(0).add(1e-3).log(), 0.1)
        logits: Tensor = self.head(torch.cat([hidden, self.none(hidden)], 1))
        return logits


@pytest.mark.parametrize("robust", ["none", "median"])
@pytest.mark.parametrize("name", ["fedavg", "fedrep", "lgfedavg", "heterofl", "feddf", "fml", "fedkd", "fedmrl"])
def test_rounds_go_on_with_all_clients(name, robust, make_config, run_federation):
    small = {"fml": "meme", "fedkd": "mentee", "fedmrl": "small"}
    keys = {f"{name}.{small[name]}": UNUSUAL} if name in small else {"models": UNUSUAL}
    config = make_config(algorithm=name, clients=3, rounds=2, local_batches=2, robust=robust, **keys)
    rounds = entries(run_federation(config))
    assert [entry["failures"] for entry in rounds] == [[], [], []]
    assert [len(entry.get("clients", ())) for entry in rounds[1:]] == [3, 3]
