"""FD: its equations by hand, against a slow reference loop."""

from math import exp
from typing import Any

import numpy as np
import pytest
from fixtures.federations.loops import Linear, fit, softmax
from fixtures.federations.members import member, robustly, roster
from fixtures.federations.nodes import linear_node

from clients.fd import FDClient
from hetfl_flwr.strategy import Upload
from hetfl_flwr.wire.privacy import private_upload
from strategies.fd import FD

# The server: whose averages teach whom.


def upload(client_id: int, averages: dict[int, Any], absent: tuple[int, ...] = ()) -> Upload:
    """A client that has sent averages of these classes, of which some are only there because all are sent."""
    arrays = {
        "classes": np.array(list(averages), np.int32),
        "averages": np.array(list(averages.values()), np.float32).reshape(len(averages), -1),
        "present": np.array([label not in absent for label in averages], np.int8),
    }
    return Upload(client_id, arrays, samples=9)


def taught(strategy: FD, server_state: Any, client_id: int = 0, classes: int = 2) -> dict[int, list[float]]:
    """The outputs of each class that a client is taught; the rows of the others are zero."""
    sent = strategy.download_for(member(client_id, classes=classes), server_state, 1)
    assert (sent["averages"].dtype, sent["known"].dtype) == (np.float32, np.bool_)
    assert not sent["averages"][~sent["known"]].any()
    return {label: sent["averages"][label].tolist() for label in np.flatnonzero(sent["known"])}


FIRST = (
    upload(0, {0: [0.5, 0.5], 1: [0.25, 0.75]}),
    upload(1, {0: [1.0, 0.0]}),
    upload(2, {0: [0.75, 0.25], 1: [0.0, 1.0]}),
)
"""Class 0 is on all three clients, class 1 on clients 0 and 2."""


@pytest.mark.parametrize(
    ("client_id", "expected"),
    [
        (0, {0: [0.875, 0.125], 1: [0.0, 1.0]}),
        (1, {0: [0.625, 0.375], 1: [0.125, 0.875]}),
        (2, {0: [0.75, 0.25], 1: [0.25, 0.75]}),
        (3, {0: [0.75, 0.25], 1: [0.125, 0.875]}),  # has sent nothing yet
    ],
)
def test_a_client_is_taught_by_the_mean_of_the_others_that_have_the_class(client_id, expected):
    """Client 0, class 0: ((1, 0) + (3/4, 1/4)) / 2; class 1: what client 2 alone has sent."""
    strategy = FD()
    assert taught(strategy, strategy.aggregate({}, FIRST, 1), client_id) == expected


def test_a_class_that_no_other_client_has_is_not_known():
    """Nor is one that none has: of three classes, client 0 alone has class 1, and nobody class 2."""
    strategy = FD()
    server_state = strategy.aggregate({}, [upload(0, {0: [1, 0, 0], 1: [0, 1, 0]}), upload(1, {0: [0, 0, 1]})], 1)
    assert taught(strategy, server_state, 0, classes=3) == {0: [0, 0, 1]}
    assert taught(strategy, server_state, 1, classes=3) == {0: [1, 0, 0], 1: [0, 1, 0]}
    assert taught(strategy, strategy.initial(roster(2)), 0) == {}


def test_what_a_client_does_not_send_again_counts_as_it_was():
    """In round 2 client 1 sends class 0 alone, and client 2 takes no part."""
    strategy = FD()
    server_state = strategy.aggregate({}, [upload(1, {0: [1, 0], 1: [0, 1]}), upload(2, {1: [0.5, 0.5]})], 1)
    before = {name: array.copy() for name, array in server_state.items()}
    later = strategy.aggregate(server_state, [upload(1, {0: [0.25, 0.75]})], 2)
    assert taught(strategy, later) == {0: [0.25, 0.75], 1: [0.25, 0.75]}
    for name, array in server_state.items():
        np.testing.assert_array_equal(array, before[name])


