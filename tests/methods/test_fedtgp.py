"""FedTGP: a step by hand, a loop over prototypes."""

from math import log
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.members import roster

from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.learning.server_training import ServerTraining
from hetfl_flwr.learning.training import draw_batches
from hetfl_flwr.seeding import generator
from hetfl_flwr.strategy import Upload
from strategies.fedtgp import FedTGP

LAYERS = ("embedding.weight", "hidden.weight", "hidden.bias", "output.weight", "output.bias")


def upload(client_id: int, classes: list[int], prototypes: Any) -> Upload:
    arrays = {"classes": np.int32(classes), "prototypes": np.float32(prototypes)}
    return Upload(client_id, {**arrays, "present": np.ones(len(classes), np.int8)}, samples=5)


def prepared(classes: int = 2, width: int = 1, robust: str = "none", batch: int = 50, **options: Any) -> FedTGP:
    strategy = FedTGP(**{"server_epochs": 1, **options})
    strategy.prepare(roster(3, classes=classes, width=width), RunConfig(batch_size=batch, robust=robust))
    return strategy


def state(embedding: Any) -> dict[str, np.ndarray]:
    """Layers that pass on what is positive, and embeddings; nothing is known yet."""
    width = len(embedding[0])
    same = {"hidden.weight": np.eye(width), "output.weight": np.eye(width)}
    whole = {
        "embedding.weight": embedding,
        **same,
        "hidden.bias": np.zeros(width),
        "output.bias": np.zeros(width),
    }
    made = {name: np.float32(whole[name]) for name in LAYERS}
    return {**made, "prototypes": made["embedding.weight"], "known": np.zeros(len(embedding), bool)}


# --- the server ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "robust"), [(1, "none"), (1, "median"), (20, "none")])
def test_the_margin_is_the_largest_distance_to_a_nearest_class(scale, robust, monkeypatch):
    """Means over clients: 0, (3 + 5) / 2 = 4 and 10; with medians of two, which are means, the same. The nearest others
    are 4, 4 and 6 away: the largest is 6; all of them 20 times as large 120, of which 100 are left. Seen in the loss of
    a prototype of class 1 at 7.
    """
    seen = []
    strategy = prepared(3, 1, robust=robust)

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
    after = prepared().aggregate(state([[3], [8]]), [upload(0, [0], [[3]])], 1)
    assert all(np.isfinite(after[name]).all() for name in LAYERS)


@pytest.mark.parametrize(("epochs", "size"), [(2, 50), (3, 2)])
def test_training_equals_a_loop_over_prototypes(epochs, size):
    """In float64, each gradient by the chain rule written out, with batches drawn from seed, round and clients."""
    draw = generator(1, "draw")
    strategy = prepared(3, 4, server_epochs=epochs, batch=size, server_learning_rate=0.05)
    uploads = [upload(k, [0, 1, 2][: k + 1], draw.normal(size=(k + 1, 4)) * 3) for k in range(3)]
    start = strategy.initial(roster(3, classes=3, width=4))
    points = np.concatenate([one.arrays["prototypes"] for one in uploads]).astype(float)
    labels = np.concatenate([one.arrays["classes"] for one in uploads])
    means = [points[labels == label].mean(0) for label in range(3)]
    margin = max(min(np.linalg.norm(a - b) for j, b in enumerate(means) if j != i) for i, a in enumerate(means))
    e, w1, b1, w2, b2 = (start[name].astype(float) for name in LAYERS)
    order = generator(0, 4, 0, 1, 2, "server-training")
    for rows in draw_batches(order, len(labels), size, epochs=epochs, batches=0):
        before = e @ w1.T + b1
        hidden = np.maximum(before, 0)
        made = hidden @ w2.T + b2
        pull = np.zeros_like(made)
        for row in rows.tolist():
            away = made - points[row]
            distances = np.linalg.norm(away, axis=1)
            odds = np.exp(-(distances + margin * np.eye(3)[labels[row]]))
            slope = np.eye(3)[labels[row]] - odds / odds.sum()
            pull += (slope / distances)[:, None] * away / len(rows)
        back = (pull @ w2) * (before > 0)
        e, w1, b1, w2, b2 = (
            part - 0.05 * step
            for part, step in zip(
                (e, w1, b1, w2, b2), (back @ w1, back.T @ e, back.sum(0), pull.T @ hidden, pull.sum(0)), strict=True
            )
        )
    found = strategy.aggregate(start, uploads, 4)
    for name, expected in zip(LAYERS, (e, w1, b1, w2, b2), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_class_stays_known_in_a_round_in_which_nobody_has_it():
    strategy = prepared(3, 1)
    after = strategy.aggregate(state([[3], [8], [9]]), [upload(0, [0, 2], [[5], [6]])], 1)
    assert strategy.aggregate(after, [upload(0, [0], [[5]])], 2)["known"].tolist() == [True, False, True]


def test_a_training_that_diverges_is_one_line(refusal):
    strategy = prepared(server_learning_rate=1e30, server_epochs=9)
    said = refusal(ConfigError, strategy.aggregate, state([[3], [8]]), [upload(0, [0], [[5]])], 1)
    assert "fedtgp.server-learning-rate = 1e+30" in said
