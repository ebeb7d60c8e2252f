"""Tests that every algorithm must pass, as a pytest class from which any package can derive.

Import it from `hetfl_flwr`.
"""

import pytest

pytest.register_assert_rewrite("simulations.testing.contract")  # shows compared values of a failed check

from simulations.testing.contract import AlgorithmContract  # noqa: E402
from simulations.testing.lab import Lab  # noqa: E402

__all__ = ["AlgorithmContract", "Lab"]
