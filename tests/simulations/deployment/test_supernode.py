"""The warm SuperNode: its command, and the executor that answers messages in forked or resident processes."""

import hashlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from fixtures.tiers import mostly_exhaustive
from fixtures.waiting import until
from flwr.supernode.runtime import run_clientapp as clientapp

from simulations.deployment import executor, flower_node, supernode
from simulations.deployment.executor import WarmExecutor
from simulations.deployment.flower_node import ExecutionSpec, TaskType


def spec(number: int, app: str = "one", address: str = "127.0.0.1:1") -> ExecutionSpec:
    """Return a message as Flower's loop passes it."""
    token = f"token-{number}"
    return ExecutionSpec(TaskType.CLIENT_APP, address, token, True, None, False, 1, False, number, app)


@pytest.fixture
def options():
    """Return the options of a running node."""
    alive, held = os.pipe()
    yield {"alive": alive}
    os.close(alive)
    os.close(held)


def executing(options: dict[str, object], keep: str) -> Iterator[WarmExecutor]:
    """Give an executor whose processes end with the test."""
    one = WarmExecutor({**options, "keep": keep})
    yield one
    one.close()
    until(lambda: not one.reconcile() and not one._leaving)


@pytest.fixture(params=supernode.KEEP)
def either(request, options):
    """Give an executor of each kind."""
    yield from executing(options, request.param)


@pytest.fixture
def warm(options):
    """Give an executor that forks a process for each message."""
    yield from executing(options, "fork")


