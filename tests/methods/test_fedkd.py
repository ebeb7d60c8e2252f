"""FedKD: its equations by hand, against a slow twin."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.grids import Tampering
from fixtures.federations.loops import fit, put
from fixtures.federations.members import member, robustly, roster
from fixtures.federations.nodes import linear_node
from fixtures.twins import Twin, assert_near, descend, kl
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

from clients.fedkd import FedKDClient
from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import DataSpec
from hetfl_flwr.models import SplitModel
from hetfl_flwr.strategy import Upload
from hetfl_flwr.wire.codec import from_record
from hetfl_flwr.wire.factors import factor
from hetfl_flwr.wire.messages import ARRAYS
from hetfl_flwr.wire.spec import Arrays, under
from hetfl_flwr.wire.weights import model_arrays, weights
from simulations.testing.contract import entries
from simulations.testing.lab import NORMED
from strategies.fedkd import DOWN, FedKD

LINEAR = "fixtures.models:linear"


# --- the client, one step by hand ----------------------------------------------------------------

GLOBAL = {"head.weight": np.float32([[0, 0], [1, 0]]), "head.bias": np.float32([0, 1])}
"""A mentee that maps (1, 0) to (0, 2)."""


def sent(client: FedKDClient, arrays: Arrays, round: int = 0, before: int = -1) -> list[Any]:
    packed = factor(arrays, weights(client.small), 1.0, DOWN)
    return [np.array(round), np.array(before), *packed.values()]


def one_sample() -> FedKDClient:
    """A client with the sample (1, 0) of class 0, the mentor ``W x``, W = [[1, 0], [0, 2]], and a linear mentee; its
    matrix takes the mentee's embedding (1, 0) to (0.5, 0.25), where the mentor's is (1, 0)."""
    node = linear_node([[1.0, 0.0]], [0], [[1.0, 0.0], [0.0, 2.0]])
    client = FedKDClient(node, mentee=LINEAR, energy_start=1.0, energy_end=1.0)
    client.matrix.weight.data = torch.tensor([[0.5, 0.0], [0.25, 0.0]])
    return client


def test_two_models_that_are_sure_and_right_do_not_divide_by_zero():
    client = one_sample()
    client.node.model.head.weight.data *= 1000
    sure = {"head.weight": np.float32([[1000, 0], [0, 0]]), "head.bias": np.float32([0, 0])}
    _, metrics = fit(client, sent(client, sure))
    assert metrics["train-loss"] == pytest.approx(0.15625e6, rel=1e-3)


# --- which mentee a client holds -----------------------------------------------------------------


def test_an_update_is_added_once_to_the_mentee_that_it_is_of():
    """What is trained on top of it is uploaded and forgotten. An update that comes again after a round that came to
    nothing is not added again. Of another mentee it is not added, and what is uploaded weighs nothing."""
    client, step = one_sample(), {name: np.full_like(array, 0.5) for name, array in GLOBAL.items()}

    def held() -> dict[str, Any]:
        return {name: array.tolist() for name, array in model_arrays(client.small).items()}

    fit(client, sent(client, GLOBAL))
    for _ in range(2):
        fit(client, sent(client, step, round=1, before=0), 2)
        assert held() == {name: (array + 0.5).tolist() for name, array in GLOBAL.items()}
    assert [fit(client, sent(client, step, round=6, before=5), 7)[1]["num-examples"] for _ in range(2)] == [0, 0]
    assert held() == {name: (array + 0.5).tolist() for name, array in GLOBAL.items()}
    assert fit(client, sent(client, GLOBAL, round=7), 8)[1]["num-examples"] == 1
    assert held() == {name: array.tolist() for name, array in GLOBAL.items()}


def test_the_server_and_the_clients_hold_the_same_mentee_whoever_was_there(halves):
    """One client misses round 2, one has its upload of round 2 lost; both are sent the mentee whole, and the next round
    only what has changed. Round 4 comes to nothing. All hold the server's mentee to the bit, batch norm and all."""
    sides = halves(algorithm="fedkd", clients=3, rounds=6, optimizer="adam", **{"fedkd.mentee": NORMED})
    strategy, members, clients, server_state = sides.strategy, list(sides.members), sides.clients, sides.state
    whole = weights(clients[0].small).nbytes + 16
    there = {1: ([0, 1, 2], [0, 1, 2]), 2: ([0, 1], [0]), 3: ([0, 1, 2],) * 2, 4: ([0, 1], []), 5: ([0, 1, 2],) * 2}
    came = {}
    for round, (trained, heard) in there.items():
        uploads = []
        for client_id in trained:
            client, download = clients[client_id], strategy.download_for(members[client_id], server_state, round)
            came[round, client_id] = sum(array.nbytes for array in download.values())
            assert client.download_spec().check_named(download, "server")
            arrays, metrics = fit(client, download.values(), round)
            held = model_arrays(client.small)
            assert all((array == server_state[f"mentee.{name}"]).all() for name, array in held.items())
            uploads.append(Upload(client_id, arrays, metrics["num-examples"]))
        if heard:
            server_state = strategy.aggregate(server_state, [one for one in uploads if one.client_id in heard], round)
    wholly = {key for key, nbytes in came.items() if nbytes == whole}
    assert wholly == {(1, 0), (1, 1), (1, 2), (3, 1), (3, 2), (5, 0), (5, 1), (5, 2)}
    assert all(nbytes < whole for key, nbytes in came.items() if key not in wholly)


