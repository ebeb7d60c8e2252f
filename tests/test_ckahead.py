"""CKAHead: one step by hand, and without one of its teachers it is FedHeNN or CHFL, bit for bit."""

from json import loads
from math import log, sqrt
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
from clients.ckahead import CKAHeadClient
from clients.fedhenn import FedHeNNClient
from clients.local import LocalClient
from hetfl_flwr.checkpoint import KNOWLEDGE_FILE
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import FederationError, ModelError
from hetfl_flwr.federation import ROUND, Roster
from strategies.base import Upload
from strategies.ckahead import CKAHead

CROSS = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]
"""Four samples, centred; their first column is orthogonal to their second, each of squared length 2."""

# The server


def server(rows: dict[int, int]) -> CKAHead:
    """A strategy before round 1, whose clients have shared so many rows."""
    strategy, members = CKAHead(rad_size=8), roster(1, public=9, shape=(1,), classes=1, width=2)
    strategy.prepare(members, RunConfig())
    members.seeds = {partition: {"inputs": np.zeros((count, 1))} for partition, count in rows.items()}
    return strategy


def upload(partition: int, rows: Any, weight: Any, bias: Any) -> Upload:
    arrays = {"representations": rows, "weight": weight, "bias": bias}
    return Upload(partition, {name: np.float32(array) for name, array in arrays.items()}, samples=1 + partition)


def test_the_mean_kernel_and_the_sum_of_heads_by_hand():
    """K_mean = (a a^T + b b^T) / 2 with a = (1, 0, -1, 0) and b = (0, 3, 0, -3), orthogonal: eigenvalues 1 and 9, so b
    comes first; scaled to a largest entry of 1, b becomes b / 3 and a becomes a / 3. Offsets of 5 and -2 are gone.
    Heads: (1, 2) + (3, 5) = (4, 7). The round after has one client, and nothing is left of the two before.
    """
    strategy = server({0: 4})
    start = strategy.initial(roster(1, classes=1, width=2))
    a, b = np.array([[1.0], [0.0], [-1.0], [0.0]]), np.array([[0.0], [3.0], [0.0], [-3.0]])
    both = strategy.absorb(start, [upload(0, a + 5, [[1, 2]], [10]), upload(1, b - 2, [[3, 5]], [20])])
    one = strategy.absorb(both, [upload(1, a, [[7, 8]], [9])])
    for knowledge, factor, weight, bias, heads in (
        (start, np.zeros((0, 0)), [[0, 0]], [0], 0),
        (both, [[0, 1 / 3], [1, 0], [0, -1 / 3], [-1, 0]], [[4, 7]], [30], 2),
        (one, a, [[7, 8]], [9], 1),
    ):
        sent = strategy.download_for(member(0), knowledge, 2)
        assert list(sent) == ["aligned", "factor", "asked", "weight", "bias", "heads"]
        np.testing.assert_allclose(sent["factor"], factor, atol=1e-6)
        assert [sent[name].tolist() for name in ("weight", "bias", "heads")] == [weight, bias, heads]


def test_what_is_asked_for_is_aligned_on_next_also_where_others_join():
    """Clients 0 and 2 have rows 0 .. 4 and 5 .. 9; then client 1 joins, and the rows of client 2 are five further."""
    strategy = server({0: 5, 2: 5})
    knowledge = strategy.initial(roster(1, classes=1, width=2))
    asked = strategy.download_for(member(0), knowledge, 1)["asked"]
    assert len(set(asked.tolist())) == 8
    knowledge = strategy.absorb(knowledge, [upload(0, np.eye(8, 2), [[0, 0]], [0])])
    sent = strategy.download_for(member(0), knowledge, 2)
    np.testing.assert_array_equal(sent["aligned"], asked)
    assert sent["asked"].tolist() != asked.tolist()
    strategy.roster.seeds = {partition: {"inputs": np.zeros((5, 1))} for partition in (0, 1, 2)}
    np.testing.assert_array_equal(strategy.download_for(member(0), knowledge, 2)["aligned"], asked + 5 * (asked > 4))


