"""LG-FedAvg: a step by hand, the loop that one would write by hand, FedAvg in the limit, and what it refuses."""

from collections.abc import Callable
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.nodes import linear_node
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional

from clients.lgfedavg import MODES, LGFedAvgClient
from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import FederationError, ModelError
from hetfl_flwr.learning.training import draw_batches
from hetfl_flwr.methods import build_strategy
from hetfl_flwr.models import SplitModel
from hetfl_flwr.runs.checkpoint import SERVER_STATE_FILE
from hetfl_flwr.seeding import generator, seeded
from hetfl_flwr.wire.messages import ROUND
from simulations.testing.contract import entries

NORMED = "simulations.testing.lab:normed"
"""8 x 8 inputs to 8 units with batch norm and dropout to 10 classes."""

LINEAR = "fixtures.models:linear"
"""Its 64 features are the 64 pixels of a digit: a body without weights."""


def without_bias(spec: DataSpec) -> SplitModel:
    """A linear body of width 64, a head without bias."""
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 64)), nn.Linear(64, spec.classes, bias=False))


def tiny(kind: type[LGFedAvgClient], **options: Any) -> LGFedAvgClient:
    """One batch of the sample (1, 0) of class 0; body (2, 2), at first the identity; SGD of rate 0.1; W is zero."""
    node = linear_node([[1.0, 0.0]], [0], np.zeros((2, 2)).tolist(), body=nn.Linear(2, 2, bias=False), head_bias=False)
    node.model.body.weight.data = torch.eye(2)
    return kind(node, **options)


def test_one_step_of_body_and_head_together():
    """The head comes as H = diag(1, 2), the body is the identity B: logits H B x = (1, 0), the score of class 0 is p =
    1 / (1 + 1/e), the slope s = (p - 1, 1 - p). H loses 0.1 s (B x)^T, and is sent; B loses 0.1 H^T s x^T, and stays.
    """
    client = tiny(LGFedAvgClient)
    [head], samples, metrics = client.fit([np.float32([[1, 0], [0, 2]])], {ROUND: 1})
    way = 0.1 * (1 - 1 / (1 + exp(-1)))
    np.testing.assert_allclose(head, [[1 + way, 0], [-way, 2]], rtol=1e-6)
    np.testing.assert_allclose(client.node.model.body.weight.detach(), [[1 + way, 0], [-2 * way, 1]], rtol=1e-6)
    assert (samples, metrics["samples-seen"]) == (1, 1)


def test_the_other_way_round_the_body_travels():
    """The body comes as diag(1, 3), the head is H = diag(1, 2) and stays: on (1, 0), the same logits and slope."""
    client = tiny(MODES["body"])
    client.node.model.head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    [body], _, _ = client.fit([np.float32([[1, 0], [0, 3]])], {ROUND: 1})
    way = 0.1 * (1 - 1 / (1 + exp(-1)))
    np.testing.assert_allclose(body, [[1 + way, 0], [-2 * way, 3]], rtol=1e-6)
    np.testing.assert_allclose(client.node.model.head.weight.detach(), [[1 + way, 0], [-way, 2]], rtol=1e-6)


def test_what_is_measured_is_the_own_body_under_the_shared_head():
    """The sample's first feature is the larger: a head that says class 0 is right, the other is not."""
    client = tiny(LGFedAvgClient)
    scores = [client.evaluate([np.float32(head)], {})[2]["accuracy"] for head in (np.eye(2), np.eye(2)[::-1])]
    assert scores == [1.0, 0.0]


@pytest.fixture
def run(make_config, run_federation, tmp_path) -> Callable[..., Path]:
    """Run lgfedavg with these keys, and return the run folder."""
    number = iter(range(99))

    def run(**keys: Any) -> Path:
        folder = tmp_path / str(next(number))
        places = {"output_dir": str(folder), "state_dir": str(folder / "state")}
        return run_federation(make_config(**{"algorithm": "lgfedavg", "models": f"{NORMED},mlp", **places, **keys}))

    return run


