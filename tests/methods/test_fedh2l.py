"""FedH2L: its equations by hand, against a slow reference loop."""

from itertools import pairwise
from math import log
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import Linear, fit, rows_of, share, softmax
from fixtures.federations.members import member, roster
from fixtures.federations.nodes import linear_node
from torch import Tensor, nn
from torch.nn import functional

from clients.agg import AGGClient
from clients.fedh2l import FedH2LClient
from clients.local import LocalClient
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import ConfigError, PayloadError
from hetfl_flwr.learning.training import draw_batches
from hetfl_flwr.methods import build_client
from hetfl_flwr.node.node import Node
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.strategy import Upload
from hetfl_flwr.wire.messages import ROUND
from simulations.testing.contract import entries
from simulations.testing.lab import NORMED
from strategies import fedh2l
from strategies.fedh2l import FedH2L

LINEAR = "fixtures.models:linear"


# The server


def signal(indices: list[int], posteriors: Any, accuracy: float) -> dict[str, np.ndarray]:
    return {
        "indices": np.array(indices, np.int32),
        "posteriors": np.float32(posteriors),
        "accuracy": np.asarray(accuracy, np.float32),
    }


def upload(client_id: int, *said: Any) -> Upload:
    return Upload(client_id, signal(*said), samples=1)


def test_each_client_gets_the_signals_of_its_peers_and_not_its_own():
    strategy = FedH2L()
    start = strategy.initial(roster(3))
    said = {
        0: ([4, 2], [[1, 0, 0], [0, 1, 0]], 0.5),
        1: ([7], [[0, 0, 1]], 1.0),
        2: ([3, 9], [[0.5, 0.5, 0], [0, 0.5, 0.5]], 0.25),
    }
    server_state = strategy.aggregate(start, [upload(client_id, *one) for client_id, one in said.items()], 1)
    sent = strategy.download_for(member(1), server_state, 2)
    assert {name: array.tolist() for name, array in sent.items()} == {
        "teachers": [0, 2],
        "accuracies": [0.5, 0.25],
        "sizes": [2, 2],
        "indices": [4, 2, 3, 9],
        "posteriors": [[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]],
    }
    assert [str(array.dtype) for array in sent.values()] == ["int32", "float32", "int32", "int32", "float32"]
    assert strategy.download_for(member(0), server_state, 2)["teachers"].tolist() == [1, 2]


def drawn(strategy: FedH2L, client_id: int, round: int, clients: int = 6) -> list[int]:
    server_state = strategy.aggregate({}, [upload(k, [k], [[1, 0, 0]], k / 8) for k in range(clients)], 1)
    sent = strategy.download_for(member(client_id), server_state, round)
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


def small(own: Any, labels: list[int], theirs: dict[int, Any], *, body: nn.Module | None = None, **keys: Any) -> Node:
    """Client 0 with W = 0, two classes; one round is one batch of all rows it may use, one SGD step of rate 0.1."""
    public_samples = {f"inputs.{client_id}": np.float32(rows) for client_id, (rows, _) in theirs.items()}
    public_samples |= {f"labels.{client_id}": np.int64(labels) for client_id, (_, labels) in theirs.items()}
    settings = {"public": len(labels), "clients": 4, "batch_size": 8, **keys}
    return linear_node(own, labels, [[0.0] * len(own[0])] * 2, public_samples=public_samples, body=body, **settings)


def relay(*signals: tuple[int, float, list[int], Any]) -> list[np.ndarray]:
    """Return the download of some teachers' (partition, accuracy, indices, posteriors), for two classes."""
    return [
        np.array([one[0] for one in signals], np.int32),
        np.array([one[1] for one in signals], np.float32),
        np.array([len(one[2]) for one in signals], np.int32),
        np.array([row for one in signals for row in one[2]], np.int32),
        np.array([row for one in signals for row in one[3]], np.float32).reshape(-1, 2),
    ]


def sharing(config: RunConfig, make_node: Any, *, labelled: bool = True) -> list[Node]:
    nodes = [make_node(config, client_id) for client_id in range(config.clients)]
    share(nodes, labelled=labelled)
    return nodes


def weight(client: Any) -> Any:
    return client.node.model.head.weight.detach().numpy()


E1, E2, BOTH = [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]


