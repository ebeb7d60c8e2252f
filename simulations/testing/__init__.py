"""What every algorithm must keep to, as a pytest class that any package can take over.

Others import it from `hetfl_flwr`, as the test that ``hetfl new`` writes does.
"""

import pytest

pytest.register_assert_rewrite("simulations.testing.contract")  # a check that fails shows what it has compared

from simulations.testing.contract import AlgorithmContract  # noqa: E402
from simulations.testing.lab import Lab  # noqa: E402

__all__ = ["AlgorithmContract", "Lab"]
