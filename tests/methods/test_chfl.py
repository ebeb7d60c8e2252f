"""CHFL: its equations by hand, against a slow twin."""

from collections.abc import Iterator
from math import cos, log, pi
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import fit
from fixtures.federations.members import member, roster
from fixtures.federations.nodes import linear_node
from fixtures.twins import Twin, assert_near, descend
from torch import Tensor, nn
from torch.nn import functional

from clients.chfl import CHFLClient
from hetfl_flwr.errors import ModelError
from hetfl_flwr.learning.training import draw_epochs
from hetfl_flwr.node.node import Node
from hetfl_flwr.seeding import generator
from hetfl_flwr.strategy import Upload
from simulations.testing.contract import entries
from strategies.chfl import CHFL

LINEAR = "fixtures.models:linear"


# The server


def upload(client_id: int, weight: Any, bias: Any) -> Upload:
    return Upload(client_id, {"weight": np.float32(weight), "bias": np.float32(bias)}, samples=1 + client_id)


def test_the_server_adds_up_the_heads_of_the_last_round_whatever_their_samples():
    """Eq. (4): (1, 2) + (3, 5) = (4, 7). The next round has one head, and nothing is left of the two before."""
    strategy, clients = CHFL(), roster(2, classes=1, width=2)
    start = strategy.initial(clients)
    assert [start[name].tolist() for name in ("weight", "bias", "heads")] == [[[0, 0]], [0], 0]
    both = strategy.aggregate(start, [upload(0, [[1, 2]], [10]), upload(1, [[3, 5]], [20])], 1)
    one = strategy.aggregate(both, [upload(1, [[7, 8]], [9])], 1)
    for server_state, expected in ((both, [[[4, 7]], [30], 2]), (one, [[[7, 8]], [9], 1])):
        sent = strategy.download_for(member(0), server_state, 2)
        assert list(sent) == ["weight", "bias", "heads"]
        assert [array.dtype for array in sent.values()] == [np.float32, np.float32, np.int32]
        assert [array.tolist() for array in sent.values()] == expected


def test_small_heads_are_not_lost_beside_a_large_one():
    """Next to 1e6 float32 goes in steps of 1/16: 0.03 alone is rounded away, twice 0.03 is one step."""
    uploads = [upload(0, [[1e6]], [1e6]), upload(1, [[0.03]], [0.03]), upload(2, [[0.03]], [0.03])]
    server_state = CHFL().aggregate(CHFL().initial(roster(3, classes=1, width=1)), uploads, 1)
    assert (server_state["weight"].tolist(), server_state["bias"].tolist()) == ([[1e6 + 1 / 16]], [1e6 + 1 / 16])


# One step of a client, by hand


def small(inputs: Any, labels: list[int], *, body: nn.Module | None = None, rate: float = 0.1, **keys: Any) -> Node:
    """A node whose model has a head of all zeros and three classes, and whose round is one batch of all it has."""
    node = linear_node(inputs, labels, [[0.0, 0.0]] * 3, body=body, learning_rate=rate, **keys)
    node.model.head.bias = nn.Parameter(torch.zeros(3))
    return node


def learnt(client: CHFLClient, weight: Any, bias: Any, heads: int, *, round: int = 2) -> dict[str, Any]:
    uploaded, metrics = fit(client, [np.float32(weight), np.float32(bias), np.asarray(heads, np.int32)], round)
    for name, array in uploaded.items():
        np.testing.assert_array_equal(array, getattr(client.node.model.head, name).detach())
    return metrics


TEACHER = [[log(730), 0.0], [6 * log(3), 0.0], [0.0, 0.0]]
"""For the input (1, 0): odds of 730 to 729 to 1."""

ON_TARGET = log(3 / 2) / 2 + log(3 / 4) / 2
AMONG_REST = {6: 3 / 4 * log(3 / 2) + 1 / 4 * log(1 / 2), 1: 729 / 730 * log(2 * 729 / 730) + log(2 / 730) / 730}


@pytest.mark.parametrize(
    ("heads", "options", "rounds", "distillation"),
    [
        (1, {}, 4, (ON_TARGET + AMONG_REST[6]) / 2),
        (1, {"alpha": 2.0}, 4, 2 * (ON_TARGET + AMONG_REST[6])),
        (1, {}, 2, (ON_TARGET + AMONG_REST[1]) / 2),  # the last round: temperature 1
        (1, {"beta": 0.0}, 4, (ON_TARGET + AMONG_REST[1]) / 2),
        (2, {"reduce": "mean"}, 4, (ON_TARGET + AMONG_REST[6]) / 2),
    ],
)
def test_the_loss_of_one_step(heads, options, rounds, distillation):
    """Three equal samples of class 0. The student gives each class 1/3: cross-entropy ln 3, (true, rest) = (1/3, 2/3),
    the other two even. The teacher gives the true class 730 of 1460, a half: KL ln(3/2) / 2 + ln(3/4) / 2. Among the
    others it gives 729 to 1; at the temperature of round 2 of 4, 5 (1 + cos(pi / 2)) + 1 = 6, that is 3 to 1: KL
    3/4 ln(3/2) + 1/4 ln(1/2). At temperature 1: 729/730 ln(2 * 729/730) + 1/730 ln(2/730). alpha is 1/2.
    """
    client = CHFLClient(small([[1.0, 0.0]] * 3, [0] * 3, rounds=rounds), **options)
    metrics = learnt(client, np.multiply(TEACHER, heads), [0, 0, 0], heads)
    assert metrics["train-loss"] == pytest.approx(log(3) + distillation, rel=1e-5)


