"""Deployment with TLS and registered nodes: keys, refusals, the rehearsal, and what guide and units name."""

import json
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import combinations
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from fixtures.waiting import until
from flwr.common.config import parse_config_args
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from httpx import HTTPStatusError

from hetfl_flwr.config import RunConfig, for_node
from hetfl_flwr.errors import INTERRUPTED, ConfigError, FederationError
from hetfl_flwr.server.node_keys import read_node_keys
from simulations.deployment.keys import Keys, make_keys
from simulations.deployment.loopback import NAME, ROOT, flower
from simulations.deployment.rehearsal import write_digits

HOST, ADDRESS = "server.example.org", "10.0.0.7"
DEPLOYMENT = ROOT / "simulations" / "deployment"


@pytest.fixture
def keys(tmp_path):
    """Make keys for a server with a name and an address, and for two nodes."""
    made = Keys(tmp_path / "keys")
    make_keys(made.folder, [HOST, ADDRESS], 2)
    return made


def shake_hands(keys: Keys, trusted: Path, host: str) -> None:
    """Do a TLS handshake in memory between the server and a client that trusts an authority, under strict rules.

    It ends when neither side waits for bytes; four turns are more than enough.
    """
    client = ssl.create_default_context(cafile=trusted)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys.server, keys.server_key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_hostname=host),
        server.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(4):
        waiting = 0
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting += 1
    assert not waiting


@pytest.mark.parametrize("host", [HOST, ADDRESS, "localhost", "127.0.0.1", "other.example.org", "10.0.0.8"])
def test_the_server_is_trusted_by_its_own_names_alone(keys, host):
    other = host in ("other.example.org", "10.0.0.8")
    refusal = re.escape(f"certificate is not valid for '{host}'")
    with pytest.raises(ssl.SSLCertVerificationError, match=refusal) if other else nullcontext():
        shake_hands(keys, keys.ca, host)


def test_the_server_is_not_trusted_by_another_authority(keys, tmp_path):
    make_keys(tmp_path / "other", [HOST], 0)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer certificate|signature"):
        shake_hands(keys, Keys(tmp_path / "other").ca, HOST)


def test_a_nodes_two_halves_belong_together_and_are_of_its_own(keys):
    """On a NIST curve, as Flower requires."""
    privates = [load_ssh_private_key(keys.node(number).read_bytes(), None) for number in range(2)]
    publics = [load_ssh_public_key(keys.node_public(number).read_bytes()) for number in range(2)]
    assert [private.public_key() for private in privates] == publics
    assert publics[0] != publics[1]
    assert {public.curve.name for public in publics} == {"secp384r1"}


def test_private_halves_are_their_owners_alone(tmp_path):
    """Even if the user's files are readable by all by default."""
    before = os.umask(0)
    try:
        made = make_keys(tmp_path / "keys", [HOST], 1)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in made}
    private = dict.fromkeys(("ca.key", "server.key", "node-0"), 0o600)
    assert modes == {**private, **dict.fromkeys(("ca.crt", "server.crt", "node-0.pub", "node-keys.toml"), 0o644)}
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700


def test_nodes_are_added_and_nothing_is_overwritten(keys):
    """Private halves that were moved to their machines are not made again."""
    for moved in (keys.ca_key, keys.server_key, keys.node(0)):
        moved.unlink()
    before = {path: path.read_bytes() for path in keys.folder.iterdir() if path != keys.list}
    made = make_keys(keys.folder, [HOST], 3)
    assert made == [keys.node(2), keys.node_public(2), keys.list]
    assert {path: path.read_bytes() for path in keys.folder.iterdir() if path not in made} == before


def test_the_list_of_keys_follows_the_public_halves_and_keeps_what_else_it_has(keys):
    """A key that was added by hand stays; one that was moved away is replaced by the new one."""
    before = read_node_keys(keys.list)
    assert before == {number: " ".join(keys.node_public(number).read_text().split()[:2]) for number in range(2)}
    make_keys(keys.folder.with_name("elsewhere"), [HOST], 1)
    foreign = read_node_keys(keys.folder.with_name("elsewhere") / keys.list.name)[0]
    keys.list.write_bytes(keys.list.read_bytes() + f'7 = "{foreign} by hand"\n'.encode())
    for path in (keys.node(1), keys.node_public(1)):
        path.unlink()
    assert keys.list in make_keys(keys.folder, [HOST], 2)
    after = read_node_keys(keys.list)
    assert (after[0], after[7]) == (before[0], f"{foreign} by hand")
    assert after[1] not in before.values()
    assert make_keys(keys.folder, [HOST], 2) == []