@pytest.mark.parametrize(
    ("fields", "unlike", "said"),
    [
        (
            {},
            {"width": 7},
            "ckahead needs the same embedding width of all clients: client 0 (linear) has",
        ),
        ({}, {"classes": 7}, "the clients must have the same number of classes"),
        ({}, {"shape": (7,)}, "the clients must have inputs of the same shape"),
        ({}, {"public": 0}, "ckahead needs public samples of each client, but client 1 has none"),
        ({"public": 2}, {"public": 1}, "ckahead aligns on 4 public samples or more, but all clients together have 3"),
    ],
)
def test_clients_that_cannot_share_are_refused(fields, unlike, said, refusal):
    clients = Roster([member(0, **{"public": 9, **fields}), member(1, **{"public": 9, **fields, **unlike})])
    assert said in refusal(FederationError, CKAHead().check, clients)


# One step of a client, by hand


def tiny(kind: type, **options: Any) -> Any:
    """A client whose samples and pool are CROSS, whose body is the identity and whose head is 0, in round 5 of 5."""
    body = nn.Linear(2, 2, bias=False)
    body.weight.data = torch.eye(2)
    node = linear_node(CROSS, [0, 1, 0, 1], [[0.0, 0.0]] * 2, public=4, body=body, rounds=5)
    node.model.head.bias = nn.Parameter(torch.zeros(2))
    return kind(node, **options)