# --- the server ----------------------------------------------------------------------------------


def mentee(spec: DataSpec) -> SplitModel:
    """Six embeddings of five inputs, and a head of four classes."""
    return SplitModel(nn.Linear(*spec.shape, 6), nn.Linear(6, spec.classes))


def server(robust: str = "none", **hyper_parameters: Any) -> tuple[FedKD, dict[str, Any]]:
    """A strategy before round 1, for 5 inputs and 4 classes; and its state, all of it zero."""
    strategy = robustly(FedKD(mentee="test_fedkd:mentee", **hyper_parameters), robust)
    strategy.config = RunConfig(rounds=3)
    strategy.roster = roster(3, shape=(5,), classes=4)
    state = strategy.initial(strategy.roster)
    return strategy, {name: np.zeros_like(array) for name, array in state.items()}


def upload(strategy: FedKD, client_id: int, matrix: Any, samples: int = 1) -> Upload:
    """An upload of a body's weights (6, 5), all else zero."""
    arrays = {one.name: np.zeros(one.shape, np.float32) for one in strategy._weights.arrays}
    arrays["body.weight"] = np.float32(matrix)
    return Upload(client_id, factor(arrays, strategy._weights, 1.0), samples)


def diagonal(*values: float) -> Any:
    matrix = np.zeros((6, 5))
    np.fill_diagonal(matrix, np.pad(values, (0, 5 - len(values))))  # else it would begin again
    return matrix


@pytest.mark.parametrize(
    ("round", "kept"),
    # squares of the mean's singular values 4, 3, 2, 1: 16, 9, 4, 1 of 30. T is 0.5, 0.7, 0.9 in rounds 1, 2, 3
    [(1, 1), (2, 2), (3, 3)],
)
def test_the_mean_is_compressed_by_hand(round, kept):
    """The mean over clients, each alike: (4, 3, 2, 1). Factors of rank 3 have 3 (6 + 5) = 33 numbers, more than 30 of
    the matrix, which then is sent as it is."""
    strategy, state = server(energy_start=0.5, energy_end=0.9)
    uploads = [upload(strategy, k, diagonal(*values), 10**k) for k, values in enumerate([(8, 0, 4, 0), (0, 6, 0, 2)])]
    state = strategy.aggregate(state, uploads, round)
    values = (4, 3, 2, 1)
    expected = diagonal(*values) if kept == 3 else diagonal(*values[:kept])
    np.testing.assert_allclose(state["mentee.body.weight"], expected, atol=1e-6)
    shapes = {name: state[f"sent.{DOWN}body.weight{name}"].shape for name in ("", ".left", ".right")}
    assert shapes == {"": (6 * (kept == 3), 5), ".left": (6, kept % 3), ".right": (kept % 3, 5)}
    assert {name: int(state[name]) for name in ("round", "before")} == {"round": round, "before": 0}
    assert state["held"].tolist() == [0, 1]


