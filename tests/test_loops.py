"""The loops that the engine is measured against do the work of its clients: both end with the same bits."""

import numpy as np
from safetensors.numpy import load_file

from hetfl_flwr.algorithms import resolve
from simulations.benchmarks.loops import fedh2l, learners


def test_fedh2l(make_config, make_node, run_federation):
    keys = {"algorithm": "fedh2l", "dataset": "rotated-digits", "models": "lenet5", "clients": 4, "rounds": 5}
    config = resolve(make_config(**keys, batch_size=32, optimizer="amsgrad"))
    knowledge = load_file(run_federation(config) / "knowledge.safetensors")
    clients = learners(config, [make_node(config, partition) for partition in range(4)])
    for client, (rows, posteriors, accuracy) in fedh2l(config, clients, 5).items():
        np.testing.assert_array_equal(knowledge[f"indices.{client:06d}"], rows)
        np.testing.assert_array_equal(knowledge[f"posteriors.{client:06d}"], posteriors)
        assert knowledge[f"accuracy.{client:06d}"] == accuracy
