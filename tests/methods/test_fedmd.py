"""FedMD: its steps by hand, against a slow twin, its subsets and numbers."""

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.members import roster
from fixtures.federations.nodes import linear_node
from fixtures.twins import Twin, assert_near, descend
from torch import Tensor, nn
from torch.nn import functional

from clients.fedmd import FedMDClient
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, PayloadError
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.strategy import Upload
from hetfl_flwr.wire.messages import ROUND
from strategies.fedmd import FedMD

# The server: what it asks for and what it makes of the answers.


def serving(sizes: dict[int, int], public_samples: int = 5000, seed: int = 0) -> tuple[FedMD, Roster, Any]:
    """A strategy whose clients have shared so many public samples each, two classes; and what it knows at the start."""
    strategy, members = FedMD(public_samples=public_samples), roster(3, classes=2)
    server_state = strategy.prepare(members, RunConfig(seed=seed))
    share(members, sizes)
    return strategy, members, server_state


def share(members: Roster, sizes: dict[int, int]) -> None:
    members.public_samples = {
        client_id: {"inputs": np.zeros((rows, 2), np.float32), "labels": np.zeros(rows, np.int64)}
        for client_id, rows in sizes.items()
    }


def sent(strategy: FedMD, server_state: Any, round: int = 1) -> tuple[list[int], Any, list[int]]:
    """What a client is sent: the rows digested, the consensus on them, the rows asked for."""
    digested, consensus, asked = strategy.download_for(next(iter(strategy.roster)), server_state, round).values()
    return digested.tolist(), consensus.tolist(), asked.tolist()


@pytest.mark.parametrize(("public_samples", "rows"), [(1, 1), (8, 8), (9, 9), (10, 9), (5000, 9)])
def test_public_samples_is_the_size_of_a_subset_up_to_the_pool(public_samples, rows, refusal):
    """And of what each client must answer, exactly: a row less or more is refused by name."""
    strategy, members, server_state = serving({0: 4, 1: 5}, public_samples)
    assert len(sent(strategy, server_state)[2]) == rows
    spec = strategy.upload_spec(next(iter(members)))
    spec.check_named({"logits": np.zeros((rows, 2), np.float32)}, "client 0")
    for wrong in (rows - 1, rows + 1):
        answers = {"logits": np.zeros((wrong, 2), np.float32)}
        assert "'logits'" in refusal(PayloadError, spec.check_named, answers, "client 0")


def test_a_row_is_found_again_when_a_client_has_joined_in_between():
    """Rows 0, 1 of client 0 and 0 to 2 of client 2 were numbers 0 to 4; with four rows of client 1 between them, the
    latter are numbers 6 to 8. If client 0's are lost, only those of client 2 can be digested, as 4 to 6.
    """
    strategy, members, start = serving({0: 2, 2: 3})
    assert sent(strategy, start) == ([], [], [0, 1, 2, 3, 4])
    logits = np.arange(10.0).reshape(5, 2)
    server_state = strategy.aggregate(start, [Upload(0, {"logits": np.float32(logits)}, samples=1)], 1)
    assert sent(strategy, server_state) == ([0, 1, 2, 3, 4], logits.tolist(), [0, 1, 2, 3, 4])
    share(members, {0: 2, 1: 4, 2: 3})
    assert sent(strategy, server_state) == ([0, 1, 6, 7, 8], logits.tolist(), list(range(9)))
    share(members, {1: 4, 2: 3})
    assert sent(strategy, server_state) == ([4, 5, 6], logits[2:].tolist(), list(range(7)))
    share(members, {1: 4})
    assert sent(strategy, server_state) == ([], [], [0, 1, 2, 3])


# The client: `logits = W x` with W = [[1, 0], [0, 2]]. It has E1, of class 0, which is public sample 0; row 1 is
# another client's E2, of class 1. Its round is one step of SGD with rate 0.1.

E1, E2 = [1.0, 0.0], [0.0, 1.0]
NOTHING = ([], np.zeros((0, 2)))
BARE = {"pretrain_epochs": 0, "pretrain_private_epochs": 0}


def tiny(**keys: Any) -> FedMDClient:
    own = {key: keys.pop(key) for key in list(keys) if key.endswith("epochs") or key in ("consensus", "digest")}
    public_samples = {"inputs.1": np.array([E2], np.float32), "labels.1": np.array([keys.pop("theirs", 1)])}
    node = linear_node(
        [E1], [0], [[1.0, 0.0], [0.0, 2.0]], public=1, public_samples=public_samples, **{"batch_size": 2, **keys}
    )
    return FedMDClient(node, **own)