def test_both_steps_are_one_optimizers_and_in_training_mode():
    """Round 1 has one step, round 2 a global one and a local one: 3 of Adam, and 3 batches through batch norm."""
    node = small([E1, E2], [0, 1], {1: ([BOTH, E2], [1, 0])}, body=nn.BatchNorm1d(2), optimizer="adam")
    client = FedH2LClient(node)
    fit(client, relay())
    fit(client, relay((1, 1.0, [0, 1], [[0.5, 0.5], [0.5, 0.5]])), round=2)
    saved = node.read_state().tensors
    steps = {float(tensor) for name, tensor in saved.items() if name.startswith("optimizer.") and "step" in name}
    assert steps == {3.0}
    assert int(node.model.body.num_batches_tracked) == 3
    assert node.model.training


def test_batch_norm_sees_all_teachers_at_once():
    """The global step of two teachers with two rows each, against autograd and batch norm written out."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 3.0], [5.0, 1.0], [2.0, 2.0]])
    posteriors, labels = [[0.75, 0.25], [0.5, 0.5], [0.0, 1.0], [0.25, 0.75]], [1, 0, 0, 1]
    theirs = {1: (rows[:2].tolist(), labels[:2]), 2: (rows[2:].tolist(), labels[2:])}
    client = FedH2LClient(small([E1, E2], [0, 1], theirs, body=nn.BatchNorm1d(2)))
    matrix = torch.tensor([[0.5, -1.0], [0.25, 0.75]], requires_grad=True)
    client.node.model.head.weight.data = matrix.detach().clone()
    moved = []
    client._local_steps = lambda round, optimizer: (moved.append(weight(client).copy()), (1, 1.0))[1]
    said = [(1, 0.5, [0, 1], posteriors[:2]), (2, 1.0, [0, 1], posteriors[2:])]
    _, metrics = fit(client, relay(*said))

    centred = rows - rows.mean(0)
    normed = centred / (centred.square().mean(0) + 1e-5).sqrt()
    log_student = (normed @ matrix.T).log_softmax(1)
    loss = torch.zeros(())
    for row, (accuracy, teacher, label) in enumerate(zip([0.5, 0.5, 1, 1], posteriors, labels, strict=True)):
        kl = sum(p * (log(p) - log_student[row, k]) for k, p in enumerate(teacher) if p > 0)
        loss = loss + (accuracy * kl - log_student[row, label]) / 4
    loss.backward()
    assert metrics["public-loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    np.testing.assert_allclose(moved[0], (matrix - 0.1 * matrix.grad).detach(), rtol=1e-4, atol=1e-6)
    assert int(client.node.model.body.num_batches_tracked) == 1


@pytest.mark.parametrize("optimizers", ["two", "sgd"])
@pytest.mark.parametrize("eta", [0.02, 0.0])
def test_the_global_step_has_an_optimizer_of_its_own(optimizers, eta):
    """Four rounds against autograd and two optimizers of torch's own: AMSGrad at 0.1 with decay for the local step, a
    second AMSGrad or plain SGD, without decay, at eta (0: as the local one) for the global step. The teacher says of
    the row (1, 1) the opposite of what the client learns of its own row. The client is built anew each round.
    """
    keys = {"optimizer": "amsgrad", "momentum": 0.5, "weight_decay": 0.3}
    own = [1.0, 0.5]
    node = small([own], [0], {1: ([BOTH], [1])}, **keys)
    matrix = torch.zeros(2, 2, requires_grad=True)
    local = torch.optim.Adam([matrix], lr=0.1, weight_decay=0.3, amsgrad=True)
    second = {
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
    assert float(saved["optimizer.0.step"]) == 4.0
    assert ("global.0.step" in saved) is (optimizers == "two")


def test_a_rate_without_a_second_optimizer_is_refused(make_config, make_node, refusal):
    config = make_config(algorithm="fedh2l", **{"fedh2l.eta": 0.01})
    assert "eta = 0.01" in refusal(ConfigError, build_client, config, make_node(config))


# The signal


def own_signal(node: Node, uploaded: dict[str, np.ndarray]) -> tuple[Tensor, float]:
    """Posteriors of a node's model as it is now, in evaluation mode, on the rows uploaded; and their accuracy."""
    inputs, labels = node.data.public.batch(torch.from_numpy(uploaded["indices"]).long())
    with torch.no_grad():
        posteriors = functional.softmax(node.model.eval()(inputs), 1)
    return posteriors, float((posteriors.argmax(1) == labels).float().mean())


