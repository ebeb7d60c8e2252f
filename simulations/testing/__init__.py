"""What every algorithm is to keep to, as a pytest class that any package can take over.

from simulations.testing import AlgorithmContract


class TestFedProto(AlgorithmContract):
algorithm = "my_pkg.fedproto"
"""

import pytest

pytest.register_assert_rewrite("simulations.testing.contract")  # a check that fails shows what it has compared

from simulations.testing.contract import AlgorithmContract  # noqa: E402
from simulations.testing.lab import Lab  # noqa: E402

__all__ = ["AlgorithmContract", "Lab"]
