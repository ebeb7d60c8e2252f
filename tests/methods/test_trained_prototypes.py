"""FedTGP and FedGH, whose servers are trained on the clients' prototypes: by hand, and against slow twins."""

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import fit, put
from fixtures.federations.members import roster
from fixtures.federations.nodes import linear_node
from fixtures.twins import descend
from torch import Tensor, nn
from torch.nn import functional

from clients.fedgh import FedGHClient
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.learning.server_training import ServerTraining
from hetfl_flwr.learning.training import draw_batches
from hetfl_flwr.seeding import generator
from hetfl_flwr.strategy import Upload
from strategies.fedgh import FedGH
from strategies.fedtgp import FedTGP

LAYERS = ("embedding.weight", "hidden.weight", "hidden.bias", "output.weight", "output.bias")


def upload(client_id: int, classes: list[int], prototypes: Any) -> Upload:
    arrays = {"classes": np.int32(classes), "prototypes": np.float32(prototypes)}
    return Upload(client_id, {**arrays, "present": np.ones(len(classes), np.int8)}, samples=5)


def prepared(
    kind: Any, classes: int = 2, width: int = 2, robust: str = "none", batch: int = 50, seed: int = 0, **options: Any
) -> Any:
    strategy = kind(**{"server_epochs": 1, "server_learning_rate": 0.01, **options})
    strategy.prepare(roster(3, classes=classes, width=width), RunConfig(seed=seed, batch_size=batch, robust=robust))
    return strategy


# --- FedTGP --------------------------------------------------------------------------------------


def state(embedding: Any) -> dict[str, np.ndarray]:
    """Layers that pass on what is positive, and embeddings; nothing is known yet."""
    width = len(embedding[0])
    made = np.array(embedding), np.eye(width), np.zeros(width), np.eye(width), np.zeros(width)
    layers = {name: np.float32(array) for name, array in zip(LAYERS, made, strict=True)}
    return {**layers, "prototypes": layers["embedding.weight"], "known": np.zeros(len(embedding), bool)}


@pytest.mark.parametrize(("scale", "robust"), [(1, "none"), (1, "median"), (20, "none")])
def test_the_margin_is_the_largest_distance_to_a_nearest_class(scale, robust, monkeypatch):
    """Means over clients: 0, (3 + 5) / 2 = 4 and 10; with medians of two, which are means, the same. The nearest others
    are 4, 4 and 6 away: the largest is 6; all of them 20 times as large 120, of which 100 are left. Seen in the loss of
    a prototype of class 1 at 7.
    """
    seen = []
    strategy = prepared(FedTGP, 3, 1, robust=robust)

    def train(self, layers, pairs, loss, config, scope):
        tensors = {name: torch.from_numpy(array) for name, array in layers.items()}
        seen.append(float(loss(tensors, torch.tensor([[7.0]]), torch.tensor([1]))))
        return layers

    monkeypatch.setattr(ServerTraining, "train", train)
    uploads = [upload(0, [0, 1], np.multiply([[0], [3]], scale)), upload(1, [1, 2], np.multiply([[5], [10]], scale))]
    strategy.aggregate(state([[0], [4], [10]]), uploads, 1)
    distances = np.array([7, 3 + min(6 * scale, 100), 3])
    assert seen == [pytest.approx(log(np.exp(-distances).sum()) + distances[1], rel=1e-5)]


def test_equal_points_make_no_nan():
    """The prototype that came is the global one, where a distance has no slope."""
    after = prepared(FedTGP, 2, 1).aggregate(state([[3], [8]]), [upload(0, [0], [[3]])], 1)
    assert all(np.isfinite(after[name]).all() for name in LAYERS)


@pytest.mark.parametrize(("epochs", "size"), [(2, 50), (3, 2)])
def test_fedtgp_s_training_equals_a_slow_twin(epochs, size):
    """Negative distances to the global prototypes as logits, the margin added at the own class, in float64."""
    draw = generator(1, "draw")
    strategy = prepared(FedTGP, 3, 4, server_epochs=epochs, batch=size, server_learning_rate=0.05)
    uploads = [upload(k, [0, 1, 2][: k + 1], draw.normal(size=(k + 1, 4)) * 3) for k in range(3)]
    points, labels = joined(uploads)
    start = strategy.initial(roster(3, classes=3, width=4))
    layers = e, w1, b1, w2, b2 = [torch.from_numpy(start[name]).double().requires_grad_() for name in LAYERS]
    means = torch.stack([points[labels == label].mean(0) for label in range(3)])
    margin = (torch.cdist(means, means) + 1e9 * torch.eye(3)).min(1).values.max()
    sgd, order = torch.optim.SGD(layers, 0.05), generator(0, 4, 0, 1, 2, "server-training")
    for rows in draw_batches(order, len(labels), size, epochs=epochs, batches=0):
        made = functional.relu(e @ w1.T + b1) @ w2.T + b2
        distances = torch.stack([(point - made).norm(dim=1) for point in points[rows]])
        descend(functional.cross_entropy(-distances - margin * torch.eye(3)[labels[rows]], labels[rows]), sgd)
    found = strategy.aggregate(start, uploads, 4)
    for name, expected in zip(LAYERS, layers, strict=True):
        np.testing.assert_allclose(found[name], expected.detach(), rtol=1e-4, atol=1e-5, err_msg=name)


