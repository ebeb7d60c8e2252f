"""Names that Flower and PyTorch use are theirs here, and what they do not export is taken in two modules alone."""

import ast
import inspect
import sys
import threading
from hashlib import sha256
from pathlib import Path
from typing import get_args

import pytest
import torch
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError
from flwr.superlink.grid import http_grid
from torch.utils.data import DataLoader

import hetfl_flwr
from hetfl_flwr import KnowledgeClient, KnowledgeStrategy, RunConfig, SplitModel, model_arrays
from hetfl_flwr.common import flower
from hetfl_flwr.wire.messages import ARRAYS, EXAMPLES, ROUND
from simulations.deployment import flower_node

ROOT = Path(hetfl_flwr.__file__).parents[1]
PACKAGES = ("hetfl_flwr", "strategies", "clients", "simulations")
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}


@pytest.mark.parametrize(("ours", "theirs"), [(KnowledgeStrategy, Strategy), (KnowledgeClient, flower.NumPyClient)])
def test_methods_of_flower_take_what_they_take_in_flower(ours, theirs):
    named = [name for name, method in inspect.getmembers(theirs, inspect.isfunction) if not name.startswith("_")]
    for name in named:
        expected = inspect.signature(getattr(theirs, name)).parameters
        assert list(inspect.signature(getattr(ours, name)).parameters) == list(expected), name


def test_keys_and_arrays_have_the_names_that_flower_and_pytorch_give_them():
    strategy, adam = (inspect.signature(one).parameters for one in (FedAvg, torch.optim.Adam))
    assert [strategy[name].default for name in ("arrayrecord_key", "weighted_by_key")] == [ARRAYS, EXAMPLES]
    assert f'"{ROUND}"' in inspect.getsource(FedAvg.configure_train)
    options, keys = (
        {*inspect.signature(torch.optim.SGD).parameters, *inspect.signature(DataLoader).parameters},
        RunConfig,
    )
    assert {"momentum", "weight_decay", "batch_size"} <= options & keys.model_fields.keys()
    optimizers = {name.lower() for name in torch.optim.__all__} | adam.keys()
    assert {*get_args(keys.model_fields["optimizer"].annotation)} <= optimizers
    model = SplitModel(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 3))
    assert model_arrays(model).keys() == {name for name, one in model.state_dict().items() if one.is_floating_point()}


def beyond(program: str) -> set[str]:
    """Return what a program imports from Flower that is not exported."""
    taken = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        (node.module or "" if isinstance(node, ast.ImportFrom) else alias.name, alias.name)
        for node in taken
        if not getattr(node, "level", 0)
        for alias in node.names
    }
    return {
        f"{module}: {name}"
        for module, name in names
        if module.split(".")[0] == "flwr" and not (module in PUBLIC and name in sys.modules[module].__all__)
    }


@pytest.mark.slow
def test_only_two_modules_take_what_flower_does_not_export():
    own = {Path(module.__file__) for module in (flower, flower_node)}
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path not in own]
    assert {str(path): found for path in files if (found := beyond(path.read_text()))} == {}


def test_a_server_asks_again_as_soon_as_it_is_told_to(monkeypatch):
    """Flower's own waits a second for a reply of which a part is still on its way."""
    for name in ("pull_objects", "inflate_object_from_contents"):
        monkeypatch.setattr(http_grid, name, getattr(http_grid, name))
    waits, wait = [], threading.Event.wait
    monkeypatch.setattr(threading.Event, "wait", lambda event, seconds=None: waits.append(seconds) or wait(event, 0))
    flower.ask_again(after=0.1, most=9)
    asked = []

    def pull(name):
        asked.append(name)
        if len(asked) < 3:
            raise ObjectUnavailableError(name)
        return b"content"

    assert http_grid.pull_objects(["part"], pull) == {"part": b"content"}
    first, second = [seconds for seconds in waits if seconds is not None]
    assert (first, second) == (pytest.approx(0.1, rel=0.2), pytest.approx(0.2, rel=0.2))


def test_a_server_gives_up_a_reply_that_does_not_come_whole_and_drops_what_is_none(monkeypatch):
    """Flower's own waits up to two hours, reads no other reply meanwhile, and ends with an error."""
    for name in ("pull_objects", "inflate_object_from_contents"):
        monkeypatch.setattr(http_grid, name, getattr(http_grid, name))
    flower.ask_again(after=0.01, most=0.1)

    def pull(name):
        raise ObjectUnavailableError(name)

    with pytest.raises(ObjectPullError):
        http_grid.pull_objects(["part"], pull)
    numbers = MetricRecord({"loss": 1.0})
    for content in (b"Message  3\0\xff\xff\xff", b"no object", numbers.deflate()):
        name = sha256(content).hexdigest()
        found = http_grid.inflate_object_from_contents(name, {name: content})
        assert found.metadata.reply_to_message_id == ""