@pytest.mark.slow
@pytest.mark.parametrize("moments", ["reset", "kept"])
def test_two_rounds_equal_a_loop_by_hand(moments, make_config, make_node, run):
    """Heads are averaged by the clients' numbers of training samples, in Flower's order of float operations; bodies of
    different kinds go on from round to round, with their running statistics and moments. Adam, batch norm and dropout.
    """
    keys = {"clients": 3, "partition": "dirichlet:0.5", "local_batches": 2, "seed": 2, "width": 8}
    config = make_config(algorithm="lgfedavg", models=f"{NORMED},mlp", **keys)
    nodes = [make_node(config, client_id) for client_id in range(3)]
    assert len({len(node.data.train) for node in nodes}) == 3
    with seeded(2, "global", "weights"):
        shared = arrays(nn.Linear(8, 10))
    optimizers = [adam(node) for node in nodes]
    for round in (1, 2):
        if moments == "reset":
            for node, optimizer in zip(nodes, optimizers, strict=True):
                for parameter in node.model.head.parameters():
                    optimizer.state.pop(parameter, None)
        trained = [by_hand(node, one, shared, round) for node, one in zip(nodes, optimizers, strict=True)]
        samples = [len(node.data.train) for node in nodes]
        parts = [np.float32(one / sum(samples)) for one in samples]
        shared = {name: sum(p * head[name] for p, head in zip(parts, trained, strict=True)) for name in shared}
    folder = run(**keys, moments=moments)
    found = load_file(folder / SERVER_STATE_FILE)
    assert found.keys() == shared.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, shared[name], err_msg=name)
    states = [load_file(path) for path in sorted((folder / "state" / "run-7").glob("client-*.safetensors"))]
    for node, state in zip(nodes, states, strict=True):
        for name, tensor in node.model.body.state_dict().items():
            np.testing.assert_array_equal(state[f"model.body.{name}"], tensor, err_msg=name)
        last = len(list(node.model.parameters())) - 1
        assert "optimizer.0.exp_avg" in state
        assert (f"optimizer.{last}.exp_avg" in state) is (moments == "kept")


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}


def adam(node: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(node.model.parameters(), lr=node.config.learning_rate, fused=True)


def by_hand(
    node: Any, optimizer: torch.optim.Optimizer, shared: dict[str, np.ndarray], round: int
) -> dict[str, np.ndarray]:
    """Train the node's model for a round of two batches, beginning with the shared head; return its head."""
    model, config, data = node.model.train(), node.config, node.data.train
    model.head.load_state_dict({name: torch.from_numpy(array) for name, array in shared.items()})
    order = generator(config.seed, node.client_id, round, "batches")
    with seeded(config.seed, node.client_id, round, "train"):
        for rows in draw_batches(order, len(data), config.batch_size, epochs=1, batches=2):
            optimizer.zero_grad()
            functional.cross_entropy(model(data.batch(rows)[0]), data.labels[rows]).backward()
            optimizer.step()
    return arrays(model.head)


@pytest.mark.slow
def test_where_the_whole_model_is_the_head_it_is_fedavg(run):
    """Bit for bit: the global model, and what each client is measured with."""
    keys = {"models": LINEAR, "clients": 3, "partition": "dirichlet:0.5", "rounds": 3}
    ours, theirs = run(**keys), run(**keys, algorithm="fedavg")
    heads, models = load_file(ours / SERVER_STATE_FILE), load_file(theirs / SERVER_STATE_FILE)
    assert {f"head.{name}" for name in heads} == {*models}
    for name, array in heads.items():
        np.testing.assert_array_equal(array, models[f"head.{name}"])
    for one, other in zip(entries(ours), entries(theirs), strict=True):
        assert one["accuracy"] == other["accuracy"]
        assert (one["bytes_up"], one["bytes_down"]) == (other["bytes_up"], other["bytes_down"])


@pytest.mark.parametrize(
    ("keys", "numbers"),
    [
        # weight and bias of ten classes, whatever is below
        ({}, 10 * (64 + 1)),
        ({"width": 6}, 10 * (6 + 1)),
        ({"head_bias": False}, 10 * 64),
        # 64 x 8 + 8, and the norm's weight, bias, mean and variance
        ({"models": NORMED, "lgfedavg.mode": "body"}, 64 * 8 + 8 + 4 * 8),
    ],
)
def test_the_part_that_is_shared_travels_alone(keys, numbers, run):
    for entry in entries(run(clients=2, rounds=1, **keys))[1:]:
        assert entry["bytes_up"] == entry["bytes_down"] == 2 * 4 * numbers
        assert (entry["failures"], entry["global_accuracy"]) == ([], None)


@pytest.mark.parametrize("kept", [True, False])
def test_a_head_without_bias_among_heads_with_one_is_refused_in_a_line(kept, make_config, make_node, refusal):
    """And the other way round: a model of the user's own may have either."""
    models = "test_lgfedavg:without_bias" if kept else LINEAR
    node = make_node(make_config(algorithm="lgfedavg", models=models))
    node = node if kept else replace(node, config=node.config.model_copy(update={"head_bias": False}))
    assert f"bias={kept}" in refusal(ModelError, LGFedAvgClient, node)


def test_unlike_bodies_are_refused_where_bodies_travel(run, refusal):
    for models, named in (("mlp,lenet5", "lenet5 on client 1"), (LINEAR, LINEAR)):
        assert named in refusal(FederationError, run, models=models, **{"lgfedavg.mode": "body"})


def test_models_may_differ_unless_bodies_travel(make_config):
    strategies = [build_strategy(make_config(algorithm="lgfedavg", **{"lgfedavg.mode": mode})) for mode in MODES]
    assert [(one.heterogeneous, one.width) for one in strategies] == [(True, 64), (False, 0)]
