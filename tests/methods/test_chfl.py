"""CHFL: its equations by hand, against slow reference loops."""

from math import cos, exp, log, pi
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import fit
from fixtures.federations.members import member, roster
from fixtures.federations.nodes import linear_node
from torch import Tensor, nn
from torch.nn import functional

from clients.chfl import CHFLClient
from hetfl_flwr.errors import ModelError
from hetfl_flwr.learning.training import draw_epochs
from hetfl_flwr.node.node import Node
from hetfl_flwr.seeding import generator, seeded
from hetfl_flwr.strategy import Upload
from simulations.testing.contract import entries
from simulations.testing.lab import NORMED
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


def head_of(client: CHFLClient) -> tuple[Any, Any]:
    head = client.node.model.head
    return head.weight.detach().numpy(), head.bias.detach().numpy()


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


# Against slow loops


def passes(node: Node, round: int) -> list[list[Tensor]]:
    config = node.config
    order = generator(config.seed, node.client_id, round, "batches")
    size, epochs, batches = config.batch_size, config.local_epochs, config.local_batches
    return list(draw_epochs(order, len(node.data.train), size, epochs=epochs, batches=batches))


def slow_loss_slope(student: Any, teacher: Any, y: int, temperature: float, alpha: float) -> Any:
    """The gradient of Eq. (5)-(6) in the student's logits, for one sample, class by class, in float64."""
    C = len(student)
    p = [exp(z) / sum(exp(other) for other in student) for z in student]
    slope = [p[c] - (c == y) for c in range(C)]
    if teacher is None:
        return np.array(slope)
    sure = [exp(z) / sum(exp(other) for other in teacher) for z in teacher]
    rest = [c for c in range(C) if c != y]
    soft = {c: exp(teacher[c] / temperature) / sum(exp(teacher[r] / temperature) for r in rest) for c in rest}
    for c in range(C):
        if c == y:
            slope[c] += alpha * (p[y] - sure[y])
        else:
            share = p[c] / (1 - p[y])
            slope[c] += alpha * ((sure[y] - p[y]) * share + share - soft[c])
    return np.array(slope)


