"""FedHeNN: its equations by hand, against dense kernels in float64."""

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import fit
from fixtures.federations.members import member, roster
from fixtures.federations.nodes import linear_node
from torch import nn

from clients.fedhenn import AligningClient, FedHeNNClient, FedHeNNHomogeneousClient
from clients.local import LocalClient
from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import FederationError, PayloadError
from hetfl_flwr.learning.training import draw_batches, evaluate
from hetfl_flwr.models import SplitModel
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.strategy import Upload
from hetfl_flwr.wire.messages import ROUND
from hetfl_flwr.wire.spec import Arrays
from hetfl_flwr.wire.weights import model_arrays
from strategies.fedhenn import FedHeNN, FedHeNNHomogeneous


def narrow(spec: DataSpec) -> SplitModel:
    """A linear body of width 3."""
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), nn.Linear(3, spec.classes))


def wide(spec: DataSpec) -> SplitModel:
    """A linear body of width 5."""
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), nn.Linear(5, spec.classes))


UNLIKE, ALIKE = "test_fedhenn:narrow,test_fedhenn:wide", "test_fedhenn:wide"


# --- the server ----------------------------------------------------------------------------------


def server(blocks: dict[int, Any], seed: int = 0, **options: Any) -> FedHeNN:
    """A strategy before round 1, whose clients have shared these public samples."""
    strategy = FedHeNN(**options)
    members = roster(1, public=9, shape=(1,))
    strategy.prepare(members, RunConfig(seed=seed))
    members.public_samples = {client_id: {"inputs": np.asarray(rows)} for client_id, rows in blocks.items()}
    return strategy


def rows_of(count: int, first: int = 0) -> np.ndarray:
    """Public samples of one feature: first, first + 1, ..."""
    return np.arange(first, first + count, dtype=np.float32)[:, None]


def upload(client_id: int, rows: Any, samples: int = 1) -> Upload:
    return Upload(client_id, {"representations": np.float32(rows)}, samples)


def start(strategy: FedHeNN) -> Arrays:
    return strategy.initial(roster(1))


def sent(strategy: FedHeNN, known: Arrays, round: int = 1) -> dict[str, np.ndarray]:
    return dict(strategy.download_for(member(0), known, round))


CROSS = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]
"""Four samples, centred; their first column is orthogonal to their second, each of squared length 2."""
ACROSS, ALONG = [[1.0], [0.0], [-1.0], [0.0]], [[0.0], [3.0], [0.0], [-3.0]]


@pytest.mark.parametrize("values", [[0.1, 0.7], [1e-30, 2e-30]])
def test_representations_that_tell_no_samples_apart_give_a_factor_of_zeros(values):
    strategy = server({0: rows_of(7)})
    known = strategy.aggregate(start(strategy), [upload(k, [values] * 7) for k in range(7)], 1)
    assert known["factor"].shape == (7, 1)
    assert not known["factor"].any()


def test_the_largest_floats_are_no_infinities_in_the_factor():
    strategy = server({0: rows_of(4)})
    factor = strategy.aggregate(start(strategy), [upload(k, np.array(CROSS) * 3e38) for k in range(9)], 1)["factor"]
    assert np.abs(factor).max() == 1


# --- alignment sets ------------------------------------------------------------------------------


def test_what_is_asked_for_is_what_the_next_round_aligns_on():
    strategy = server({0: rows_of(5), 3: rows_of(4, first=5)}, rad_size=6)
    known = start(strategy)
    before = sent(strategy, known)
    assert (len(before["aligned"]), before["factor"].shape, len(before["asked"])) == (0, (0, 0), 6)
    after = sent(strategy, strategy.aggregate(known, [upload(0, np.eye(6, 2))], 1))
    np.testing.assert_array_equal(after["aligned"], before["asked"])
    assert sorted(after["aligned"]) != sorted(after["asked"])
    assert len(set(before["asked"].tolist())) == 6


def test_the_rows_of_a_late_joiner_do_not_move_those_already_aligned_on():
    """Clients 0 and 2 have rows 0 .. 4 and 5 .. 9; then client 1 joins, and the rows of client 2 are five further."""
    strategy = server({0: rows_of(5), 2: rows_of(5, first=5)})
    known = strategy.aggregate(start(strategy), [upload(0, np.eye(10, 2))], 1)
    before = sent(strategy, known)["aligned"]
    joined = {0: rows_of(5), 1: rows_of(5, first=10), 2: rows_of(5, first=5)}
    strategy.roster.public_samples = {client_id: {"inputs": rows} for client_id, rows in joined.items()}
    after = sent(strategy, known)
    np.testing.assert_array_equal(after["aligned"], before + 5 * (before > 4))
    assert len(after["asked"]) == 15