def test_a_class_that_is_only_sent_along_is_not_there():
    strategy = FD()
    server_state = strategy.aggregate({}, [upload(1, {0: [0.5, 0.5], 1: [0.1, 0.9]}, absent=(0,))], 1)
    assert list(taught(strategy, server_state)) == [1]


def test_the_median_of_a_class_is_that_of_the_clients_that_have_it():
    """The medians of (0.1, 0.2, 0.9) and of (0, 0.5, 0.1) are 0.2 and 0.1: two thirds and one."""
    strategy = robustly(FD(), "median")
    rows = ([0.0, 9.0], [0.1, 0.0], [0.2, 0.5], [0.9, 0.1])
    uploads = [upload(client_id, {0: row}) for client_id, row in enumerate(rows)]
    np.testing.assert_allclose(taught(strategy, strategy.aggregate({}, uploads, 1))[0], [2 / 3, 1 / 3], rtol=1e-6)


# The client: one step by hand. Its model is ``logits = W x`` with W = [[1, 0], [0, 2]].

E1, E2 = [1.0, 0.0], [0.0, 1.0]
P, Q = 1 / (1 + exp(-1)), 1 / (1 + exp(-2))
"""The scores of the own class: E1 as class 0 has logits (1, 0), E2 as class 1 (0, 2)."""


def test_where_uploads_are_clipped_all_classes_are_sent_and_the_marks_are_noised():
    """Which classes a client has is then in the marks alone; with much noise each is a coin."""
    node = linear_node([E1, E2], [1, 1], [[1.0, 0.0], [0.0, 2.0]], clipping_norm=1.0, noise_multiplier=50.0)
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


# Both sides together.


def test_three_rounds_equal_a_loop_over_samples(halves):
    """Algorithm 1 as plain loops in float64 with the gradients written out: linear models, absent classes."""
    keys = {"models": "fixtures.models:linear", "clients": 3, "partition": "classes:4", "batch_size": 7}
    sides = halves(algorithm="fd", learning_rate=0.1, **keys, **{"fd.gamma": 0.7})
    slow, last = [Linear.of(node) for node in sides.nodes], [dict[int, np.ndarray]() for _ in sides.nodes]
    for round in (1, 2, 3):
        teachers = [mean_by_class([one for other, one in enumerate(last) if other != own]) for own in range(3)]
        last = [{**old, **slow_round(one, round, t)} for one, old, t in zip(slow, last, teachers, strict=True)]
    server_state, _ = sides.play(3)
    assert len(mean_by_class(last)) > 4
    for node, one, averages in zip(sides.nodes, slow, last, strict=True):
        one.same_as(node.model.head)
        key = f"{node.client_id:06d}"
        assert np.flatnonzero(server_state[f"known.{key}"]).tolist() == sorted(averages)
        for label, expected in averages.items():
            np.testing.assert_allclose(server_state[f"averages.{key}"][label], expected, rtol=1e-4, atol=1e-5)


def mean_by_class(given: list[dict[int, np.ndarray]]) -> dict[int, np.ndarray]:
    classes = {label for averages in given for label in averages}
    return {label: np.mean([averages[label] for averages in given if label in averages], axis=0) for label in classes}


def slow_round(model: Linear, round: int, teacher: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Take one round's steps and return the average scores that each class has given on the way."""
    given: dict[int, list[np.ndarray]] = {}
    for batch in model.batches(round):
        slopes, rows = [], [model.rows[position] for position in batch]
        for x, y in rows:
            scores = softmax(model(x))
            given.setdefault(y, []).append(scores)
            taught = 0.7 * (scores - teacher[y]) if y in teacher else 0.0
            slopes.append(scores - np.eye(10)[y] + taught)
        model.step(slopes, [x for x, _ in rows], model.config)
    return {label: np.mean(scores, axis=0) for label, scores in given.items()}
