"""FedProto: its server by hand, both sides against a slow twin."""

from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.members import member, roster
from fixtures.twins import Twin, assert_near, by_class, descend
from torch import Tensor
from torch.nn import functional

from hetfl_flwr.config import RunConfig
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


@pytest.mark.parametrize("weighting", ["counts", "uniform"])
def test_two_rounds_equal_a_slow_twin(weighting, halves):
    """Eq. (3) and (6)-(8), where each client lacks classes."""
    keys = {"models": "fixtures.models:narrow", "clients": 3, "partition": "classes:4", "batch_size": 7, "width": 3}
    keys |= {"fedproto.distance-weight": 0.7, "fedproto.weighting": weighting}
    sides = halves(algorithm="fedproto", learning_rate=0.1, **keys)
    twins, known = [Twin(node) for node in sides.nodes], dict[int, Tensor]()
    for round in (1, 2):
        received: dict[int, list[Tensor]] = {}
        for twin in twins:
            for x, y in twin.batches(round):
                e = twin.model.body(x)
                pulls = [((one - known[k]) ** 2).mean() for one, k in zip(e, y.tolist(), strict=True) if k in known]
                descend(functional.cross_entropy(twin.model.head(e), y) + 0.7 * sum(pulls) / len(y), twin.sgd)
            for label, embeddings in by_class(twin.model.body(twin.x), twin.y).items():
                rows = embeddings if weighting == "counts" else embeddings.mean(0, keepdim=True)
                received.setdefault(label, []).append(rows)
        known |= {label: torch.cat(rows).mean(0) for label, rows in received.items()}
    state, _ = sides.play(2)
    assert state["known"].tolist() == [label in known for label in range(10)]
    assert len(known) > 4
    for label, prototype in known.items():
        np.testing.assert_allclose(state["prototypes"][label], prototype, rtol=1e-4, atol=1e-5)
    for node, twin in zip(sides.nodes, twins, strict=True):
        assert_near(node.model, twin.model)


def test_where_uploads_are_clipped_their_size_does_not_tell_the_classes(make_config, run_federation):
    config = make_config(algorithm="fedproto", clients=3, width=6, partition="classes:6", clipping_norm=1.0)
    assert [entry["bytes_up"] for entry in entries(run_federation(config))[1:]] == [3 * 10 * (4 * 6 + 12)] * 2