def test_a_robust_mean_is_of_updates_and_not_of_factors():
    strategy, state = server(robust="median", energy_start=1.0, energy_end=1.0)
    uploads = [upload(strategy, k, np.full((6, 5), value)) for k, value in enumerate((1, 2, 900))]
    assert (strategy.aggregate(state, uploads, 1)["mentee.body.weight"] == 2).all()


def test_variances_of_batch_norm_may_fall(halves):
    """The mean of two changes of a variance of 1, -0.8 and -0.6, leaves 0.3."""
    sides = halves(algorithm="fedkd", clients=2, **{"fedkd.mentee": NORMED})
    declared = sides.strategy._weights
    variance = next(name for name in declared.names if name.endswith("running_var"))
    uploads = []
    for client_id, change in enumerate((-0.8, -0.6)):
        changes = {one.name: np.zeros(one.shape, one.dtype) for one in declared.arrays}
        changes[variance] += np.float32(change)
        uploads.append(Upload(client_id, factor(changes, declared, 0.95), 1))
    found = sides.strategy.aggregate(sides.state, uploads, 1)
    np.testing.assert_allclose(found[f"mentee.{variance}"], 0.3, rtol=1e-6)


@pytest.mark.parametrize("robust", ["none", "median"])
def test_no_upload_within_its_bounds_makes_a_mentee_beyond_them(robust):
    """Factors of 1e6 and of 1 multiply to more than a weight may be, as do rows of weights of 1e6."""
    strategy, state = server(robust=robust)
    big = upload(strategy, 0, np.zeros((6, 5)))
    left, right = np.full((6, 2), 1e6, np.float32), np.ones((2, 5), np.float32)
    arrays = {**big.arrays, "body.weight": np.zeros((0, 5), np.float32)}
    hostile = Upload(0, {**arrays, "body.weight.left": left, "body.weight.right": right}, 1)
    strategy.upload_spec(member(0)).check_named(hostile.arrays, "client 0")
    for _ in range(2):
        state = strategy.aggregate(state, [hostile], 1)
        down = strategy.download_for(member(0), state, 2)
        FedKDClient.download_spec(type("Its", (), {"_weights": strategy._weights})).check_named(down, "server")
        assert state["mentee.body.weight"].max() == 1e6


# --- both sides ----------------------------------------------------------------------------------


def test_two_rounds_equal_a_slow_twin(halves):
    """Unequal clients: momentum of mentor and matrix goes on, the mentee's starts anew; T is 0.6, then 0.8."""
    sides = halves(
        algorithm="fedkd",
        models="fixtures.models:wide",
        clients=3,
        partition="dirichlet:0.5",
        learning_rate=0.1,
        momentum=0.9,
        **{"fedkd.mentee": "fixtures.models:narrow", "fedkd.energy-start": 0.6, "fedkd.energy-end": 0.8},
    )
    twins, matrices = [Twin(node) for node in sides.nodes], [deepcopy(one.matrix).double() for one in sides.clients]
    assert len({len(twin.y) for twin in twins}) == 3
    optimizers = [twin.descent(twin.model, matrix) for twin, matrix in zip(twins, matrices, strict=True)]
    middle = deepcopy(sides.clients[0].small)
    put(middle, under("mentee.", sides.state))
    middle.double()
    for round, share in ((1, 0.6), (2, 0.8)):
        changes, before = [], middle.state_dict()
        for twin, matrix, both in zip(twins, matrices, optimizers, strict=True):
            mentee = deepcopy(middle)
            renewed = twin.descent(mentee)
            for x, y in twin.batches(round):
                descend(slow_losses(twin.model, mentee, matrix, x, y), both, renewed)
            learnt = mentee.state_dict()
            changes.append({name: slow_compressed(learnt[name] - old, share) for name, old in before.items()})
        means = {name: torch.stack([change[name] for change in changes]).mean(0) for name in before}
        middle.load_state_dict({name: old + slow_compressed(means[name], share) for name, old in before.items()})
    server_state, _ = sides.play(2)
    for name, tensor in middle.state_dict().items():
        np.testing.assert_allclose(server_state[f"mentee.{name}"], tensor, rtol=1e-3, atol=1e-5)
    for client, twin, matrix in zip(sides.clients, twins, matrices, strict=True):
        assert_near(client.node.model, twin.model, rtol=1e-3)
        assert_near(client.matrix, matrix, rtol=1e-3)


