"""`hetfl doctor`: each check with a good node and server, and with each fault, on loopback TLS servers."""

import json
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cryptography import x509
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE
from packaging.specifiers import SpecifierSet
from typer.testing import CliRunner

from hetfl_flwr.common.versions import installed
from hetfl_flwr.errors import ConfigError
from simulations.cli.command import app
from simulations.deployment import doctor
from simulations.deployment.doctor import (
    MACHINE,
    Check,
    CheckResult,
    JoiningNode,
    State,
    clocks,
    dates,
    examine,
    finding_table,
    findings_of,
    parse_address,
    versions,
)
from simulations.deployment.keys import Keys, make_keys
from simulations.deployment.loopback import flower

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
HERE = installed()["flwr"]


class SuperLink(BaseHTTPRequestHandler):
    """Answers the requests of `hetfl doctor` as a SuperLink does."""

    version, late, fleet = HERE, 0.0, 405
    ended: threading.Event

    def do_GET(self) -> None:
        described = json.dumps({"info": {"title": "SuperLink API", "version": self.version}}).encode()
        body = described if self.path == "/openapi.json" else b""
        self.send_response(self.fleet if self.path.startswith("/v1/fleet/") else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return format_datetime(datetime.now(UTC) + timedelta(seconds=self.late), usegmt=True)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(keys: Keys | None, handler: type[SuperLink] = SuperLink, **says: object) -> Iterator[int]:
    """Serve on a free port of all loopback addresses, with TLS if keys are given."""
    ended = threading.Event()
    server = ThreadingHTTPServer(("0.0.0.0", 0), type("Other", (handler,), says | {"ended": ended}))
    server.daemon_threads = True
    if keys is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys.server, keys.server_key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that ends the handshake
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


class Endless(SuperLink):
    """Repeats a part of its answer endlessly: headers, body, or 100 Continue."""

    opening, again = b"", b""

    def do_GET(self) -> None:
        with suppress(OSError):
            self.wfile.write(self.opening)
            while not self.ended.wait(0.05):
                self.wfile.write(self.again)


@pytest.fixture
def keys(tmp_path):
    made = Keys(tmp_path / "keys")
    make_keys(made.folder, ["localhost"], 1)
    return made


def found(port: int, keys: Keys | None, host: str = "localhost", roots: Path | None = None) -> dict[str, CheckResult]:
    """Return the results of the checks of a server, by name."""
    return by_name(
        doctor.examine_server(JoiningNode(host, port, roots or (keys.ca if keys else None), insecure=keys is None))
    )


def by_name(findings: Iterator[CheckResult]) -> dict[str, CheckResult]:
    return {finding.name: finding for finding in findings}


def ended(look: Callable[[], str]) -> CheckResult:
    """Return the result of a check with this function."""
    [finding] = findings_of([Check("it", lambda node: look())], JoiningNode())
    return finding


def failures(findings: dict[str, CheckResult]) -> set[str]:
    return {name for name, finding in findings.items() if finding.state is State.FAILURE}


def test_a_good_node_and_a_good_server_have_no_fault(keys, tmp_path):
    with serving(keys) as port:
        node = JoiningNode("localhost", port, keys.ca, key=keys.node(0), state_dir=tmp_path / "state")
        states = {finding.name: finding.state for finding in examine(node)}
    assert {name for name in states if states[name] is not State.OK} <= {"memory", "state folder", "device"}
    assert len(states) == len([*MACHINE, *doctor.REACHED, *doctor.CERTIFICATES, *doctor.SERVER])
    assert list(tmp_path.iterdir()) == [keys.folder]  # nothing was left behind


@pytest.mark.slow
def test_a_real_superlink_is_known_by_what_is_read_of_it(keys, tmp_path):
    with flower(tmp_path / "flower", keys) as federation:
        federation.superlink()
        findings = found(int(federation.address.rpartition(":")[2]), keys)
        listed = json.loads(federation.flwr("supernode", "list", "loopback", "--format", "json"))
    assert failures(findings) == set()
    assert {findings[name].state for name in ("SuperLink", "clock", "server's version")} == {State.OK}
    assert listed["nodes"] == []  # nothing has joined


@pytest.mark.parametrize(
    ("shift", "state", "words"),
    [
        (timedelta(hours=-1), "failure", "1 hour"),
        (timedelta(days=1, hours=1), "ok", "823 days left"),
        (timedelta(days=795, minutes=1), "warning", "29 days left"),
        (timedelta(days=825, minutes=1), "failure", "expired"),
    ],
)
def test_dates_of_a_certificate_are_compared_with_the_clock(keys, shift, state, words):
    certificate = x509.load_pem_x509_certificate(keys.server.read_bytes())
    finding = ended(lambda: dates(certificate, certificate.not_valid_before_utc + shift, "renew it"))
    assert (finding.state, words in finding.found) == (state, True), finding
    assert ("clock" in finding.fix) == (words == "1 hour")


@pytest.mark.parametrize(
    ("ahead", "state"),
    [(0, "ok"), (2, "ok"), (3, "warning"), (6, "failure"), (-100, "ok"), (-200, "warning"), (-310, "failure")],
)
def test_a_clock_may_be_ahead_for_less_than_behind(ahead, state):
    date, clock = format_datetime(NOW, usegmt=True), NOW + timedelta(seconds=ahead + 0.5)
    assert ended(lambda: clocks(date, clock)).state == state


@pytest.mark.parametrize("date", [None, "", "soon", "Mon, 01 Jun 2026 12:00:00 -0000"])
def test_a_server_that_tells_no_time_leaves_the_clock_unchecked(date):
    assert ended(lambda: clocks(date, NOW)).state is State.NOT_CHECKED


@pytest.mark.parametrize(
    ("there", "here", "state"),
    [
        ("1.42.0", "1.42.0", "ok"),
        ("1.42.0", "1.43.0", "warning"),
        ("1.7.0", "1.7.0", "failure"),
        ("", "", "not checked"),
    ],
)
def test_the_servers_flower_is_compared_with_this_one_and_the_apps_need(there, here, state):
    described = json.dumps({"info": {"title": "SuperLink API", "version": there}}).encode()
    assert ended(lambda: versions(described, here, SpecifierSet(">=1.41"))).state == state


def test_the_limits_of_a_clock_are_flowers_own():
    assert (doctor.AHEAD, doctor.BEHIND) == (SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE)


@pytest.mark.parametrize(
    ("says", "failed", "words"),
    [
        ({"fleet": 502}, "SuperLink", "no SuperLink behind it"),
        ({"fleet": 404}, "SuperLink", "no SuperLink"),
        ({"fleet": 403}, "SuperLink", "reverse proxy"),
        ({"late": 3600}, "clock", "1 hour"),
        ({"version": "1.7.0"}, "server's version", "1.7.0"),
    ],
)
def test_a_fault_of_the_server_is_the_only_one(keys, says, failed, words):
    with serving(keys, **says) as port:
        findings = found(port, keys)
    assert failures(findings) == {failed}
    assert words in findings[failed].found


@pytest.mark.skipif(not Path("/proc").exists(), reason="127.0.0.2 is an address of Linux alone")
def test_whom_to_trust_is_the_only_fault_and_the_file_or_name_is_told(keys, tmp_path):
    other = Keys(tmp_path / "other")
    make_keys(other.folder, ["localhost"], 0)
    with serving(keys) as port:
        misnamed = found(port, keys, "127.0.0.2")
        by_default = by_name(doctor.examine_server(JoiningNode("localhost", port)))
        foreign, no_file, no_certificate = (
            found(port, keys, roots=roots) for roots in (other.ca, tmp_path / "none", keys.node(0))
        )
    assert failures(misnamed) == {"certificate name"}
    assert "localhost, 127.0.0.1, ::1" in misnamed["certificate name"].found
    assert "--host 127.0.0.2" in misnamed["certificate name"].fix
    assert failures(by_default) == failures(foreign) == {"certificate chain"}
    for findings, path in ((no_certificate, keys.node(0)), (no_file, tmp_path / "none")):
        assert failures(findings) == {"authority"}
        assert str(path) in findings["authority"].found
        assert "certificate chain" not in findings


def test_what_cannot_be_reached_ends_the_checks_of_the_server(keys):
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        closed = found(held.getsockname()[1], keys)
    unknown = found(8000, keys, "no-such-host.invalid")
    assert (list(closed), failures(closed)) == (["name", "port"], {"port"})
    assert (list(unknown), failures(unknown)) == (["name"], {"name"})
    assert "no-such-host.invalid" in unknown["name"].found


def test_a_server_without_tls_is_told_from_one_with(keys):
    with serving(None) as port:
        assert failures(found(port, keys)) == {"TLS"}
        assert failures(plain := found(port, None)) == set()
    assert plain["TLS"].state is State.WARNING
    with serving(keys) as port:
        assert failures(found(port, None)) == {"SuperLink"}


@pytest.mark.parametrize("with_tls", [False, True])
@pytest.mark.parametrize(
    ("opening", "again"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"X"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nX\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000),
    ],
    ids=["headers", "body", "chunks", "go on", "go on, at once"],
)
def test_a_server_that_never_ends_what_it_says_is_told_within_the_time_of_the_whole_conversation(
    keys, monkeypatch, opening, again, with_tls
):
    monkeypatch.setattr(doctor, "PATIENCE", 0.5)
    held = keys if with_tls else None
    with serving(held, Endless, opening=opening, again=again) as port:
        began = time.monotonic()
        findings = found(port, held)
        assert time.monotonic() - began < 5
    assert failures(findings) == {"SuperLink"}
    assert "within 0.5 s" in findings["SuperLink"].found


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_private_key_that_others_can_read_or_write_is_a_failure(keys, mode):
    node = JoiningNode(key=keys.node(0))
    assert ended(lambda: doctor.check_key(node)).state is State.OK
    assert ended(lambda: doctor.check_key(replace(node, insecure=True))).state is State.FAILURE
    keys.node(0).chmod(mode)
    finding = ended(lambda: doctor.check_key(node))
    assert (finding.state, finding.fix) == (State.FAILURE, f"chmod 600 {keys.node(0)}")
    assert f"{mode:04o}" in finding.found


