"""Parts of a small federation for tests, built in milliseconds in this process."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from torch import nn

from hetfl_flwr.common.flower import SUPERLINK_NODE_ID, TaskIdentity
from hetfl_flwr.config import RunConfig, Value
from hetfl_flwr.data import DataSpec
from hetfl_flwr.methods import build_strategy
from hetfl_flwr.models import SplitModel
from hetfl_flwr.node.node import Node
from hetfl_flwr.server.federation import Federation
from hetfl_flwr.server_app import app as server_app
from simulations.engine.clients import CLIENT_APP
from simulations.engine.grid import LocalEngine

RUN = 7
"""Default run id."""

SMALL: Mapping[str, Value] = {
    "dataset": "digits",
    "models": "mlp,lenet5",
    "clients": 2,
    "rounds": 2,
    "batch-size": 20,
}
"""Default config keys: digits, two clients with heterogeneous models, two rounds."""

NORMED = f"{__name__}:normed"
"""The model `normed` in the notation of the key ``models``."""


class Lab:
    """Builds parts of a small federation. As a context manager it ends the worker processes that it started.

    Parameters
    ----------
    folder : Path
        The folder for run folders; by default a run is written to ``run`` in it.
    keys : mapping
        Config keys of all configs, in addition to `SMALL`.
    """

    def __init__(self, folder: Path, keys: Mapping[str, Value] | None = None) -> None:
        self._keys = {**SMALL, "output-dir": str(folder / "run"), **(keys or {})}
        self._grids = ExitStack()

    def __enter__(self) -> Self:
        """Return the lab."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker processes."""
        self._grids.close()

    def config(self, **keys: Value) -> RunConfig:
        """Build a run config; keys have underscores, an algorithm's options are given by ``**{"fedhe.alpha": 0.0}``."""
        return RunConfig.from_flat({**self._keys, **_with_dashes(keys)})

    def grid(self, config: RunConfig, *, workers: int = 1, run: int = RUN, app: str = CLIENT_APP) -> LocalEngine:
        """Build the local engine with the clients of a config."""
        return self._grids.enter_context(LocalEngine(config, run, workers, app))

    def context(self, config: RunConfig, client_id: int = 0, *, run: int = RUN, **node_config: Value) -> Context:
        """Build the Context that Flower passes to one client, with these additional node-config keys."""
        own: dict[str, Value] = {"partition-id": client_id, "num-partitions": config.clients}
        return Context(run, 2**62 + client_id, own | _with_dashes(node_config), RecordDict(), config.to_flat())

    def node(self, config: RunConfig, client_id: int = 0, **node_config: Value) -> Node:
        """Build the Node of one client, with its data, a model with initial weights and an empty state store."""
        return Node.from_context(self.context(config, client_id, run=RUN, **node_config))

    def federation(self, config: RunConfig, grid: Grid | None = None) -> Federation:
        """Build a Federation whose clients are registered, over the local engine or a given Grid."""
        federation = Federation(grid or self.grid(config), config, build_strategy(config))
        federation.registration.assemble()
        return federation

    def run(self, config: RunConfig, grid: Any = None, *, workers: int = 1, run_id: int = RUN) -> Path:
        """Run the ServerApp to the end over the local engine or a given Grid, and return the run folder."""
        with nullcontext(grid) if grid else self.grid(config, workers=workers, run=run_id) as over:
            server_app(over, Context(run_id, 1, {}, RecordDict(), config.to_flat()))
        return Path(config.output_dir)


class Reversing(LocalEngine):
    """Returns all replies at once, as messages in reverse order."""

    exchange = None  # type: ignore[assignment]

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, run=RUN)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Wait for all replies."""
        wanted = set(message_ids)
        replies: list[Message] = []
        while len(replies) < len(wanted):
            replies += super().pull_messages(wanted - {reply.metadata.reply_to_message_id for reply in replies})
        return replies[::-1]


@contextmanager
def in_a_run() -> Iterator[None]:
    """Set the ids that Flower needs to create messages outside a run, and let torch use one thread."""
    torch.set_num_threads(1)  # bits depend on it
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_task_id", 1), ("_run_id", RUN), ("_node_id", SUPERLINK_NODE_ID)):
            patch.setattr(TaskIdentity, name, value)
        yield


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Build small federations in `tmp_path`; their worker processes end with the test.

    Import it in a test file or ``conftest.py`` with ``from hetfl_flwr import lab``. A class derived from
    `AlgorithmContract` has its own fixture of this name, which builds federations of the class's algorithm.
    """
    with in_a_run(), Lab(tmp_path) as lab:
        yield lab


def normed(spec: DataSpec) -> SplitModel:
    """Build a hidden layer with dropout and batch norm, which has running statistics and an integer counter."""
    hidden = nn.Linear(prod(spec.shape), 8)
    body = nn.Sequential(nn.Flatten(), hidden, nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout())
    return SplitModel(body, nn.Linear(8, spec.classes))


def _with_dashes(keys: Mapping[str, Value]) -> dict[str, Value]:
    return {key.replace("_", "-"): value for key, value in keys.items()}
