"""FedHe: its equations by hand, against a slow twin."""

from typing import Any

import numpy as np
from fixtures.federations.members import member, roster
from fixtures.twins import Twin, assert_near, by_class, descend, means
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as some_arrays
from torch import Tensor
from torch.nn import functional

from hetfl_flwr.strategy import Upload
from strategies.fedhe import FedHe


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


def test_two_rounds_equal_a_slow_twin(halves):
    """Eq. (7)-(13). A batch of ten samples a round: those of classes that nobody had in round 1 have cross-entropy
    alone in round 2, and the distance is over all samples of the batch."""
    keys = {"models": "fixtures.models:linear", "local_batches": 1, "batch_size": 10, "learning_rate": 0.1}
    sides = halves(**keys, **{"fedhe.alpha": 0.7})
    twins, said = [Twin(node) for node in sides.nodes], list[dict[int, Tensor]]()
    both = 0
    for round in (1, 2):
        known = means(said)
        for twin in twins:
            for x, y in twin.batches(round):
                logits = twin.model(x)
                pairs = [(z, known[k]) for z, k in zip(logits, y.tolist(), strict=True) if k in known]
                distance = sum(((z - target) ** 2).mean() for z, target in pairs)
                descend(functional.cross_entropy(logits, y) + 0.7 * distance / len(y), twin.sgd)
                said.append({k: rows.sum(0) / (len(rows) + 1) for k, rows in by_class(logits, y).items()})
                both += 0 < len(pairs) < len(y)
    assert both
    server_state, _ = sides.play(2)
    sent, known = downloaded(sides.strategy, server_state)
    assert known == [label in means(said) for label in range(10)]
    for label, mean in means(said).items():
        np.testing.assert_allclose(sent[label], mean, rtol=1e-4, atol=1e-5)
    for node, twin in zip(sides.nodes, twins, strict=True):
        assert_near(node.model, twin.model)
