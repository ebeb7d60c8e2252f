"""FedH2L: its equations by hand, against a slow reference loop."""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import fit, share
from fixtures.federations.members import member, roster
from fixtures.federations.nodes import linear_node
from fixtures.twins import Twin, assert_near
from torch import Tensor
from torch.nn import functional

from clients.agg import AGGClient
from clients.fedh2l import FedH2LClient
from clients.local import LocalClient
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, PayloadError
from hetfl_flwr.methods import build_client
from hetfl_flwr.node.node import Node
from hetfl_flwr.seeding import generator
from hetfl_flwr.strategy import Upload
from hetfl_flwr.wire.messages import ROUND
from simulations.testing.contract import entries
from simulations.testing.lab import NORMED
from strategies import fedh2l
from strategies.fedh2l import FedH2L

# The server


def drawn(strategy: FedH2L, client_id: int, round: int) -> list[int]:
    """The teachers of one of six clients; client k is right about k / 8 of its rows, and teaches on row k."""
    uploads = [
        Upload(k, {"indices": np.int32([k]), "posteriors": np.float32([[1, 0, 0]]), "accuracy": np.float32(k / 8)}, 1)
        for k in range(6)
    ]
    sent = strategy.download_for(member(client_id), strategy.aggregate({}, uploads, 1), round)
    teachers: list[int] = sent["teachers"].tolist()
    assert sent["indices"].tolist() == teachers
    assert sent["accuracies"].tolist() == [teacher / 8 for teacher in teachers]
    return teachers


def test_some_teachers_are_drawn_by_client_and_round():
    strategy = FedH2L(teachers=2)
    strategy.config = RunConfig(seed=3)
    by_client = [[drawn(strategy, client_id, round) for round in range(2, 32)] for client_id in (0, 3)]
    for own, rounds in zip((0, 3), by_client, strict=True):
        assert all(len(set(teachers)) == 2 and teachers == sorted(teachers) for teachers in rounds)
        assert {teacher for teachers in rounds for teacher in teachers} == set(range(6)) - {own}
        assert sum(one != other for one, other in pairwise(rounds)) > 15
    peers = [1, 2, 3, 4, 5], [0, 1, 2, 4, 5]
    places = [[[known.index(one) for one in some] for some in of] for known, of in zip(peers, by_client, strict=True)]
    assert places[0] != places[1]
    again = FedH2L(teachers=2)
    again.config = strategy.config
    assert [drawn(again, 0, round) for round in range(2, 32)] == by_client[0]
    again.config = RunConfig(seed=4)
    assert [drawn(again, 0, round) for round in range(2, 32)] != by_client[0]
    again.teachers = 9
    assert drawn(again, 2, 2) == [0, 1, 3, 4, 5]


# One global step, by hand


def small(own: Any, labels: list[int], theirs: dict[int, Any], **keys: Any) -> Node:
    """Client 0 with W = 0, two classes; one round is one batch of all rows it may use, one SGD step of rate 0.1."""
    public_samples = {f"inputs.{client_id}": np.float32(rows) for client_id, (rows, _) in theirs.items()}
    public_samples |= {f"labels.{client_id}": np.int64(labels) for client_id, (_, labels) in theirs.items()}
    settings = {"public": len(labels), "clients": 4, "batch_size": 8, **keys}
    return linear_node(own, labels, [[0.0] * len(own[0])] * 2, public_samples=public_samples, **settings)


def relay(*signals: tuple[int, float, list[int], Any]) -> list[np.ndarray]:
    """Return the download of some teachers' (partition, accuracy, indices, posteriors), for two classes."""
    return [
        np.array([one[0] for one in signals], np.int32),
        np.array([one[1] for one in signals], np.float32),
        np.array([len(one[2]) for one in signals], np.int32),
        np.array([row for one in signals for row in one[2]], np.int32),
        np.array([row for one in signals for row in one[3]], np.float32).reshape(-1, 2),
    ]


