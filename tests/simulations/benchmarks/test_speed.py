"""The loops that the engine is measured against do the work of its clients: both end with the same bits."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from hetfl_flwr.methods import resolve
from simulations.benchmarks.speed import LOOPS, SETTINGS


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", LOOPS)
def test_a_loop_ends_with_the_bits_of_the_engine(algorithm, make_config, run_federation):
    keys = {key.replace("-", "_"): value for key, value in SETTINGS.items()}
    config = resolve(make_config(**keys, algorithm=algorithm, rounds=4))
    server_state = load_file(run_federation(config) / "knowledge.safetensors")
    play = LOOPS[algorithm](config)
    arrays = [play(round) for round in range(1, config.rounds + 1)][-1]
    assert arrays
    for name, array in arrays.items():
        np.testing.assert_array_equal(server_state[name], array)
