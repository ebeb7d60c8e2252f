"""HeteroFL: narrow networks, its averages by hand and against a slow loop."""

from math import log
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.members import member, truthful
from fixtures.federations.nodes import linear_node
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from clients.heterofl import HeteroFLClient
from hetfl_flwr.config import RunConfig
from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import FederationError
from hetfl_flwr.learning.aggregation import parse_robust
from hetfl_flwr.methods import resolve
from hetfl_flwr.models import SplitModel
from hetfl_flwr.seeding import generator
from hetfl_flwr.server.member import Member
from hetfl_flwr.server.roster import Roster
from hetfl_flwr.strategy import Upload
from hetfl_flwr.wire.messages import ROUND
from hetfl_flwr.wire.weights import weights
from simulations.testing import AlgorithmContract
from simulations.testing.lab import NORMED
from strategies.heterofl import HeteroFL


@pytest.mark.parametrize(("dataset", "models"), [("digits", "lenet5,lenet5@0.5"), ("breast-cancer", "mlp,mlp@0.5")])
def test_every_second_client_has_half_the_width_where_nothing_else_is_said(dataset, models):
    assert resolve(RunConfig(algorithm="heterofl", dataset=dataset)).models == models
    assert "@" not in resolve(RunConfig(algorithm="fedavg", dataset=dataset)).models


# --- the client ----------------------------------------------------------------------------------


def one_sample(**hyper_parameters: Any) -> HeteroFLClient:
    """A client with the sample (1, 0) of class 0 of three, and the model ``z = W A x``."""
    body = nn.Linear(2, 2, bias=False)
    node = linear_node([[1.0, 0.0]], [0], [[0.0, 0.0]] * 3, body=body)
    return HeteroFLClient(node, **hyper_parameters)


A, W = np.float32([[1, 5], [2, 6]]), np.float32([[1, 0], [0, 1], [1, 1]])
SENT = [np.array(0.5, np.float32), A, W]
"""Half of the width."""


@pytest.mark.parametrize("mask", [True, False])
def test_one_step_by_hand(mask):
    """A x = (1, 2), divided by 1/2 in training: H = (2, 4). Logits W H = (2, 4, 6), or with the mask (2, 0, 0). With
    p their softmax and g = p - (1, 0, 0), which is 0 where the mask is: dW = g H^T, dA = (W^T g) x^T / r."""
    client = one_sample(mask=mask)
    uploaded, samples, metrics = client.fit(SENT, {ROUND: 1})
    r, h = 0.5, np.array([2, 4])
    z = W @ h * ([1, 0, 0] if mask else [1, 1, 1])
    p = np.exp(z) / np.exp(z).sum()
    g = (p - [1, 0, 0]) * ([1, 0, 0] if mask else [1, 1, 1])
    assert (samples, metrics["train-loss"]) == (1, pytest.approx(-log(p[0]), rel=1e-5))
    body, head = uploaded[-2:]
    np.testing.assert_allclose(head, W - 0.1 * np.outer(g, h), rtol=1e-5)
    np.testing.assert_allclose(body, A - 0.1 * np.outer(W.T @ g / r, [1, 0]), rtol=1e-5)
    assert [array.tolist() for array in uploaded[:-2]] == ([[1, 0, 0]] if mask else [])


def test_a_part_is_measured_and_kept_as_it_was_trained():
    """A x = (1, 2), divided by 1/2: the logits W H are (2, 4, 6), of which no mask makes others. The model itself gives
    them, so that what is kept, exported and predicted with is what was measured."""
    client = one_sample()
    client.fit(SENT, {ROUND: 1})
    loss, samples, metrics = client.evaluate(SENT, {ROUND: 1})
    assert (samples, metrics["accuracy"], metrics["global-accuracy"]) == (1, 0.0, 0.0)
    logits = np.array([2, 4, 6])
    assert loss == pytest.approx(log(np.exp(logits).sum()) - logits[0], rel=1e-6)
    image = torch.tensor([[1.0, 0.0]])
    torch.testing.assert_close(client.node.model(image)[0].detach(), torch.from_numpy(logits).float())
    assert client.predictor() is client.node.model