def test_rows_that_are_in_the_pool_no_longer_are_aligned_on_no_longer():
    """Clients 0 and 1 have rows 0 .. 4 and 5 .. 9, then client 1 alone is left, then one with three of its rows: too
    few to align on. The factor's rows go with the set's.
    """
    strategy = server({0: rows_of(5), 1: rows_of(5, first=5)})
    known = strategy.aggregate(start(strategy), [upload(0, generator(0, "gone").normal(size=(10, 2)))], 1)
    before = rows_of(10)[sent(strategy, known)["aligned"].ravel().astype(int)].ravel()
    strategy.roster.public_samples = {1: {"inputs": rows_of(5, first=5)}}
    after = sent(strategy, known)
    aligned = after["aligned"].ravel() + 5
    assert aligned.tolist() == before[before > 4].tolist()
    np.testing.assert_array_equal(after["factor"], known["factor"][before > 4])
    strategy.roster.public_samples = {1: {"inputs": rows_of(3, first=5)}, 2: {"inputs": rows_of(9)}}
    after = sent(strategy, known)
    assert (len(after["aligned"]), after["factor"].size, len(after["asked"])) == (0, 0, 12)


# --- the client ----------------------------------------------------------------------------------


def tiny(client: type = FedHeNNClient, **options: Any) -> Any:
    """A client whose samples and pool are CROSS, whose body is the identity and whose head is 0: logits are 0, so
    cross-entropy is ln 2 and does not move the body; nor the head, each class having a mean of 0. One batch of all
    samples, SGD of rate 0.1.
    """
    body = nn.Linear(2, 2, bias=False)
    body.weight.data = torch.eye(2)
    node = linear_node(CROSS, [0, 1, 0, 1], [[0.0, 0.0], [0.0, 0.0]], public=4, body=body)
    return client(node, **options)


def learnt(client: AligningClient, *arrays: Any, round: int = 2) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Train, by default in round 2, where eta is eta0."""
    uploaded, metrics = fit(client, arrays, round)
    return list(uploaded.values()), metrics


def numbers(*rows: int) -> np.ndarray:
    return np.array(rows, np.int32)


ALL, NONE = numbers(0, 1, 2, 3), numbers()
FACTOR = np.float32(ACROSS)


def test_a_factor_of_zeros_has_no_pull():
    client = tiny(eta0=1.0)
    _, metrics = learnt(client, ALL, np.zeros((4, 1), np.float32), ALL)
    assert metrics["cka"] == 0
    assert torch.equal(client.node.model.body.weight, torch.eye(2))


def test_the_body_sees_the_alignment_set_in_evaluation_mode():
    """Batch norm's running statistics after a batch are those of the client's own samples: bit for bit those of local
    training, whose first batch has seen the same weights; and a second batch is trained on in training mode.
    """
    after = {}
    for kind in (FedHeNNClient, LocalClient):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        node = linear_node(CROSS, [0, 1, 0, 1], [[0.0, 1.0, 2.0]] * 2, public=4, body=body)
        client = kind(node, **({"eta0": 1.0} if kind is FedHeNNClient else {}))
        fit(client, [ALL, FACTOR, ALL] if kind is FedHeNNClient else [], 2)
        after[kind] = node.model.body[1]
        assert node.model.body.training
        assert int(node.model.body[1].num_batches_tracked) == 1
    assert torch.equal(after[FedHeNNClient].running_mean, after[LocalClient].running_mean)
    assert torch.equal(after[FedHeNNClient].running_var, after[LocalClient].running_var)
    assert not torch.equal(after[FedHeNNClient].weight, after[LocalClient].weight)


# --- homogeneous ---------------------------------------------------------------------------------


def shared(body: Any, head: Any) -> dict[str, np.ndarray]:
    return {"body.weight": np.float32(body), "head.weight": np.float32(head)}


def test_accuracy_is_the_own_model_s_and_global_accuracy_the_global_model_s():
    """Labels 0 where x_0 > 0 or x_1 < 0; the model that the client was built with has them all wrong. The global model
    says 1 where x_0 + x_1 > 0, which is right for two of four; before any training, that is the client's own accuracy.
    A round at a rate of 1 from a model of zeros puts all right.
    """
    node = linear_node(CROSS, [0, 1, 1, 0], [[0.0, 0.0], [1.0, -1.0]], public=4, learning_rate=1.0)
    client = FedHeNNHomogeneousClient(node)
    _, _, before = client.evaluate([np.float32([[0, 0], [1, 1]])], {})
    assert (before["accuracy"], before["global-accuracy"]) == (0.5, 0.5)
    learnt(client, np.zeros((2, 2), np.float32), ALL)
    _, _, after = client.evaluate([np.float32([[0, 0], [1, 1]])], {})
    assert (after["accuracy"], after["global-accuracy"]) == (1.0, 0.5)
    assert evaluate(client.node.model, node.data.test).accuracy == 1.0


# --- two rounds and more against dense kernels ----------------------------------------------------


def kernel_of(x: np.ndarray) -> np.ndarray:
    return x @ x.T


def centred(kernel: np.ndarray) -> np.ndarray:
    centring = np.eye(len(kernel)) - 1 / len(kernel)
    return centring @ kernel @ centring


def cka_slope(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Derivative of CKA(x x^T, target) in x: through d CKA / d K."""
    own, other = centred(kernel_of(x)), centred(target)
    norms = np.linalg.norm(own), np.linalg.norm(other)
    by_kernel = other / (norms[0] * norms[1]) - (own * other).sum() * own / (norms[0] ** 3 * norms[1])
    return 2 * by_kernel @ x


