"""Models of the user's own in whole runs: what a method cannot work with is one line before round 1."""

from math import prod

import pytest
import torch
from torch import nn

from hetfl_flwr import run
from hetfl_flwr.errors import ConfigError, FederationError, HetflError

SMALL = {"clients": 2, "rounds": 1, "batch_size": 20, "progress": False}


class Tied(nn.Module):
    """Its head has the weight of the body's last layer."""

    def __init__(self, spec):
        super().__init__()
        self.first = nn.Linear(prod(spec.shape), spec.classes)
        self.body = nn.Linear(spec.classes, spec.classes)
        self.head = nn.Linear(spec.classes, spec.classes)
        self.head.weight = self.body.weight

    def forward(self, x):
        return self.head(torch.relu(self.body(torch.relu(self.first(x.flatten(1))))))


class Plain(nn.Sequential):
    def __init__(self, spec):
        super().__init__(nn.Flatten(), nn.Linear(prod(spec.shape), 8), nn.ReLU(), nn.Linear(8, spec.classes))


class Shy(Plain):
    """Refuses to be called on as many samples as a client's test set has."""

    def forward(self, x):
        if len(x) > 100:
            raise RuntimeError("too many")
        return super().forward(x)


@pytest.mark.parametrize("algorithm", ["fedrep", "lgfedavg", "chfl", "fedgh"])
def test_a_head_tied_to_the_body_is_refused_where_one_of_them_travels(tmp_path, algorithm):
    """With its own width: a model that is brought to another one gets a head of its own."""
    with pytest.raises(HetflError, match=algorithm):
        run(algorithm, **SMALL, models=Tied, width=10, out=tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("settings", [{}, {"state-dir": "state"}])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedhe"])
def test_a_head_tied_to_the_body_stays_so_elsewhere(tmp_path, monkeypatch, algorithm, settings):
    monkeypatch.chdir(tmp_path)
    result = run(algorithm, **SMALL, models=Tied, out=tmp_path / "run", settings=settings)
    model = result.node(0).model
    assert model.head.weight is model.body.body.weight
    assert result.summary["failures"] == 0


def test_functions_and_classes_are_models(tmp_path):
    result = run("fedhe", **SMALL, models=[Plain, "mlp"], out=tmp_path / "run")
    assert result.config["models"] == f"{__name__}:Plain,mlp"
    assert result.node(0).model.width == 8


def test_a_function_that_nobody_else_can_import_is_one_line(tmp_path, monkeypatch):
    def local(spec):
        return Plain(spec)

    with pytest.raises(ConfigError, match="models = ") as error:
        run("fedhe", **SMALL, models=local, out=tmp_path / "run")
    assert "\n" not in str(error.value)
    monkeypatch.setattr(Plain, "__module__", "__main__")
    with pytest.raises(ConfigError, match="module:Plain"):
        run("fedhe", **SMALL, models=[Plain], out=tmp_path / "run")


def test_a_run_in_which_nobody_could_be_measured_has_failed(tmp_path):
    with pytest.raises(FederationError, match="client 0, evaluate, round 1"):
        run("fedhe", **SMALL, models=Shy, out=tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").exists()