@pytest.mark.parametrize("name", ["node-0.pub", "server.key", "none"])
def test_a_file_that_is_no_private_key_is_named(keys, name):
    finding = ended(lambda: doctor.check_key(JoiningNode(key=keys.folder / name)))
    assert (finding.state, str(keys.folder / name) in finding.found) == (State.FAILURE, True)


def test_a_state_folder_that_cannot_be_written_is_a_failure(tmp_path):
    (tmp_path / "file").touch()
    below = ended(lambda: doctor.check_state_folder(JoiningNode(state_dir=tmp_path / "file" / "state")))
    assert (below.state, str(tmp_path / "file" / "state") in below.found) == (State.FAILURE, True)
    if os.getuid():  # nobody keeps root out
        tmp_path.chmod(0o500)
        assert ended(lambda: doctor.check_state_folder(JoiningNode(state_dir=tmp_path))).state is State.FAILURE
        tmp_path.chmod(0o700)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize(
    ("free", "memory", "disk"),
    [(10**12, "ok", "ok"), (12 * 10**8, "warning", "warning"), (10**8, "failure", "failure")],
)
def test_too_little_memory_or_disk_is_a_failure_and_little_a_warning(monkeypatch, tmp_path, free, memory, disk):
    monkeypatch.setattr(doctor, "free_memory", lambda: free)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert ended(lambda: doctor.check_memory(JoiningNode())).state == memory
    assert ended(lambda: doctor.check_state_folder(JoiningNode(state_dir=tmp_path))).state == disk