class Reference:
    """A linear body and head in float64, and its client's data."""

    def __init__(self, node: Any) -> None:
        self.parts = {name: array.astype(float) for name, array in model_arrays(node.model).items()}
        inputs, labels = node.data.train.batch(torch.arange(len(node.data.train)))
        self.inputs, self.labels = inputs.flatten(1).double().numpy(), labels.numpy()
        self.public = self.inputs[: node.data.public_rows]

    def body(self, x: np.ndarray) -> np.ndarray:
        return x @ self.parts["body.1.weight"].T + self.parts["body.1.bias"]

    def step(self, rows: np.ndarray, rate: float, pull: Callable[[], tuple[np.ndarray, np.ndarray]] | None) -> None:
        """One SGD step on the mean cross-entropy of some rows, and on what pulls the body's representations."""
        x, features = self.inputs[rows], self.body(self.inputs[rows])
        logits = features @ self.parts["head.weight"].T + self.parts["head.bias"]
        slope = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        slope = (slope - np.eye(10)[self.labels[rows]]) / len(rows)
        back = slope @ self.parts["head.weight"]
        steps = {
            "body.1.weight": back.T @ x,
            "body.1.bias": back.sum(0),
            "head.weight": slope.T @ features,
            "head.bias": slope.sum(0),
        }
        if pull is not None:
            along, samples = pull()
            steps["body.1.weight"] = steps["body.1.weight"] + along.T @ samples
            steps["body.1.bias"] = steps["body.1.bias"] + along.sum(0)
        for name, by in steps.items():
            self.parts[name] = self.parts[name] - rate * by


def slow_fedhenn(
    clients: list[Reference],
    config: RunConfig,
    rounds: int,
    first: dict[str, np.ndarray] | None,
    size: int,
    eta0: float,
    some: int,
) -> tuple[dict[str, np.ndarray] | None, np.ndarray | None]:
    """Return the global model (homogeneous: where there is a first one) and the mean kernel after some rounds."""
    pool, mean = np.concatenate([client.public for client in clients]), None
    shared = first
    for round in range(1, rounds + 1):
        rad, asked = (pool[generator(config.seed, t, "rad").choice(len(pool), size, False)] for t in (round, round + 1))
        kernels, trained = [], []
        for client_id, client in enumerate(clients):
            target = mean
            if shared is not None:
                client.parts = dict(shared)
                target = kernel_of(client.body(rad))
            draw = generator(config.seed, client_id, round, "align")
            eta = eta0 * sqrt(round - 1)

            def pull(client=client, target=target, draw=draw, eta=eta) -> tuple[np.ndarray, np.ndarray]:
                rows = draw.choice(size, some, replace=False) if some else np.arange(size)
                slope = cka_slope(client.body(rad[rows]), target[np.ix_(rows, rows)])  # noqa: B023
                return -eta * slope, rad[rows]  # noqa: B023

            order = generator(config.seed, client_id, round, "batches")
            batches = draw_batches(order, len(client.labels), config.batch_size, epochs=1, batches=config.local_batches)
            for rows in batches:
                client.step(rows.numpy(), config.learning_rate, None if target is None or eta == 0 else pull)
            kernels.append(kernel_of(client.body(asked)))
            trained.append((len(client.labels), client.parts))
        mean = np.mean(kernels, axis=0)
        if shared is not None:
            total = sum(samples for samples, _ in trained)
            shared = {name: sum(samples / total * parts[name] for samples, parts in trained) for name in shared}
    return shared, mean


