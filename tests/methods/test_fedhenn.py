"""FedHeNN: its equations by hand, against dense kernels in float64."""

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import fit
from fixtures.federations.members import member, roster
from fixtures.federations.nodes import linear_node
from fixtures.twins import Twin, assert_near, descend, mean_state
from torch import Tensor, nn
from torch.nn import functional

from clients.fedhenn import AligningClient, FedHeNNClient, FedHeNNHomogeneousClient
from clients.local import LocalClient
from hetfl_flwr.config import RunConfig
from hetfl_flwr.errors import FederationError, PayloadError
from hetfl_flwr.learning.training import evaluate
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.strategy import Upload
from hetfl_flwr.wire.messages import ROUND
from hetfl_flwr.wire.spec import Arrays
from strategies.fedhenn import FedHeNN, FedHeNNHomogeneous

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


def sent(strategy: FedHeNN, known: Arrays, round: int = 1) -> dict[str, np.ndarray]:
    return dict(strategy.download_for(member(0), known, round))


CROSS = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]
"""Four samples, centred; their first column is orthogonal to their second, each of squared length 2."""
ACROSS, ALONG = [[1.0], [0.0], [-1.0], [0.0]], [[0.0], [3.0], [0.0], [-3.0]]


@pytest.mark.parametrize("values", [[0.1, 0.7], [1e-30, 2e-30]])
def test_representations_that_tell_no_samples_apart_give_a_factor_of_zeros(values):
    strategy = server({0: rows_of(7)})
    known = strategy.aggregate(strategy.initial(roster(1)), [upload(k, [values] * 7) for k in range(7)], 1)
    assert known["factor"].shape == (7, 1)
    assert not known["factor"].any()


def test_the_largest_floats_are_no_infinities_in_the_factor():
    strategy = server({0: rows_of(4)})
    factor = strategy.aggregate(strategy.initial(roster(1)), [upload(k, np.array(CROSS) * 3e38) for k in range(9)], 1)[
        "factor"
    ]
    assert np.abs(factor).max() == 1


# --- alignment sets ------------------------------------------------------------------------------


def test_what_is_asked_for_is_what_the_next_round_aligns_on():
    strategy = server({0: rows_of(5), 3: rows_of(4, first=5)}, rad_size=6)
    known = strategy.initial(roster(1))
    before = sent(strategy, known)
    assert (len(before["aligned"]), before["factor"].shape, len(before["asked"])) == (0, (0, 0), 6)
    after = sent(strategy, strategy.aggregate(known, [upload(0, np.eye(6, 2))], 1))
    np.testing.assert_array_equal(after["aligned"], before["asked"])
    assert sorted(after["aligned"]) != sorted(after["asked"])
    assert len(set(before["asked"].tolist())) == 6


def test_the_rows_of_a_late_joiner_do_not_move_those_already_aligned_on():
    """Clients 0 and 2 have rows 0 .. 4 and 5 .. 9; then client 1 joins, and the rows of client 2 are five further."""
    strategy = server({0: rows_of(5), 2: rows_of(5, first=5)})
    known = strategy.aggregate(strategy.initial(roster(1)), [upload(0, np.eye(10, 2))], 1)
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
    known = strategy.aggregate(strategy.initial(roster(1)), [upload(0, generator(0, "gone").normal(size=(10, 2)))], 1)
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


# --- both sides ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["heterogeneous", "homogeneous"])
@pytest.mark.parametrize("some", [0, 6])
def test_three_rounds_equal_dense_kernels(mode, some, halves):
    """CKA by its definition, with kernels K = X X^T and the mean kernel of all clients, or the kernel of the global
    model's representations; absent classes."""
    eta0, size = 0.8, 10
    sides = halves(
        algorithm="fedhenn",
        models="fixtures.models:narrow,fixtures.models:wide" if mode == "heterogeneous" else "fixtures.models:wide",
        partition="classes:3",
        batch_size=7,
        learning_rate=0.1,
        **{"fedhenn.rad-size": size, "fedhenn.mode": mode, "fedhenn.eta0": eta0, "fedhenn.align-batch": some},
    )
    twins, seed, shared = [Twin(node) for node in sides.nodes], sides.config.seed, mode == "homogeneous"
    pool, kernel = torch.cat([twin.public[0] for twin in twins]), torch.zeros(())
    middle = {name: torch.from_numpy(array).double() for name, array in sides.state.items()} if shared else {}
    for round in (1, 2, 3):
        rad, asked = (pool[generator(seed, t, "rad").choice(len(pool), size, False)] for t in (round, round + 1))
        eta, kernels = eta0 * sqrt(round - 1), []
        for twin in twins:
            draw = generator(seed, twin.client_id, round, "align")
            if shared:
                twin.model.load_state_dict(middle)
                kernel = kernel_of(twin.model.body(rad)).detach()
            for x, y in twin.batches(round):
                loss = functional.cross_entropy(twin.model(x), y)
                if eta:
                    rows = torch.from_numpy(draw.choice(size, some, replace=False)) if some else torch.arange(size)
                    loss = loss - eta * cka(kernel_of(twin.model.body(rad[rows])), kernel[rows][:, rows])
                descend(loss, twin.sgd)
            kernels.append(kernel_of(twin.model.body(asked)).detach())
        kernel = torch.stack(kernels).mean(0)
        middle = mean_state([twin.model for twin in twins], [len(twin.y) for twin in twins]) if shared else {}
    known, said = sides.play(3)
    assert 0 < said[-1]["cka"] < 1
    for node, twin in zip(sides.nodes, twins, strict=True):
        assert_near(node.model, twin.model, rtol=1e-3, atol=2e-5)
    for name, tensor in middle.items():
        np.testing.assert_allclose(known[name], tensor, rtol=1e-3, atol=2e-5, err_msg=name)
    if not shared:
        found, dense = known["factor"].astype(float) @ known["factor"].T, centred(kernel)
        np.testing.assert_allclose(found / np.trace(found), dense / dense.trace(), atol=1e-5)


def kernel_of(x: Tensor) -> Tensor:
    return x @ x.T


def centred(kernel: Tensor) -> Tensor:
    centring = torch.eye(len(kernel)) - 1 / len(kernel)
    return centring.double() @ kernel @ centring.double()


def cka(one: Tensor, other: Tensor) -> Tensor:
    one, other = centred(one), centred(other)
    return (one * other).sum() / (one.norm() * other.norm())


# --- what is refused -----------------------------------------------------------------------------


def test_federations_that_cannot_be_aligned_are_refused(refusal):
    for strategy in (FedHeNN(), FedHeNNHomogeneous()):
        strategy.check(roster(4, public=1))
        assert "public-fraction" in refusal(FederationError, strategy.check, roster(3, public=1))
    unlike = Roster([member(0, public=9), member(1, public=9, classes=7, weights="other", model="mlp")])
    FedHeNN().check(unlike)
    assert "client 1" in refusal(FederationError, FedHeNNHomogeneous().check, unlike)


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
