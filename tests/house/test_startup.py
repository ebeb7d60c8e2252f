"""What a run imports before its first round is over: no library that it does not need."""

import ast
import subprocess
import sys

import pytest

UNNEEDED = ("torch._dynamo", "sympy", "triton", "datasets", "sqlalchemy", "matplotlib", "torchvision")
UNNEEDED += ("ray", "sklearn", "scipy", "pandas")


def imported(*arguments: str, unneeded: tuple[str, ...]) -> list[str]:
    """Call the command in a process of its own, and return what it has imported of what it does not need."""
    script = f"""
import atexit, sys
atexit.register(lambda: print([name for name in {unneeded} if name in sys.modules]))
from hetfl_flwr.__main__ import main
main()
"""
    command = [sys.executable, "-c", script, *arguments]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return ast.literal_eval(out.splitlines()[-1])


@pytest.mark.slow
def test_a_run_on_bundled_data_imports_no_library_that_it_does_not_need(tmp_path):
    """These take longer than everything else together. torch's compiler comes with an ordinary optimizer, sympy with
    a size on the meta device, and SQL with Flower's Grids."""
    keys = ("--clients", "2", "--rounds", "1", "--dataset", "digits", "--out", str(tmp_path / "run"))
    assert imported("run", "fedhe", *keys, unneeded=UNNEEDED) == []


@pytest.mark.parametrize("arguments", [("list",), ("list", "models", "--json"), ("--help",), ("--version",)])
def test_what_there_is_is_told_without_torch(arguments):
    assert imported(*arguments, unneeded=(*UNNEEDED, "torch", "flwr", "numpy", "pyarrow")) == []
