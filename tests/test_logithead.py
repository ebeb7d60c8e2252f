"""LogitHead: one step by hand, and without one of its teachers it is FedHe or CHFL, bit for bit."""

from json import loads
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.members import member, roster
from fixtures.nodes import linear_node
from safetensors.numpy import load_file
from torch import nn

from clients.chfl import CHFLClient
from clients.fedhe import FedHeClient
from clients.local import LocalClient
from clients.logithead import LogitHeadClient
from hetfl_flwr.checkpoint import KNOWLEDGE_FILE
from hetfl_flwr.errors import FederationError, ModelError
from hetfl_flwr.federation import ROUND, Roster
from strategies.base import Upload
from strategies.logithead import LogitHead

# The server


def upload(partition: int, logits: Any, counts: list[int], weight: Any, bias: Any) -> Upload:
    arrays = {"logits": np.float32(logits), "counts": np.int64(counts)}
    return Upload(partition, {**arrays, "weight": np.float32(weight), "bias": np.float32(bias)}, samples=sum(counts))


def test_logits_are_averaged_over_all_rounds_and_heads_are_those_of_the_last():
    """Class 0: ((1, 2) + (3, 6)) / 2 = (2, 4); nobody has class 1. Then ((1, 2) + (3, 6) + (5, 1)) / 3 = (3, 3), and
    class 1 is (7, 7). Heads: (1) + (3) = (4); then (9) alone.
    """
    strategy, clients = LogitHead(), roster(2, classes=2, width=1)
    start = strategy.initial(clients)
    first = strategy.absorb(
        start,
        [
            upload(0, [[1, 2], [9, 9]], [3, 0], [[1], [0]], [5, 0]),
            upload(1, [[3, 6], [9, 9]], [1, 0], [[3], [1]], [6, 0]),
        ],
    )
    second = strategy.absorb(first, [upload(0, [[5, 1], [7, 7]], [1, 1], [[9], [8]], [7, 1])])
    for knowledge, expected in (
        (start, [[[0, 0], [0, 0]], [False, False], [[0], [0]], [0, 0], 0]),
        (first, [[[2, 4], [0, 0]], [True, False], [[4], [1]], [11, 0], 2]),
        (second, [[[3, 3], [7, 7]], [True, True], [[9], [8]], [7, 1], 1]),
    ):
        sent = strategy.download_for(member(0, classes=2, width=1), knowledge, 1)
        assert list(sent) == ["logits", "known", "weight", "bias", "heads"]
        assert [array.tolist() for array in sent.values()] == expected


@pytest.mark.parametrize(
    ("unlike", "said"),
    [
        (
            {"width": 7},
            "logithead needs the same embedding width of all clients: client 0 (linear) has 2",
        ),
        ({"classes": 7}, "the clients must have the same number of classes"),
    ],
)
def test_clients_that_cannot_share_heads_are_refused(unlike, said, refusal):
    assert said in refusal(FederationError, LogitHead().check, Roster([member(0), member(1, **unlike)]))


# One step of a client, by hand


def tiny(kind: type, **options: Any) -> Any:
    """A client with the one sample (1, 0) of class 0 of three, a head of zeros and no body, in the last of 3 rounds."""
    node = linear_node([[1.0, 0.0]], [0], [[0.0, 0.0]] * 3, rounds=3)
    node.model.head.bias = nn.Parameter(torch.zeros(3))
    return kind(node, **options)