@pytest.mark.parametrize("files", range(6))
def test_keys_of_a_command_that_was_killed_are_completed(tmp_path, monkeypatch, files):
    """A partly written file does not exist yet; a complete one is kept."""
    sync, written = os.fsync, []

    def killed(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) > files:
            raise KeyboardInterrupt
        sync(descriptor)

    keys = Keys(tmp_path / "keys")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            make_keys(keys.folder, [HOST], 1)
    before = {path: path.read_bytes() for path in keys.folder.glob("[!.]*")}
    assert len(before) == files
    made = make_keys(keys.folder, [HOST], 1)
    assert len(made) == 7 - files
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in keys.folder.iterdir()} == {path.name for path in [*before, *made]}
    shake_hands(keys, keys.ca, HOST)
    private, public = keys.node(0).read_bytes(), keys.node_public(0).read_bytes()
    assert load_ssh_private_key(private, None).public_key() == load_ssh_public_key(public)
    assert {path.stat().st_mode & 0o777 for path in (keys.ca_key, keys.server_key, keys.node(0))} == {0o600}


@pytest.mark.parametrize(
    ("spoil", "hosts", "line"),
    [
        (None, ["server.example.org:8000"], "'server.example.org:8000'"),
        (None, ["other.example.org"], "other.example.org"),
        (lambda keys: [keys.node_public(1).unlink(), keys.node(1).write_text("")], [HOST], "node-1"),
        (lambda keys: keys.folder.chmod(0o777), [HOST], "0777"),
        (lambda keys: [keys.server.unlink(), keys.ca_key.unlink()], [HOST], "ca.key"),
        (lambda keys: keys.ca.write_text("no"), [HOST], "ca.crt"),
        (lambda keys: keys.list.write_text("no"), [HOST], "node-keys.toml"),
        (lambda keys: keys.node_public(1).write_text("no"), [HOST], "node-1.pub"),
    ],
    ids=["port", "other host", "no key", "open to all", "no authority", "no certificate", "no list", "no public key"],
)
def test_what_cannot_be_made_is_refused_in_one_line(keys, refusal, spoil, hosts, line):
    if spoil:
        spoil(keys)
    before = {path: path.read_bytes() for path in keys.folder.iterdir()}
    assert line in refusal(ConfigError, make_keys, keys.folder, hosts, 2)
    assert {path: path.read_bytes() for path in keys.folder.iterdir()} == before


def test_the_parts_of_a_rehearsals_nodes_are_all_digits_and_share_none(tmp_path):
    """1,797 images make three parts of 599; per class they differ by at most one."""
    folders = [tmp_path / name for name in "abc"]
    write_digits(folders)
    parts = [{path.name: path for path in folder.glob("*/*.png")} for folder in folders]
    assert [len(part) for part in parts] == [599, 599, 599]
    assert all(one.keys().isdisjoint(other.keys()) for one, other in combinations(parts, 2))
    for digit in range(10):
        counts = [len(list((folder / str(digit)).iterdir())) for folder in folders]
        assert max(counts) - min(counts) <= 1


COMMAND = [sys.executable, "-c", "from simulations.cli.command import main; main()"]


@pytest.fixture
def here(tmp_path):
    """Give an empty folder for a rehearsal, and end all processes that a failed test leaves."""
    yield tmp_path
    for number in still_running(tmp_path):
        os.kill(number, signal.SIGKILL)


def test_a_node_that_ends_by_itself_is_named_with_its_reason(tmp_path, refusal):
    with flower(tmp_path) as started:
        program = "print('\\x1b[91mERROR \\x1b[0m:     Exit Code: 305\\nNo disk.\\nMore of it.')"
        started.start("supernode-1", "python", "-c", program)
        started.processes["supernode-1"].wait()
        line = refusal(FederationError, started.check)
        assert ("supernode-1" in line, "No disk." in line, str(tmp_path) in line) == (True, True, True)


NODES: dict[str, Callable[[Keys], list[str]]] = {
    "registered": lambda keys: [f"--root-certificates={keys.ca}", f"--auth-supernode-private-key={keys.node(0)}"],
    "another key": lambda keys: [f"--root-certificates={keys.ca}", f"--auth-supernode-private-key={keys.node(1)}"],
    "no key": lambda keys: [f"--root-certificates={keys.ca}"],
    "plain text": lambda keys: ["--insecure", "--max-retries=0"],
    "unknown authority": lambda keys: [f"--auth-supernode-private-key={keys.node(0)}"],
}
"""Options of SuperNodes for a SuperLink with TLS that knows the key of node 0. Failed connections are retried."""

