"""FedAvg: equal to the loop one would write by hand, buffers included; and what it refuses."""

import json
from math import exp, log

import numpy as np
import pytest
from fixtures.federations.loops import adam, floats, put, train_by_hand, weighted
from fixtures.federations.nodes import linear_node
from fixtures.tiers import exhaustive
from safetensors.numpy import load_file

from clients.fedavg import FedAvgClient
from clients.fedprox import FedProxClient
from hetfl_flwr.models import build_model
from hetfl_flwr.runs.checkpoint import SERVER_STATE_FILE
from hetfl_flwr.wire.messages import ROUND
from simulations.testing.contract import entries

NORMED = "simulations.testing.lab:normed"
"""8 x 8 inputs to 8 units with batch norm to 10 classes."""


@pytest.mark.parametrize(("clients", "moments"), [(1, "reset"), (3, "reset"), (3, "kept")])
def test_two_rounds_equal_a_loop_by_hand(clients, moments, make_config, make_node, run_federation):
    """Weights and running statistics are averaged by the numbers of training samples, in Flower's order of float
    operations: each array times its weight in float32, added up by partition. One client is then its own training and
    no more. Each client has an Adam of its own, for a round ("reset") or for the run ("kept").
    """
    keys = {"local_batches": 0, "seed": 2, "moments": moments}
    config = make_config(algorithm="fedavg", models=NORMED, clients=clients, partition="dirichlet:0.5", **keys)
    nodes = [make_node(config, client_id) for client_id in range(clients)]
    assert clients == 1 or len({len(node.data.train) for node in nodes}) > 1
    average = floats(build_model(NORMED, nodes[0].data.spec, seed=config.seed, scope=("global",)))
    optimizers = [adam(node) for node in nodes]
    for round in (1, 2):
        if moments == "reset":
            optimizers = [adam(node) for node in nodes]
        for node, optimizer in zip(nodes, optimizers, strict=True):
            put(node.model, average)
            train_by_hand(node, optimizer, round)
        average = weighted([floats(node.model) for node in nodes], [len(node.data.train) for node in nodes])
    found = load_file(run_federation(config) / SERVER_STATE_FILE)
    assert found.keys() == average.keys()
    for key, array in found.items():
        np.testing.assert_array_equal(array, average[key], err_msg=key)


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
    found, resumed, other = (load_file(run / SERVER_STATE_FILE) for run in (whole, parts, reset))
    for name, array in found.items():
        np.testing.assert_array_equal(array, resumed[name], err_msg=name)
    assert any((found[name] != array).any() for name, array in other.items())


@pytest.mark.parametrize("kind", [FedAvgClient, FedProxClient])
def test_what_is_measured_is_the_global_model_that_was_sent(kind):
    """Its logits of the one sample, of class 0, are (0, 5): wrong, with a loss of ln(1 + e^5)."""
    client = kind(linear_node([[1.0, 0.0]], [0], [[1.0, 0.0], [0.0, 2.0]]))
    loss, samples, metrics = client.evaluate([np.float32([[0, 0], [5, 0]])], {ROUND: 1})
    assert (samples, metrics["accuracy"], metrics["global-accuracy"]) == (1, 0.0, 0.0)
    assert loss == pytest.approx(log(1 + exp(5)), rel=1e-6)


def test_the_global_accuracy_is_the_accuracy_over_all_test_samples(make_config, run_federation):
    """The accuracy is the plain mean over clients; the global one weighs each client by its test samples."""
    config = make_config(
        algorithm="fedavg", models="fixtures.models:linear", clients=3, partition="dirichlet:0.3", learning_rate=0.01
    )
    run = run_federation(config)
    last, clients = entries(run)[-1], json.loads((run / "clients.json").read_text())
    correct = [round(one["accuracy"] * one["test"]) for one in clients]
    total = sum(one["test"] for one in clients)
    assert last["global_accuracy"] == pytest.approx(sum(correct) / total)
    assert last["accuracy"] == pytest.approx(sum(one["accuracy"] for one in clients) / 3)
    assert last["accuracy"] != pytest.approx(last["global_accuracy"])


LOCAL_WORK = {
    "batches": ({"local_batches": 2}, {"local_batches": 6}),
    "epochs": ({"local_epochs": 1}, {"local_epochs": 3}),
}


@pytest.mark.parametrize("unit", LOCAL_WORK)
def test_exchange_every_3_is_three_times_the_local_work_in_one_round(unit, make_config, run_federation, tmp_path):
    """The same bits as with the local work written out, and the bytes of one exchange a round."""
    once, thrice = LOCAL_WORK[unit]
    runs = {}
    for name, keys in {
        "every 3": {**once, "fedavg.exchange-every": 3},
        "written out": thrice,
        "every 1": {**once, "fedavg.exchange-every": 1},
    }.items():
        flat = {"algorithm": "fedavg", "models": NORMED, "local_batches": 0, "output_dir": str(tmp_path / name)}
        runs[name] = run_federation(make_config(**{**flat, **keys}))
    found = {name: load_file(run / SERVER_STATE_FILE)["head.weight"] for name, run in runs.items()}
    np.testing.assert_array_equal(found["every 3"], found["written out"])
    assert (found["every 3"] != found["every 1"]).any()
    assert {tuple(entry["bytes_up"] for entry in entries(run)) for run in runs.values()} == {(0, 2 * 2568, 2 * 2568)}
