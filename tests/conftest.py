"""What the tests share: a small federation in this process, built in milliseconds.

Every factory takes run-config keys with underscores, and an algorithm's own keys by ``**{"fedhe.alpha": 0.0}``.
"""

import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from fixtures.federations.loops import Halves, states
from flwr.app import Context
from flwr.supercore.logger import FLOWER_LOGGER
from hypothesis import settings

from hetfl_flwr.config import RunConfig
from hetfl_flwr.methods import names
from hetfl_flwr.node.node import Node
from hetfl_flwr.server.federation import Federation
from simulations.cli.command import main
from simulations.engine.grid import LocalEngine
from simulations.testing.lab import Lab, in_a_run
from simulations.testing.lab import lab as lab

collect_ignore = ["fixtures/outside"]
"""Another project: `test_outside.py` runs its tests as that project would."""

settings.register_profile("without a clock", deadline=None)  # a busy machine is no defect
settings.load_profile("without a clock")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the decoded data sets of this session in a temporary folder, and use no Ray cluster of this machine."""
    cache = TemporaryDirectory(prefix="hetfl-tests-")
    config.add_cleanup(cache.cleanup)
    os.environ["HF_DATASETS_CACHE"] = cache.name
    os.environ["RAY_ADDRESS"] = "local"


SHARED = ("deployed", "machines", "ray", "secured")
"""Slow fixtures: all tests that use one run in the same process."""

DEPLOYING = ("test_survival.py", "test_deployment.py", "test_engines.py", "test_outside.py")
"""Modules whose exhaustive tests start SuperLinks and SuperNodes: one federation at a time."""


SAMPLES = ("fedhe", "fedh2l", "fedavg")
"""Algorithms that every test of all algorithms uses each time; with the others such a test is exhaustive."""

ALWAYS = (
    "test_two_rounds_run_without_a_failure_and_measure_every_client",
    "test_a_run_that_is_stopped_and_resumed_ends_as_one_that_never_was",
)
"""Tests of all algorithms that use every one each time; with others than the samples they are slow."""


def is_of_another_algorithm(item: pytest.Item) -> bool:
    """Return whether a test of all algorithms uses one that is not in `SAMPLES`."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    value = params.get("name", params.get("algorithm"))
    return isinstance(value, str) and value in names() and value not in SAMPLES


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of algorithms that are not in `SAMPLES`, and keep tests with a shared fixture together."""
    for item in items:
        if is_of_another_algorithm(item):
            always = isinstance(item, pytest.Function) and item.originalname in ALWAYS
            item.add_marker("slow" if always else "exhaustive")
        if item.get_closest_marker("exhaustive") or item.get_closest_marker("complete"):
            item.add_marker("slow")
        for name in SHARED:
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(name))
        grouped = item.get_closest_marker("xdist_group")
        if item.get_closest_marker("exhaustive") and item.path.name in DEPLOYING and not grouped:
            item.add_marker(pytest.mark.xdist_group("deployed"))


PRELOADED = ["simulations.engine.workers", "simulations.engine.run", "hetfl_flwr.client_app", "sklearn.datasets"]
"""Modules of worker processes that take seconds to import."""


def environment() -> dict[str, str]:
    """Return the environment of this process without the variables that pytest, OpenMP and torch set."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "KMP_", "TORCH"))}