def slow_losses(mentor: SplitModel, mentee: SplitModel, matrix: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
    """The section's two losses on a batch: each model learns from the other, and the matrix with the mentor."""
    h, k = mentor.body(x), mentee.body(x)
    p, q = mentor.head(h).softmax(1), mentee.head(k).softmax(1)
    truth = -p[torch.arange(len(y)), y].log().mean() - q[torch.arange(len(y)), y].log().mean()
    of_mentor = kl(q.detach(), p).mean() + ((h - matrix(k.detach())) ** 2).mean()
    of_mentee = kl(p.detach(), q).mean() + ((h.detach() - k @ matrix.weight.T.detach()) ** 2).mean()
    return truth + (of_mentor + of_mentee) / truth.detach()


def slow_compressed(matrix: Tensor, share: float) -> Tensor:
    """With the fewest of its leading singular values that hold a share of their squares, if that is less to send."""
    if matrix.ndim < 2:
        return matrix
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    rank = next(k for k in range(len(s) + 1) if (s[:k] ** 2).sum() >= share * (s**2).sum())
    return u[:, :rank] * s[:rank] @ v[:rank] if rank * sum(matrix.shape) < matrix.numel() else matrix


# --- what is refused -----------------------------------------------------------------------------


def rows_in_place_of_factors(name: str, arrays: Arrays) -> dict[str, np.ndarray]:
    """Send all rows of a matrix, which the others send as factors, with a size that weights never have."""
    rows, columns = len(arrays[f"{name}.left"]), arrays[f"{name}.right"].shape[1]
    return {
        name: np.full((rows, columns), 99.0, np.float32),
        f"{name}.left": arrays[f"{name}.left"][:, :0],
        f"{name}.right": arrays[f"{name}.right"][:0],
    }


def factors_that_add_up(name: str, arrays: Arrays) -> dict[str, np.ndarray]:
    """Send as many factors as there may be, all alike, each as large as an honest one's entries may be."""
    (rows, _), columns = arrays[f"{name}.left"].shape, arrays[f"{name}.right"].shape[1]
    rank, size = (rows * columns - 1) // (rows + columns), np.abs(arrays[f"{name}.left"]).max(initial=0.0)
    return {
        f"{name}.left": np.full((rows, rank), size, np.float32),
        f"{name}.right": np.ones((rank, columns), np.float32),
    }


@pytest.mark.parametrize("forge", [rows_in_place_of_factors, factors_that_add_up])
def test_an_update_is_measured_as_what_its_factors_come_to(forge, make_config, run_federation):
    config = make_config(algorithm="fedkd", clients=5, rounds=3, models="mlp", local_batches=2)
    forged = set[str]()

    def hostile(reply: Any) -> Any:
        arrays = from_record(reply.content.array_records[ARRAYS])
        factored = [name for name in arrays if arrays.get(f"{name}.left", np.zeros((0, 0))).size]
        forged.update(factored)
        arrays = arrays | {name: array for one in factored for name, array in forge(one, arrays).items()}
        reply.content[ARRAYS] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        return reply

    found = entries(run_federation(config, Tampering(config, 1, hostile)))
    for entry in found[1:]:
        [outlier] = entry["outliers"]
        assert outlier["partition"] == 1
        assert any(f"array '{name}' has size" in outlier["reason"] for name in forged)
