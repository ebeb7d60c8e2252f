"""The benchmark of many clients: it stops after its rounds, and says what it was asked for."""

from simulations.benchmarks.scale import measured


def test_a_run_is_stopped_after_its_rounds():
    start, step, after_start, after_rounds = measured(40, rounds=3)
    assert min(start, step) > 0
    assert 0 < after_start <= after_rounds
