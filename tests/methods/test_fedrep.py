"""FedRep: a step by hand, the loop that one would write by hand, and what it refuses."""

from collections.abc import Callable
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import floats
from fixtures.federations.nodes import linear_node
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional

from clients.fedrep import FedRepClient
from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import FederationError
from hetfl_flwr.learning.training import draw_batches
from hetfl_flwr.models import SplitModel, build_model
from hetfl_flwr.runs.checkpoint import SERVER_STATE_FILE
from hetfl_flwr.seeding import generator, seeded
from hetfl_flwr.wire.messages import ROUND
from simulations.testing.contract import entries

NORMED = "simulations.testing.lab:normed"
"""8 x 8 inputs to 8 units with batch norm and dropout to 10 classes."""


def with_bias(spec: DataSpec) -> SplitModel:
    """A linear body of width 3, a head with bias."""
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), nn.Linear(3, spec.classes))


def without_bias(spec: DataSpec) -> SplitModel:
    """The same body, a head without bias."""
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), nn.Linear(3, spec.classes, bias=False))


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


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_the_head_trains_as_many_batches_as_it_is_told(batches):
    """Two samples, one a batch, so three batches are a pass and a half. The body comes as the identity: a step for
    sample k moves column k of the head alone, by 0.1 times what the softmax of that column lacks of the label.
    """
    node = linear_node(np.eye(2), [0, 1], np.zeros((2, 2)), body=nn.Linear(2, 2, bias=False), batch_size=1)
    client = FedRepClient(node, head_batches=batches, head_epochs=7)
    client.fit([np.eye(2, dtype=np.float32)], {ROUND: 1})
    order = generator(node.config.seed, node.client_id, 1, "head")
    drawn = np.concatenate([order.permutation(2) for _ in range(2)])[:batches]
    head = np.zeros((2, 2))
    for sample in drawn:
        odds = np.exp(head[:, sample])
        head[:, sample] += 0.1 * (np.eye(2)[sample] - odds / odds.sum())
    np.testing.assert_allclose(node.model.head.weight.detach(), head, rtol=1e-5)


def test_what_is_measured_is_the_shared_body_under_the_own_head():
    """The head says class 0 where the first feature is the larger. On the identity both samples are right, on a body
    that swaps the features both are wrong.
    """
    client = tiny(weight=[[1.0, 0.0], [0.0, 1.0]])
    scores = [client.evaluate([np.float32(body)], {})[2]["accuracy"] for body in (np.eye(2), np.eye(2)[::-1])]
    assert scores == [1.0, 0.0]


@pytest.fixture
def run(make_config, run_federation, tmp_path) -> Callable[..., Path]:
    """Run fedrep with these keys, and return the run folder."""
    count = iter(range(99))

    def run(**keys: Any) -> Path:
        folder = tmp_path / str(next(count))
        places = {"output_dir": str(folder), "state_dir": str(folder / "state")}
        return run_federation(make_config(**{"algorithm": "fedrep", "models": NORMED, **places, **keys}))

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "head_epochs", "moments"), [(1, 0, "reset"), (3, 0, "reset"), (3, 2, "reset"), (3, 0, "kept")]
)
def test_two_rounds_equal_a_loop_by_hand(clients, head_epochs, moments, make_config, make_node, run):
    """Weights and running statistics of the body are averaged by the samples that the body was trained on, in Flower's
    order of float operations; heads begin alike and go on from round to round, with the moments of their optimizers.
    Adam, batch norm and dropout; one client is alternating training of its own. An epoch of the head where none is set.
    """
    keys = {"clients": clients, "partition": "dirichlet:0.5", "local_batches": 0, "seed": 2}
    config = make_config(algorithm="fedrep", models=NORMED, **keys)
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
        trained = [
            by_hand(node, both, shared, round, head_epochs or 1) for node, both in zip(nodes, optimizers, strict=True)
        ]
        total = sum(samples for _, samples in trained)
        shared = {key: sum(np.float32(samples / total) * body[key] for body, samples in trained) for key in shared}
    folder = run(**keys, moments=moments, **{"fedrep.head-epochs": head_epochs})
    found = load_file(folder / SERVER_STATE_FILE)
    assert found.keys() == shared.keys()
    for key, array in found.items():
        np.testing.assert_array_equal(array, shared[key], err_msg=key)
    states = [load_file(path) for path in sorted((folder / "state" / "run-7").glob("client-*.safetensors"))]
    for node, state in zip(nodes, states, strict=True):
        np.testing.assert_array_equal(state["model.head.weight"], node.model.head.weight.detach())
        assert any("head-optimizer" in key for key in state)
        assert any("body-optimizer" in key for key in state) is (moments == "kept")


def adams(node: Any) -> tuple[torch.optim.Optimizer, ...]:
    parts = (node.model.head, node.model.body)
    return tuple(torch.optim.Adam(part.parameters(), lr=node.config.learning_rate, fused=True) for part in parts)


def by_hand(
    node: Any, optimizers: tuple[torch.optim.Optimizer, ...], shared: dict[str, np.ndarray], round: int, epochs: int
) -> tuple[dict[str, np.ndarray], int]:
    """Train the node's head on fixed features, then the shared body; return the body and the samples it has seen."""
    model, config, data = node.model, node.config, node.data.train
    model.body.load_state_dict({key: torch.from_numpy(array) for key, array in shared.items()}, strict=False)
    model.body.eval()
    optimizer, next_optimizer = optimizers
    order = generator(config.seed, node.client_id, round, "head")
    for rows in draw_batches(order, len(data), config.batch_size, epochs=epochs, batches=0):
        optimizer.zero_grad()
        functional.cross_entropy(model.head(model.body(data.batch(rows)[0]).detach()), data.labels[rows]).backward()
        optimizer.step()
    model.body.train()
    optimizer = next_optimizer
    order = generator(config.seed, node.client_id, round, "batches")
    with seeded(config.seed, node.client_id, round, "train"):
        for rows in draw_batches(order, len(data), config.batch_size, epochs=1, batches=0):
            optimizer.zero_grad()
            functional.cross_entropy(model(data.batch(rows)[0]), data.labels[rows]).backward()
            optimizer.step()
    return floats(model.body), len(data)


def test_the_body_alone_travels(run):
    """64 x 8 + 8, and the norm's weight, bias, mean and variance (4 x 8): 552 numbers of 4 bytes each way."""
    folder = run(clients=3)
    assert all(name[0].isdigit() for name in load_file(folder / SERVER_STATE_FILE))
    for entry in entries(folder)[1:]:
        assert entry["bytes_up"] == entry["bytes_down"] == 3 * 4 * 552
        assert entry["global_accuracy"] is None


def test_heads_of_another_shape_share_a_body(run):
    """One head has a bias, the other none: `fedavg` could not, here the bodies are the same."""
    folder = run(models="test_fedrep:with_bias,test_fedrep:without_bias")
    assert all(entry["failures"] == [] for entry in entries(folder))
    states = [load_file(path) for path in sorted((folder / "state" / "run-7").glob("client-*.safetensors"))]
    assert ["model.head.bias" in state for state in states] == [True, False]


def test_a_body_without_weights_is_refused(run, refusal):
    assert "fixtures.models:linear" in refusal(FederationError, run, models="fixtures.models:linear")


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
