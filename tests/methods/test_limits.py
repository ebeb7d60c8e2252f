"""Where a method must equal something simpler to the bit: training alone, or the average of all weights."""

from math import prod
from typing import Any

import pytest
import torch
from fixtures.federations.loops import server_state
from torch import nn

from clients.local import LocalClient
from hetfl_flwr.data import DataSpec
from hetfl_flwr.methods import find
from hetfl_flwr.models import SplitModel
from simulations.testing.contract import entries
from simulations.testing.lab import NORMED

Keys = dict[str, Any]

NO_PRETRAINING = {"fedmd.pretrain-epochs": 0, "fedmd.pretrain-private-epochs": 0}

ALONE: dict[str, tuple[Keys, Keys]] = {
    "chfl": ({"chfl.alpha": 0.0}, {}),
    "dsfl": ({"dsfl.digest-epochs": 0}, {}),
    "fd": ({"fd.gamma": 0.0}, {}),
    "fedhe": ({"fedhe.alpha": 0.0}, {}),
    "fedhenn": ({"fedhenn.eta0": 0.0}, {"fedhenn.eta0": 1.0}),
    "fedmd": ({**NO_PRETRAINING, "fedmd.digest-epochs": 0}, NO_PRETRAINING),
    "fedproto": ({"fedproto.distance-weight": 0.0}, {}),
    "fedtgp": ({"fedtgp.distance-weight": 0.0, "fedtgp.server-epochs": 1}, {"fedtgp.server-epochs": 1}),
    "fml": ({"fml.alpha": 1.0}, {}),
}
"""By method: the keys with which nothing of others is learnt, and those with which something is."""


@pytest.mark.slow
@pytest.mark.parametrize("method", ALONE)
def test_without_what_others_teach_it_is_local_training(method, ended, monkeypatch):
    """Models, batch norm and moments of unlike clients, one with dropout, after three rounds."""
    monkeypatch.setattr(LocalClient, "starts_alike", find(method).client.starts_alike)
    shared = {"models": f"mlp,{NORMED}", "rounds": 3, "partition": "classes:4", "width": 64}
    _, local = ended(algorithm="local", **shared)
    for keys, alike in zip(ALONE[method], (True, False), strict=True):
        _, found = ended(algorithm=method, **shared, **keys)
        equal = [torch.equal(found[client][key], one[key]) for client, one in enumerate(local) for key in one]
        assert all(equal) is alike


def dropped(spec: DataSpec) -> SplitModel:
    """A network with dropout and without batch norm."""
    layers = [nn.Flatten(), nn.Linear(prod(spec.shape), 16), nn.ReLU(), nn.Dropout(0.3)]
    return SplitModel(nn.Sequential(*layers), nn.Linear(16, spec.classes))


UNEQUAL = {"models": NORMED, "partition": "dirichlet:0.5", "seed": 2}
EQUAL = {"models": NORMED, "test_fraction": 0.25, "clients": 2}
"""584 training samples each."""
TWICE = {"fedavg.exchange-every": 2, "fedprox.exchange-every": 2}

AVERAGED: dict[str, tuple[Keys, Keys, Keys, str]] = {
    "fedprox": (UNEQUAL, {"fedprox.mu": 0.0}, {"fedprox.mu": 1.0}, ""),
    "fedprox, two rounds' work": ({**UNEQUAL, **TWICE}, {"fedprox.mu": 0.0}, {"fedprox.mu": 1.0}, ""),
    "fedprox, kept moments": ({**UNEQUAL, "moments": "kept"}, {"fedprox.mu": 0.0}, {"fedprox.mu": 1.0}, ""),
    "fedhenn": (
        {**UNEQUAL, "fedhenn.mode": "homogeneous", "local_batches": 0},
        {"fedhenn.eta0": 0.0},
        {"fedhenn.eta0": 1.0},
        "",
    ),
    "feddf": (UNEQUAL, {"feddf.server-steps": 0}, {}, f"{NORMED}/"),
    "heterofl": ({**EQUAL, "models": "test_limits:dropped"}, {"heterofl.mask": False}, {}, ""),
    "fml": ({**EQUAL, "fml.meme": NORMED}, {"models": "mlp", "fml.beta": 1.0}, {"models": "mlp", "fml.beta": 0.5}, ""),
}
"""By method: keys of both runs, those with which it is FedAvg, those with which it is not, if any, and what its names
begin with. The own models of FML draw nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("case", AVERAGED)
def test_it_is_federated_averaging(case, ended):
    """The global model, and what clients measure of it, over three rounds with Adam and dropout, and batch norm unless
    the method leaves statistics with the client. Parts that FedAvg does not send are not compared."""
    shared, same, other, prefix = AVERAGED[case]
    shared = {"clients": 3, "rounds": 3, **shared}
    fedavg, name = ended(algorithm="fedavg", **shared)[0], case.partition(",")[0]
    expected = server_state(fedavg)
    for keys, alike in ((same, True), (other, False)):
        if not keys:
            continue
        folder = ended(**{"algorithm": name, **shared, **keys})[0]
        arrays = server_state(folder)
        assert {f"{prefix}{key}" for key in expected} <= arrays.keys()
        assert all(torch.equal(arrays[f"{prefix}{key}"], tensor) for key, tensor in expected.items()) is alike
        if alike:
            assert {key.rpartition(".")[2] for key in arrays.keys() - {f"{prefix}{key}" for key in expected}} <= {
                *("rate", "num_batches_tracked", "set", "aligned", "factor"),
            }
            measure = "accuracy" if entries(folder)[0]["global_accuracy"] is None else "global_accuracy"
            measures = [[entry[measure] for entry in entries(one)] for one in (fedavg, folder)]
            assert measures[0] == measures[1]


@pytest.mark.slow
def test_where_the_whole_model_is_the_head_averaging_heads_is_federated_averaging(ended):
    """The global model, what each client is measured with, and the bytes."""
    keys = {"models": "fixtures.models:linear", "clients": 3, "partition": "dirichlet:0.5", "rounds": 3}
    ours, theirs = (ended(**keys, algorithm=algorithm)[0] for algorithm in ("lgfedavg", "fedavg"))
    heads, models = server_state(ours), server_state(theirs)
    assert {f"head.{name}" for name in heads} == {*models}
    assert all(torch.equal(array, models[f"head.{name}"]) for name, array in heads.items())
    kept = ("accuracy", "bytes_up", "bytes_down")
    assert [[one[key] for key in kept] for one in entries(ours)] == [
        [one[key] for key in kept] for one in entries(theirs)
    ]
