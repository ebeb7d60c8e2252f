"""The fixture `lab`, for tests outside of a contract."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulations.testing.lab import Lab, in_a_run


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Build small federations in `tmp_path`; their worker processes end with the test.

    A test sees it where it, or its ``conftest.py``, says ``from hetfl_flwr import lab``. In a class on
    `AlgorithmContract` it is there without that, and builds federations of the class's algorithm.
    """
    with in_a_run(), Lab(tmp_path) as lab:
        yield lab