def weight(client: Any) -> Any:
    return client.node.model.head.weight.detach().numpy()


E1, E2, BOTH = [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]


@pytest.mark.parametrize(("optimizers", "eta"), [("one", 0.0), *product(("two", "sgd"), (0.02, 0.0))])
def test_the_global_step_has_the_optimizer_of_the_local_one_or_its_own(optimizers, eta):
    """Four rounds against autograd and optimizers of torch's own: AMSGrad at 0.1 with decay for the local step; for the
    global one the same, or a second AMSGrad or plain SGD, without decay, at eta (0: as the local one). The teacher says
    of the row (1, 1) the opposite of what the client learns of its own row. The client is built anew each round.
    """
    keys = {"optimizer": "amsgrad", "momentum": 0.5, "weight_decay": 0.3}
    own = [1.0, 0.5]
    node = small([own], [0], {1: ([BOTH], [1])}, **keys)
    matrix = torch.zeros(2, 2, requires_grad=True)
    local = torch.optim.Adam([matrix], lr=0.1, weight_decay=0.3, amsgrad=True)
    second = {
        "one": local,
        "two": torch.optim.Adam([matrix], lr=eta or 0.1, amsgrad=True),
        "sgd": torch.optim.SGD([matrix], lr=eta or 0.1),
    }[optimizers]
    target, g_loc, conflicts = torch.tensor([[0.1, 0.9]]), torch.zeros(2, 2), 0
    for round in (1, 2, 3, 4):
        client = FedH2LClient(node, public_labels=False, optimizers=optimizers, eta=eta)
        fit(client, relay(*([] if round == 1 else [(1, 1.0, [0], target.tolist())])), round)
        if round > 1:
            logits = torch.tensor([BOTH]) @ matrix.T
            [g_pub] = torch.autograd.grad((target * (target.log() - logits.log_softmax(1))).sum(), [matrix])
            along = (g_pub * g_loc).sum()
            conflicts += int(along < 0)
            matrix.grad = g_pub - min(along, torch.zeros(())) / g_loc.square().sum() * g_loc
            second.step()
        logits = torch.tensor([own]) @ matrix.T
        [g_loc] = torch.autograd.grad(functional.cross_entropy(logits, torch.tensor([0])), [matrix])
        matrix.grad = g_loc
        local.step()
        np.testing.assert_allclose(weight(client), matrix.detach(), rtol=1e-4, atol=1e-6)
    assert conflicts > 0
    saved = node.read_state().tensors
    assert float(saved["optimizer.0.step"]) == (7 if optimizers == "one" else 4)
    assert ("global.0.step" in saved) is (optimizers == "two")