def fit(client: Any, download: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    names = client.download_spec().names
    uploaded, _, metrics = client.fit([download[name] for name in names], {ROUND: 3})
    return dict(zip(client.upload_spec().names, uploaded, strict=True)), metrics


HEADS = [[2 * log(4), 0], [2 * log(3), 0], [0, 0]]


def sent(*, known: bool = True, heads: int = 2) -> dict[str, Any]:
    """Logits (3, 0, 0) for class 0, and two heads whose mean gives (ln 4, ln 3, 0) for the sample."""
    logits = np.float32([[3, 0, 0], [9, 9, 9], [9, 9, 9]])
    head = {"weight": np.float32(HEADS), "bias": np.zeros(3, np.float32), "heads": np.array(heads, np.int32)}
    return {"logits": logits, "known": np.array([known, False, False]), **head}


def test_one_step_of_both_teachers_by_hand():
    """The logits are 0: cross-entropy ln 3, its slope in them (-2, 1, 1) / 3. Logit loss 3^2 / 3 = 3, slope (-2, 0, 0).

    The mean head says (4, 3, 1) / 8, at temperature 1. Class 0 against the rest: (1/2, 1/2) against the student's (1/3,
    2/3), slope in the student's log odds 1/3 - 1/2 = -1/6, so (-1/6, 1/12, 1/12) in the logits. Among the rest: (3/4,
    1/4) against (1/2, 1/2), slope (0, -1/4, 1/4). With alpha = 1/2 and beta = 2 the slopes add up to (-2, 0, 1).
    """
    uploaded, metrics = fit(tiny(LogitHeadClient, alpha=0.5, beta=2.0), sent())
    distance = log(3 / 2) / 2 + log(3 / 4) / 2 + 3 / 4 * log(3 / 2) + log(1 / 2) / 4
    assert metrics["train-loss"] == pytest.approx(log(3) + 0.5 * 3 + 2 * distance, rel=1e-6)
    assert metrics["distillation-loss"] == pytest.approx(distance, rel=1e-6)
    assert metrics["teacher-accuracy"] == 1
    np.testing.assert_allclose(uploaded["weight"], [[0.2, 0], [0, 0], [-0.1, 0]], atol=1e-7)
    np.testing.assert_allclose(uploaded["bias"], [0.2, 0, -0.1], atol=1e-7)
    assert (uploaded["logits"].tolist(), uploaded["counts"].tolist()) == (np.zeros((3, 3)).tolist(), [1, 0, 0])


def test_the_sum_of_heads_teaches_another_step_than_their_mean_unless_there_is_one():
    steps = {
        (heads, reduce): fit(tiny(LogitHeadClient, reduce=reduce), sent(heads=heads))[0]["weight"]
        for heads in (1, 2)
        for reduce in ("sum", "mean")
    }
    np.testing.assert_array_equal(steps[1, "sum"], steps[1, "mean"])
    np.testing.assert_array_equal(steps[1, "sum"], steps[2, "sum"])
    assert not np.array_equal(steps[2, "sum"], steps[2, "mean"])


@pytest.mark.parametrize(
    ("kind", "options", "known", "heads"),
    [
        (CHFLClient, {"alpha": 2.0, "reduce": "mean"}, False, 2),
        (FedHeClient, {"alpha": 0.5}, True, 0),
        (LocalClient, {}, False, 0),
    ],
)
def test_what_there_is_no_knowledge_of_is_not_taught(kind, options, known, heads):
    """Classes that the server knows nothing of, no head yet, or neither: the step of CHFL, of FedHe, of nobody."""
    both, alone = tiny(LogitHeadClient, alpha=0.5, beta=2.0), tiny(kind, **options)
    download = sent(known=known, heads=heads)
    _, metrics = fit(both, download)
    _, expected = fit(alone, download)
    assert metrics == expected
    for mine, theirs in zip(both.node.model.parameters(), alone.node.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_head_without_a_bias_is_refused(refusal):
    node = linear_node([[1.0]], [0], [[1.0], [0.0]])
    said = refusal(ModelError, LogitHeadClient, node)
    assert "its head has no bias, but logithead adds up heads with one" in said


# Whole runs


def run(make_config: Any, run_federation: Any, folder: Path, **keys: Any) -> tuple[Any, Any, Any]:
    """Three rounds of two passes over the data; return knowledge, models with moments, and what clients have said."""
    shared = {"models": "mlp,fixtures.models:normed", "width": 64, "partition": "classes:6", "batch_size": 60}
    passes = {"rounds": 3, "local_epochs": 2, "local_batches": 0}
    places = {"output_dir": str(folder), "state_dir": str(folder / "state")}
    run_federation(make_config(**{"algorithm": "logithead", **shared, **passes, **places, **keys}))
    states = [load_file(path) for path in sorted((folder / "state" / "run-7").glob("client-*.safetensors"))]
    said = [loads(line)["clients"] for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return load_file(folder / KNOWLEDGE_FILE), states, said


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_a_weight_of_0_leaves_the_other_parent_bit_for_bit(make_config, run_federation, tmp_path):
    """Models, batch norm and moments of unlike clients with dropout; all losses and accuracies; and of the knowledge,
    what the parent has: sums and uploads of FedHe, the heads of CHFL. Local training, where both are 0, knows nothing.
    """
    limits = {
        "fedhe": ({"logithead.beta": 0.0}, {}),
        "chfl": ({"logithead.alpha": 0.0}, {"chfl.reduce": "mean"}),
        "local": ({"logithead.alpha": 0.0, "logithead.beta": 0.0}, {}),
    }
    _, both, _ = run(make_config, run_federation, tmp_path / "both")
    for parent, (weights, keys) in limits.items():
        knowledge, states, said = run(make_config, run_federation, tmp_path / f"like {parent}", **weights)
        expected = run(make_config, run_federation, tmp_path / parent, algorithm=parent, **keys)
        assert same({name: knowledge[name] for name in expected[0]}, expected[0]), parent
        assert said == expected[2], parent
        assert len(states) == 2
        for mine, theirs, taught in zip(states, expected[1], both, strict=True):
            assert same(mine, theirs), parent
            assert not same(mine, taught), parent


def test_the_bytes_of_a_client_and_round(make_config, run_federation):
    """At C = 10 and D = 64: 480 + 2,600 up, 410 + 2,604 down."""
    folder = run_federation(make_config(algorithm="logithead", clients=1))
    rounds = [loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [(entry["bytes_up"], entry["bytes_down"]) for entry in rounds[1:]] == [(3080, 3014)] * 2