def joined(uploads: list[Upload]) -> tuple[Tensor, Tensor]:
    """Return the prototypes of all clients, and their classes, in the order of clients and classes."""
    pairs = [pair for one in uploads for pair in sorted(zip(*map(list, list(one.arrays.values())[:2]), strict=True))]
    return torch.tensor(np.array([point for _, point in pairs])).double(), torch.tensor([int(k) for k, _ in pairs])


def test_a_class_stays_known_in_a_round_in_which_nobody_has_it():
    strategy = prepared(FedTGP, 3, 1)
    after = strategy.aggregate(state([[3], [8], [9]]), [upload(0, [0, 2], [[5], [6]])], 1)
    assert strategy.aggregate(after, [upload(0, [0], [[5]])], 2)["known"].tolist() == [True, False, True]


def test_a_training_that_diverges_is_one_line(refusal):
    strategy = prepared(FedTGP, 2, 1, server_learning_rate=1e30, server_epochs=9)
    said = refusal(ConfigError, strategy.aggregate, state([[3], [8]]), [upload(0, [0], [[5]])], 1)
    assert "fedtgp.server-learning-rate = 1e+30" in said


# --- FedGH ---------------------------------------------------------------------------------------


def test_a_robust_head_sees_the_median_of_each_class_as_often_as_it_came():
    """Of (1, 0), (3, 0) and (900, 0) the median is (3, 0), three times; class 1 came once."""
    uploads = [upload(0, [0, 1], [[1, 0], [0, 5]]), upload(1, [0], [[3, 0]]), upload(2, [0], [[900, 0]])]
    points, labels = prepared(FedGH, robust="median").pairs(uploads)
    assert points.tolist() == [[3, 0], [0, 5], [3, 0], [3, 0]]
    assert labels.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(("epochs", "size"), [(1, 3), (3, 2), (2, 1)])
def test_fedgh_s_training_equals_a_slow_twin(epochs, size):
    """Batches are drawn from the seed, the round and the clients."""
    draw, strategy = generator(1, "draw"), prepared(FedGH, 3, 4, seed=5, server_epochs=epochs, batch=size)
    uploads = [upload(k, [0, 2, 1][: k + 1], draw.normal(size=(k + 1, 4))) for k in range(3)]
    points, labels = joined(uploads)
    start = strategy.initial(roster(3, classes=3, width=4))
    head = nn.Linear(4, 3).double()
    put(head, {name: array.astype(float) for name, array in start.items()})
    sgd, order = torch.optim.SGD(head.parameters(), 0.01), generator(5, 7, 0, 1, 2, "server-training")
    for rows in draw_batches(order, len(labels), size, epochs=epochs, batches=0):
        descend(functional.cross_entropy(head(points[rows]), labels[rows]), sgd)
    found = strategy.aggregate(start, uploads, 7)
    for name, tensor in head.state_dict().items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-5, atol=1e-6)


# --- a client ------------------------------------------------------------------------------------


def test_a_client_trains_under_the_head_that_comes():
    """One batch of (1, 0) of class 0 and (0, 1) of class 1, and a body that is the identity. With the head
    [[1, 0], [0, 1]] the logits are the embeddings: a loss of ln(1 + 1/e). The slope of a sample is (-q, q) / 2 at its
    own and the other class, q = 1 / (1 + e): a step of 0.1 adds q / 20 to what is right, and to the body, whose
    gradient is the head's transpose times that, as much.
    """
    node = linear_node(np.eye(2), [0, 1], np.zeros((2, 2)), body=nn.Linear(2, 2, bias=False))
    node.model.body.weight.data, node.model.head = torch.eye(2), nn.Linear(2, 2)
    client = FedGHClient(node)
    uploaded, metrics = fit(client, [np.eye(2, dtype=np.float32), np.zeros(2, np.float32)])
    q = 1 / (1 + exp(1))
    stepped = np.eye(2) + q / 20 * np.array([[1, -1], [-1, 1]])
    assert metrics["train-loss"] == pytest.approx(log(1 + exp(-1)))
    np.testing.assert_allclose(client.node.model.head.weight.detach(), stepped, rtol=1e-5)
    np.testing.assert_allclose(uploaded["prototypes"], stepped.T, rtol=1e-5)
    assert (uploaded["classes"].tolist(), uploaded["present"].tolist()) == ([0, 1], [1, 1])
