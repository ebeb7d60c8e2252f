"""Fine-tuning of the global model before it is measured: one step by hand, a slow loop, and what it must not touch."""

from typing import Any

import numpy as np
import pytest
import torch

from hetfl_flwr.errors import ConfigError
from hetfl_flwr.learning.training import evaluate
from hetfl_flwr.methods import build_client, check_options, names
from hetfl_flwr.models import SplitModel
from hetfl_flwr.runs.checkpoint import SERVER_STATE_FILE
from hetfl_flwr.seeding import generator, seeded
from hetfl_flwr.wire.messages import ROUND
from hetfl_flwr.wire.weights import model_arrays
from simulations.testing.contract import entries
from simulations.testing.lab import NORMED

MEAN = ["fedavg", "fedprox", "feddf"]
METHODS = [*MEAN, "heterofl"]


def slowly_tuned(model: SplitModel, node: Any, epochs: int) -> SplitModel:
    """Plain SGD with momentum over the whole training set, batch by batch, in torch's own words."""
    scope, train = (node.config.seed, node.client_id, "fine-tune"), node.data.train
    rng = generator(*scope)
    optimizer = torch.optim.SGD(model.parameters(), node.config.learning_rate, node.config.momentum)
    with seeded(*scope):
        for _ in range(epochs):
            order = torch.from_numpy(rng.permutation(len(train)))
            for rows in order.split(node.config.batch_size):
                inputs, labels = train.batch(rows)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model.train()(inputs), labels).backward()
                optimizer.step()
    return model


@pytest.mark.parametrize("name", MEAN)
def test_what_is_measured_equals_a_slow_loop_and_the_global_model_stays(name, make_config, make_node):
    """With batch norm and dropout; FedProx's term has no part in it."""
    keys = {"models": NORMED, "optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9, "batch_size": 32}
    mu = {"fedprox.mu": 100.0} if name == "fedprox" else {}
    config = make_config(algorithm=name, validation_fraction=0.2, **keys, **mu, fine_tune_epochs=2)
    node, other = make_node(config), make_node(config)
    sent = model_arrays(node.model)
    client = build_client(config, node)
    node.model.eval()
    loss, samples, metrics = client.evaluate(list(sent.values()), {ROUND: 3})
    for entry, array in model_arrays(node.model).items():
        np.testing.assert_array_equal(array, sent[entry])
    untouched = evaluate(other.model, other.data.test)
    tuned = slowly_tuned(other.model, other, 2)
    expected = evaluate(tuned, other.data.test)
    assert (loss, metrics["accuracy"]) == (pytest.approx(expected.loss, rel=1e-4), expected.accuracy)
    assert metrics["validation-accuracy"] == evaluate(tuned, other.data.validation).accuracy
    assert metrics["global-accuracy"] == untouched.accuracy != expected.accuracy
    assert samples == len(other.data.test)


@pytest.mark.parametrize("name", METHODS)
def test_what_travels_is_the_same_to_the_bit_and_only_measures_differ(name, make_config, run_federation, tmp_path):
    """Server states, losses of training and bytes of runs without and with it; and its accuracy is above the global
    model's, where clients have few classes each."""
    runs = {}
    for epochs in (0, 3):
        keys = {"fine_tune_epochs": epochs, "output_dir": str(tmp_path / str(epochs)), "partition": "classes:3"}
        few = {"models": "mlp", "feddf.server-steps": 3} if name == "feddf" else {"models": "mlp"}
        runs[epochs] = run_federation(make_config(algorithm=name, rounds=2, clients=3, **keys, **few))
    states = [(run / SERVER_STATE_FILE).read_bytes() for run in runs.values()]
    assert states[0] == states[1]
    plain, tuned = (entries(run) for run in runs.values())
    for one, other in zip(plain, tuned, strict=True):
        for way in ("up", "down"):
            assert one[f"bytes_{way}"] == other[f"bytes_{way}"]
        for client, measured in one["clients"].items():
            assert measured["accuracy"] == measured["global-accuracy"] == other["clients"][client]["global-accuracy"]
            assert measured.get("train-loss") == other["clients"][client].get("train-loss")
    assert tuned[-1]["accuracy"] > plain[-1]["accuracy"] + 0.1


@pytest.mark.parametrize("name", [name for name in names() if name not in (*METHODS, "local")])
def test_methods_without_a_global_model_refuse_it(name, make_config, refusal):
    config = make_config(algorithm=name, fine_tune_epochs=1)
    assert "fine-tune-epochs = 1" in refusal(ConfigError, check_options, config)