def test_the_signal_is_of_the_model_after_the_local_step_without_dropout(make_config, make_node):
    """On rows that are drawn without replacement, others each round; the accuracy is that of these posteriors."""
    node = make_node(make_config(models=NORMED, clients=3, batch_size=15, learning_rate=0.03, algorithm="fedh2l"))
    client, rows, accuracies = FedH2LClient(node, exchange_every=4), [], []
    empty = [np.zeros(0, kind) for kind in (np.int32, np.float32, np.int32, np.int32)]
    for round in (1, 2, 3):
        uploaded, _ = fit(client, [*empty, np.zeros((0, 10), np.float32)], round)
        posteriors, accuracy = own_signal(node, uploaded)
        np.testing.assert_allclose(uploaded["posteriors"], posteriors, rtol=1e-6)
        assert float(uploaded["accuracy"]) == pytest.approx(accuracy)
        accuracies.append(accuracy)
        rows.append(uploaded["indices"].tolist())
        assert len(set(rows[-1])) == 15 < len(node.data.public)
    assert len({tuple(sorted(some)) for some in rows}) == 3
    assert max(accuracies) > 0.2


def test_a_client_with_fewer_public_rows_than_a_batch_sends_all_of_them():
    client = FedH2LClient(small([E1, E2, BOTH], [0, 1, 1], {}, public=2))
    uploaded, _ = fit(client, relay())
    assert sorted(uploaded["indices"].tolist()) == [0, 1]
    assert uploaded["posteriors"].shape == (2, 2)
    strategy = FedH2L()
    strategy.config, strategy.roster = client.node.config, Roster()
    assert strategy.upload_spec(member(0, public=2, classes=2)) == client.upload_spec()


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
def test_three_rounds_equal_a_loop_over_samples(case, halves):
    """Algorithm 1 as it is printed, in float64 with the gradients written out: linear models, absent classes, decay."""
    options = CASES[case]
    sides = halves(
        algorithm="fedh2l",
        models=LINEAR,
        clients=3,
        partition="classes:3",
        batch_size=7,
        learning_rate=0.3,
        weight_decay=0.01,
        **{f"fedh2l.{key.replace('_', '-')}": value for key, value in options.items()},
    )
    reference = [Reference(node, options) for node in sides.nodes]
    conflicts = slow_fedh2l(reference, sides.config, rounds=3)

    server_state, said = sides.play(3)
    projected = [one["projected"] for one in said]
    for client, slow in zip(sides.clients, reference, strict=True):
        slow.same_as(client.node.model.head)
        np.testing.assert_allclose(
            server_state[f"posteriors.{slow.client_id:06d}"], slow.posteriors, rtol=1e-4, atol=1e-5
        )
    assert any(conflicts)
    if options.get("projection", "qp") != "none":
        assert projected == [0.0] * 3 + [float(conflict) for conflict in conflicts]


