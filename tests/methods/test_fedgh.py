"""FedGH: a round by hand, a loop over prototypes."""

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import fit, softmax
from fixtures.federations.members import roster
from fixtures.federations.nodes import linear_node
from torch import nn

from clients.fedgh import FedGHClient
from hetfl_flwr.config import RunConfig
from hetfl_flwr.learning.training import draw_batches
from hetfl_flwr.seeding import generator
from hetfl_flwr.strategy import Upload
from strategies.fedgh import FedGH


def upload(client_id: int, classes: list[int], prototypes: Any) -> Upload:
    arrays = {"classes": np.int32(classes), "prototypes": np.float32(prototypes)}
    return Upload(client_id, {**arrays, "present": np.ones(len(classes), np.int8)}, samples=5)


def prepared(
    classes: int = 2, width: int = 2, seed: int = 0, robust: str = "none", batch: int = 50, **options: Any
) -> FedGH:
    strategy = FedGH(**{"server_epochs": 1, "server_learning_rate": 0.01, **options})
    strategy.prepare(roster(3, classes=classes, width=width), RunConfig(seed=seed, batch_size=batch, robust=robust))
    return strategy


# --- the server ----------------------------------------------------------------------------------


def test_a_robust_head_sees_the_median_of_each_class_as_often_as_it_came():
    """Of (1, 0), (3, 0) and (900, 0) the median is (3, 0), three times; class 1 came once."""
    uploads = [upload(0, [0, 1], [[1, 0], [0, 5]]), upload(1, [0], [[3, 0]]), upload(2, [0], [[900, 0]])]
    points, labels = prepared(robust="median").pairs(uploads)
    assert points.tolist() == [[3, 0], [0, 5], [3, 0], [3, 0]]
    assert labels.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(("epochs", "size"), [(1, 3), (3, 2), (2, 1)])
def test_training_equals_a_loop_over_prototypes(epochs, size):
    """In float64, with the gradients written out; batches are drawn from the seed, the round and the clients."""
    draw, strategy = generator(1, "draw"), prepared(3, 4, seed=5, server_epochs=epochs, batch=size)
    uploads = [upload(k, [0, 2, 1][: k + 1], draw.normal(size=(k + 1, 4))) for k in range(3)]
    points = np.concatenate([one.arrays["prototypes"][np.argsort(one.arrays["classes"])] for one in uploads]).astype(
        float
    )
    labels = np.concatenate([np.sort(one.arrays["classes"]) for one in uploads])
    start = strategy.initial(roster(3, classes=3, width=4))
    weight, bias = start["weight"].astype(float), start["bias"].astype(float)
    order = generator(5, 7, 0, 1, 2, "server-training")
    for rows in draw_batches(order, len(labels), size, epochs=epochs, batches=0):
        steps = np.zeros_like(weight), np.zeros_like(bias)
        for row in rows.tolist():
            slope = (softmax(weight @ points[row] + bias) - np.eye(3)[labels[row]]) / len(rows)
            steps[0][:] += np.outer(slope, points[row])
            steps[1][:] += slope
        weight, bias = weight - 0.01 * steps[0], bias - 0.01 * steps[1]
    found = strategy.aggregate(start, uploads, 7)
    np.testing.assert_allclose(found["weight"], weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["bias"], bias, rtol=1e-5, atol=1e-6)


# --- a client ------------------------------------------------------------------------------------


def tiny() -> FedGHClient:
    """One batch of (1, 0) of class 0 and (0, 1) of class 1; the body is the identity; SGD of rate 0.1."""
    node = linear_node(np.eye(2), [0, 1], [[9.0, 9.0], [0.0, 0.0]], body=nn.Linear(2, 2, bias=False))
    node.model.body.weight.data = torch.eye(2)
    head, node.model.head = node.model.head, nn.Linear(2, 2)
    node.model.head.weight.data = head.weight.data
    node.model.head.bias.data = torch.zeros(2)
    return FedGHClient(node)


def test_a_client_trains_under_the_head_that_comes():
    """With the head [[1, 0], [0, 1]] the logits are the embeddings: a loss of ln(1 + 1/e). The slope of a sample is
    (-q, q) / 2 at its own and the other class, q = 1 / (1 + e): a step of 0.1 adds q / 20 to what is right, and to the
    body, whose gradient is the head's transpose times that, as much.
    """
    client = tiny()
    uploaded, metrics = fit(client, [np.eye(2, dtype=np.float32), np.zeros(2, np.float32)])
    q = 1 / (1 + exp(1))
    stepped = np.eye(2) + q / 20 * np.array([[1, -1], [-1, 1]])
    assert metrics["train-loss"] == pytest.approx(log(1 + exp(-1)))
    np.testing.assert_allclose(client.node.model.head.weight.detach(), stepped, rtol=1e-5)
    np.testing.assert_allclose(uploaded["prototypes"], stepped.T, rtol=1e-5)
    assert (uploaded["classes"].tolist(), uploaded["present"].tolist()) == ([0, 1], [1, 1])