def test_the_layers_of_a_body_that_share_weights_are_divided_once():
    """Two layers of the body have one matrix A, and each divides its output by 1/2."""
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    node = linear_node([[1.0, 0.0]], [0], [[0.0, 0.0]] * 3, body=nn.Sequential(first, second))
    client = HeteroFLClient(node)
    client.evaluate(SENT, {ROUND: 1})
    image = torch.tensor([[1.0, 0.0]])
    np.testing.assert_allclose(node.model(image)[0].detach(), W @ A @ A @ [1, 0] / 0.25, rtol=1e-6)


def test_statistics_stay_with_the_client(make_config, make_node):
    config = make_config(algorithm="heterofl", models=NORMED)
    client = HeteroFLClient(make_node(config))
    assert set(weights(client.node.model).names) - set(client.upload_spec().names) == {
        "body.2.running_mean",
        "body.2.running_var",
    }
    sent = [np.zeros(one.shape, np.float32) + (one.name == "rate") for one in client.download_spec().arrays]
    client.assess(dict(zip(client.download_spec().names, sent, strict=True)))
    found = client.node.model.state_dict()
    assert (float(found["body.2.running_mean"].abs().max()), float(found["body.2.running_var"].max())) == (0.0, 0.0)


# --- the server ----------------------------------------------------------------------------------


def net(spec: DataSpec) -> SplitModel:
    """Two inputs, four hidden units, and a head of as many classes as there are."""
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(2, 4, bias=False)), nn.Linear(4, spec.classes))


NET = "test_heterofl:net"


def its(client_id: int, built: str = NET, **said: Any) -> Member:
    return truthful(client_id, built, **said)


def server(*members: Member, robust: str = "none", **hyper_parameters: Any) -> tuple[HeteroFL, dict[str, Any]]:
    strategy = HeteroFL(**hyper_parameters)
    config = RunConfig(algorithm="heterofl", models=f"{NET},{NET}@0.5,{NET}@0.25", robust=robust)
    strategy.prepare(Roster(members), config)
    return strategy, dict(strategy.initial(strategy.roster))


def filled(strategy: HeteroFL, one: Member, value: float, has: Any = (1, 1, 1), samples: int = 1) -> Upload:
    arrays = {spec.name: np.full(spec.shape, value, np.float32) for spec in strategy.upload_spec(one).arrays}
    return Upload(one.client_id, arrays | ({"classes": np.uint8(has)} if "classes" in arrays else {}), samples)


def test_a_client_is_sent_the_leading_block_and_its_part_of_the_widest_that_there_is():
    members = [its(0, f"{NET}@0.5"), its(1, f"{NET}@0.25")]
    strategy, state = server(*members)
    assert {name: array.shape for name, array in state.items()} == {
        "rate": (), "body.1.weight": (2, 2), "head.weight": (3, 2), "head.bias": (3,)
    }  # fmt: skip
    for one, rate, hidden in zip(members, (1.0, 0.5), (2, 1), strict=True):
        down = strategy.download_for(one, state, 1)
        assert float(down["rate"]) == rate
        np.testing.assert_array_equal(down["body.1.weight"], state["body.1.weight"][:hidden])
        np.testing.assert_array_equal(down["head.weight"], state["head.weight"][:, :hidden])