# Against a slow loop, and the limits


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "E = 2": {"exchange_every": 2},
    "unlabelled": {"public_labels": False},
    "no KL": {"kl": False},
    "no projection": {"projection": "none"},
    "PCGrad": {"projection": "pcgrad"},
    "PCGrad, E = 2": {"projection": "pcgrad", "exchange_every": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_three_rounds_equal_a_slow_twin(case, halves):
    """Algorithm 1 as it is printed: batch norm over the rows of all teachers, absent classes, weight decay, and a
    client with fewer public rows than a batch."""
    options = CASES[case]
    sides = halves(
        algorithm="fedh2l",
        models="fixtures.models:normed",
        clients=3,
        partition="classes:3",
        batch_size=40,
        learning_rate=0.3,
        weight_decay=0.01,
        **{f"fedh2l.{key.replace('_', '-')}": value for key, value in options.items()},
    )
    twins = [Teacher(node) for node in sides.nodes]
    conflicts = slow_fedh2l(twins, rounds=3, **options)
    assert any(conflicts)
    assert len({len(twin.said[0]) for twin in twins}) > 1

    server_state, said = sides.play(3)
    for client, twin in zip(sides.clients, twins, strict=True):
        assert_near(client.node.model, twin.model)
        _, _, posteriors, accuracy = twin.said
        found = {name: server_state[f"{name}.{twin.client_id:06d}"] for name in ("posteriors", "accuracy")}
        np.testing.assert_allclose(found["posteriors"], posteriors, rtol=1e-4, atol=1e-5)
        assert float(found["accuracy"]) == pytest.approx(float(accuracy))
    if options.get("projection") != "none":
        assert [one["projected"] for one in said] == [0.0] * 3 + [float(conflict) for conflict in conflicts]


class Teacher(Twin):
    """A client, its last signal, and the gradients of its last local steps."""

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.cat([one.ravel() for one in torch.autograd.grad(loss, list(self.model.parameters()))])

    def along(self, update: Tensor) -> None:
        parameters = list(self.model.parameters())
        for one, part in zip(parameters, update.split([one.numel() for one in parameters]), strict=True):
            one.grad = part.view_as(one)
        self.sgd.step()

    def teach(self, round: int) -> None:
        """Draw public rows; keep them, the posteriors on them in evaluation mode, and how many of these are right."""
        (x, y), size = self.public, min(self.config.batch_size, len(self.public[1]))
        rows = generator(self.config.seed, self.client_id, round, "seeds").choice(len(y), size, replace=False)
        with torch.no_grad():
            posteriors = self.model.eval()(x[rows]).softmax(1)
        self.model.train()
        self.said = x[rows], y[rows], posteriors, (posteriors.argmax(1) == y[rows]).double().mean()


def slow_fedh2l(
    twins: list[Teacher],
    rounds: int,
    *,
    exchange_every: int = 1,
    public_labels: bool = True,
    kl: bool = True,
    projection: str = "qp",
) -> list[bool]:
    """Train, up to the exchange of the last round; return which global steps met a conflict."""
    conflicts, g_loc = [], dict[Teacher, Tensor]()
    for round in range(1, rounds + 1):
        for twin in twins:
            known = [(twin.x, twin.y), *(peer.public for peer in twins if public_labels and peer is not twin)]
            x, y = (torch.cat(parts) for parts in zip(*known, strict=True))
            g_loc[twin] = torch.zeros(())
            for rows in twin.rows(round, of=len(y), epochs=1, batches=exchange_every):
                g = twin.gradient(functional.cross_entropy(twin.model(x[rows]), y[rows]))
                twin.along(g)
                g_loc[twin] = g_loc[twin] + g
            twin.teach(round)
        for twin in twins if round < rounds else ():
            said = [peer.said for peer in twins if peer is not twin]
            log_q = twin.model(torch.cat([x for x, *_ in said])).log_softmax(1).split([len(y) for _, y, *_ in said])
            g_pub, g = 0.0, g_loc[twin]
            for (_, y, p, accuracy), log in zip(said, log_q, strict=True):
                g_pub = g_pub + kl * accuracy * (p * (p.log() - log)).sum(1).mean() / len(said)
                g_pub = g_pub + public_labels * functional.nll_loss(log, y) / len(said)
            update = g_pub = twin.gradient(g_pub)
            along = g_pub @ g
            if along < 0 and projection != "none":
                update = g_pub - along / (g @ g) * g
            if projection == "pcgrad":
                update = update + g - min(along, 0) / (g_pub @ g_pub) * g_pub
            twin.along(update)
            conflicts.append(bool(along < 0))
    return conflicts


@pytest.mark.parametrize(("labelled", "simpler"), [(True, AGGClient), (False, LocalClient)])
def test_without_signals_it_is_training_on_all_rows_that_have_labels(labelled, simpler, make_config, make_node):
    config = make_config(clients=3, models=NORMED, local_batches=2)
    one, other = make_node(config), make_node(config)
    others = [make_node(config, client_id) for client_id in (1, 2)]
    share([one, *others], labelled=labelled)
    share([other, *others], labelled=labelled)
    nothing = [*relay()[:4], np.zeros((0, 10), np.float32)]
    for round in (1, 2, 3):
        _, metrics = fit(FedH2LClient(one, exchange_every=2, public_labels=labelled), nothing, round)
        simple = simpler(other).fit([], {ROUND: round})[2]
        assert (metrics["samples-seen"], metrics["train-loss"]) == (simple["samples-seen"], simple["train-loss"])
        assert (metrics["peers"], metrics["projected"], metrics["public-loss"]) == (0, 0.0, 0.0)
    for key, tensor in other.model.state_dict().items():
        assert torch.equal(one.model.state_dict()[key], tensor), key


# Runs


def test_where_all_peers_fail_the_client_goes_on_alone(make_config, run_federation, monkeypatch):
    learn, said = FedH2LClient.learn, []
    monkeypatch.setattr(fedh2l, "log", lambda level, text, *values: said.append(text % values))

    def broken(self, download, round):
        if self.node.client_id == 1 and round == 2:
            raise RuntimeError("no power")
        return learn(self, download, round)

    monkeypatch.setattr(FedH2LClient, "learn", broken)
    rounds = entries(run_federation(make_config(algorithm="fedh2l", models="mlp", rounds=4)))
    assert [entry["clients"]["0"]["peers"] for entry in rounds[1:]] == [0, 1, 0, 1]
    assert [entry["clients"]["1"].get("peers") for entry in rounds[1:]] == [0, None, 1, 1]
    [line] = said
    assert line.startswith("client 0 (mlp), round 3: ")


# Refusals


RELAYED = {1: ([E1, E2], [0, 1]), 3: ([E2], [1])}


@pytest.mark.parametrize(
    ("signals", "change", "said"),
    [
        (((2, 1.0, [0], [[1, 0]]),), {}, "teacher 2"),
        (((0, 1.0, [0], [[1, 0]]),), {}, "teacher 0"),
        (((1, 1.0, [1], [[1, 0]]), (3, 1.0, [1], [[1, 0]])), {}, "'indices'"),
        (((1, 1.0, [0, 1], [[1, 0], [1, 0]]),), {2: [1]}, "'sizes'"),
        (((1, 1.0, [0], [[1, 0]]),), {1: [1.25]}, "'accuracies'"),
    ],
)
def test_relayed_signals_that_make_no_sense_are_refused(signals, change, said, refusal):
    download = relay(*signals)
    for position, values in change.items():
        download[position] = np.array(values, download[position].dtype)
    client = FedH2LClient(small([E1], [0], RELAYED))

    def act() -> None:
        spec = client.download_spec()
        client.fit(list(spec.check_named(dict(zip(spec.names, download, strict=True)), "server").values()), {ROUND: 2})

    assert said in refusal(PayloadError, act)
    assert client.node.read_state() is None


@pytest.mark.parametrize(
    ("keys", "named"),
    [({"kl": False, "public-labels": False}, "public-labels = false"), ({"eta": 0.01}, "eta = 0.01")],
)
def test_nothing_to_learn_from_peers_and_a_rate_without_an_optimizer_are_refused(
    keys, named, make_config, make_node, refusal
):
    config = make_config(algorithm="fedh2l", **{f"fedh2l.{key}": value for key, value in keys.items()})
    assert named in refusal(ConfigError, build_client, config, make_node(config))


def test_a_client_teaches_on_the_rows_that_it_has_shared_whatever_it_says():
    """They are fewer than a batch."""
    strategy = FedH2L()
    strategy.config, strategy.roster = RunConfig(batch_size=8), roster(1, public=300, classes=2)
    strategy.roster.public_samples = {0: {"inputs": np.zeros((4, 2), np.float32)}}
    indices, posteriors, _ = strategy.upload_spec(next(iter(strategy.roster))).arrays
    assert (indices.shape, indices.maximum, posteriors.shape) == ((4,), 3, (4, 2))
