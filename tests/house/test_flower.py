"""Names that Flower and PyTorch use are theirs here."""

import inspect
import threading
from typing import get_args

import pytest
import torch
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.superlink.grid import http_grid
from torch.utils.data import DataLoader

from hetfl_flwr import KnowledgeClient, KnowledgeStrategy, RunConfig, SplitModel, model_arrays
from hetfl_flwr.common import flower
from hetfl_flwr.wire.messages import ARRAYS, EXAMPLES, ROUND


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