@pytest.mark.parametrize(
    ("mode", "reduce", "keys"),
    [
        ("kd", "sum", {"local_batches": 0, "local_epochs": 2, "batch_size": 20}),
        ("kd", "mean", {"local_batches": 3, "batch_size": 30}),
        ("avgkd", "sum", {"local_batches": 3, "batch_size": 30}),
        ("avg", "sum", {"local_batches": 3, "batch_size": 30}),
    ],
)
def test_rounds_equal_a_loop_over_samples(mode, reduce, keys, halves, make_node):
    """Linear models in float64, sample by sample, with the gradients written out; three clients lack classes."""
    alpha, beta, rounds = 0.7, 3.0, 3
    sides = halves(
        algorithm="chfl",
        models=LINEAR,
        clients=3,
        partition="classes:6",
        test_fraction=0.8,
        rounds=rounds,
        optimizer="sgd",
        learning_rate=0.1,
        **keys,
        **{"chfl.mode": mode, "chfl.reduce": reduce, "chfl.alpha": alpha, "chfl.beta": beta},
    )
    config, nodes = sides.config, [make_node(sides.config, client_id) for client_id in range(3)]
    server_state, _ = sides.play(rounds)
    data = [node.data.train.batch(torch.arange(len(node.data.train))) for node in nodes]
    heads = [[t.detach().double().numpy().copy() for t in (n.model.head.weight, n.model.head.bias)] for n in nodes]
    for round in range(1, rounds + 1):
        total = [sum(head[part] for head in heads) for part in (0, 1)]
        for k, node in enumerate(nodes):
            if round > 1 and mode in ("avg", "avgkd"):
                heads[k] = [array / 3 for array in total]
            teacher = [array / (3 if reduce == "mean" else 1) for array in total]
            inputs, labels = data[k][0].flatten(1).double().numpy(), data[k][1].tolist()
            for number, batches in enumerate(passes(node, round)):
                share = (round - 1 + (number + 1) / config.local_epochs) if config.local_batches == 0 else round
                temperature = beta * (1 + cos(pi * share / rounds)) + 1
                for rows in batches:
                    steps = [np.zeros((10, 64)), np.zeros(10)]
                    for row in rows.tolist():
                        x, y = inputs[row], labels[row]
                        distillation = teacher[0] @ x + teacher[1] if round > 1 and mode in ("kd", "avgkd") else None
                        slope = slow_loss_slope(heads[k][0] @ x + heads[k][1], distillation, y, temperature, alpha)
                        steps[0] += np.outer(slope, x) / len(rows)
                        steps[1] += slope / len(rows)
                    heads[k] = [array - 0.1 * step for array, step in zip(heads[k], steps, strict=True)]
    for client, (weight, bias) in zip(sides.clients, heads, strict=True):
        np.testing.assert_allclose(head_of(client)[0], weight, rtol=1e-3, atol=2e-5)
        np.testing.assert_allclose(head_of(client)[1], bias, rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(server_state["weight"], sum(head[0] for head in heads), rtol=1e-3, atol=5e-5)
    np.testing.assert_allclose(server_state["bias"], sum(head[1] for head in heads), rtol=1e-3, atol=5e-5)
    assert server_state["heads"] == 3


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


@pytest.mark.parametrize("mode", ["kd", "avgkd"])
def test_the_teacher_is_fixed_within_an_epoch(mode, halves, make_node):
    """A loop by hand over a body with batch norm and dropout, beside another model. The global head's logits on all
    samples of an epoch are taken at its start, in evaluation mode. The optimizer's momentum goes on, save that of a
    head that is replaced. Two rounds of two epochs.
    """
    keys = {"local_batches": 0, "local_epochs": 2, "batch_size": 100, "optimizer": "sgd", "momentum": 0.9}
    sides = halves(
        algorithm="chfl",
        models=f"{NORMED},{LINEAR}",
        partition="classes:6",
        learning_rate=0.05,
        **keys,
        **{"chfl.mode": mode, "chfl.beta": 2.0, "chfl.reduce": "sum"},
    )
    config, nodes = sides.config, [make_node(sides.config, client_id) for client_id in range(2)]
    server_state, _ = sides.play(2)
    optimizers = [torch.optim.SGD(node.model.parameters(), lr=0.05, momentum=0.9) for node in nodes]
    heads: list[Any] = []
    for round in (1, 2):
        weight, bias = (sum(head[part] for head in heads) for part in (0, 1))
        heads = []
        for node, optimizer in zip(nodes, optimizers, strict=True):
            model, data = node.model, node.data.train
            with seeded(config.seed, node.client_id, round, "train"):
                if round == 2 and mode == "avgkd":
                    replace_head(model.head, weight / 2, bias / 2, optimizer)
                for number, batches in enumerate(passes(node, round), 1):
                    if round == 2:
                        with torch.no_grad():
                            features = model.eval().body(data.batch(torch.arange(len(data)))[0])
                            fixed = functional.linear(features, weight, bias)
                    model.train()
                    for rows in batches:
                        inputs, labels = data.batch(rows)
                        logits = model(inputs)
                        loss = functional.cross_entropy(logits, labels)
                        if round == 2:
                            temperature = 2.0 * (1 + cos(pi * (2 + number) / 4)) + 1
                            loss = loss + 0.5 * plain_distillation(logits, fixed[rows], labels, temperature)
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
            heads.append((model.head.weight.detach().clone(), model.head.bias.detach().clone()))
    for client, node in zip(sides.clients, nodes, strict=True):
        for key, tensor in client.node.model.state_dict().items():
            torch.testing.assert_close(tensor, node.model.state_dict()[key], rtol=1e-3, atol=1e-5, msg=key)
    torch.testing.assert_close(
        torch.from_numpy(server_state["weight"]), heads[0][0] + heads[1][0], rtol=1e-3, atol=1e-5
    )


def replace_head(head: nn.Linear, weight: Tensor, bias: Tensor, optimizer: torch.optim.Optimizer) -> None:
    for parameter, value in zip(head.parameters(), (weight, bias), strict=True):
        parameter.data.copy_(value)
        optimizer.state[parameter]["momentum_buffer"].zero_()


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
