"""What a run imports before its first round is over: no library that it does not need."""

import ast
import subprocess
import sys

import pytest
import torch

from hetfl_flwr.learning.training import make_optimizer

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


@pytest.mark.parametrize("name", ["adam", "amsgrad", "adamw", "sgd"])
def test_optimizers_step_as_torch_s_own(make_config, name):
    """Bit for bit over three steps, with weight decay and momentum; a gradient that is absent is left out."""
    config = make_config(optimizer=name, learning_rate=0.1, weight_decay=0.01, momentum=0.9)
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}.get(name, torch.optim.Adam)
    keys = {"momentum": 0.9} if name == "sgd" else {"amsgrad": name == "amsgrad"}
    mine, theirs = ([torch.nn.Parameter(torch.arange(1.0, 4.0)), torch.nn.Parameter(torch.ones(2))] for _ in range(2))
    optimizer = make_optimizer(config, mine)
    plain = kind(theirs, lr=0.1, weight_decay=0.01, fused=True, **keys)
    for step in range(3):
        for each, (weight, unused) in ((optimizer, mine), (plain, theirs)):
            each.zero_grad()
            assert weight.grad is None
            (weight ** (step + 2)).sum().backward()
            each.step()
            assert unused.grad is None
    assert torch.equal(mine[0], theirs[0])
    assert torch.equal(mine[1], torch.ones(2))
    assert mine[0].requires_grad
