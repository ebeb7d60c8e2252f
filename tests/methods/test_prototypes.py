"""Prototypes: how clients take them, what they weigh, what they predict, and how they travel."""

import numpy as np
import pytest
import torch
from fixtures.federations.members import member, robustly
from fixtures.federations.nodes import linear_node
from torch import nn

from clients.fedproto import FedProtoClient
from hetfl_flwr.config import RunConfig
from hetfl_flwr.learning.prototypes import class_means
from hetfl_flwr.learning.training import EVALUATION_BATCH
from hetfl_flwr.methods import build_strategy
from hetfl_flwr.node.holder import Holder
from hetfl_flwr.server.guard import Guard, measure
from hetfl_flwr.wire.messages import ROUND
from strategies.base_prototypes import PrototypeStrategy
from strategies.prototypes import by_class, local_prototypes, packed


class Strategy(PrototypeStrategy):
    """What the base leaves open plays no part here."""

    initial = download_for = aggregate = None


# --- what a client takes -------------------------------------------------------------------------


def test_means_are_of_all_samples_in_evaluation_mode_and_a_class_without_any_has_0():
    """Dropout would zero or double a half of the numbers."""
    node = linear_node([[1.0, 2.0], [3.0, 0.0], [5.0, 5.0]], [0, 0, 2], np.zeros((3, 2)).tolist(), body=nn.Dropout(0.5))
    node.model.train()
    means, counts = class_means(node.model, node.data.train)
    assert means.tolist() == [[2, 1], [0, 0], [5, 5]]
    assert counts.tolist() == [2, 0, 1]
    assert node.model.training


def test_means_of_more_samples_than_go_through_the_body_at_once():
    rows = EVALUATION_BATCH + 3
    inputs, labels = [[float(row)] for row in range(rows)], [row % 2 for row in range(rows)]
    node = linear_node(inputs, labels, [[0.0], [0.0]])
    means, counts = class_means(node.model, node.data.train)
    assert means.flatten().tolist() == pytest.approx([np.mean(range(0, rows, 2)), np.mean(range(1, rows, 2))])
    assert counts.sum() == rows


# --- what prototypes predict ---------------------------------------------------------------------


PROTOTYPES = np.float32([[1, 0], [0, 1], [1, 0.1]])
"""Of three classes; the third is nearer to (1, 0.2) than the first."""


INPUTS = [[1.0, 0.2], [0.0, 1.0]]


def node():
    """Samples of classes 0 and 1, and a head that says the opposite."""
    return linear_node(INPUTS, [0, 1], [[0.0, 1.0], [1.0, 0.0], [-9.0, -9.0]])


@pytest.mark.parametrize(
    ("predict", "known", "accuracy"),
    [
        ("head", [True] * 3, 0.0),
        ("prototype", [True] * 3, 0.5),
        ("prototype", [True, True, False], 1.0),
        ("own-prototype", [True] * 3, 1.0),
        # of class 1 there is none, so it is never predicted
        ("own-prototype", [True, False, True], 0.5),
        # there are none, or none of the client's own: the head predicts
        ("prototype", [False] * 3, 0.0),
        ("own-prototype", [False, False, True], 0.0),
    ],
)
def test_what_predicts_when_a_client_is_measured(predict, known, accuracy):
    """On test and validation samples alike."""
    client = FedProtoClient(node(), distance_weight=1.0, predict=predict)
    download = [PROTOTYPES * np.float32(known)[:, None], np.array(known)]
    metrics = client.evaluate(download if predict != "head" else [], {})[2]
    assert (metrics["accuracy"], metrics["validation-accuracy"]) == (accuracy, accuracy)


def test_what_predicts_is_whole_in_its_state_dict():
    """A client that has been told of no prototype takes it up, and predicts the same of a batch and of one sample."""
    trained, fresh = (FedProtoClient(node(), distance_weight=1.0, predict="prototype") for _ in range(2))
    trained.evaluate([PROTOTYPES, np.array([True, True, False])], {})
    inputs = torch.tensor([[1.0, 0.2], [0.0, 1.0], [5.0, 5.0]])
    assert not torch.equal(trained.predictor()(inputs), fresh.predictor()(inputs))
    fresh.predictor().load_state_dict(trained.predictor().state_dict())
    assert torch.equal(trained.predictor()(inputs), fresh.predictor()(inputs))
    program = torch.export.export(
        trained.predictor().eval(), (inputs,), dynamic_shapes=({0: torch.export.Dim("batch")},)
    ).module()
    torch.testing.assert_close(program(inputs[:1]), trained.predictor()(inputs[:1]))


