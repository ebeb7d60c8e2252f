"""The loops that the engine is measured against do the work of its clients: both end with the same bits."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from hetfl_flwr.algorithms import resolve
from simulations.benchmarks.speed.loops import fedh2l, fedhe, fml


@pytest.mark.slow
def test_fedh2l(make_config, make_node, run_federation):
    keys = {"algorithm": "fedh2l", "dataset": "rotated-digits", "models": "lenet5", "clients": 4, "rounds": 5}
    config = resolve(make_config(**keys, batch_size=32, optimizer="amsgrad"))
    server_state = load_file(run_federation(config) / "knowledge.safetensors")
    loop = fedh2l.start(config, [make_node(config, client_id) for client_id in range(4)])
    for client, (rows, posteriors, accuracy) in loop(5).items():
        np.testing.assert_array_equal(server_state[f"indices.{client:06d}"], rows)
        np.testing.assert_array_equal(server_state[f"posteriors.{client:06d}"], posteriors)
        assert server_state[f"accuracy.{client:06d}"] == accuracy


@pytest.mark.slow
def test_fedhe(make_config, make_node, run_federation):
    """Of the paper's networks the first and the sixth: with dropout, and rounds after the first that are taught."""
    models = "fedhe:0,fedhe:5"
    config = resolve(make_config(algorithm="fedhe", models=models, clients=3, rounds=3, partition="classes:2"))
    server_state = load_file(run_federation(config) / "knowledge.safetensors")
    loop = fedhe.start(config, [make_node(config, client_id) for client_id in range(3)])
    sums, uploads = loop(3)
    np.testing.assert_array_equal(server_state["sums"], sums)
    np.testing.assert_array_equal(server_state["uploads"], uploads)


@pytest.mark.slow
def test_fml(make_config, make_node, run_federation):
    keys = {"algorithm": "fml", "models": "lenet5", "clients": 3, "local_batches": 0, "local_epochs": 2}
    config = resolve(make_config(**keys, optimizer="sgd", learning_rate=0.01, momentum=0.9, weight_decay=5e-4))
    server_state = load_file(run_federation(config) / "knowledge.safetensors")
    loop = fml.start(config, [make_node(config, client_id) for client_id in range(3)])
    for name, tensor in loop(2).items():
        np.testing.assert_array_equal(server_state[name], tensor)