@pytest.fixture
def resident(options):
    """Give an executor with a resident process."""
    yield from executing(options, "resident")


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Let processes that answer a message record their id and the message's token, and do what the message asks for."""
    path = tmp_path / "answers"

    def answer(spec, *, unpacked, leave):
        import colorsys  # what no other module here has imported

        asked, _, of = spec.runtime_api_address.partition(" ")
        if asked == "unpack":
            sys.path.insert(0, of)
            for file in Path(of).rglob("*.py"):
                file.touch()  # as if it was written now
            unpacked(Path(of))
        with path.open("a") as file:
            file.write(f"{os.getpid()} {spec.token} {os.environ.get('HETFL_KEEP')} {colorsys.__name__}\n")
        if asked in ("import", "unpack"):
            name = of if asked == "import" else os.listdir(of)[0].removesuffix(".py")
            known, module = sys.modules.get(name), importlib.import_module(name)
            with path.open("a") as file:
                file.write(f"version {getattr(module, 'VERSION', 'the known' if module is known else 'another')} -\n")
        if asked == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if asked == "leaves" or asked == "fails":
            raise SystemExit(3) if asked == "leaves" else ValueError("of the app")
        if asked == "orphan" and not os.fork():
            time.sleep(float(of))
            os._exit(0)
        leave(0)

    monkeypatch.setattr(executor, "answer", answer)
    return lambda: [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_each_message_has_a_process_of_its_own(warm, written):
    for number in (1, 2):
        assert warm.launch(spec(number)).status == "accepted"
        until(lambda number=number: len(written()) == number)
        until(lambda: not warm.reconcile() and not warm._leaving)
    (first, *_), (second, *_) = written()
    assert len({first, second, str(os.getpid())}) == 3


def test_one_process_answers_all_messages_of_an_app(resident, written):
    for number, app in enumerate(["one", "one", "two"], 1):
        resident.reconcile()
        assert resident.launch(spec(number, app)).status == "accepted"
        until(lambda number=number: len(written()) == number)
    processes = [process for process, *_ in written()]
    assert processes[0] == processes[1] != processes[2]
    assert {keep for *_, keep, _ in written()} == {"resident"}
    resident.close()
    until(lambda: not resident.reconcile() and not resident._leaving)
    with pytest.raises(ProcessLookupError):
        os.kill(int(processes[2]), 0)


def test_a_process_that_dies_is_replaced(resident, written):
    """It is replaced at the next message; Flower gives up the current one."""
    resident.launch(spec(1, address="dies"))
    until(lambda: not resident.reconcile() and not resident._process)
    assert resident.launch(spec(2)).status == "accepted"
    until(lambda: len(written()) == 2)


@pytest.mark.parametrize("end", ["dies", "leaves", "fails"])
def test_a_message_that_a_process_has_not_read_is_read_by_the_next(resident, written, end):
    """The message is written before anything notices that the process is ending."""
    resident.launch(spec(1, address=end))
    until(lambda: len(written()) == 1)
    os.waitid(os.P_PID, resident._process, os.WEXITED | os.WNOWAIT)
    assert resident.launch(spec(2)).status == "accepted"
    resident.launch(spec(3))
    until(lambda: not resident.reconcile() and len(written()) == 3)
    assert [token for _, token, *_ in written()] == ["token-1", "token-2", "token-3"]


@pytest.mark.parametrize(("end", "status"), [("leaves", 3), ("fails", 1)])
def test_whatever_happens_in_a_process_it_does_not_go_on_as_an_executor(
    either, written, tmp_path, monkeypatch, end, status
):
    """Flower's own handler of SIGTERM raises SystemExit wherever the process is."""
    said = list[str]()
    monkeypatch.setattr(executor, "log", lambda level, line, *values: said.append(line % values))
    executor_itself = os.getpid()
    try:
        either.launch(spec(1, address=end))
    finally:
        if os.getpid() != executor_itself:
            (tmp_path / "second").touch()
            os._exit(0)
    until(lambda: bool(either.reconcile() or said))
    assert [line.endswith(f"status {status}") for line in said] == [True]
    assert not (tmp_path / "second").exists()


def test_a_process_that_an_app_leaves_behind_holds_nobody_up(warm, written):
    warm.launch(spec(1, address="orphan 40"))
    until(lambda: len(written()) == 1)
    begun = time.monotonic()
    until(lambda: not warm.reconcile() and not warm._leaving)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("file", ["colorsys.py", "colorsys/__init__.py"])
def test_an_app_has_its_own_module_where_another_one_was_imported(either, written, tmp_path, monkeypatch, file):
    """A folder that is not a package hides nothing, as in Flower's own process."""
    importlib.import_module("colorsys")
    monkeypatch.setattr(executor, "FLOWER_PACKAGES", executor.FLOWER_PACKAGES - {"colorsys"})
    for app, path in (("one", file), ("two", "colorsys/notes.txt")):
        (tmp_path / app / path).parent.mkdir(parents=True)
        (tmp_path / app / path).write_text("VERSION = 'own'\n")
    for number, app in enumerate(["one", "one", "two"], 1):
        either.launch(spec(number, app, address=f"unpack {tmp_path / app}"))
        until(lambda number=number: not either.reconcile() and len(written()) == 2 * number)
    assert [row[1:-1] for row in written()[1::2]] == [["own"], ["own"], ["the", "known"]]
    (first, *_), (second, *_) = written()[:4:2]
    assert (first == second) == either._stays


@pytest.fixture
def anew(monkeypatch):
    """Record the messages with which an executor restarts, without starting a process."""
    begun = list[list[str]]()

    def begin(options, specs):
        begun.append([spec["token"] for spec in specs])
        raise BlockingIOError(11, "begun anew")

    monkeypatch.setattr(executor, "restart", begin)
    return begun


@pytest.fixture
def upgrade(monkeypatch):
    """Make an executor see an upgraded library."""
    return lambda: monkeypatch.setattr(executor, "libraries", lambda: [*executor.LIBRARIES_AT_START, 1])


def test_a_library_that_is_installed_or_upgraded_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(executor.site, "getsitepackages", lambda: [str(tmp_path), str(tmp_path / "none")])
    (tmp_path / "numpy-1.0.dist-info").mkdir()
    before = executor.libraries()
    assert executor.libraries() == before
    time.sleep(0.05)
    (tmp_path / "numpy-1.0.dist-info").rename(tmp_path / "numpy-1.1.dist-info")
    assert executor.libraries() != before


def test_a_library_that_was_upgraded_lets_an_executor_begin_anew(upgrade, either, written, anew):
    upgrade()
    assert either.launch(spec(1)).message.endswith("begun anew")
    assert anew == [["token-1"]]
    assert written() == []


@pytest.mark.parametrize("replied", [False, True])
def test_a_task_is_reported_only_with_a_reply(monkeypatch, replied):
    """Without a reply the node waits until it misses the task's heartbeats; after a failure it would wait forever."""
    pushed = list[str]()

    def run(**_):
        if replied:
            clientapp.push_message("client", "reply", "context")
        clientapp.push_task_output(client="client", context=None, sub_status="failed", details="")

    monkeypatch.setattr(flower_node, "_push_message", lambda *_: pushed.append("message"))
    monkeypatch.setattr(flower_node, "_push_task_output", lambda **_: pushed.append("output"))
    for name in ("install_from_fab", "pull_and_inflate_object_from_tree", "push_message", "push_task_output"):
        monkeypatch.setattr(clientapp, name, None)
    monkeypatch.setattr(clientapp, "run_clientapp", run)
    flower_node.answer(spec(1), unpacked=lambda app: None, leave=lambda code: None)
    assert pushed == (["message", "output"] if replied else [])


def test_an_app_that_is_installed_whole_is_not_unpacked_again(monkeypatch, tmp_path):
    """As another node's message may find it during installation, or after a full disk."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    program = """
        [project]
        name = "app"
        version = "1.0"
        [tool.flwr.app]
        publisher = "me"
        [tool.flwr.app.components]
        serverapp = "app:server"
        clientapp = "app:client"
        """
    files = {"pyproject.toml": program, "app/__init__.py": "", "app/client.py": "VERSION = 1\n"}
    with zipfile.ZipFile(tmp_path / "app.fab", "w") as opened:
        for name, content in {**files, ".info/CONTENT": "no hash is right"}.items():
            opened.writestr(name, content)
    bundle, unpacked, installed = (tmp_path / "app.fab").read_bytes(), list[Path](), list[bytes]()
    folder = flower_node.get_project_dir("me/app", "1.0", hashlib.sha256(bundle).hexdigest())

    def install(bundle, **_):
        installed.append(bundle)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        return folder

    monkeypatch.setattr(flower_node, "install_from_fab", install)
    for number in (1, 1, 2):
        if len(unpacked) == 2:
            (folder / "app" / "client.py").write_text("VERSION")
        assert flower_node._parts_of_clientapp(unpacked.append)["install_from_fab"](bundle) == folder
        assert installed == [bundle] * number
    assert unpacked == [folder] * 3


@pytest.mark.slow
@pytest.mark.parametrize("keep", mostly_exhaustive(supernode.KEEP, lambda keep: keep == "fork"))
def test_an_executor_that_begins_anew_answers_the_message_that_it_was_given(options, tmp_path, keep):
    """In the same process; its messages call the node, which waits here, with their token."""
    with socket.create_server(("127.0.0.1", 0)) as node:
        address = f"127.0.0.1:{node.getsockname()[1]}"
        whole = {**options, "address": address, "secret": "00" * 32, "root_certificates": None, "install": False}
        program = (
            "import json, signal, sys\n"
            "from dataclasses import asdict\n"
            "from simulations.deployment import executor\n"
            "options, given = json.load(sys.stdin)\n"
            "executor.end_with_node(options['alive'])\n"
            "sys.orig_argv[1:] = ['-P', '-m', 'simulations.deployment.executor']\n"
            "executor.restart(options, [given])\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=[options["alive"]],
        )
        process.stdin.write(json.dumps([{**whole, "keep": keep}, asdict(spec(1, address=address))]).encode())
        process.stdin.close()
        try:
            node.settimeout(60)
            asked = list[bytes]()
            while len(asked) < 9 and not any(b"token-1" in one for one in asked):
                called, _ = node.accept()
                with called:
                    asked.append(called.recv(2**16))
            assert b"token-1" in asked[-1]
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()


def test_where_no_process_can_be_forked_the_launch_has_failed_and_nothing_stays_open(either, monkeypatch):
    def fork():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    before = os.listdir("/proc/self/fd")
    result = either.launch(spec(1))
    assert (result.status, "Resource temporarily unavailable" in result.message) == ("failed", True)
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.slow
def test_an_executor_ends_with_its_node_and_takes_its_secret_from_a_pipe():
    """The node ends before the executor has started; the secret was not visible."""
    alive, held = os.pipe()
    options = {"alive": alive, "address": "127.0.0.1:1", "secret": "00" * 32, "keep": "fork"}
    process = supernode.start_executor({**options, "root_certificates": None, "install": False}, dict(os.environ))
    assert options["secret"] not in Path(f"/proc/{process.pid}/cmdline").read_text()
    os.close(held)
    assert process.wait(60) != 0
    os.close(alive)


@pytest.mark.parametrize(
    ("arguments", "missing", "why"),
    [(["--isolation", "process"], "", "--isolation"), ([], "flower_node", "flower_node"), ([], "fork", "fork")],
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
        monkeypatch.setitem(sys.modules, f"simulations.deployment.{missing}", None)
    with pytest.raises(Replaced) as raised:
        supernode.run_supernode([*arguments, "--insecure"], "fork", 0.5)
    assert raised.value.args == ("flower-supernode", ["flower-supernode", *arguments, "--insecure"])
    assert why in capfd.readouterr().err


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
        "for name in ('leaving', 'linear'):\n"
        "    try: build_model(f'stopping:{name}', DataSpec((1, 8, 8), 10), seed=0)\n"
        "    except Exception as error: print(error, flush=True)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    ).stdout
    assert "stopping:leaving" in said
    assert "SystemExit" in said
    assert "stopping:linear" not in said
