"""Freed memory stays with the process where the C library can be told so."""

import subprocess
import sys

import pytest
from fixtures.tiers import exhaustive
from flwr.app import MessageType, RecordDict

from hetfl_flwr import run
from hetfl_flwr.client_app import app
from hetfl_flwr.node.machine import keep_freed_memory
from simulations.cli.command import main

STEPS = """
from resource import RUSAGE_SELF, getrusage
from hetfl_flwr.node.machine import keep_freed_memory
import numpy as np

def faults():
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(5):
        arrays = [np.ones(size << 20, np.uint8) for size in (80, 16, 16)]
        del arrays
    return getrusage(RUSAGE_SELF).ru_minflt - before

first = faults()
keep_freed_memory()
faults()
print(first, faults())
"""


@pytest.mark.skipif(not keep_freed_memory(), reason="the C library cannot be told to keep freed memory")
def test_arrays_of_one_step_are_those_of_the_next():
    """Before, each step takes its pages anew: 5 steps of 112 MB, at most 28,672 pages of 4 kB each."""
    said = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True).stdout.split()
    before, after = map(int, said)
    assert before > 100
    assert after < before / 10


RUNS = """
import psutil
from hetfl_flwr.node.machine import keep_freed_memory, release_freed_memory
import numpy as np

keep_freed_memory()
arrays = [np.ones(1 << 20, np.uint8) for _ in range(400)]
del arrays[1::2], arrays[:100]  # the last one stays
held = [psutil.Process().memory_info().rss]
release_freed_memory()
print(held[0] - psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(not keep_freed_memory(), reason="the C library cannot be told to keep freed memory")
def test_memory_between_arrays_is_released_too():
    said = subprocess.run([sys.executable, "-c", RUNS], capture_output=True, text=True, check=True).stdout
    assert int(said) > 250 << 20  # of 300


@pytest.fixture
def asked():
    """Return whether this process was told to keep freed memory since the test began."""
    keep_freed_memory.cache_clear()
    return lambda: bool(keep_freed_memory.cache_info().currsize)


def test_a_program_that_runs_federations_keeps_its_allocation(asked, tmp_path):
    result = run("local", models="tabular:4", clients=2, rounds=1, out=tmp_path / "run")
    result.model(0)
    assert not asked()


def test_the_command_keeps_freed_memory(asked, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["hetfl", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert asked()


def query(grid):
    message = grid.create_message(RecordDict(), MessageType.QUERY, grid.get_node_ids()[0], "0")
    [reply] = grid.send_and_receive([message])
    return reply


def test_a_client_app_that_flower_has_started_keeps_freed_memory(asked, make_config, make_context, make_grid):
    config = make_config(models="tabular:4")
    assert not query(make_grid(config)).has_error()
    assert not asked()
    message = make_grid(config).create_message(RecordDict(), MessageType.QUERY, 2**62, "0")
    app(message, make_context(config))
    assert asked()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, exhaustive(2)])
def test_worker_processes_keep_freed_memory(asked, make_config, make_grid, workers):
    reply = query(make_grid(make_config(), workers=workers, app="fixtures.apps.memory:app"))
    assert reply.content["config"]["kept"] == (workers == 2)
