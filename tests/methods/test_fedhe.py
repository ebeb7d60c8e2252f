"""FedHe: its equations by hand, against a slow reference loop."""

from typing import Any

import numpy as np
from fixtures.federations.loops import Linear, softmax
from fixtures.federations.members import member, roster
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as some_arrays

from hetfl_flwr.strategy import Upload
from simulations.testing.contract import entries
from strategies.fedhe import FedHe

# --- the server ----------------------------------------------------------------------------------


def upload(client_id: int, logits: Any, counts: Any) -> Upload:
    return Upload(client_id, {"logits": np.float32(logits), "counts": np.int64(counts)}, samples=int(sum(counts)))


def downloaded(strategy: FedHe, server_state: Any) -> tuple[list[list[float]], list[bool]]:
    """What client 0 is sent: the logits of all classes, and which of them are known."""
    sent = strategy.download_for(member(0, classes=len(server_state["sums"])), server_state, 1)
    assert (sent["logits"].dtype, sent["known"].dtype) == (np.float32, np.bool_)
    return sent["logits"].tolist(), sent["known"].tolist()


finite = st.floats(-1e3, 1e3, width=32)
one_upload = st.tuples(
    some_arrays(np.float32, (2, 2), elements=finite), some_arrays(np.int64, 2, elements=st.integers(0, 2))
)


@given(rounds=st.lists(st.lists(one_upload, min_size=3, max_size=3), min_size=2, max_size=2))
@settings(max_examples=40)
def test_each_class_is_the_mean_of_all_uploads_that_have_samples_of_it(rounds):
    """Eq. (9)-(10), by name."""
    strategy = FedHe()
    server_state = strategy.initial(roster(3, classes=2))
    for number, said in enumerate(rounds, 1):
        uploads = [upload(client_id, *one) for client_id, one in enumerate(said)]
        server_state = strategy.aggregate(server_state, uploads, number)
    sent, known = downloaded(strategy, server_state)
    for label in range(2):
        kept = [logits[label].astype(float) for said in rounds for logits, counts in said if counts[label] > 0]
        assert known[label] == bool(kept)
        np.testing.assert_allclose(sent[label], np.mean(kept or [np.zeros(2)], axis=0), rtol=1e-5, atol=1e-3)


# --- the client ----------------------------------------------------------------------------------


def test_samples_of_classes_that_the_server_does_not_know_have_cross_entropy_alone(halves):
    """Eq. (12)-(13) where each batch has both kinds: the distance is over all samples of the batch."""
    keys = {"models": "fixtures.models:linear", "batch_size": 7, "clients": 1}
    sides = halves(learning_rate=0.1, **keys, **{"fedhe.alpha": 0.7})
    slow, logits = Linear.of(sides.nodes[0]), np.random.default_rng(0).standard_normal((10, 10)).astype(np.float32)
    sides.clients[0].learn({"logits": logits, "known": np.arange(10) % 2 == 0}, 1)
    slow_round(slow, 1, {label: logits[label] for label in range(0, 10, 2)}, alpha=0.7)
    slow.same_as(sides.nodes[0].model.head)


# --- both sides ----------------------------------------------------------------------------------


def test_at_ten_classes_a_client_sends_480_bytes_and_receives_410(make_config, run_federation):
    """4 C^2 + 8 C up, 4 C^2 + C down; at most 500 is what the project promises. Both are C^2 + C numbers."""
    entry = entries(run_federation(make_config(clients=1, models="mlp", rounds=1)))[1]
    assert (entry["bytes_up"], entry["bytes_down"]) == (480, 410)
    assert (entry["numbers_up"], entry["numbers_down"]) == (110, 110)


def test_two_rounds_equal_a_loop_over_samples(halves):
    """Eq. (7)-(13) as plain loops in float64 with the gradients written out: linear models, absent classes."""
    keys = {"models": "fixtures.models:linear", "partition": "classes:3", "batch_size": 7}
    sides = halves(learning_rate=0.1, **keys, **{"fedhe.alpha": 0.7})
    slow, received = [Linear.of(node) for node in sides.nodes], dict[int, list[np.ndarray]]()
    for round in (1, 2):
        known = {label: np.mean(logits, axis=0) for label, logits in received.items()}
        for one in slow:
            for label, logits in slow_round(one, round, known, alpha=0.7).items():
                received.setdefault(label, []).append(np.sum(logits, axis=0) / (len(logits) + 1))
    server_state, _ = sides.play(2)
    sent, known = downloaded(sides.strategy, server_state)
    assert known == [label in received for label in range(10)]
    assert 3 <= len(received) < 10
    for label, logits in received.items():
        np.testing.assert_allclose(sent[label], np.mean(logits, axis=0), rtol=1e-4, atol=1e-5)
    for node, one in zip(sides.nodes, slow, strict=True):
        one.same_as(node.model.head)


def slow_round(model: Linear, round: int, known: dict[int, np.ndarray], alpha: float) -> dict[int, list[np.ndarray]]:
    """Take one round's steps and return the logits that each class has given on the way."""
    given_logits: dict[int, list[np.ndarray]] = {}
    for batch in model.batches(round):
        slopes, rows = [], [model.rows[position] for position in batch]
        for x, y in rows:
            logits = model(x)
            given_logits.setdefault(y, []).append(logits)
            taught = alpha * 2 * (logits - known[y]) / 10 if y in known else 0.0
            slopes.append(softmax(logits) - np.eye(10)[y] + taught)
        model.step(slopes, [x for x, _ in rows], model.config)
    return given_logits