REFUSALS = {
    "another key": "Failed to activate SuperNode.",
    "no key": "SuperNode authentication is enabled.",
    "plain text": "(Server disconnected without sending a response|Connection reset by peer)",  # whichever comes first
    "unknown authority": "certificate verify failed: unable to get local issuer certificate",
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """Start a SuperLink with TLS that knows the key of node 0, and connect all of `NODES`."""
    folder = tmp_path_factory.mktemp("secured")
    make_keys(folder / "keys", [], 2)
    with flower(folder / "flower", Keys(folder / "keys")) as started:
        started.superlink()
        started.register(0)
        for name, options in NODES.items():
            started.node(name, *options(Keys(folder / "keys")))
        yield started


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", REFUSALS)
def test_a_node_is_refused(secured, name):
    assert secured.processes[name].wait(300) == 1
    assert re.search(REFUSALS[name], (secured.home / f"{name}.log").read_text())


@pytest.mark.exhaustive
def test_a_registered_node_is_let_in_alone(secured):
    for name in REFUSALS:
        secured.processes[name].wait(300)
    until(lambda: "SuperNode ID" in (secured.home / "registered.log").read_text())
    nodes = json.loads(secured.flwr("supernode", "list", NAME, "--format", "json"))["nodes"]
    assert [node["status"] for node in nodes] == ["online"]
    assert secured.processes["registered"].poll() is None


@pytest.mark.exhaustive
def test_a_node_that_claims_anothers_key_is_refused(secured):
    """It presents the registered public key of node 0, and signs with the private key of node 1."""
    assert secured.keys is not None
    shown = load_ssh_private_key(secured.keys.node(0).read_bytes(), None).public_key()
    private = load_ssh_private_key(secured.keys.node(1).read_bytes(), None)
    request = ActivateNodeRequest(public_key=public_key_to_bytes(shown), heartbeat_interval=30)
    authority = secured.keys.ca.read_bytes()
    signing = [NodeAuthHttpInterceptor(private, shown)]
    with (
        FleetHttpClient.from_server_address(secured.address, False, authority, interceptors=signing) as client,
        pytest.raises(HTTPStatusError, match="401 Unauthorized"),
    ):
        client.ActivateNode(request)


@pytest.mark.exhaustive
def test_a_node_that_claims_anothers_number_is_refused_by_name(tmp_path):
    """Node 2 claims to be client 1. The run starts without it, and does not wait for client 2."""
    make_keys(tmp_path / "keys", [], 3)
    keys, run = Keys(tmp_path / "keys"), tmp_path / "run"
    with flower(tmp_path / "flower", keys) as started:
        started.superlink()
        for number in range(3):
            started.register(number)
        claim = '--node-config=partition-id=1 num-partitions=3 partition="iid"'
        started.node("liar", f"--root-certificates={keys.ca}", f"--auth-supernode-private-key={keys.node(2)}", claim)
        for number in range(2):
            started.supernode(number, 3)
        settings = {"algorithm": "local", "dataset": "digits", "rounds": 1, "models": "mlp", "round-timeout": 100}
        said = started.run({**settings, "node-keys": str(keys.list), "output-dir": str(run)})
    assert "says that it is client 1, but its key is that of client 2 in node-keys" in said
    assert [client["partition"] for client in json.loads((run / "clients.json").read_text())] == [0, 1]
    [failure] = json.loads((run / "rounds.jsonl").read_text().splitlines()[0])["failures"]
    assert (failure["partition"], failure["stage"]) == (2, "client registration")


@pytest.mark.slow
def test_a_rehearsal_runs_unlike_nodes_and_leaves_nothing_running(hetfl, here, monkeypatch):
    """In an empty folder, with only --out. The nodes have 899 and 898 different images."""
    monkeypatch.chdir(here)
    settings = [part for key in ("local-batches=1", "keep-uploads=true") for part in ("--set", key)]
    ended = hetfl("rehearse", "--nodes", 2, "--rounds", 1, *settings, "--out", "all")
    assert ended.status == 0, ended.err
    assert still_running(here) == []
    run = here / "all" / "run"
    assert f"results: {run}" in ended.out + ended.err
    assert json.loads((run / "summary.json").read_text())["engine"] == "deployment"
    clients = json.loads((run / "clients.json").read_text())
    assert [client["model"] for client in clients] == ["lenet5", "mlp"]
    samples = [sum(client[part] for part in ("train", "validation", "test")) for client in clients]
    assert samples == [899, 898]
    for number in range(2):
        states = (here / "all" / f"node-{number}" / "state").glob("run-*/*.safetensors")
        kept = [f"client-{number}.safetensors"]
        assert sorted(path.name for path in states) == kept
    assert [path.name for path in here.iterdir()] == ["all"]
    nodes = [part for number in range(2) for part in ("--node", f"{number}=all/node-{number}/state")]
    audited = hetfl("audit", "all/run", "--shadows", 2, "--clients", 1, *nodes)
    assert audited.status == 0, audited.err
    assert "membership: LiRA, offline" in audited.out


@pytest.mark.exhaustive
def test_ctrl_c_ends_all_of_a_rehearsal(here):
    """Further presses of Ctrl-C do not disturb the first one."""
    said = here / "said"
    with said.open("wb") as file:
        command = [*COMMAND, "rehearse", "--nodes", "1", "--out", str(here / "all")]
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    until(lambda: "node 0" in said.read_text(), process)
    assert still_running(here)
    for _ in range(5):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.02)
    assert process.wait(300) == 1
    assert still_running(here) == []
    ending, last = said.read_text().splitlines()[-2:]
    assert ending.startswith("ending      superlink ")
    assert last == f"hetfl: {INTERRUPTED}"