@pytest.mark.parametrize("mode", ["heterogeneous", "homogeneous"])
@pytest.mark.parametrize("some", [0, 6])
def test_three_rounds_equal_dense_kernels(mode, some, halves):
    """K, H and tr(K H L H) as in the paper, in float64 with the gradients written out; absent classes, two bodies."""
    eta0, size = 0.8, 10
    sides = halves(
        algorithm="fedhenn",
        models=UNLIKE if mode == "heterogeneous" else ALIKE,
        partition="classes:3",
        batch_size=7,
        learning_rate=0.1,
        **{"fedhenn.rad-size": size, "fedhenn.mode": mode, "fedhenn.eta0": eta0, "fedhenn.align-batch": some},
    )
    config, nodes, known = sides.config, sides.nodes, sides.state
    reference = [Reference(node) for node in nodes]
    first = {name: array.astype(float) for name, array in known.items()} if mode == "homogeneous" else None
    expected, mean = slow_fedhenn(reference, config, 3, first, size, eta0, some)
    known, said = sides.play(3)
    assert 0 < said[-1]["cka"] < 1
    for node, slow in zip(nodes, reference, strict=True):
        for name, array in model_arrays(node.model).items():
            np.testing.assert_allclose(array, slow.parts[name], rtol=1e-3, atol=2e-5, err_msg=name)
    if expected is not None:
        for name, array in expected.items():
            np.testing.assert_allclose(known[name], array, rtol=1e-3, atol=2e-5, err_msg=name)
    else:
        found, dense = known["factor"].astype(float) @ known["factor"].T, centred(mean)
        np.testing.assert_allclose(found / np.trace(found), dense / np.trace(dense), atol=1e-5)


# --- what is refused -----------------------------------------------------------------------------


def checked(members: Any, strategy: type = FedHeNN) -> None:
    strategy().check(members)


def test_federations_that_cannot_be_aligned_are_refused(refusal):
    for strategy in (FedHeNN, FedHeNNHomogeneous):
        checked(roster(4, public=1), strategy)
        assert "public-fraction" in refusal(FederationError, checked, roster(3, public=1), strategy)
    unlike = Roster([member(0, public=9), member(1, public=9, classes=7, weights="other", model="mlp")])
    checked(unlike)
    assert "client 1" in refusal(FederationError, checked, unlike, FedHeNNHomogeneous)


def test_representations_that_are_all_zero_are_refused_by_both_sides(refusal):
    client = tiny()
    client.node.model.body.weight.data.zero_()
    download = [NONE, np.zeros((0, 0), np.float32), ALL]
    assert "'representations'" in refusal(PayloadError, client.fit, download, {ROUND: 1})
    spec = server({0: rows_of(4)}).upload_spec(member(0))
    zeros = {"representations": np.zeros((4, 2), "f")}
    assert "'representations'" in refusal(PayloadError, spec.check_named, zeros, "it")


def test_representations_that_the_server_cannot_keep_are_refused_at_registration(refusal):
    """512 rows of width 2^19 are 2^28 numbers; one more of either is refused. The rows are those that there can be."""
    strategy, wide = FedHeNN(), member(1, public=600, width=2**19)
    strategy.check(Roster([member(0), wide]))
    assert "client 1" in refusal(FederationError, strategy.check, Roster([member(0), replace(wide, width=2**19 + 1)]))
    FedHeNN(rad_size=600).check(Roster([member(0), replace(wide, public=500)]))
    refusal(FederationError, FedHeNN(rad_size=600).check, Roster([member(0), wide]))
