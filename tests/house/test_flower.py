"""What comes from Flower: its public API anywhere, anything else through one module that lists it."""

import ast
import subprocess
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

TAKEN = {
    flower: {
        "flwr.common": {"Scalar", "log"},
        "flwr.common.constant": {"FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", "SUPERLINK_NODE_ID", "ErrorCode", "SType"},
        "flwr.common.serde": {
            "message_from_proto",
            "message_to_proto",
            "recorddict_from_proto",
            "recorddict_to_proto",
        },
        "flwr.compat.client.numpy_client": {"NumPyClient"},
        "flwr.proto.message_pb2": {"Message"},
        "flwr.proto.recorddict_pb2": {"RecordDict"},
        "flwr.serverapp.strategy.strategy_utils": {"aggregate_metricrecords"},
        "flwr.supercore.inflatable.inflatable_object": {"get_all_nested_objects", "no_object_id_recompute"},
        "flwr.supercore.inflatable.inflatable_utils": {"pull_objects"},
        "flwr.supercore.logger": {"FLOWER_LOGGER"},
        "flwr.supercore.run": {"Run"},
        "flwr.supercore.task_identity": {"TaskIdentity"},
        "flwr.superlink.grid": {"http_grid"},
    },
    flower_node: {
        "flwr.cli.config_utils": {"get_fab_metadata"},
        "flwr.cli.install": {"install_from_fab"},
        "flwr.common": {"log"},
        "flwr.common.config": {"get_project_dir", "parse_config_args"},
        "flwr.supercore.constant": {"TaskType"},
        "flwr.supercore.exit.exit_handler": {"registered_exit_handlers", "trigger_exit_handlers"},
        "flwr.supercore.superexec": {"run_superexec"},
        "flwr.supercore.superexec.executor": {"ExecutionSpec", "Executor", "LaunchResult"},
        "flwr.supercore.tls": {"validate_and_resolve_root_certificates"},
        "flwr.supernode": {"start_client_internal"},
        "flwr.supernode.cli.flower_supernode": {"_parse_args_run_supernode", "flower_supernode"},
        "flwr.supernode.runtime": {"run_clientapp"},
    },
}
"""What a new release of Flower may move without notice."""


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


def test_imports_are_seen_wherever_they_stand():
    program = "import flwr.proto.a as b\ndef f():\n    from flwr.common import log\nfrom flwr.app import Message, x\n"
    assert beyond(program) == {("flwr.proto.a", ""), ("flwr.common", "log"), ("flwr.app", "x")}


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_only_two_modules_take_what_flower_does_not_export(package):
    own = {Path(module.__file__) for module in TAKEN}
    files = [path for path in (ROOT / package).rglob("*.py") if path not in own]
    assert {str(path.relative_to(ROOT)): beyond(path.read_text()) for path in files if beyond(path.read_text())} == {}


@pytest.mark.parametrize("own", TAKEN, ids=lambda own: own.__name__)
def test_they_take_what_is_listed_here_and_offer_it_all(own):
    taken = beyond(Path(own.__file__).read_text())
    assert taken == {(module, name) for module, names in TAKEN[own].items() for name in names}
    assert all(hasattr(own, name) for name in own.__all__)
    used = {
        alias.name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == own.__name__
        for alias in node.names
    }
    if own is flower:  # the other is asked for its parts where it can be imported at all
        assert used == set(own.__all__)


@pytest.mark.slow
def test_help_and_reports_need_nothing_of_flower():
    modules = "simulations.cli.command, simulations.reports.tables, simulations.reports.html.report"
    program = f"import sys, {modules}; print('flwr' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False"


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