def test_how_often_the_teacher_is_right_is_reported():
    """Its largest logit is of class 2 for all samples, the student's first of class 0; two of three have label 2."""
    metrics = learnt(CHFLClient(small([[1.0, 0.0]] * 3, [2, 0, 2], rounds=4)), TEACHER[::-1], [0, 0, 0], 1)
    assert metrics["teacher-accuracy"] == pytest.approx(2 / 3)


def test_a_head_without_bias_is_refused_before_anything_is_sent(refusal):
    node = linear_node([[1.0, 0.0]], [0], [[0.0, 0.0]] * 3)
    assert "bias" in refusal(ModelError, CHFLClient, node)


# Both sides


@pytest.mark.parametrize(
    ("mode", "reduce", "keys"),
    [
        ("kd", "sum", {"local_batches": 0, "local_epochs": 2, "batch_size": 100}),
        ("kd", "mean", {"local_batches": 3, "batch_size": 30}),
        ("avgkd", "sum", {"local_batches": 0, "local_epochs": 2, "batch_size": 100}),
        ("avg", "sum", {"local_batches": 3, "batch_size": 30}),
    ],
)
def test_three_rounds_equal_a_slow_twin(mode, reduce, keys, halves):
    """Bodies with and without batch norm; three clients lack classes. The teacher's logits on all samples of an epoch
    are taken at its start, in evaluation mode. The optimizer's momentum goes on, save that of a head that is replaced.
    """
    alpha, beta, rounds = 0.7, 3.0, 3
    sides = halves(
        algorithm="chfl",
        models=f"fixtures.models:normed,{LINEAR}",
        clients=3,
        partition="classes:6",
        rounds=rounds,
        learning_rate=0.05,
        momentum=0.9,
        **keys,
        **{"chfl.mode": mode, "chfl.reduce": reduce, "chfl.alpha": alpha, "chfl.beta": beta},
    )
    twins, total = [Twin(node) for node in sides.nodes], {}
    for round in range(1, rounds + 1):
        mean = {name: array / 3 for name, array in total.items()}
        teacher = {} if mode == "avg" else mean if reduce == "mean" else total
        for twin in twins:
            if round > 1 and mode != "kd":
                twin.model.head.load_state_dict(mean)
                for parameter in twin.model.head.parameters():
                    twin.sgd.state.pop(parameter)
            for number, batches in enumerate(passes(twin, round), 1):
                share = (round - 1 + number / 2) if "local_epochs" in keys else round
                temperature = beta * (1 + cos(pi * share / rounds)) + 1
                with torch.no_grad():
                    features = twin.model.eval().body(twin.x)
                    fixed = functional.linear(features, **teacher) if teacher else None
                twin.model.train()
                for rows in batches:
                    logits, y = twin.model(twin.x[rows]), twin.y[rows]
                    loss = functional.cross_entropy(logits, y)
                    if fixed is not None:
                        loss = loss + alpha * plain_distillation(logits, fixed[rows], y, temperature)
                    descend(loss, twin.sgd)
        heads = [twin.model.head.state_dict() for twin in twins]
        total = {name: sum(head[name] for head in heads) for name in ("weight", "bias")}
    server_state, _ = sides.play(rounds)
    for node, twin in zip(sides.nodes, twins, strict=True):
        assert_near(node.model, twin.model, rtol=1e-3, atol=1e-5)
    for name, tensor in total.items():
        np.testing.assert_allclose(server_state[name], tensor, rtol=1e-3, atol=1e-5)
    assert server_state["heads"] == 3


def passes(twin: Twin, round: int) -> Iterator[list[Tensor]]:
    order, config = generator(twin.config.seed, twin.client_id, round, "batches"), twin.config
    own = {"epochs": config.local_epochs, "batches": config.local_batches}
    return draw_epochs(order, len(twin.y), config.batch_size, **own)


def plain_distillation(student: Tensor, teacher: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Eq. (6) by its words, softmax and logarithms and all."""
    terms = []
    for z, t, y in zip(student, teacher, labels.tolist(), strict=True):
        rest = [c for c in range(len(z)) if c != y]
        p, q = functional.softmax(t, 0), functional.softmax(z, 0)
        pair = p[y] * (p[y] / q[y]).log() + (1 - p[y]) * ((1 - p[y]) / (1 - q[y])).log()
        soft, given = functional.softmax(t[rest] / temperature, 0), functional.softmax(z[rest], 0)
        terms.append(pair + (soft * (soft / given).log()).sum())
    return torch.stack(terms).mean()


# Whole runs


@pytest.mark.parametrize("mode", ["kd", "avg", "avgkd"])
def test_clients_of_unlike_shapes_learn_together(mode, make_config, run_federation):
    """Digits in grey, 1 x 8 x 8, and in colour, 3 x 16 x 16; what each is taught is said from round 2 on."""
    data = {"dataset": "digits,digits-colour", "clients": 4, "partition": "dirichlet:0.5"}
    run = run_federation(
        make_config(algorithm="chfl", models="mlp,mlp,lenet5,tabular:2", **data, **{"chfl.mode": mode})
    )
    assert all(entry["failures"] == [] for entry in entries(run))
    told = ["teacher-accuracy" in entry["clients"]["3"] for entry in entries(run)]
    assert told == [False, False, mode in ("kd", "avgkd")]