def fit(
    client: FedMDClient, digested: Any = NOTHING, asked: tuple[int, ...] = (0, 1), round: int = 1
) -> tuple[list[list[float]], dict[str, Any]]:
    """Let a client learn, and return the logits that it uploads and its metrics."""
    rows, consensus = digested
    download = [np.array(rows, np.int32), np.array(consensus, np.float32), np.array(asked, np.int32)]
    [logits], samples, metrics = client.fit(download, {ROUND: round})
    assert samples == len(client.node.data.train)
    assert metrics["samples-seen"] == len(client.own)
    return logits.tolist(), metrics


START = [[1.0, 0.0], [0.0, 2.0]]


def weight_of(client: FedMDClient) -> np.ndarray:
    return client.node.model.head.weight.detach().numpy()


CLOSE, FAR = 1 / (1 + exp(2)), 1 / (1 + exp(-2))
"""Softmax scores of the logits (0, 2) of E2, and in reverse order of (1, -1)."""


@pytest.mark.parametrize(
    ("options", "target", "loss", "slope"),
    [
        # KL has slope p - t: (CLOSE, FAR) less (FAR, CLOSE); and here FAR ln(FAR / CLOSE) + CLOSE ln(CLOSE / FAR)
        ({"digest": "kl"}, (1, -1), (FAR - CLOSE) * 2, CLOSE - FAR),
        ({"digest": "kl", "consensus": "softmax"}, (FAR, CLOSE), (FAR - CLOSE) * 2, CLOSE - FAR),
        ({"digest": "kl", "consensus": "softmax"}, (1, 0), -log(CLOSE), CLOSE - 1),
        # |p - t| is 0.9 - CLOSE for both classes; the slope of a score of two classes is the product of both
        ({"consensus": "softmax"}, (0.9, 0.1), 0.9 - CLOSE, -CLOSE * FAR),
    ],
)
def test_consensus_and_digest_by_hand(options, target, loss, slope):
    """Column 1 moves by 0.1 times the slope, which is opposite for the two classes; answers are of the same kind."""
    client = tiny(**BARE, **options)
    answers, metrics = fit(client, ([1], [target]))
    assert metrics["digest-loss"] == pytest.approx(loss, rel=1e-5)
    moved = weight_of(client)[:, 1]
    np.testing.assert_allclose(moved, [-0.1 * slope, 2 + 0.1 * slope], rtol=1e-5)
    scores = np.exp(moved) / np.exp(moved).sum()
    np.testing.assert_allclose(answers[1], scores if "consensus" in options else moved, rtol=1e-5)


def test_the_consensus_of_scores_sums_to_1_whatever_the_mean():
    """The mean as it is; the geometric median where two agree, and where three do not at all."""
    scores = [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5]]
    for robust, answers, expected in (
        ("none", scores, [1 / 3, 1.1 / 3, 0.3]),
        ("median", [*scores[:1] * 2, scores[1]], scores[0]),
        ("median", np.eye(3), [1 / 3] * 3),
    ):
        near = 1e-6 if robust == "none" else 1e-4  # the geometric median is found step by step
        strategy, members = FedMD(consensus="softmax"), roster(3, classes=3)
        start = strategy.prepare(members, RunConfig(robust=robust))
        share(members, {0: 1})
        uploads = [Upload(k, {"softmax": np.float32([one])}, samples=9**k) for k, one in enumerate(answers)]
        np.testing.assert_allclose(strategy.aggregate(start, uploads, 1)["consensus"], [expected], rtol=near)
        said = [array.name for array in strategy.upload_spec(next(iter(members))).arrays]
        assert said == ["softmax"]


def test_a_client_without_private_rows_is_refused(refusal):
    node = linear_node([E1], [0], START, public=1)
    assert "fedmd.private" in refusal(ConfigError, lambda: FedMDClient(node, private="without-public"))


def test_a_client_whose_first_round_is_a_late_one_pre_trains_and_digests_at_once():
    """Two passes on both public samples, one step to (1, -1) for E2, one step on E1."""
    client = tiny(pretrain_epochs=2, pretrain_private_epochs=0)
    twin = Twin(client.node)
    metrics = fit(client, ([1], [[1, -1]]), round=7)[1]
    public, labels = torch.eye(2).double(), torch.tensor([0, 1])
    for _ in range(2):
        descend(functional.cross_entropy(twin.model(public), labels), twin.sgd)
    digest_loss = (twin.model(public[1]) - torch.tensor([1, -1])).abs().mean()
    descend(digest_loss, twin.sgd)
    descend(functional.cross_entropy(twin.model(public[:1]), labels[:1]), twin.sgd)
    assert metrics["digest-loss"] == pytest.approx(float(digest_loss), rel=1e-6)
    assert_near(client.node.model, twin.model, rtol=1e-6, atol=1e-8)