@pytest.fixture(autouse=True, scope="session")
def workers_share_their_imports() -> Iterator[Callable[..., BaseContext]]:
    """Fork worker processes from a server that has imported their modules, which saves seconds for each run.

    Workers are spawned as usual in subprocesses, with `spawned_workers`, and where a test has changed the environment.
    """
    get_context, begun = multiprocessing.get_context, environment()
    forking = get_context("forkserver")
    forking.set_forkserver_preload(PRELOADED)

    def chosen(method: str | None = None) -> BaseContext:
        return forking if method == "spawn" and environment() == begun else get_context(method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", chosen)
        yield get_context


@pytest.fixture(autouse=True, scope="session")
def disk_takes_its_time() -> Iterator[None]:
    """Do not wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def spawned_workers(workers_share_their_imports: Callable[..., BaseContext], monkeypatch: pytest.MonkeyPatch) -> None:
    """Spawn worker processes as usual."""
    monkeypatch.setattr(multiprocessing, "get_context", workers_share_their_imports)


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Restore the environment after each test, so that workers can be forked again."""
    before = environment()
    yield
    for name in environment().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Restore the level of Flower's log, which `hetfl run` turns off."""
    level = FLOWER_LOGGER.level
    yield
    FLOWER_LOGGER.setLevel(level)


@pytest.fixture(autouse=True)
def task_identity() -> Iterator[None]:
    """Allow messages outside a run, and let torch use one thread."""
    with in_a_run():
        yield


@pytest.fixture
def make_config(lab: Lab) -> Callable[..., RunConfig]:
    """Build a run config: digits, two clients with small heterogeneous models, two rounds, a run folder in tmp_path."""
    return lab.config


@pytest.fixture
def make_grid(lab: Lab) -> Callable[..., LocalEngine]:
    """Build the LocalEngine of a config."""
    return lab.grid


@pytest.fixture
def make_context(lab: Lab) -> Callable[..., Context]:
    """Build the Context of one client of a config, with more node-config keys if given."""
    return lab.context


@pytest.fixture
def make_node(lab: Lab) -> Callable[..., Node]:
    """Build the Node of one client of a config, with an empty state store."""
    return lab.node


@pytest.fixture
def make_federation(lab: Lab) -> Callable[..., Federation]:
    """Build a Federation with registered clients over a LocalEngine or a given Grid."""
    return lab.federation


@pytest.fixture
def run_federation(lab: Lab) -> Callable[..., Path]:
    """Run the ServerApp over a LocalEngine or a given Grid, and return the run folder."""
    return lab.run


@pytest.fixture
def refusal() -> Callable[..., str]:
    """Call a function that must raise an error of one line, and return that line."""

    def refused(error: type[Exception], call: Callable[..., object], *args: Any, **keys: Any) -> str:
        with pytest.raises(error) as caught:
            call(*args, **keys)
        text = str(caught.value)
        assert text
        assert "\n" not in text
        return text

    return refused


class Done(NamedTuple):
    """The exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def refused(self) -> bool:
        """Whether it ended with exit status 2 and one line on standard error."""
        return self.status == 2 and self.err.startswith("hetfl: ") and self.err.count("\n") == 1


@pytest.fixture
def hetfl(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Call `hetfl` in this process."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["hetfl", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code or 0, *capfd.readouterr())

    return call


BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome", "chrome-headless-shell")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium: the system's, or the one that `playwright install chromium` fetches."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    system = next(filter(None, map(shutil.which, BROWSERS)), None)
    with playwright.sync_playwright() as started:
        try:
            chromium = started.chromium.launch(executable_path=system)
        except playwright.Error:
            pytest.skip("no Chromium: playwright install chromium")
        yield chromium
        chromium.close()


RAY_MEMORY = 80 * 2**20
"""Bytes of the object store of a node of a Ray cluster."""


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """Start a Ray cluster on loopback, with a head that runs nothing."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": RAY_MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def halves(lab: Lab) -> Callable[..., Halves]:
    """Build both sides of a method, for rounds without an engine."""
    return partial(Halves.of, lab)


@pytest.fixture
def ended(lab: Lab, tmp_path: Path) -> Callable[..., tuple[Path, list[dict[str, Any]]]]:
    """Run a federation in a new folder, and return that folder and the states of the clients."""
    count = iter(range(99))

    def run(*, workers: int = 1, **keys: Any) -> tuple[Path, list[dict[str, Any]]]:
        folder = tmp_path / f"ended-{next(count)}"
        places = {"output_dir": str(folder), "state_dir": str(folder / "state")}
        return lab.run(lab.config(**places, **keys), workers=workers), states(folder / "state")

    return run
