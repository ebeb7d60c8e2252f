"""Freed memory stays with the process where the C library can be told so."""

import subprocess
import sys

import pytest

from hetfl_flwr.node.allocation import keep_freed_memory

STEPS = """
from resource import RUSAGE_SELF, getrusage
from hetfl_flwr.node.allocation import keep_freed_memory
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
