"""FD: its equations by hand, against a slow twin."""

from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import fit
from fixtures.federations.members import member, robustly, roster
from fixtures.federations.nodes import linear_node
from fixtures.twins import Twin, assert_near, by_class, descend, means
from torch import Tensor
from torch.nn import functional

from clients.fd import FDClient
from hetfl_flwr.strategy import Upload
from hetfl_flwr.wire.privacy import private_upload
from strategies.fd import FD


def upload(client_id: int, averages: dict[int, Any], absent: tuple[int, ...] = ()) -> Upload:
    """A client that has sent averages of these classes, of which some are only there because all are sent."""
    arrays = {
        "classes": np.array(list(averages), np.int32),
        "averages": np.array(list(averages.values()), np.float32).reshape(len(averages), -1),
        "present": np.array([label not in absent for label in averages], np.int8),
    }
    return Upload(client_id, arrays, samples=9)


FIRST = [
    upload(0, {0: [0.5, 0.5], 1: [0.25, 0.75]}),
    upload(1, {0: [1.0, 0.0]}),
    upload(2, {0: [0.75, 0.25], 1: [0.0, 1.0]}),
]
"""Class 0 is on all three clients, class 1 on clients 0 and 2."""


@pytest.mark.parametrize(
    ("rounds", "client_id", "expected"),
    [
        ([], 0, {}),
        # class 0: ((1, 0) + (3/4, 1/4)) / 2; class 1: what client 2 alone has sent
        ([FIRST], 0, {0: [0.875, 0.125], 1: [0.0, 1.0]}),
        ([FIRST], 1, {0: [0.625, 0.375], 1: [0.125, 0.875]}),
        # has sent nothing yet
        ([FIRST], 3, {0: [0.75, 0.25], 1: [0.125, 0.875]}),
        # a class that no other client has is not known
        ([[upload(0, {0: [1, 0], 1: [0, 1]}), upload(1, {0: [0, 1]})]], 0, {0: [0, 1]}),
        # in round 2 client 1 sends class 0 alone, and client 2 takes no part: the rest counts as it was
        (
            [[upload(1, {0: [1, 0], 1: [0, 1]}), upload(2, {1: [0.5, 0.5]})], [upload(1, {0: [0.25, 0.75]})]],
            0,
            {0: [0.25, 0.75], 1: [0.25, 0.75]},
        ),
        ([[upload(1, {0: [0.5, 0.5], 1: [0.25, 0.75]}, absent=(0,))]], 0, {1: [0.25, 0.75]}),
    ],
)
def test_a_client_is_taught_by_the_mean_of_the_others_that_have_the_class(rounds, client_id, expected):
    strategy = FD()
    server_state = strategy.initial(roster(2, classes=2))
    for number, uploads in enumerate(rounds, 1):
        server_state = strategy.aggregate(server_state, uploads, number)
    sent = strategy.download_for(member(client_id, classes=2), server_state, 1)
    assert {label: sent["averages"][label].tolist() for label in np.flatnonzero(sent["known"])} == expected
    assert not sent["averages"][~sent["known"]].any()


def test_the_median_of_a_class_is_that_of_the_clients_that_have_it():
    """The medians of (0.1, 0.2, 0.9) and of (0, 0.5, 0.1) are 0.2 and 0.1: two thirds and one."""
    strategy = robustly(FD(), "median")
    rows = ([0.0, 9.0], [0.1, 0.0], [0.2, 0.5], [0.9, 0.1])
    server_state = strategy.aggregate({}, [upload(client_id, {0: row}) for client_id, row in enumerate(rows)], 1)
    sent = strategy.download_for(member(0, classes=2), server_state, 1)
    np.testing.assert_allclose(sent["averages"][0], [2 / 3, 1 / 3], rtol=1e-6)


def test_where_uploads_are_clipped_all_classes_are_sent_and_the_marks_are_noised():
    """Which classes a client has is then in the marks alone; with much noise each is a coin."""
    node = linear_node(np.eye(2), [1, 1], [[1.0, 0.0], [0.0, 2.0]], clipping_norm=1.0, noise_multiplier=50.0)
    client, download = FDClient(node), [np.zeros((2, 2), np.float32), np.zeros(2, bool)]
    upload, _ = fit(client, download)
    assert (upload["classes"].tolist(), upload["present"].tolist()) == ([0, 1], [0, 1])
    np.testing.assert_array_equal(upload["averages"][0], [0.5, 0.5])
    sent = dict(zip(client.download_spec().names, download, strict=True))
    specs = client.upload_spec(), sent, client.download_spec(), node.config
    noised = [private_upload(upload, *specs, number) for number in range(20)]
    for one in noised:
        client.upload_spec().check_named(one, "client 0")
        assert one["classes"].tolist() == [0, 1]
    assert {tuple(one["present"].tolist()) for one in noised} >= {(0, 0), (1, 0)}


def test_three_rounds_equal_a_slow_twin(halves):
    """Algorithm 1; each client has four classes, and some classes are on one client alone."""
    keys = {"models": "fixtures.models:linear", "clients": 3, "partition": "classes:4", "batch_size": 7}
    sides = halves(algorithm="fd", learning_rate=0.1, **keys, **{"fd.gamma": 0.7})
    twins, last = [Twin(node) for node in sides.nodes], [dict[int, Tensor]() for _ in sides.nodes]
    for round in (1, 2, 3):
        teachers = [means(one for other, one in enumerate(last) if other != own) for own in range(3)]
        said = [slow_round(twin, round, taught) for twin, taught in zip(twins, teachers, strict=True)]
        last = [{**old, **new} for old, new in zip(last, said, strict=True)]
    server_state, _ = sides.play(3)
    assert len(means(last)) > 4
    for node, twin, averages in zip(sides.nodes, twins, last, strict=True):
        assert_near(node.model, twin.model)
        key = f"{node.client_id:06d}"
        assert np.flatnonzero(server_state[f"known.{key}"]).tolist() == sorted(averages)
        for label, expected in averages.items():
            np.testing.assert_allclose(server_state[f"averages.{key}"][label], expected, rtol=1e-4, atol=1e-5)


def slow_round(twin: Twin, round: int, teacher: dict[int, Tensor]) -> dict[int, Tensor]:
    """Take one round's steps and return the average scores that each class has given on the way."""
    scores, labels = [], []
    for x, y in twin.batches(round):
        logits = twin.model(x)
        taught = [
            functional.cross_entropy(z, teacher[k]) for z, k in zip(logits, y.tolist(), strict=True) if k in teacher
        ]
        descend(functional.cross_entropy(logits, y) + 0.7 * sum(taught) / len(y), twin.sgd)
        scores.append(logits.softmax(1))
        labels.append(y)
    return {label: some.mean(0) for label, some in by_class(torch.cat(scores), torch.cat(labels)).items()}