def test_digesting_and_cross_entropy_have_moments_of_their_own_that_go_on():
    """Steps of Adam after two rounds: 2 + 1 of pre-training and 2 of revisits; and 1 of digesting, from round 2 on."""
    client = tiny(pretrain_epochs=2, pretrain_private_epochs=1, optimizer="adam")
    fit(client)
    fit(client, ([0, 1], np.zeros((2, 2))), round=2)
    tensors = client.node.read_state().tensors
    assert (float(tensors["optimizer.0.step"]), float(tensors["digest.0.step"])) == (5, 1)
    fit(client, ([0, 1], np.zeros((2, 2))), round=3)
    tensors = client.node.read_state().tensors
    assert (float(tensors["optimizer.0.step"]), float(tensors["digest.0.step"])) == (6, 2)


@pytest.mark.parametrize(("body", "trained"), [(nn.BatchNorm1d(2), 2), (nn.Dropout(0.9), None)])
def test_answers_are_in_evaluation_mode_and_all_training_is_not(body, trained):
    """Batch norm counts the batches that it has trained on: one digested, one revisited, and no answer."""
    node = linear_node([E1, E2, E1], [0, 1, 0], START, public=3, body=body)
    client = FedMDClient(node, **BARE)
    logits, _ = fit(client, ([0, 1, 2], np.ones((3, 2))), asked=(0, 1, 2))
    if trained is not None:
        assert int(body.num_batches_tracked) == trained
    node.model.eval()
    expected = node.model(torch.tensor([E1, E2, E1])).detach()
    np.testing.assert_allclose(logits, expected, rtol=1e-6)


# Both sides.


@pytest.mark.parametrize("private", ["with-public", "without-public"])
def test_three_rounds_equal_a_slow_twin(private, halves):
    """Algorithm 1 with absent classes and a part of the public samples in each round; three rounds, of which two
    digest. Own rows, the first ones of which are public, are pre-trained on and revisited with these or without."""
    own = {"pretrain-epochs": 2, "pretrain-private-epochs": 1, "digest-epochs": 2, "private": private}
    sides = halves(
        algorithm="fedmd",
        models="fixtures.models:linear",
        partition="classes:3",
        clients=3,
        batch_size=7,
        learning_rate=0.05,
        **{"fedmd.public-samples": 31, **{f"fedmd.{key}": value for key, value in own.items()}},
    )
    twins = [Twin(node) for node in sides.nodes]
    public = [torch.cat(parts) for parts in zip(*(twin.public for twin in twins), strict=True)]
    for twin in twins if private == "without-public" else ():
        shared = len(twin.public[1])
        assert torch.equal(twin.x[:shared], twin.public[0])
        twin.x, twin.y = twin.x[shared:], twin.y[shared:]

    def classify(twin: Twin, x: Tensor, y: Tensor, *draw: Any, **passes: int) -> None:
        for rows in twin.rows(*draw, of=len(y), **passes):
            descend(functional.cross_entropy(twin.model(x[rows]), y[rows]), twin.sgd)

    asked, consensus = torch.zeros(0, dtype=torch.int64), torch.zeros(0, 10)
    for round in (1, 2, 3):
        digested, answers = asked, []
        draw = generator(sides.config.seed, round, "public").choice(len(public[1]), 31, replace=False)
        asked = torch.from_numpy(np.sort(draw))
        for twin in twins:
            if round == 1:
                classify(twin, *public, round, "pretrain", epochs=2)
                classify(twin, twin.x, twin.y, round, "pretrain-private", epochs=1)
            for rows in twin.rows(round, "digest", of=31, epochs=2) if round > 1 else ():
                logits = twin.model(public[0][digested[rows]])
                descend((logits - consensus[rows]).abs().mean(), twin.sgd)
            classify(twin, twin.x, twin.y, round)
            answers.append(twin.model(public[0][asked]).detach())
        consensus = torch.stack(answers).mean(0)
    known, _ = sides.play(3)
    np.testing.assert_allclose(known["consensus"], consensus, rtol=1e-4, atol=1e-5)
    for node, twin in zip(sides.nodes, twins, strict=True):
        assert_near(node.model, twin.model)