def test_free_memory_is_within_the_limit_of_a_container(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.psutil, "virtual_memory", lambda: SimpleNamespace(available=10**9))
    monkeypatch.setattr(doctor, "CGROUP", tmp_path)
    assert doctor.free_memory() == 10**9
    for limit, free in (("max", 10**9), ("500000000", 400_000_000), ("50000000", 0)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("100000000\n")
        assert doctor.free_memory() == free


@pytest.mark.parametrize("broken", ["Python", "packages"])
def test_what_this_project_requires_is_held_against_what_is_here(monkeypatch, broken):
    monkeypatch.setattr(doctor, "metadata", lambda _: {"Requires-Python": ">=9" if broken == "Python" else ">=3"})
    needed = ["no-such-package>=2", "numpy>=999"] if broken == "packages" else []
    monkeypatch.setattr(doctor, "requires", lambda _: [*needed, "flwr", "other; python_version < '2'"])
    findings = by_name(findings_of(MACHINE[:2], JoiningNode()))
    assert failures(findings) == {broken}
    assert all(name in findings["packages"].fix for name in needed)


@pytest.mark.parametrize(
    ("product", "words"), [(lambda *_: torch.zeros(2), "is wrong"), (None, "no kernel image is available")]
)
def test_a_device_that_does_not_compute_is_a_failure(monkeypatch, product, words):
    def fails(*_: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: no kernel image is available\nmore")

    monkeypatch.setattr(torch.Tensor, "__matmul__", product or fails)
    finding = ended(lambda: doctor.check_device(JoiningNode()))
    assert (finding.state, words in finding.found, "more" in finding.found) == (State.FAILURE, True, False)


def test_a_jetson_whose_gpu_torch_cannot_use_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(doctor, "JETSON", tmp_path / "release")
    (tmp_path / "release").write_text("# R36 (release), REVISION: 4.0, GCID: 1\nmore")
    finding = ended(lambda: doctor.check_device(JoiningNode()))
    assert (finding.state, "Jetson R36 (release), REVISION: 4.0 is here" in finding.found) == (State.WARNING, True)


def test_a_torch_that_this_processor_cannot_run_ends_no_other_check(monkeypatch, tmp_path):
    """As with wheels that are built for newer processors: the first unknown instruction kills the process."""
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delitem(sys.modules, "torch")
    findings = by_name(examine(JoiningNode()))
    assert findings["torch"].state is State.FAILURE
    assert "Illegal instruction" in findings["torch"].found
    assert findings.keys() == {check.name for check in MACHINE} - {"device"} | {"server"}


def test_an_address_is_host_and_port(refusal):
    addresses = {"server:8000": ("server", 8000), "[::1]:65535": ("::1", 65535), "::1:80": ("::1", 80)}
    assert {address: parse_address(address) for address in addresses} == addresses
    for no_address in (
        "server",
        "server:",
        ":8000",
        "server:0",
        "server:65536",
        "https://server:80",
        "::1:80:x",
        "a b:1",
    ):
        assert no_address in refusal(ConfigError, parse_address, no_address)


def test_the_table_has_each_check_and_only_a_failure_is_exit_status_1(keys, tmp_path):
    arguments = ["doctor", "--key", str(keys.node(0)), "--state-dir", str(tmp_path)]
    good = CliRunner().invoke(app, arguments)
    assert good.exit_code == 0, good.output
    keys.node(0).chmod(0o644)
    bad = CliRunner().invoke(app, arguments)
    assert bad.exit_code == 1
    assert "chmod 600" in bad.output
    told = CliRunner().invoke(app, [*arguments, "--json"])
    assert told.exit_code == 1
    checks = {check["name"]: check for check in json.loads(told.stdout)["checks"]}
    assert len(checks) > 5
    assert (checks["private key"]["state"], "chmod 600" in checks["private key"]["fix"]) == ("failure", True)


def test_names_of_others_are_no_terminal_codes():
    finding = CheckResult("name", State.OK, "\x1b[31mred" + "\x9b" * 100_000)
    table = finding_table([finding])
    for shown in (str(next(iter(table.columns[2].cells))), finding.found):  # --json prints the latter
        assert shown.isprintable()
        assert len(shown) < 10_000
