"""FedProto: a round by hand, a loop over samples."""

from typing import Any

import numpy as np
import pytest
from fixtures.federations.loops import Linear, softmax
from fixtures.federations.members import member, roster
from torch import nn

from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import DataSpec
from hetfl_flwr.models import SplitModel
from hetfl_flwr.node.node import Node
from hetfl_flwr.strategy import Upload
from simulations.testing.contract import entries
from strategies.fedproto import FedProto


def upload(client_id: int, classes: list[int], prototypes: Any, counts: list[int]) -> Upload:
    arrays = {"classes": np.int32(classes), "prototypes": np.float32(prototypes), "counts": np.int64(counts)}
    return Upload(client_id, arrays, samples=sum(counts))


def prepared(**options: Any) -> FedProto:
    """A server side with two clients of two classes and width 1."""
    strategy = FedProto(**options)
    strategy.prepare(roster(2, classes=2, width=1), RunConfig())
    return strategy


def sent(strategy: FedProto, server_state: Any) -> tuple[list[Any], list[bool]]:
    download = strategy.download_for(member(0, classes=2, width=1), server_state, 1)
    return download["prototypes"].tolist(), download["known"].tolist()


# --- the server ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("weighting", "first"), [("counts", 4), ("uniform", 5)])
def test_three_rounds_by_hand(weighting, first):
    """Class 0: (3 * 3 + 1 * 7) / 4 = 4, or (3 + 7) / 2 = 5; then client 1 alone has it; then nobody, so it stays."""
    strategy = prepared(weighting=weighting)
    state = strategy.initial(roster(2, classes=2, width=1))
    rounds = []
    for uploads in (
        [upload(0, [0], [[3]], [3]), upload(1, [0], [[7]], [1])],
        [upload(1, [1, 0], [[8], [6]], [2, 1])],
        [upload(0, [1], [[2]], [1])],
    ):
        state = strategy.aggregate(state, uploads, 1)
        rounds.append(sent(strategy, state))
    assert rounds == [([[first], [0]], [True, False]), ([[6], [8]], [True, True]), ([[6], [2]], [True, True])]


def test_asynchronously_what_each_client_has_sent_last_is_averaged():
    """Client 0 has sent 1 and then 5, client 1 has sent 9 of three times as many: (5 + 3 * 9) / 4 = 8."""
    strategy = prepared(mode="async")
    state = strategy.initial(roster(2, classes=2, width=1))
    for one in (upload(0, [0], [[1]], [1]), upload(1, [0], [[9]], [3]), upload(0, [0], [[5]], [1])):
        state = strategy.aggregate(state, [one], 1)
    assert sent(strategy, state) == ([[8], [0]], [True, False])
    assert list(state) == ["counts.000000", "counts.000001", "prototypes.000000", "prototypes.000001"]


def test_what_is_sent_to_measure():
    state = {"prototypes": np.float32([[1], [2]]), "known": np.array([True, False])}
    assert prepared().assess_download_for(member(0), state) == {}
    assert prepared(predict="prototype").assess_download_for(member(0), state) == state


# --- whole runs ----------------------------------------------------------------------------------


def narrow(spec: DataSpec) -> SplitModel:
    """A linear body of width 3."""
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), nn.Linear(3, spec.classes))


class Slow:
    """A linear body and head in float64, and its client's data, sample by sample."""

    def __init__(self, node: Node) -> None:
        self.body, self.head = Linear(node.model.body[1], node), Linear(node.model.head)

    def train(self, round: int, known: dict[int, np.ndarray], weight: float) -> None:
        for batch in self.body.batches(round):
            rows = [self.body.rows[position] for position in batch]
            embeddings = [self.body(x) for x, _ in rows]
            slopes = [softmax(self.head(e)) - np.eye(10)[y] for e, (_, y) in zip(embeddings, rows, strict=True)]
            pulls = [self.head.weight.T @ slope for slope in slopes]
            for place, (e, (_, y)) in enumerate(zip(embeddings, rows, strict=True)):
                if y in known:
                    pulls[place] = pulls[place] + weight * 2 * (e - known[y]) / len(e)
            self.body.step(pulls, [x for x, _ in rows], self.body.config)
            self.head.step(slopes, embeddings, self.body.config)

    def prototypes(self) -> dict[int, list[np.ndarray]]:
        found: dict[int, list[np.ndarray]] = {}
        for x, y in self.body.rows:
            found.setdefault(y, []).append(self.body(x))
        return found


@pytest.mark.parametrize("weighting", ["counts", "uniform"])
def test_two_rounds_equal_a_loop_over_samples(weighting, halves):
    """Eq. (3) and (6)-(8) as plain loops in float64, with the gradients written out; classes that a client lacks."""
    keys = {"models": "test_fedproto:narrow", "clients": 3, "partition": "classes:4", "batch_size": 7, "width": 3}
    keys |= {"fedproto.distance-weight": 0.7, "fedproto.weighting": weighting}
    sides = halves(algorithm="fedproto", learning_rate=0.1, **keys)
    slow, known = [Slow(node) for node in sides.nodes], {}
    for round in (1, 2):
        received: dict[int, list[list[np.ndarray]]] = {}
        for one in slow:
            one.train(round, known, weight=0.7)
            for label, embeddings in one.prototypes().items():
                received.setdefault(label, []).append(embeddings)
        for label, several in received.items():
            if weighting == "counts":
                known[label] = np.mean([embedding for embeddings in several for embedding in embeddings], axis=0)
            else:
                known[label] = np.mean([np.mean(embeddings, axis=0) for embeddings in several], axis=0)

    state, _ = sides.play(2)
    assert state["known"].tolist() == [label in known for label in range(10)]
    assert len(known) > 4
    for label, prototype in known.items():
        np.testing.assert_allclose(state["prototypes"][label], prototype, rtol=1e-4, atol=1e-5)
    for node, one in zip(sides.nodes, slow, strict=True):
        one.head.same_as(node.model.head)


def test_where_uploads_are_clipped_their_size_does_not_tell_the_classes(make_config, run_federation):
    config = make_config(algorithm="fedproto", clients=3, width=6, partition="classes:6", clipping_norm=1.0)
    assert [entry["bytes_up"] for entry in entries(run_federation(config))[1:]] == [3 * 10 * (4 * 6 + 12)] * 2
