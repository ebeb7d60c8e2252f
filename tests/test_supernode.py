"""The warm SuperNode: its command, and the executor that answers messages with a fork or in a process that stays."""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from simulations.cli import main
from simulations.deployment import executor, supernode
from simulations.deployment.executor import ResidentExecutor, WarmExecutor
from simulations.deployment.flower_node import ExecutionSpec, TaskType
from simulations.deployment.loaded import Loaded


def spec(number: int, app: str = "one", address: str = "127.0.0.1:1") -> ExecutionSpec:
    """Return what Flower's loop says of a message."""
    token = f"token-{number}"
    return ExecutionSpec(TaskType.CLIENT_APP, address, token, True, None, False, 1, False, number, app)


@pytest.fixture
def written(tmp_path, monkeypatch) -> Callable[[], list[list[str]]]:
    """Let a process that answers a message write down its id, the message's token and what is asked of it."""
    path = tmp_path / "answers"

    def answer(spec, *, parent, leave=None):
        import colorsys  # what no other module here has imported

        with path.open("a") as file:
            file.write(f"{os.getpid()} {spec.token} {os.environ.get('HETFL_KEEP')} {colorsys.__name__}\n")
        if (own := spec.runtime_api_address).startswith("import "):
            module = importlib.import_module(own.removeprefix("import "))
            with path.open("a") as file:
                file.write(f"version {module.VERSION} - -\n")
        if "dies" in spec.runtime_api_address:
            os.kill(os.getpid(), signal.SIGKILL)
        if leave is None:
            sys.exit(0)
        leave(0)

    monkeypatch.setattr(executor, "answer", answer)
    return lambda: [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_each_message_has_a_process_of_its_own_and_the_next_imports_nothing_anew(written):
    sys.modules.pop("colorsys", None)
    one = WarmExecutor()
    for number in (1, 2):
        assert one.launch(spec(number)).status == "accepted"
        until(lambda number=number: len(written()) == number)
        until(lambda: not one.reconcile() and not one._running)
    (first, *_), (second, *_) = written()
    assert len({first, second, str(os.getpid())}) == 3
    assert "colorsys" in sys.modules  # learnt from the first
    assert "test_supernode" in sys.modules  # and nothing that is not installed is forgotten here


def test_one_process_answers_all_messages_of_an_app(written):
    one = ResidentExecutor()
    for number, app in enumerate(["one", "one", "two"], 1):
        one.reconcile()
        assert one.launch(spec(number, app)).status == "accepted"
        until(lambda number=number: len(written()) == number)
    processes = [process for process, *_ in written()]
    assert processes[0] == processes[1] != processes[2]
    assert {keep for *_, keep, _ in written()} == {"resident"}
    one.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(processes[2]), 0)


def test_a_process_that_dies_is_replaced(written):
    """By the next message; the one that it was at is given up by Flower."""
    one = ResidentExecutor()
    one.launch(spec(1, address="dies"))
    until(lambda: not one.reconcile() and not one._process)
    assert one.launch(spec(2)).status == "accepted"
    until(lambda: len(written()) == 2)
    one.close()


