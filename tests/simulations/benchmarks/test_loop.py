"""The loop that the engine is measured against does the work of its clients: both end with the same bits."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from hetfl_flwr.methods import resolve
from simulations.benchmarks import loop


@pytest.mark.slow
def test_the_loop_of_fedh2l_ends_with_the_bits_of_the_engine(make_config, run_federation):
    keys = {"algorithm": "fedh2l", "dataset": "rotated-digits", "models": "lenet5", "clients": 4, "rounds": 5}
    config = resolve(make_config(**keys, batch_size=32, optimizer="amsgrad"))
    server_state = load_file(run_federation(config) / "knowledge.safetensors")
    for client, (rows, posteriors, accuracy) in loop.start(config)(5).items():
        np.testing.assert_array_equal(server_state[f"indices.{client:06d}"], rows)
        np.testing.assert_array_equal(server_state[f"posteriors.{client:06d}"], posteriors)
        assert server_state[f"accuracy.{client:06d}"] == accuracy