def test_what_a_process_starts_when_told_to_end_ends_too(here, monkeypatch):
    monkeypatch.setattr("simulations.deployment.loopback.END", 1)
    late = (
        "import signal, subprocess, sys, time\n"
        "def ends(*_):\n"
        "    subprocess.Popen(['sleep', '300'])\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, ends)\n"
        "print('ready', flush=True)\n"
        "time.sleep(300)\n"
    )
    (here / "flower").mkdir()
    with flower(here / "flower") as started:
        started.start("node", "python", "-c", late)
        until(lambda: "ready" in (here / "flower" / "node.log").read_text())
    assert still_running(here) == []


def test_a_process_ends_that_ctrl_c_kept_from_being_listed(here, monkeypatch):
    """An interrupt may come after a process has started and before the caller has it."""

    class Interrupted(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            raise KeyboardInterrupt

    monkeypatch.setattr("simulations.deployment.loopback.END", 1)
    monkeypatch.setattr("simulations.deployment.loopback.subprocess.Popen", Interrupted)
    (here / "flower").mkdir()
    with pytest.raises(KeyboardInterrupt), flower(here / "flower") as started:
        started.start("node", "python", "-c", "import time; time.sleep(300)")
    assert still_running(here) == []


def still_running(folder: Path) -> list[int]:
    """Return the processes whose FLWR_HOME is below a folder, from Linux's /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"FLWR_HOME={folder}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def units() -> list[Path]:
    return sorted((DEPLOYMENT / "systemd").glob("*.service"))


def settings(path: Path) -> dict[str, str]:
    """Read an environment file as systemd does: one assignment per line, with quotes as in the shell."""
    return dict(word.split("=", 1) for word in shlex.split(path.read_text(), comments=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "called", "ours"),
    [("flower-superlink", "flower-superlink", ()), ("flower-supernode", "hetfl supernode", ("--keep", "--poll"))],
)
def test_flower_knows_all_options_that_units_and_guides_name(program, called, ours):
    known = subprocess.run(
        [Path(sys.executable).parent / program, "--help"], capture_output=True, text=True, check=True
    )
    texts = [path.read_text() for path in [*units(), DEPLOYMENT / "README.md", ROOT / "docs" / "deploy.md"]]
    commands = re.findall(rf"\b{called} ((?:[^\n]*\\\n)*[^\n]*)", "\n".join(texts))
    named = {option for command in commands for option in re.findall(r"--[a-z-]+", command)}
    assert len(named) >= 5
    assert named <= {*ours, *re.findall(r"--[a-z-]+", known.stdout)}


@pytest.mark.parametrize(
    ("unit", "file"), [("flower-superlink.service", "superlink.env"), ("flower-supernode@.service", "node-0.env")]
)
def test_each_setting_of_a_unit_has_an_example_and_each_example_a_use(unit, file):
    text = (DEPLOYMENT / "systemd" / unit).read_text()
    assert set(re.findall(r"\$\{(\w+)\}", text)) == settings(DEPLOYMENT / "systemd" / file).keys()


@pytest.mark.parametrize("path", units(), ids=lambda path: path.name)
def test_what_a_unit_writes_lies_where_it_may_write(path):
    """Everything else is read-only (ProtectSystem, ProtectHome), so Flower's files and decoded data sets go there."""
    unit = path.read_text()
    [state] = re.findall(r"^StateDirectory=(.+)$", unit, re.MULTILINE)
    homes = dict(re.findall(r"^Environment=(FLWR_HOME|HF_HOME)=(.+)$", unit, re.MULTILINE))
    assert set(homes) == {"FLWR_HOME", "HF_HOME"}
    assert all(folder.startswith(f"%S/{state}/") for folder in homes.values())


def test_the_example_of_a_nodes_settings_is_one_that_a_node_takes():
    example = parse_config_args([settings(DEPLOYMENT / "systemd" / "node-0.env")["NODE_CONFIG"]])
    config = for_node(RunConfig(), example)
    assert (config.dataset, config.partition, config.models) == ("/srv/photos", "all", "mlp")
    assert config.state_dir.startswith("/var/lib/hetfl/node-0/")
