"""Methods that average weights, by the loops that one would write by hand; what they measure; and whom they refuse."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.federations.loops import adam, floats, put, server_state, train_by_hand, weighted
from fixtures.federations.nodes import linear_node
from fixtures.tiers import exhaustive
from torch import nn

from clients.fedrep import FedRepClient
from clients.lgfedavg import LGFedAvgClient
from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import FederationError, ModelError
from hetfl_flwr.models import SplitModel, build_model
from hetfl_flwr.seeding import seeded
from simulations.testing.contract import entries
from simulations.testing.lab import NORMED

LINEAR = "fixtures.models:linear"
"""Its 64 features are the 64 pixels of a digit: a body without weights."""

Trained = Callable[[Any, int, nn.Module, bool], dict[str, float]]
"""Trains a node for a round, of whose model this part came, with moments kept or reset; returns the losses."""


def whole(optimizer: type = torch.optim.Adam, mu: float = 0.0) -> Trained:
    """Train a model as a whole, held by ``mu`` to where the round began; what came has new moments."""
    found: dict[int, Any] = {}

    def train(node: Any, round: int, came: nn.Module, kept: bool) -> dict[str, float]:
        begun = {name: one.detach().clone() for name, one in node.model.named_parameters()}
        keys = {"fused": True} if optimizer is torch.optim.Adam else {}
        own = found.setdefault(id(node), optimizer(node.model.parameters(), lr=node.config.learning_rate, **keys))
        for parameter in () if kept else came.parameters():
            own.state.pop(parameter, None)

        def pull() -> float:
            ways = [(one, one.detach() - begun[name]) for name, one in node.model.named_parameters()] if mu else []
            for one, way in ways:
                one.grad += mu * way
            return mu / 2 * sum(float((way.double() ** 2).sum()) for _, way in ways)

        return {"train-loss": train_by_hand(node, own, round, also=pull)}

    return train


def in_turn(epochs: int = 1) -> Trained:
    """Train the head on the fixed features of the body, in evaluation mode, and then the body under the fixed head."""
    found: dict[int, Any] = {}

    def train(node: Any, round: int, came: nn.Module, kept: bool) -> dict[str, float]:
        model = node.model
        of_head, of_body = found.setdefault(id(node), [adam(node, model.head), None])
        if of_body is None or not kept:
            found[id(node)][1] = of_body = adam(node, model.body)
        model.body.eval()

        def fixed(inputs: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = model.head(model.body(inputs).detach())
            return logits

        first = train_by_hand(node, of_head, round, "head", model=fixed, epochs=epochs)
        model.body.train()
        return {"head-loss": first, "train-loss": train_by_hand(node, of_body, round)}

    return train


KEPT, SGD = {"moments": "kept"}, {"optimizer": "sgd", "learning_rate": 0.1}
PULLED, UNLIKE = {**SGD, "fedprox.mu": 0.5}, {"models": f"{NORMED},mlp", "width": 8}
Case = tuple[str, str, int, dict[str, Any], Callable[[], Trained]]
CASES: dict[str, Case] = {
    "fedavg": ("fedavg", "", 3, {}, whole),
    "fedavg, moments": ("fedavg", "", 3, KEPT, whole),
    "fedprox": ("fedprox", "", 3, PULLED, partial(whole, torch.optim.SGD, 0.5)),
    "fedrep, alone": ("fedrep", "body", 1, {}, in_turn),
    "fedrep": ("fedrep", "body", 3, {}, in_turn),
    "fedrep, passes": ("fedrep", "body", 3, {"fedrep.head-epochs": 2}, partial(in_turn, 2)),
    "fedrep, moments": ("fedrep", "body", 3, KEPT, in_turn),
    "lgfedavg": ("lgfedavg", "head", 3, UNLIKE, whole),
    "lgfedavg, moments": ("lgfedavg", "head", 3, {**UNLIKE, **KEPT}, whole),
    "lgfedavg, bodies": ("lgfedavg", "body", 3, {"lgfedavg.mode": "body"}, whole),
}
"""By case: the method, the part of the model that travels, how many clients there are, keys, and how they train."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_rounds_equal_a_loop_by_hand(case, make_config, make_node, ended):
    """What travels, running statistics too, is averaged by the numbers of training samples, in Flower's order of float
    operations: each array times its weight in float32, added up by client. The rest goes on from round to round, with
    the moments of its optimizer; what came has new ones, or with moments "kept" its own. Batch norm and dropout.
    """
    method, travels, clients, more, training = CASES[case]
    keys = {"algorithm": method, "models": NORMED, "clients": clients, "partition": "dirichlet:0.5"}
    keys |= {"local_batches": 0, "seed": 2, **more}
    config, train = make_config(**keys), training()
    nodes = [make_node(config, client_id) for client_id in range(clients)]
    assert len({len(node.data.train) for node in nodes}) == clients
    first = build_model(NORMED, nodes[0].data.spec, seed=2, scope=("global",))
    if method == "fedrep":
        for node in nodes:
            node.model.head.load_state_dict(first.head.state_dict())
    with seeded(2, "global", "weights"):
        shared = floats(nn.Linear(8, 10) if travels == "head" else getattr(first, travels) if travels else first)
    losses = []
    for round in (1, 2):
        parts = [getattr(node.model, travels) if travels else node.model for node in nodes]
        for node, part in zip(nodes, parts, strict=True):
            put(part, shared)
            losses.append(train(node, round, part, "moments" in keys))
        shared = weighted([floats(part) for part in parts], [len(node.data.train) for node in nodes])
    folder, states = ended(**keys)
    found = server_state(folder)
    assert found.keys() == shared.keys()
    close = {"rtol": 1e-4, "atol": 1e-5} if method == "fedprox" else {"rtol": 0, "atol": 0}  # another order of sums
    for name, array in found.items():
        np.testing.assert_allclose(array, shared[name], **close, err_msg=name)
    said = [entry["clients"][str(client)] for entry in entries(folder)[1:] for client in range(clients)]
    for one, expected in zip(said, losses, strict=True):
        assert {name: one[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    for node, state in zip(nodes, states, strict=True) if travels else ():
        rest = node.model.head if travels == "body" else node.model.body
        name = "head" if travels == "body" else "body"
        for key, tensor in rest.state_dict().items():
            np.testing.assert_array_equal(state[f"model.{name}.{key}"], tensor, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", *map(exhaustive, ("fedprox", "fedrep", "fml"))])
def test_kept_moments_survive_an_interruption_and_do_not_depend_on_the_engine(
    algorithm, make_config, run_federation, tmp_path
):
    """Three rounds in one go, and two rounds and one more, in one process and in two: the same weights at the end, and
    others than with moments that are reset.
    """
    places = {name: {"output_dir": str(tmp_path / name), "state_dir": str(tmp_path / f"{name}-s")} for name in "abc"}
    keys = {"algorithm": algorithm, "models": NORMED, "local_batches": 2, "clients": 3, "fraction": 0.6}
    kept = keys | {"moments": "kept", "checkpoint_every": 1}
    whole = run_federation(make_config(rounds=3, **kept, **places["a"]))
    run_federation(make_config(rounds=2, **kept, **places["b"]), workers=2)
    parts = run_federation(make_config(rounds=3, resume=True, **kept, **places["b"]))
    reset = run_federation(make_config(rounds=3, **keys, **places["c"]))
    found, resumed, other = (server_state(run) for run in (whole, parts, reset))
    assert all(torch.equal(array, resumed[name]) for name, array in found.items())
    assert not all(torch.equal(array, other[name]) for name, array in found.items())


@pytest.mark.parametrize(("kind", "part"), [(FedRepClient, "body"), (LGFedAvgClient, "head")])
def test_what_is_measured_is_what_came_with_the_own_rest(kind, part):
    """The own part passes on its two features: with the identity both samples are right, with a part that swaps them
    both are wrong."""
    node = linear_node(np.eye(2), [0, 1], np.eye(2), body=nn.Linear(2, 2, bias=False), head_bias=False)
    node.model.body.weight.data = torch.eye(2)
    client = kind(node)
    scores = [client.evaluate([np.float32(one)], {})[2]["accuracy"] for one in (np.eye(2), np.eye(2)[::-1])]
    assert scores == [1.0, 0.0]


def test_the_global_accuracy_is_the_accuracy_over_all_test_samples(ended):
    """The accuracy is the plain mean over clients; the global one weighs each client by its test samples."""
    keys = {"models": LINEAR, "clients": 3, "partition": "dirichlet:0.3", "learning_rate": 0.01}
    folder = ended(algorithm="fedavg", **keys)[0]
    last, clients = entries(folder)[-1], json.loads((folder / "clients.json").read_text())
    accuracies, tests = ([one[key] for one in clients] for key in ("accuracy", "test"))
    assert last["global_accuracy"] == pytest.approx(np.average(accuracies, weights=tests))
    assert last["accuracy"] == pytest.approx(np.mean(accuracies))
    assert last["accuracy"] != pytest.approx(last["global_accuracy"])


@pytest.mark.parametrize("unit", [("local_batches", 2), ("local_epochs", 1)], ids=str)
def test_exchange_every_3_is_three_times_the_local_work_in_one_round(unit, ended):
    """The same bits as with the local work written out, and the bytes of one exchange a round."""
    key, once = unit
    flat = {"algorithm": "fedavg", "models": NORMED, "local_batches": 0}
    works = {key: once, "fedavg.exchange-every": 3}, {key: 3 * once}, {key: once}
    runs = [ended(**{**flat, **work})[0] for work in works]
    one, same, other = (server_state(run)["head.weight"] for run in runs)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert {tuple(entry["bytes_up"] for entry in entries(run)) for run in runs} == {(0, 2 * 2568, 2 * 2568)}


@pytest.mark.parametrize(
    ("keys", "options", "passes"),
    [
        ({"local_batches": 3}, {}, (1, 3)),
        ({"local_batches": 0, "local_epochs": 2}, {}, (2, 0)),
        ({"local_batches": 3}, {"head_batches": 2}, (0, 2)),
        ({"local_batches": 3}, {"head_epochs": 9}, (9, 0)),
    ],
)
def test_the_head_has_as_many_steps_as_the_body_unless_it_has_its_own(keys, options, passes, make_config, make_node):
    client = FedRepClient(make_node(make_config(algorithm="fedrep", models=NORMED, **keys)), **options)
    assert (client.head_epochs, client.head_batches) == passes


# --- what is refused -----------------------------------------------------------------------------


def without_bias(spec: DataSpec) -> SplitModel:
    """A linear body of width 64, a head without bias."""
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 64)), nn.Linear(64, spec.classes, bias=False))


@pytest.mark.parametrize("kept", [True, False])
def test_a_head_without_bias_among_heads_with_one_is_refused_in_a_line(kept, make_config, make_node, refusal):
    """And the other way round: a model of the user's own may have either."""
    models = "test_averaging:without_bias" if kept else LINEAR
    node = make_node(make_config(algorithm="lgfedavg", models=models))
    node = node if kept else replace(node, config=node.config.model_copy(update={"head_bias": False}))
    assert f"bias={kept}" in refusal(ModelError, LGFedAvgClient, node)


@pytest.mark.parametrize(
    ("algorithm", "models", "named"),
    [("lgfedavg", "mlp,lenet5", "client 1 has lenet5"), ("lgfedavg", LINEAR, LINEAR), ("fedrep", LINEAR, LINEAR)],
)
def test_unlike_bodies_and_bodies_without_weights_are_refused_where_bodies_travel(
    algorithm, models, named, ended, refusal
):
    keys = {"lgfedavg.mode": "body"} if algorithm == "lgfedavg" else {}
    assert named in refusal(FederationError, ended, algorithm=algorithm, models=models, **keys)
