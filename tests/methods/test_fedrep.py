"""FedRep: a step by hand, the loop that one would write by hand, and what it refuses."""

from functools import partial
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import adam, floats, put, train_by_hand, weighted
from fixtures.federations.nodes import linear_node
from safetensors.numpy import load_file
from torch import nn

from clients.fedrep import FedRepClient
from hetfl_flwr.errors import FederationError
from hetfl_flwr.models import SplitModel, build_model
from hetfl_flwr.runs.checkpoint import SERVER_STATE_FILE
from hetfl_flwr.wire.messages import ROUND

NORMED = "simulations.testing.lab:normed"
"""8 x 8 inputs to 8 units with batch norm and dropout to 10 classes."""


def tiny(weight: Any = ((0.0, 0.0), (0.0, 0.0)), **options: Any) -> FedRepClient:
    """One batch of the samples (1, 0) of class 0 and (0, 1) of class 1; body (2, 2) without bias; SGD of rate 0.1."""
    node = linear_node([[1.0, 0.0], [0.0, 1.0]], [0, 1], weight, body=nn.Linear(2, 2, bias=False))
    return FedRepClient(node, **options)


def fit(client: FedRepClient, body: Any) -> tuple[np.ndarray, dict[str, Any]]:
    [uploaded], samples, metrics = client.fit([np.float32(body)], {ROUND: 1})
    assert samples == 2
    return uploaded, metrics


def test_one_step_of_the_head_and_then_one_of_the_body():
    """The body comes as the identity, the head is 0: even odds, a loss of ln 2. The slope of the logits is (p - y) / 2:
    -1/4 for the own class, 1/4 for the other; so a step of 0.1 makes the head H = h [[1, -1], [-1, 1]], h = 1/40. On
    the identity, its logits are (h, -h) for the first sample: p of the other class q = 1 / (1 + e^(2h)), a loss of
    ln(1 + e^(-2h)), a slope of (-q, q) / 2, and H^T times that is (-h q, h q): the first column of the body's gradient;
    the second column is its negative.
    """
    client = tiny()
    uploaded, metrics = fit(client, np.eye(2))
    h = 1 / 40
    q = 1 / (1 + exp(2 * h))
    np.testing.assert_allclose(client.node.model.head.weight.detach(), h * np.array([[1, -1], [-1, 1]]), rtol=1e-6)
    expected = np.eye(2) + 0.1 * h * q * np.array([[1, -1], [-1, 1]])
    np.testing.assert_allclose(uploaded, expected, rtol=1e-6)
    np.testing.assert_array_equal(uploaded, client.node.model.body.weight.detach())
    assert metrics["head-loss"] == pytest.approx(log(2))
    assert metrics["train-loss"] == pytest.approx(log(1 + exp(-2 * h)))


def test_what_is_measured_is_the_shared_body_under_the_own_head():
    """The head says class 0 where the first feature is the larger. On the identity both samples are right, on a body
    that swaps the features both are wrong.
    """
    client = tiny(weight=[[1.0, 0.0], [0.0, 1.0]])
    scores = [client.evaluate([np.float32(body)], {})[2]["accuracy"] for body in (np.eye(2), np.eye(2)[::-1])]
    assert scores == [1.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "head_epochs", "moments"), [(1, 0, "reset"), (3, 0, "reset"), (3, 2, "reset"), (3, 0, "kept")]
)
def test_two_rounds_equal_a_loop_by_hand(clients, head_epochs, moments, make_config, make_node, ended):
    """Weights and running statistics of the body are averaged by the samples that the body was trained on, in Flower's
    order of float operations; heads begin alike and go on from round to round, with the moments of their optimizers.
    Adam, batch norm and dropout; one client is alternating training of its own. An epoch of the head where none is set.
    """
    keys = {"clients": clients, "partition": "dirichlet:0.5", "local_batches": 0, "seed": 2}
    keys |= {"algorithm": "fedrep", "models": NORMED}
    config = make_config(**keys)
    nodes = [make_node(config, client_id) for client_id in range(clients)]
    assert clients == 1 or len({len(node.data.train) for node in nodes}) > 1
    first = build_model(NORMED, nodes[0].data.spec, seed=config.seed, scope=("global",))
    shared = floats(first.body)
    for node in nodes:
        node.model.head.load_state_dict(first.head.state_dict())
    optimizers = [adams(node) for node in nodes]
    for round in (1, 2):
        if moments == "reset":
            optimizers = [(of_head, adams(node)[1]) for (of_head, _), node in zip(optimizers, nodes, strict=True)]
        for node, (of_head, of_body) in zip(nodes, optimizers, strict=True):
            put(node.model.body, shared)
            node.model.body.eval()
            fixed = partial(on_fixed_features, node.model)
            train_by_hand(node, of_head, round, "head", model=fixed, epochs=head_epochs or 1)
            node.model.body.train()
            train_by_hand(node, of_body, round)
        shared = weighted([floats(node.model.body) for node in nodes], [len(node.data.train) for node in nodes])
    folder, states = ended(**keys, moments=moments, **{"fedrep.head-epochs": head_epochs})
    found = load_file(folder / SERVER_STATE_FILE)
    assert found.keys() == shared.keys()
    for key, array in found.items():
        np.testing.assert_array_equal(array, shared[key], err_msg=key)
    for node, state in zip(nodes, states, strict=True):
        np.testing.assert_array_equal(state["model.head.weight"], node.model.head.weight.detach())
        assert any("head-optimizer" in key for key in state)
        assert any("body-optimizer" in key for key in state) is (moments == "kept")


def adams(node: Any) -> tuple[torch.optim.Optimizer, ...]:
    return adam(node, node.model.head), adam(node, node.model.body)


def on_fixed_features(model: SplitModel, inputs: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model.head(model.body(inputs).detach())
    return logits


def test_a_body_without_weights_is_refused(make_config, run_federation, refusal):
    config = make_config(algorithm="fedrep", models="fixtures.models:linear")
    assert "fixtures.models:linear" in refusal(FederationError, run_federation, config)


@pytest.mark.parametrize(
    ("keys", "options", "passes"),
    [
        ({"local_batches": 3}, {}, (1, 3)),
        ({"local_batches": 0, "local_epochs": 2}, {}, (2, 0)),
        ({"local_batches": 3}, {"head_batches": 2}, (0, 2)),
        ({"local_batches": 3}, {"head_epochs": 9}, (9, 0)),
    ],
)
def test_the_head_has_as_many_steps_as_the_body_unless_it_has_its_own(keys, options, passes, make_config, make_node):
    client = FedRepClient(make_node(make_config(algorithm="fedrep", models=NORMED, **keys)), **options)
    assert (client.head_epochs, client.head_batches) == passes
