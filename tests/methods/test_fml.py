"""FML: its equations by hand, against a slow twin."""

from copy import deepcopy
from dataclasses import replace
from math import exp, log, prod
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import states
from fixtures.federations.members import robustly
from fixtures.federations.nodes import linear_node
from fixtures.twins import Twin, assert_near, descend, kl, mean_state
from safetensors.torch import load_file
from torch import nn

from clients.fml import FMLClient
from hetfl_flwr.data import DataSpec
from hetfl_flwr.data.bundled import read_digits
from hetfl_flwr.data.catalogue import CATALOGUE, DatasetEntry
from hetfl_flwr.errors import ConfigError, FederationError
from hetfl_flwr.learning.aggregation import parse_robust
from hetfl_flwr.methods import build_client
from hetfl_flwr.models import SplitModel, build_model
from hetfl_flwr.runs.checkpoint import SERVER_STATE_FILE
from hetfl_flwr.strategy import Upload
from hetfl_flwr.wire.messages import ROUND
from hetfl_flwr.wire.spec import ArraySpec
from simulations.testing.contract import entries
from strategies.fml import FML, _merged

LINEAR = "fixtures.models:linear"


# --- the client, one step by hand ----------------------------------------------------------------

P = 1 / (1 + exp(-1))
"""The own model's probability of class 0 for (1, 0), where its logits are (1, 0)."""
GLOBAL = [np.float32([[0, 0], [1, 0]]), np.float32([0, 1])]
"""Weight and bias of a meme that maps (1, 0) to (0, 2)."""


def one_sample(rounds: int = 1, **hyper_parameters: Any) -> FMLClient:
    """A client with the sample (1, 0) of class 0, the own model ``W x``, W = [[1, 0], [0, 2]], and a linear meme."""
    node = linear_node([[1.0, 0.0]], [0], [[1.0, 0.0], [0.0, 2.0]], rounds=rounds)
    return FMLClient(node, meme=LINEAR, **hyper_parameters)


def test_both_models_are_measured_each_as_what_it_is():
    """The own model is right about the sample, its loss -ln P; the global one is wrong."""
    loss, samples, metrics = one_sample().evaluate(GLOBAL, {ROUND: 0})
    assert (samples, metrics["accuracy"], metrics["global-accuracy"]) == (1, 1.0, 0.0)
    assert loss == pytest.approx(-log(P), rel=1e-6)


def cumulative(spec: DataSpec) -> SplitModel:
    """Batch norm whose running mean is that of all batches so far, for which it needs its step counter."""
    norm = nn.BatchNorm1d(prod(spec.shape), momentum=None)
    return SplitModel(nn.Sequential(nn.Flatten(), norm), nn.Linear(prod(spec.shape), spec.classes))


def test_batch_norm_goes_on_counting_where_the_global_model_stands():
    """After 3 batches with mean 4, one with mean (2, 0) over two samples: (3 * 4 + 2) / 4 = 3.5 and 12 / 4 = 3."""
    client = FMLClient(
        linear_node([[1.0, 0.0], [3.0, 0.0]], [0, 1], [[1.0, 0.0], [0.0, 1.0]]), meme="test_fml:cumulative"
    )
    sent = {array.name: np.ones(array.shape, array.dtype) for array in client.download_spec().arrays}
    sent |= {
        "body.1.running_mean": np.float32([4, 4]),
        "body.1.num_batches_tracked": np.asarray(3),
    }
    uploaded, _, _ = client.fit(list(sent.values()), {ROUND: 1})
    back = dict(zip(client.upload_spec().names, uploaded, strict=True))
    np.testing.assert_allclose(back["body.1.running_mean"], [3.5, 3.0], rtol=1e-6)
    assert back["body.1.num_batches_tracked"] == 4
    assert back["body.1.num_batches_tracked"].dtype == np.int64


# --- the server ----------------------------------------------------------------------------------