@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from(["none", "median", "trimmed:0.3"]))
@settings(max_examples=15)
def test_averages_equal_a_loop_over_entries(seed, clients, robust):
    draw = generator(seed, "uploads")
    names = [NET, *(f"{NET}@{part}" for part in ("0.5", "0.25"))]
    members = [its(0), *(its(k, names[draw.integers(3)]) for k in range(1, clients))]
    strategy, state = server(*members, robust=robust)
    uploads = []
    for one in members:
        arrays = {
            spec.name: draw.normal(size=spec.shape).astype(np.float32) for spec in strategy.upload_spec(one).arrays
        }
        uploads.append(Upload(one.client_id, arrays | {"classes": draw.integers(0, 2, 3).astype(np.uint8)}, 1))
    found = strategy.aggregate(state, uploads, 1)
    for name, array in state.items():
        if name == "rate":
            continue
        for place in np.ndindex(array.shape):
            sent = [
                float(one.arrays[name][place])
                for one in uploads
                if all(at < size for at, size in zip(place, one.arrays[name].shape, strict=True))
                and (not name.startswith("head.") or one.arrays["classes"][place[0]])
            ]
            expected = parse_robust(robust).mean([np.array(value) for value in sent]) if sent else array[place]
            assert found[name][place] == pytest.approx(float(expected), rel=1e-5, abs=1e-6)


def test_multi_krum_leaves_out_a_whole_upload_that_no_array_of_few_outvotes():
    """Clients 0 and 1 alone have the widest entries, of which a median would be their mean. Client 1 lies in all that
    it has, and is far from all others where they have something; so these entries are client 0's."""
    members = [its(0), its(1), its(2, f"{NET}@0.5"), its(3, f"{NET}@0.25"), its(4, f"{NET}@0.5")]
    strategy, state = server(*members, robust="multikrum:1")
    sent = zip(members, (1, -3, 1.2, 0.9, 1.1), (1, 9, 1, 1, 1), strict=True)
    found = strategy.aggregate(state, [filled(strategy, one, value, samples=count) for one, value, count in sent], 1)
    np.testing.assert_allclose(found["body.1.weight"][0], (1 + 1.2 + 0.9 + 1.1) / 4)
    np.testing.assert_allclose(found["body.1.weight"][1], (1 + 1.2 + 1.1) / 3)
    np.testing.assert_allclose(found["body.1.weight"][2:], 1)


def test_multi_krum_does_not_compare_what_a_narrow_client_has_not():
    """All weights are near 10, save the liar's 13. Where the narrow one has none it is not 10 away from the others."""
    members = [*(its(k) for k in range(4)), its(4, f"{NET}@0.25")]
    strategy, state = server(*members, robust="multikrum:1")
    uploads = [filled(strategy, *one) for one in zip(members, (10, 10.1, 13, 9.9, 10), strict=True)]
    found = strategy.aggregate(state, uploads, 1)
    np.testing.assert_allclose(found["body.1.weight"][0], (10 + 10.1 + 9.9 + 10) / 4)
    np.testing.assert_allclose(found["body.1.weight"][1:], 10)


# --- whole runs ----------------------------------------------------------------------------------


@pytest.mark.exhaustive
class TestTwoWidths(AlgorithmContract):
    """What every method keeps to, with two widths of one network."""

    algorithm = "heterofl"
    keys = {"models": f"{NORMED},{NORMED}@0.5"}  # noqa: RUF012


# --- what is refused -----------------------------------------------------------------------------


def test_parts_of_different_networks_are_refused(refusal):
    mixed = Roster([member(0, model="mlp"), member(1, model="lenet5@0.5"), member(2, model="mlp@0.5")])
    assert "client 1 has lenet5" in refusal(FederationError, HeteroFL().check, mixed)


def test_who_joins_with_a_wider_model_than_the_global_one_is_refused(refusal):
    strategy, _ = server(its(0, f"{NET}@0.5"), its(1, f"{NET}@0.25"))
    strategy.check(Roster([its(0, f"{NET}@0.5"), its(2, f"{NET}@0.25")]))
    assert f"{NET}@0.5" in refusal(FederationError, strategy.check, Roster([its(0, f"{NET}@0.5"), its(2)]))