def test_prototypes_that_a_client_was_trained_with_are_kept():
    """So they predict in a client that is built anew from its state, before it is measured."""
    its = node()
    client = FedProtoClient(its, distance_weight=1.0, predict="prototype")
    client.fit([PROTOTYPES, np.array([True, True, False])], {ROUND: 1})
    again = FedProtoClient(its, distance_weight=1.0, predict="prototype")
    Holder(again).restore()
    assert again.predictor()(torch.tensor(INPUTS)).argmax(1).tolist() == [0, 1]


# --- on the wire ---------------------------------------------------------------------------------

MEANS, COUNTS = np.float32([[1, 2], [0, 0], [3, 4]]), np.array([5, 0, 1])


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize(("hidden", "classes"), [(False, [0, 2]), (True, [0, 1, 2])])
def test_what_is_sent_comes_back_by_class(counted, hidden, classes):
    upload = packed(MEANS, COUNTS, counted=counted, hidden=hidden)
    checked = local_prototypes(3, 2, counted=counted, most=6).check_named(upload, "client 0")
    assert checked["classes"].tolist() == classes
    means, counts = by_class(upload, 3)
    assert (means == MEANS).all()
    assert counts.tolist() == (COUNTS.tolist() if counted else [1, 0, 1])


def test_a_class_that_is_named_twice_counts_once():
    upload = {"classes": np.int32([1, 1]), "prototypes": np.float32([[9], [2]]), "counts": np.array([7, 3])}
    means, counts = by_class(upload, 2)
    assert (means.tolist(), counts.tolist()) == ([[0], [2]], [0, 3])


# --- what the server checks and averages ---------------------------------------------------------


THREE = [
    (np.float32([[1, 0], [6, 8]]), np.array([3, 1])),
    (np.float32([[5, 4], [9, 9]]), np.array([1, 0])),
    (np.float32([[900, -900], [2, 4]]), np.array([4, 2])),
]


ONE = [(np.float32([[7, 7], [7, 7]]), np.array([1, 0]))]


@pytest.mark.parametrize(
    ("robust", "counted", "uploads", "means", "known"),
    [
        # (3 (1, 0) + 1 (5, 4)) / 4; class 1 is on client 0 alone, whatever client 1's row without samples says
        ("none", True, THREE[:2], [[2, 1], [6, 8]], [True, True]),
        ("none", False, THREE[:2], [[3, 2], [6, 8]], [True, True]),
        # medians of (1, 5, 900) and (0, 4, -900); of the two that have class 1 their mean, each counted once
        ("median", True, THREE, [[5, 0], [4, 6]], [True, True]),
        ("trimmed:0.4", False, THREE, [[5, 0], [4, 6]], [True, True]),
        # a class that nobody has is not known
        ("none", True, ONE, [[7, 7], [0, 0]], [True, False]),
        ("median", True, ONE, [[7, 7], [0, 0]], [True, False]),
    ],
)
def test_averages_by_hand(robust, counted, uploads, means, known):
    averaged, there = robustly(Strategy(counted=counted), robust).averaged(range(len(uploads)), uploads)
    assert (averaged.tolist(), there.tolist()) == (means, known)


# --- the guard -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "far"), [("fedproto", True), ("fedtgp", True), ("fedgh", False)])
def test_longer_prototypes_are_far_where_they_are_averaged_or_compared(method, far):
    """One client's are eight times as long as the others', as those of an MLP beside LeNet-5 may be: a head learns the
    same of them. A hundred times as long they are far in any case."""
    spec = build_strategy(RunConfig.from_flat({"algorithm": method})).upload_spec(member(0, classes=10, width=64))
    counted = "counts" in spec.names

    def set_aside(longer: float) -> list[int]:
        sizes = {
            client: measure(
                packed(np.full((10, 64), 0.2 * factor, np.float32), np.ones(10, int), counted=counted, hidden=False),
                spec,
                {},
                50,
            )
            for client, factor in enumerate((1.0, 1.1, 0.9, longer))
        }
        return list(Guard(5.0).reject_outliers(sizes))

    assert set_aside(8.0) == ([3] if far else [])
    assert set_aside(100.0) == [3]
