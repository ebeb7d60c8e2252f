"""LG-FedAvg: a step by hand, the loop that one would write by hand, FedAvg in the limit, and what it refuses."""

from dataclasses import replace
from math import exp
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import adam, floats, put, train_by_hand, weighted
from fixtures.federations.nodes import linear_node
from safetensors.numpy import load_file
from torch import nn

from clients.lgfedavg import MODES, LGFedAvgClient
from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import FederationError, ModelError
from hetfl_flwr.models import SplitModel
from hetfl_flwr.runs.checkpoint import SERVER_STATE_FILE
from hetfl_flwr.seeding import seeded
from hetfl_flwr.wire.messages import ROUND

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


@pytest.mark.slow
@pytest.mark.parametrize("moments", ["reset", "kept"])
def test_two_rounds_equal_a_loop_by_hand(moments, make_config, make_node, ended):
    """Heads are averaged by the clients' numbers of training samples, in Flower's order of float operations; bodies of
    different kinds go on from round to round, with their running statistics and moments. Adam, batch norm and dropout.
    """
    keys = {"clients": 3, "partition": "dirichlet:0.5", "local_batches": 2, "seed": 2, "width": 8}
    keys |= {"algorithm": "lgfedavg", "models": f"{NORMED},mlp"}
    config = make_config(**keys)
    nodes = [make_node(config, client_id) for client_id in range(3)]
    assert len({len(node.data.train) for node in nodes}) == 3
    with seeded(2, "global", "weights"):
        shared = floats(nn.Linear(8, 10))
    optimizers = [adam(node) for node in nodes]
    for round in (1, 2):
        if moments == "reset":
            for node, optimizer in zip(nodes, optimizers, strict=True):
                for parameter in node.model.head.parameters():
                    optimizer.state.pop(parameter, None)
        for node, optimizer in zip(nodes, optimizers, strict=True):
            put(node.model.head, shared)
            train_by_hand(node, optimizer, round, batches=2)
        shared = weighted([floats(node.model.head) for node in nodes], [len(node.data.train) for node in nodes])
    folder, states = ended(**keys, moments=moments)
    found = load_file(folder / SERVER_STATE_FILE)
    assert found.keys() == shared.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, shared[name], err_msg=name)
    for node, state in zip(nodes, states, strict=True):
        for name, tensor in node.model.body.state_dict().items():
            np.testing.assert_array_equal(state[f"model.body.{name}"], tensor, err_msg=name)
        last = len(list(node.model.parameters())) - 1
        assert "optimizer.0.exp_avg" in state
        assert (f"optimizer.{last}.exp_avg" in state) is (moments == "kept")


@pytest.mark.parametrize("kept", [True, False])
def test_a_head_without_bias_among_heads_with_one_is_refused_in_a_line(kept, make_config, make_node, refusal):
    """And the other way round: a model of the user's own may have either."""
    models = "test_lgfedavg:without_bias" if kept else LINEAR
    node = make_node(make_config(algorithm="lgfedavg", models=models))
    node = node if kept else replace(node, config=node.config.model_copy(update={"head_bias": False}))
    assert f"bias={kept}" in refusal(ModelError, LGFedAvgClient, node)


def test_unlike_bodies_are_refused_where_bodies_travel(ended, refusal):
    keys = {"algorithm": "lgfedavg", "lgfedavg.mode": "body"}
    for models, named in (("mlp,lenet5", "lenet5 on client 1"), (LINEAR, LINEAR)):
        assert named in refusal(FederationError, ended, models=models, **keys)