@pytest.mark.parametrize("kind", [WarmExecutor, ResidentExecutor])
def test_a_module_that_has_changed_on_disk_is_imported_anew(kind, written, tmp_path, monkeypatch):
    """Also an installed one, which the executor itself has learnt from the first message."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(executor, "_is_installed", lambda module: True)
    one = kind()
    for number, version in enumerate(["1", "1", "2"], 1):
        (tmp_path / "altered.py").write_text(f"VERSION = {version}  #{'#' * number * (version == '2')}\n")
        one.launch(spec(number, address="import altered"))
        until(lambda number=number: len(written()) == 2 * number)
        until(lambda: one.reconcile() or kind is ResidentExecutor or not one._running)
    assert [row[1] for row in written()[1::2]] == ["1", "1", "2"]
    one.close()
    sys.modules.pop("altered", None)


def test_a_compiled_package_that_has_changed_is_named_once(tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "compiled.py").write_text("")
    loaded = Loaded(ignored=(), kept={"compiled"})
    module = importlib.import_module("compiled")
    loaded.look()
    (tmp_path / "compiled.py").write_text("VERSION = 2")
    assert loaded.forget_changed() == (set(), {"compiled"})
    assert loaded.forget_changed() == (set(), set())
    assert sys.modules.pop("compiled") is module


@pytest.mark.parametrize("kind", [WarmExecutor, ResidentExecutor])
def test_a_process_that_is_killed_has_a_line_in_the_log(kind, written, caplog, monkeypatch):
    said = list[str]()
    monkeypatch.setattr(executor, "log", lambda level, line, *values: said.append(line % values))
    one = kind()
    one.launch(spec(1, address="dies"))
    until(lambda: bool(one.reconcile() or said))
    assert said == ["the process of the ClientApp was ended by SIGKILL; was there too little memory?"]


def test_an_executor_that_cannot_be_started_is_tried_again(monkeypatch):
    """As where there are too many open files, or no memory for a moment."""
    tried, started = list[str](), threading.Event()

    def start(told, environment):
        tried.append(told)
        if len(tried) == 1:
            raise OSError(24, "Too many open files")
        started.set()
        threading.Event().wait()  # as long as the node

    monkeypatch.setattr(supernode, "RESTART", 0.01)
    monkeypatch.setattr(supernode, "start_executor", start)
    monkeypatch.setattr(supernode._parts(), "flower_supernode", lambda: started.wait(20))
    monkeypatch.setattr(supernode._parts(), "set_poll", lambda seconds: None)
    monkeypatch.setattr(sys, "argv", ["hetfl"])
    with pytest.raises(SystemExit):
        supernode.run_supernode(["--insecure"], "fork", 0.5)
    assert len(tried) == 2


@pytest.mark.parametrize("kind", [WarmExecutor, ResidentExecutor])
def test_where_no_process_can_be_forked_the_launch_has_failed(kind, monkeypatch):
    def fork():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    result = kind().launch(spec(1))
    assert (result.status, result.message) == (
        "failed",
        "no process for the ClientApp: Resource temporarily unavailable",
    )


@pytest.mark.parametrize("kind", [WarmExecutor, ResidentExecutor])
def test_messages_to_client_apps_are_all_that_it_answers(kind):
    assert kind().get_eligible_capacity(set(TaskType)) == ({TaskType.CLIENT_APP}, set())


@pytest.mark.slow
def test_an_executor_ends_with_its_node_and_takes_its_secret_from_a_pipe():
    """The node is gone before the executor has begun; nobody has seen the secret."""
    told = {"node": os.getpid() + 1, "address": "127.0.0.1:1", "secret": "00" * 32, "keep": "fork"}
    process = supernode.start_executor(
        json.dumps({**told, "root_certificates": None, "install": False}), dict(os.environ)
    )
    assert told["secret"] not in Path(f"/proc/{process.pid}/cmdline").read_text()
    assert process.wait(60) != 0


@pytest.fixture
def refused(monkeypatch, capfd) -> Callable[..., str]:
    """Call the command, which is to end with status 2, and return what it said."""

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["hetfl", "supernode", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        return capfd.readouterr().err.strip()

    return call


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--poll", "0"], "hetfl: --poll = 0: expected 0.01 to 60 seconds"),
        (["--keep", "warm"], "hetfl: --keep = warm: expected fork or resident"),
        (["--por", "1"], "unrecognized arguments: --por 1"),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_line(refused, arguments, line):
    assert refused(*arguments).endswith(line)


def test_a_port_that_is_taken_is_refused_in_one_line(refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused("--insecure", "--port", str(port))
    assert said == f"hetfl: port {port} of 127.0.0.1 is taken: give this node a --port of its own"


@pytest.mark.parametrize(
    ("arguments", "missing", "why"),
    [
        (["--isolation", "process"], "", "--isolation: somebody else is to run the ClientApps"),
        ([], "flower_node", "this version of Flower has no place for a warm executor (no module)"),
        ([], "fork", "a warm executor needs a system that can fork"),
    ],
)
def test_where_it_cannot_be_warm_the_node_is_flowers_own(monkeypatch, capfd, arguments, missing, why):
    class Replaced(Exception):
        """This process is another program from now on."""

    def replace(command, found):
        raise Replaced(Path(command).name, found)

    monkeypatch.setattr(os, "execv", replace)
    if missing == "fork":
        monkeypatch.delattr(os, "fork")
    elif missing:
        monkeypatch.setattr(supernode, "_parts", lambda: (_ for _ in ()).throw(ImportError("no module")))
    with pytest.raises(Replaced) as raised:
        supernode.run_supernode([*arguments, "--insecure"], "fork", 0.5)
    assert raised.value.args == ("flower-supernode", ["flower-supernode", *arguments, "--insecure"])
    assert capfd.readouterr().err == f"hetfl: {why}: the node runs as Flower's own\n"


def test_its_help_is_that_of_flowers_own_node_and_its_own():
    said = subprocess.run(
        [sys.executable, "-m", "hetfl_flwr", "supernode", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for flag in ("--keep", "--poll", "--node-config", "--superlink", "--root-certificates"):
        assert flag in said


def test_an_end_by_a_signal_is_no_fault_of_a_model_or_a_callback(tmp_path, monkeypatch):
    """Flower's own handler of SIGTERM raises SystemExit wherever the process is; a model's exit is named as before."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stopping.py").write_text(
        "import os, signal, sys\n"
        "def linear(spec): os.kill(os.getpid(), signal.SIGTERM)\n"
        "def leaving(spec): sys.exit(0)\n"
    )
    program = (
        "from flwr.common import EventType\n"
        "from flwr.supercore.exit import register_signal_handlers\n"
        "from hetfl_flwr.data import DataSpec\n"
        "from hetfl_flwr.models import build_model\n"
        "register_signal_handlers(EventType.PING)\n"
        "import sys\n"
        "try: build_model(sys.argv[1], DataSpec((1, 8, 8), 10), seed=0)\n"
        "except Exception as error: print(error)\n"
    )
    said = {
        name: subprocess.run(
            [sys.executable, "-c", program, f"stopping:{name}"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        ).stdout
        for name in ("linear", "leaving")
    }
    assert said["linear"] == ""
    assert "stopping:leaving" in said["leaving"]
    assert "SystemExit" in said["leaving"]