def fit(client: Any, download: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    names = client.download_spec().names
    uploaded, _, metrics = client.fit([download[name] for name in names], {ROUND: 5})
    return dict(zip(client.upload_spec().names, uploaded, strict=True)), metrics


def sent(*, rows: int = 4, heads: int = 2) -> dict[str, Any]:
    """The factor (1, 0, -1, 0) over CROSS, and two heads whose mean says (ln 3, 0) of any sample."""
    kernel = {
        "aligned": np.arange(rows, dtype=np.int32),
        "factor": np.float32([[1], [0], [-1], [0]])[:rows, : rows > 0],
    }
    head = {"weight": np.zeros((2, 2), np.float32), "bias": np.float32([2 * log(3), 0])}
    return {**kernel, "asked": np.array([2, 1], np.int32), **head, "heads": np.array(heads, np.int32)}


def test_one_step_of_both_teachers_by_hand():
    """Logits are 0 for a body and head as these: cross-entropy is ln 2, and moves nothing, each class having a mean of
    0. With body diag(a, b), CKA is a^2 / sqrt(a^4 + b^4), 1 / sqrt 2 here, with slopes 1 / sqrt 2 in a and -1 / sqrt 2
    in b; eta(t) = 0.5 sqrt(4) = 1. A head of 0 passes no slope on to the body, so the other term moves the head alone:
    the teacher's (3/4, 1/4) against (1/2, 1/2), whatever the class, has slope (-1/4, 1/4) in the logits of each
    sample, which is that in the bias; in the weight the samples' sum, 0. The step is 0.1, alpha 2.
    """
    uploaded, metrics = fit(client := tiny(CKAHeadClient, eta0=0.5, alpha=2.0), sent())
    distance = 3 / 4 * log(3 / 2) + log(1 / 2) / 4
    assert metrics["train-loss"] == pytest.approx(log(2) + (1 - 1 / sqrt(2)) + 2 * distance, rel=1e-6)
    assert (metrics["eta"], metrics["cka"]) == (1, pytest.approx(1 / sqrt(2)))
    assert (metrics["distillation-loss"], metrics["teacher-accuracy"]) == (pytest.approx(distance, rel=1e-6), 0.5)
    step = 0.1 / sqrt(2)
    body = client.node.model.body.weight.detach()
    np.testing.assert_allclose(body, [[1 + step, 0], [0, 1 - step]], atol=1e-7)
    np.testing.assert_allclose(uploaded["bias"], [0.05, -0.05], atol=1e-7)
    np.testing.assert_allclose(uploaded["weight"], np.zeros((2, 2)), atol=1e-7)
    np.testing.assert_allclose(uploaded["representations"], [[-1 - step, 0], [0, 1 - step]], atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "options", "rows", "heads"),
    [
        (CHFLClient, {"alpha": 2.0, "reduce": "mean"}, 0, 2),
        (FedHeNNClient, {"eta0": 0.5}, 4, 0),
        (LocalClient, {}, 0, 0),
    ],
)
def test_what_there_is_no_knowledge_of_is_not_taught(kind, options, rows, heads):
    """No kernel yet, no head yet, or neither: the step of CHFL, of FedHeNN, of nobody."""
    both, alone = tiny(CKAHeadClient, eta0=0.5, alpha=2.0), tiny(kind, **options)
    download = sent(rows=rows, heads=heads)
    _, metrics = fit(both, download)
    _, expected = fit(alone, download)
    assert metrics == {"eta": 1, **expected}
    for mine, theirs in zip(both.node.model.parameters(), alone.node.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_head_without_a_bias_is_refused(refusal):
    said = refusal(ModelError, CKAHeadClient, linear_node([[1.0]], [0], [[1.0], [0.0]]))
    assert "its head has no bias, but ckahead adds up heads with one" in said


# Whole runs


def run(make_config: Any, run_federation: Any, folder: Path, **keys: Any) -> tuple[Any, Any, Any]:
    """Three rounds of two passes over the data; return knowledge, models with moments, and what clients have said."""
    shared = {"models": "mlp,fixtures.models:normed", "width": 64, "partition": "classes:6", "batch_size": 60}
    passes = {"rounds": 3, "local_epochs": 2, "local_batches": 0}
    places = {"output_dir": str(folder), "state_dir": str(folder / "state")}
    run_federation(make_config(**{"algorithm": "ckahead", **shared, **passes, **places, **keys}))
    states = [load_file(path) for path in sorted((folder / "state" / "run-7").glob("client-*.safetensors"))]
    said = [loads(line)["clients"] for line in (folder / "rounds.jsonl").read_text().splitlines()]
    without_eta = [{client: {**one, "eta": None} for client, one in entry.items()} for entry in said]
    return load_file(folder / KNOWLEDGE_FILE), states, without_eta


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_a_weight_of_0_leaves_the_other_parent_bit_for_bit(make_config, run_federation, tmp_path):
    """Models, batch norm and moments of unlike clients with dropout; all losses and accuracies; and of the knowledge,
    what the parent has, but for a share that ckahead does not keep. Local training, where both are 0, knows nothing.
    """
    limits = {
        "fedhenn": ({"ckahead.alpha": 0.0, "ckahead.eta0": 1.0}, {"fedhenn.eta0": 1.0}),
        "chfl": ({"ckahead.eta0": 0.0}, {"chfl.reduce": "mean"}),
        "local": ({"ckahead.alpha": 0.0, "ckahead.eta0": 0.0}, {}),
    }
    _, both, _ = run(make_config, run_federation, tmp_path / "both", **{"ckahead.eta0": 1.0})
    for parent, (weights, keys) in limits.items():
        knowledge, states, said = run(make_config, run_federation, tmp_path / f"like {parent}", **weights)
        expected = run(make_config, run_federation, tmp_path / parent, algorithm=parent, **keys)
        theirs = {name: array for name, array in expected[0].items() if name != "kept"}
        assert same({name: knowledge[name] for name in theirs}, theirs), parent
        assert said == expected[2], parent
        assert len(states) == 2
        for mine, theirs, taught in zip(states, expected[1], both, strict=True):
            assert same(mine, theirs), parent
            assert not same(mine, taught), parent


def test_the_bytes_of_a_client_and_round(make_config, run_federation):
    """At C = 10, D = 64, R = 20: 4 R D + 2,600 up. Down 2,604, and 4 R; from round 2 on also 4 R (r + 1), r = 19."""
    folder = run_federation(make_config(algorithm="ckahead", clients=1, **{"ckahead.rad-size": 20}))
    rounds = [loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [(entry["bytes_up"], entry["bytes_down"]) for entry in rounds[1:]] == [(7720, 2684), (7720, 4284)]