def test_the_server_takes_the_plain_mean_and_the_largest_counter():
    """((1, 5) + (2, 7) + (6, 0)) / 3 = (3, 4), whatever the numbers of samples; of 5, 9 and 2 steps, 9."""
    uploads = [
        Upload(k, {"head.weight": np.float32(weight), "steps": np.asarray(steps)}, samples)
        for k, (weight, steps, samples) in enumerate([([1, 5], 5, 1), ([2, 7], 9, 1000), ([6, 0], 2, 10)])
    ]
    merged = FML().aggregate(uploads[0].arrays, uploads, 1)
    assert (merged["head.weight"].tolist(), merged["steps"].tolist()) == ([3, 4], 9)
    assert {name: array.dtype for name, array in merged.items()} == {"head.weight": np.float32, "steps": np.int64}


def test_one_client_s_counter_does_not_lock_the_others_out():
    """The largest counter that is accepted, from one of two clients: honest ones can count on from what follows."""
    merged = _merged(np.array([2**53, 3]), parse_robust("none"))
    assert int(merged) == 2**52
    ArraySpec("counter", (), "int64", -(2**53), 2**53).check(np.asarray(merged + 10**6), "client 1")


def test_multi_krum_leaves_out_a_whole_meme_for_one_array_of_it(caplog):
    """The third's bias is the others' mean, its weight is not; the second counts no steps that the liar has taken."""
    caplog.set_level("INFO", logger="flwr")
    sent = [([1, 5], [2], 5), ([2, 7], [4], 9), ([90, 5], [3], 99), ([3, 6], [6], 2)]
    uploads = [
        Upload(k, {"weight": np.float32(weight), "bias": np.float32(bias), "steps": np.asarray(steps)}, 1)
        for k, (weight, bias, steps) in enumerate(sent)
    ]
    strategy = robustly(FML(), "multikrum:1")
    merged = strategy.aggregate(uploads[0].arrays, uploads, 1)
    assert {name: array.tolist() for name, array in merged.items()} == {"weight": [2, 6], "bias": [4], "steps": 9}
    assert strategy.left_out.taken() == [2]


def test_two_rounds_equal_a_slow_twin(halves):
    """ClientUpdate of Algorithm 1 with Eq. (5); unequal clients, momentum and weight decay: the own model's momentum
    goes on, the meme's starts anew, and the memes have equal weights.
    """
    sides = halves(
        algorithm="fml",
        models=LINEAR,
        clients=3,
        partition="dirichlet:0.5",
        local_batches=0,
        local_epochs=2,
        batch_size=50,
        learning_rate=0.1,
        momentum=0.9,
        weight_decay=0.01,
        **{"fml.meme": LINEAR, "fml.alpha": 0.3, "fml.beta": "0.6:0.8"},
    )
    twins, losses = [Twin(node) for node in sides.nodes], []
    assert len({len(twin.y) for twin in twins}) == 3
    average = build_model(LINEAR, sides.nodes[0].data.spec, seed=sides.config.seed, scope=("global",)).double()
    for round, beta in ((1, 0.6), (2, 0.8)):
        forks = [deepcopy(average) for _ in twins]
        losses += [slow_round(twin, fork, round, 0.3, beta) for twin, fork in zip(twins, forks, strict=True)]
        average.load_state_dict(mean_state(forks))
    server_state, said = sides.play(2)
    np.testing.assert_allclose([(one["train-loss"], one["small-loss"]) for one in said], losses, rtol=1e-4)
    for name, tensor in average.state_dict().items():
        np.testing.assert_allclose(server_state[name], tensor, rtol=1e-3, atol=1e-5)
    for node, twin in zip(sides.nodes, twins, strict=True):
        assert_near(node.model, twin.model, rtol=1e-3)


def slow_round(twin: Twin, fork: SplitModel, round: int, alpha: float, beta: float) -> Any:
    """Train both models of a client; return the mean losses over the samples, each before its batch's step."""
    losses, renewed = [], twin.descent(fork)
    for x, y in twin.batches(round):
        p, q, rows = twin.model(x).softmax(1), fork(x).softmax(1), torch.arange(len(y))
        own = alpha * -p[rows, y].log() + (1 - alpha) * kl(q.detach(), p)
        forked = beta * -q[rows, y].log() + (1 - beta) * kl(p.detach(), q)
        descend((own + forked).mean(), twin.sgd, renewed)
        losses.append(torch.stack([own, forked]).detach())
    return torch.cat(losses, dim=1).mean(1).tolist()


