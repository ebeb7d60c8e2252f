"""What comes from Flower: its public API anywhere, anything else through one module that lists it."""

import ast
import sys
import threading
from pathlib import Path

import pytest
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.superlink.grid import http_grid

import hetfl_flwr
from hetfl_flwr.common import flower
from simulations.deployment import flower_node

ROOT = Path(hetfl_flwr.__file__).parents[1]

PACKAGES = ("hetfl_flwr", "strategies", "clients", "simulations")

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}


def imported(program: str) -> list[tuple[str, str]]:
    """Return each module of Flower that a program imports, with the name that it takes from there."""
    found = []
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            found += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
    return [(module, name) for module, name in found if module.split(".")[0] == "flwr"]


def beyond(program: str) -> set[tuple[str, str]]:
    """Return what a program imports that is not exported."""
    outside = {(module, name) for module, name in imported(program) if module not in PUBLIC}
    return outside | {
        (module, name)
        for module, name in imported(program)
        if module in PUBLIC and name not in sys.modules[module].__all__
    }


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_only_two_modules_take_what_flower_does_not_export(package):
    own = {Path(module.__file__) for module in (flower, flower_node)}
    files = [path for path in (ROOT / package).rglob("*.py") if path not in own]
    assert {str(path.relative_to(ROOT)): beyond(path.read_text()) for path in files if beyond(path.read_text())} == {}


def test_a_server_asks_again_as_soon_as_it_is_told_to(monkeypatch):
    """Flower's own waits a second for a reply of which a part is still on its way."""
    monkeypatch.setattr(http_grid, "pull_objects", http_grid.pull_objects)
    waits, wait = [], threading.Event.wait
    monkeypatch.setattr(threading.Event, "wait", lambda event, seconds=None: waits.append(seconds) or wait(event, 0))
    flower.ask_again(after=0.1)
    asked = []

    def pull(name):
        asked.append(name)
        if len(asked) < 3:
            raise ObjectUnavailableError(name)
        return b"content"

    assert http_grid.pull_objects(["part"], pull) == {"part": b"content"}
    first, second = [seconds for seconds in waits if seconds is not None]
    assert (first, second) == (pytest.approx(0.1, rel=0.2), pytest.approx(0.2, rel=0.2))
