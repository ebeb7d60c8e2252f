"""What the tests share: a small federation in this process, built in milliseconds.

Every factory takes run-config keys with underscores, and an algorithm's own keys by ``**{"fedhe.alpha": 0.0}``.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.logger import FLOWER_LOGGER
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import settings

from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.federation import Federation
from hetfl_flwr.node import Node
from hetfl_flwr.server_app import app as server_app
from simulations.engine import CLIENT_APP, LocalGrid

RUN = 7
"""Run id of everything that is built here."""


settings.register_profile("without a clock", deadline=None)  # a busy machine is no defect
settings.load_profile("without a clock")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the decoded data sets of this session, and of its subprocesses, in a folder of its own."""
    cache = TemporaryDirectory(prefix="hetfl-tests-")
    config.add_cleanup(cache.cleanup)
    os.environ["HF_DATASETS_CACHE"] = cache.name


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Let torch use one thread: part of what makes bits equal."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Give Flower's log its level back: `hetfl run` in this process turns it off."""
    level = FLOWER_LOGGER.level
    yield
    FLOWER_LOGGER.setLevel(level)


@pytest.fixture(autouse=True)
def task_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages be written outside a run: they carry the ids of the task, the run and the server."""
    for name, value in (("_task_id", 1), ("_run_id", RUN), ("_node_id", SUPERLINK_NODE_ID)):
        monkeypatch.setattr(TaskIdentity, name, value)


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., RunConfig]:
    """Build a run config: digits, two clients with small unlike models, two rounds, a run folder in tmp_path."""
    small: dict[str, Value] = {
        "models": "mlp,lenet5",
        "clients": 2,
        "rounds": 2,
        "batch-size": 20,
        "output-dir": str(tmp_path / "run"),
    }

    def make(**keys: Value) -> RunConfig:
        return RunConfig.from_flat({**small, **{key.replace("_", "-"): value for key, value in keys.items()}})

    return make


@pytest.fixture
def make_grid() -> Iterator[Callable[..., LocalGrid]]:
    """Build a LocalGrid with the clients of a config; its workers end with the test."""
    grids = []

    def make(config: RunConfig, *, workers: int = 1, run: int = RUN, app: str = CLIENT_APP) -> LocalGrid:
        grids.append(LocalGrid(config.to_flat(), config.clients, run, workers, app))
        return grids[-1]

    yield make
    for grid in grids:
        grid.__exit__(None, None, None)


@pytest.fixture
def make_context() -> Callable[..., Context]:
    """Build the Context of one client of a config, as Flower hands it over; more node-config keys may follow."""

    def make(config: RunConfig, partition: int = 0, *, run: int = RUN, **node_config: Value) -> Context:
        own: dict[str, Value] = {"partition-id": partition, "num-partitions": config.clients}
        own |= {key.replace("_", "-"): value for key, value in node_config.items()}
        return Context(run, 2**62 + partition, own, RecordDict(), config.to_flat())

    return make


@pytest.fixture
def make_node(make_context: Callable[..., Context]) -> Callable[..., Node]:
    """Build the Node of one client of a config: its data, its model with initial weights, an empty state store."""

    def make(config: RunConfig, partition: int = 0, **node_config: Value) -> Node:
        return Node.from_context(make_context(config, partition, **node_config))

    return make


@pytest.fixture
def make_federation(make_grid: Callable[..., LocalGrid]) -> Callable[..., Federation]:
    """Build an assembled Federation over a LocalGrid, or over a Grid of your own."""

    def make(config: RunConfig, grid: Any = None) -> Federation:
        federation = Federation(grid or make_grid(config), config)
        federation.assemble()
        return federation

    return make


@pytest.fixture
def run_federation(make_grid: Callable[..., LocalGrid]) -> Callable[..., Path]:
    """Run the ServerApp to the end over a LocalGrid, or over a Grid of your own, and return the run folder."""

    def run(config: RunConfig, grid: Any = None, *, workers: int = 1, run_id: int = RUN) -> Path:
        with nullcontext(grid) if grid else make_grid(config, workers=workers, run=run_id) as over:
            server_app(over, Context(run_id, 1, {}, RecordDict(), config.to_flat()))
        return Path(config.output_dir)

    return run


@pytest.fixture
def refusal() -> Callable[..., str]:
    """Call something that must raise an error of ours, and return its text after seeing that it is one line."""

    def refused(error: type[Exception], call: Callable[..., object], *args: Any, **keys: Any) -> str:
        with pytest.raises(error) as caught:
            call(*args, **keys)
        text = str(caught.value)
        assert text
        assert "\n" not in text
        return text

    return refused