# --- bodies alone --------------------------------------------------------------------------------


@pytest.fixture
def parity(monkeypatch):
    """A data set of the same images as digits with two classes: even and odd."""
    digits = read_digits()
    odd = replace(digits, spec=DataSpec(digits.spec.shape, 2), labels=digits.labels % 2)
    entry = DatasetEntry(odd.spec, odd.train_rows, len(odd.labels) - odd.train_rows, "", bundled=lambda: odd)
    monkeypatch.setitem(CATALOGUE, "digits-parity", entry)
    return "digits-parity"


def test_clients_with_other_classes_share_a_body(parity, make_config, make_node, run_federation, tmp_path):
    """Ten classes and two: the body travels, each client's adaptor stays with it, and the global accuracy is that of
    the global body with the own adaptor.
    """
    config = make_config(
        algorithm="fml",
        dataset=f"digits,{parity}",
        rounds=3,
        state_dir=str(tmp_path / "state"),
        **{"fml.share": "body"},
    )
    run = run_federation(config)
    assert [entry["failures"] for entry in entries(run)] == [[]] * 4
    body, kept = load_file(run / SERVER_STATE_FILE), states(tmp_path / "state")
    assert [tuple(state["adaptor.weight"].shape) for state in kept] == [(10, 84), (2, 84)]
    assert [tuple(state["model.head.weight"].shape) for state in kept] == [(10, 200), (2, 84)]
    for client_id, (state, classes) in enumerate(zip(kept, (10, 2), strict=True)):
        meme = build_model("lenet5", DataSpec((1, 8, 8), classes), seed=config.seed, scope=("global",))
        assert body.keys() == meme.body.state_dict().keys()
        assert not torch.equal(state["adaptor.weight"], meme.head.weight)
        meme.body.load_state_dict(body)
        meme.head.load_state_dict({name: state[f"adaptor.{name}"] for name in ("weight", "bias")})
        test = make_node(config.with_values({"state-dir": ""}), client_id).data.test
        inputs, labels = test.batch(torch.arange(len(test)))
        right = (meme.eval()(inputs).argmax(1) == labels).double().mean().item()
        assert entries(run)[-1]["clients"][str(client_id)]["global-accuracy"] == pytest.approx(right)


def test_an_adaptor_goes_on_from_round_to_round():
    """A meme without weights in its body is its adaptor. Its logits z of (1, 0) are column 0 and the bias, so that one
    step of rate 0.1 makes them ``z - 0.2 (softmax(z) - (1, 0))``; a client built anew begins there.
    """
    node = linear_node([[1.0, 0.0]], [0], [[1.0, 0.0], [0.0, 2.0]])
    first, second = (FMLClient(node, meme=LINEAR, share="body", beta=1.0) for _ in range(2))
    head = first.small.head
    z = (head.weight[:, 0] + head.bias).detach().double().numpy()
    softmax = np.exp(z) / np.exp(z).sum()
    stepped = z - 0.2 * (softmax - [1, 0])
    losses = [client.fit([], {ROUND: round})[2]["small-loss"] for round, client in ((1, first), (2, second))]
    assert losses == pytest.approx([-log(softmax[0]), -log(np.exp(stepped[0]) / np.exp(stepped).sum())], rel=1e-6)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["alpha", "beta"])
@pytest.mark.parametrize("value", [1.5, -0.1, "0.5:2", "half", "1:0.5:0", "0.5:", "nan", ""])
def test_a_part_outside_0_and_1_is_refused_by_name(key, value, make_config, make_node, refusal):
    config = make_config(algorithm="fml", **{f"fml.{key}": value})
    said = refusal(ConfigError, build_client, config, make_node(config))
    assert f"{key} = {value!r}" in said


def test_a_meme_that_does_not_fit_the_data_is_refused_before_round_1(make_config, run_federation, refusal):
    config = make_config(algorithm="fml", dataset="breast-cancer", models="mlp", **{"fml.meme": "lenet5"})
    assert "fml.meme" in refusal(FederationError, run_federation, config)