class Reference(Linear):
    """A linear model in float64, and its client's data, sample by sample."""

    def __init__(self, node: Node, options: dict[str, Any]) -> None:
        super().__init__(node.model.head, node)
        self.options, self.public = options, rows_of(node.data.public)
        self.posteriors: list[np.ndarray] = []
        self.accuracy, self.taught_rows, self.g_loc = 0.0, [], np.zeros(0)

    def softmax(self, x: np.ndarray) -> np.ndarray:
        scores: np.ndarray = softmax(self(x))
        return scores

    def flat(self, slopes: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """The gradient of weight and bias from each sample's slope of the logits."""
        by_weight = sum(np.outer(slope, x) for slope, x in slopes)
        return np.concatenate([np.ravel(by_weight), sum(slope for slope, _ in slopes)])

    def along(self, gradient: np.ndarray, config: RunConfig) -> None:
        cut = self.weight.size
        decay = config.weight_decay
        self.weight = self.weight - config.learning_rate * (
            gradient[:cut].reshape(self.weight.shape) + decay * self.weight
        )
        self.bias = self.bias - config.learning_rate * (gradient[cut:] + decay * self.bias)

    def local_steps(self, everyone: list["Reference"], config: RunConfig, round: int) -> None:
        rows = list(self.rows)
        if self.options.get("public_labels", True):
            rows += [row for peer in everyone if peer is not self for row in peer.public]
        order = generator(config.seed, self.client_id, round, "batches")
        count = self.options.get("exchange_every", 1)
        self.g_loc = np.zeros(self.weight.size + self.bias.size)
        for batch in draw_batches(order, len(rows), config.batch_size, epochs=1, batches=count):
            some = [rows[position] for position in batch.tolist()]
            gradient = self.flat([((self.softmax(x) - np.eye(10)[y]) / len(some), x) for x, y in some])
            self.along(gradient, config)
            self.g_loc = self.g_loc + gradient

    def teach(self, config: RunConfig, round: int) -> None:
        draw = generator(config.seed, self.client_id, round, "seeds")
        self.taught_rows = draw.choice(len(self.public), config.batch_size, replace=False).tolist()
        self.posteriors = [self.softmax(self.public[row][0]) for row in self.taught_rows]
        right = [p.argmax() == self.public[row][1] for p, row in zip(self.posteriors, self.taught_rows, strict=True)]
        self.accuracy = sum(right) / len(right)

    def global_step(self, everyone: list["Reference"], config: RunConfig) -> bool:
        peers, slopes = [peer for peer in everyone if peer is not self], []
        for peer in peers:
            for row, target in zip(peer.taught_rows, peer.posteriors, strict=True):
                x, y = peer.public[row]
                slope, mine = np.zeros(10), self.softmax(x)
                if self.options.get("kl", True):
                    slope += peer.accuracy * (mine - target)
                if self.options.get("public_labels", True):
                    slope += mine - np.eye(10)[y]
                slopes.append((slope / len(peer.taught_rows) / len(peers), x))
        g_pub, g_loc = self.flat(slopes), self.g_loc
        dot = g_pub @ g_loc
        update = g_pub
        if dot < 0 and self.options.get("projection", "qp") != "none":
            update = g_pub - dot / (g_loc @ g_loc) * g_loc
        if self.options.get("projection") == "pcgrad":
            update = update + g_loc - min(dot, 0) / (g_pub @ g_pub) * g_pub
        self.along(update, config)
        return bool(dot < 0)


def slow_fedh2l(clients: list[Reference], config: RunConfig, rounds: int) -> list[bool]:
    """Train, up to the exchange of the last round; return which global steps met a conflict."""
    conflicts = []
    for round in range(1, rounds + 1):
        for client in clients:
            client.local_steps(clients, config, round)
            client.teach(config, round)
        if round < rounds:
            conflicts += [client.global_step(clients, config) for client in clients]
    return conflicts


@pytest.mark.parametrize(("labelled", "simpler"), [(True, AGGClient), (False, LocalClient)])
def test_without_signals_it_is_training_on_all_rows_that_have_labels(labelled, simpler, make_config, make_node):
    config = make_config(clients=3, models=NORMED, local_batches=2)
    empty = [np.zeros(0, kind) for kind in (np.int32, np.float32, np.int32, np.int32)]
    one, other = (sharing(config, make_node, labelled=labelled)[0] for _ in range(2))
    options: dict[str, Any] = {"exchange_every": 2, "public_labels": labelled}
    for round in (1, 2, 3):
        _, metrics = fit(FedH2LClient(one, **options), [*empty, np.zeros((0, 10), np.float32)], round)
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
        (((1, 1.0, [0], [[1, 0]]),), {2: [0]}, "'sizes'"),
        (((1, 1.0, [0], [[1, 0]]),), {1: [1.25]}, "'accuracies'"),
        (((1, 1.0, [0], [[1, 1]]),), {}, "'posteriors'"),
        (((1, 1.0, [0], [[1, 0]]),), {4: [[1, 0, 0]]}, "'posteriors'"),
        (((1, 1.0, [-1], [[1, 0]]),), {}, "'indices'"),
        (((1, 1.0, [0], [[1, 0]]),) * 4, {}, "'teachers'"),
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


def test_nothing_to_learn_from_peers_is_refused(make_config, make_node, refusal):
    keys = {"fedh2l.kl": False, "fedh2l.public-labels": False}
    config = make_config(algorithm="fedh2l", **keys)
    assert "public-labels = false" in refusal(ConfigError, build_client, config, make_node(config))


def test_a_client_teaches_on_the_rows_that_it_has_shared_whatever_it_says():
    strategy = FedH2L()
    strategy.config, strategy.roster = RunConfig(batch_size=8), roster(1, public=300, classes=2)
    strategy.roster.public_samples = {0: {"inputs": np.zeros((4, 2), np.float32)}}
    indices, posteriors, _ = strategy.upload_spec(next(iter(strategy.roster))).arrays
    assert (indices.shape, indices.maximum, posteriors.shape) == ((4,), 3, (4, 2))
