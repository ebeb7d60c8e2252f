"""``hetfl doctor``: checks of a node before it joins: its machine, its files, and its connection to the server.

Checks change nothing: they neither join a federation nor leave files behind.
"""

import json
import os
import platform
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import cached_property
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from operator import attrgetter
from pathlib import Path
from queue import Empty, Queue
from shlex import quote
from threading import Thread
from time import monotonic
from typing import NamedTuple

import certifi
import psutil
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_ssh_private_key
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from rich.table import Table

from hetfl_flwr.common.files import check_writable
from hetfl_flwr.common.versions import PACKAGES
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.text import printable
from simulations.reports.layout import byte_size, table_of

PROJECT = "hetfl"
"""The distribution whose requirements are checked."""

MISSING = "missing"

SIDE = 256
"""Rows and columns of the matrices that torch multiplies as a test."""

MEMORY, ROOMY = 1.05e9, 1.5e9
"""Bytes: the peak memory of a run of LeNet-5 on MNIST, and free memory below which there is a warning."""

MODEL_STATE, RUNS_KEPT = 134e6, 20
"""Bytes of the state of a client with ResNet-18 and Adam, and the default of ``state-keep``."""

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux reports the memory limit of a container or a systemd unit."""

JETSON = Path("/etc/nv_tegra_release")
"""Where a Jetson reports its system release."""

PATIENCE = 20.0
"""Time limit of all checks of the server together, in seconds."""

SOON = timedelta(days=30)
"""Remaining validity of a certificate below which there is a warning."""

AHEAD, BEHIND = 5.0, 305.0
"""Seconds by which a node's clock may be ahead of the server's, and behind it; Flower refuses other signatures."""

MAX_ANSWER = 10_000_000
"""Maximum number of bytes that are read of a response."""

FLEET = "/v1/fleet/activate-node"
"""A path to which nodes post, also through a reverse proxy; a SuperLink answers a GET with 405."""

_NO_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL: dates are checked separately
_OTHER_TORCH = "install torch for this system, processor and driver: from https://pytorch.org, or NVIDIA's for JetPack"
_RENEWAL = "move server.crt and server.key away, run `hetfl keys{}` again where ca.key is, and restart the SuperLink"
_SYNC = "set this machine's clock: timedatectl set-ntp true"


class State(StrEnum):
    """The result of a check; only a failure keeps a node from taking part."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    NOT_CHECKED = "not checked"


class Fault(Exception):
    """Raised by a check that did not pass: what it found, how to fix it, and its state."""

    def __init__(self, found: str, fix: str = "", state: State = State.FAILURE) -> None:
        super().__init__(found)
        self.found, self.fix, self.state = found, fix, state


@contextmanager
def fault_of(found: str, fix: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn OSError, and other given errors, into a fault with their reason."""
    kinds: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except kinds as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise Fault(f"{found}: {why}", fix) from error


@dataclass(frozen=True)
class CheckResult:
    """The result of one check: what was found, and how to fix a warning or a failure.

    Since its texts may quote a server, each is made one printable line of limited length.
    """

    name: str
    state: State
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        """Make the texts printable."""
        object.__setattr__(self, "found", printable(self.found))
        object.__setattr__(self, "fix", printable(self.fix))


class ServerAnswers(NamedTuple):
    """A server's ``Date``, this machine's clock at that time, the status of its Fleet API, and its OpenAPI text."""

    date: str | None
    clock: datetime
    status: int
    described: bytes


@dataclass(frozen=True)
class JoiningNode:
    """A node's options, and what the server reports to it.

    With an empty `host` no server is checked; an IPv6 address has no brackets. `roots` are the certificates of trusted
    authorities, by default those of certifi, as in Flower. `state_dir` need not exist yet; by default it is the working
    directory.
    """

    host: str = ""
    port: int = 0
    roots: Path | None = None
    insecure: bool = False
    key: Path | None = None
    state_dir: Path | None = None

    def connected(self, context: ssl.SSLContext | None = None) -> socket.socket:
        """Connect, with TLS if a context is given."""
        connection = socket.create_connection((self.host, self.port), timeout=PATIENCE / 2)
        try:
            return context.wrap_socket(connection, server_hostname=self.host) if context else connection
        except OSError:
            connection.close()
            raise

    @cached_property
    def certificate(self) -> x509.Certificate:
        """The server's certificate, without verification."""
        with self.connected(_context()) as connection:
            shown: bytes = connection.getpeercert(binary_form=True)  # type: ignore[attr-defined]
        return x509.load_der_x509_certificate(shown)

    @cached_property
    def answers(self) -> ServerAnswers:
        """The server's HTTP responses, without verification of its certificate."""
        (_, date, _, clock), (status, *_), (_, _, described, _) = map(self._get, ("/health", FLEET, "/openapi.json"))
        return ServerAnswers(date, clock, status, described)

    def _get(self, path: str) -> tuple[int, str | None, bytes, datetime]:
        """Return status, ``Date`` and body of a response, and this machine's clock when the server sent it."""
        request = HTTPConnection(self.host, self.port)
        request.sock = self.connected(None if self.insecure else _context())
        with request.sock:
            before = datetime.now(UTC)
            request.request("GET", path, headers={"Connection": "close"})
            response = request.getresponse()
            clock = before + (datetime.now(UTC) - before) / 2
            return response.status, response.headers["Date"], response.read(MAX_ANSWER), clock


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    plain = port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= 65535
    if not plain or not host or "/" in host or any(map(str.isspace, host)):
        raise ConfigError(f"--superlink = {address}: expected HOST:PORT, such as server.example.org:8443")
    return host, int(port)


def check_python(node: JoiningNode) -> str:
    """Check the version of Python."""
    required = metadata(PROJECT)["Requires-Python"]
    text = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if not SpecifierSet(required).contains(platform.python_version(), prereleases=True):
        raise Fault(f"{text}; {required} is required", f"create the virtual environment with Python {required}")
    return text


def check_packages(node: JoiningNode) -> str:
    """Check that each required package is installed in a supported version."""
    here = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    found = {each: _version(each.name) for each in _required()}
    lacking = {
        each: has for each, has in found.items() if has == MISSING or not each.specifier.contains(has, prereleases=True)
    }
    if lacking:
        said = (f"{each.name} is {has}; {each.specifier or 'any'} is required" for each, has in lacking.items())
        names = " ".join(f"'{each.name}{each.specifier}'" for each in lacking)
        raise Fault(f"{here}; {'; '.join(said)}", f"{sys.executable} -m pip install {names}")
    return here


def _required() -> list[Requirement]:
    """Return the requirements of this project on this system, without extras."""
    every = map(Requirement, requires(PROJECT) or [])
    return [each for each in every if each.marker is None or each.marker.evaluate()]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return MISSING


def check_torch(node: JoiningNode) -> str:
    """Run torch in a separate process, which dies by a signal if torch was built for newer processors."""
    trial = f"import torch; one = torch.ones({SIDE}, {SIDE}); one @ one"
    done = subprocess.run([sys.executable, "-c", trial], capture_output=True, text=True, check=False)
    if done.returncode < 0:
        raise Fault(f"torch crashes Python: {signal.strsignal(-done.returncode)}", _OTHER_TORCH)
    if done.returncode:
        raise Fault(f"torch cannot be imported: {done.stderr.strip().rpartition(chr(10))[2]}", _OTHER_TORCH)
    return "multiplies matrices"


def check_device(node: JoiningNode) -> str:
    """Multiply matrices on each accelerator that torch finds; without one, on the processor."""
    import torch

    names = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    names += ["mps"] * torch.backends.mps.is_available()
    found = "; ".join(map(_multiply, names or ["cpu"]))
    jetson = jetson_release()
    nvidia = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    if not names and (jetson or nvidia):
        seen = f"Jetson {jetson} is" if jetson else "an NVIDIA GPU is"
        text = f"{seen} here, but torch {torch.__version__} is built for CUDA {torch.version.cuda or '(none)'}"
        fix = f"{_OTHER_TORCH}; on a Jetson, let the node's user into the group video, too"
        raise Fault(f"{found}; {text} and cannot use it", fix, State.WARNING)
    return found


def _multiply(device: str) -> str:
    import torch

    fix = f'{_OTHER_TORCH}; until then the node trains with device="cpu"'
    try:
        text, one = _described(device), torch.ones(SIDE, SIDE, device=device)
        right = bool(((one @ one) == SIDE).all())
    except RuntimeError as error:  # a driver that is too old, a GPU for which torch has no kernels, no memory
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise Fault(f"{device} cannot multiply matrices: {reason}", fix) from None
    if not right:
        raise Fault(f"{text}; a matrix product is wrong", fix)
    return f"{text}, multiplies matrices"


def _described(device: str) -> str:
    import torch

    if device == "cpu":
        threads = torch.get_num_threads()
        return f"processor, {threads} thread{'s' * (threads > 1)} of {os.cpu_count()} processors"
    if device == "mps":
        return f"Apple GPU (MPS), {byte_size(torch.mps.recommended_max_memory())} at most"
    has, (free, _) = torch.cuda.get_device_properties(device), torch.cuda.mem_get_info(device)
    text = f"{device}, {has.name}, compute capability {has.major}.{has.minor}, CUDA {torch.version.cuda}"
    jetson = f", Jetson {release}" if (release := jetson_release()) else ""
    return f"{text}, {byte_size(free)} of {byte_size(has.total_memory)} free{jetson}"


def jetson_release() -> str:
    """Return a Jetson's system release, such as ``R36 (release), REVISION: 4.0``; empty on other machines."""
    try:
        first = JETSON.read_text(errors="replace").partition("\n")[0]
    except OSError:
        return ""
    return ", ".join(first.removeprefix("#").strip().split(", ")[:2])


def check_memory(node: JoiningNode) -> str:
    """Check that there is enough memory for a small client."""
    free = free_memory()
    text = f"{byte_size(free)} free; a small client (LeNet-5) takes {byte_size(MEMORY)}"
    if free < ROOMY:
        fix = "end other programs, raise the MemoryMax of the unit, or train smaller models and batches"
        raise Fault(text, fix, State.FAILURE if free < MEMORY else State.WARNING)
    return text


def free_memory() -> int:
    """Return the memory in bytes that a new process can use, within the limit of a container."""
    free: int = psutil.virtual_memory().available
    try:
        limit, used = ((CGROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return free if limit == "max" else min(free, max(int(limit) - int(used), 0))
    except (OSError, ValueError):
        return free


def check_state_folder(node: JoiningNode) -> str:
    """Check that the state folder, or its nearest existing parent, is writable and has enough space."""
    folder = node.state_dir or Path.cwd()
    fix = "free some of the disk, or name a folder with --state-dir that the node's user can write to"
    with fault_of(f"{folder} cannot be written", fix):
        free = shutil.disk_usage(check_writable(folder)).free
    text = f"{folder} can be written, {byte_size(free)} free"
    if free < RUNS_KEPT * MODEL_STATE:
        text += (
            f"; ResNet-18 with Adam takes {byte_size(MODEL_STATE)} per run, and state-keep = {RUNS_KEPT} runs are kept"
        )
        fix = "free some of the disk, name another --state-dir, or set a smaller state-keep"
        raise Fault(text, fix, State.FAILURE if free < MODEL_STATE else State.WARNING)
    return text


def check_key(node: JoiningNode) -> str:
    """Check that Flower can read the node's private key, that other users cannot, and that TLS is on."""
    path = node.key
    if path is None:
        raise Fault("no --key is given", state=State.NOT_CHECKED)
    with fault_of(f"{path} cannot be read", "name the file with --key, and run this as the node's user"):
        content, mode = path.read_bytes(), path.stat().st_mode & 0o777
    try:
        key = load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        text = f"{path} is not an elliptic-curve private key in OpenSSH's format without a passphrase"
        raise Fault(text, "use node-K, not node-K.pub, of `hetfl keys`")
    if mode & 0o077:
        text = f"{path} has mode {mode:04o}: other users can read or write it"
        raise Fault(text, f"chmod 600 {quote(str(path))}")
    if node.insecure:
        text = "Flower refuses a node that has a key but connects without TLS"
        raise Fault(text, "drop --insecure and name --root-certificates, or drop --key")
    return f"{path} has mode {mode:04o}, curve {key.curve.name}"


def check_name(node: JoiningNode) -> str:
    """Check that the server's name can be resolved."""
    fix = "correct the name in --superlink, or add it to the DNS"
    with fault_of(f"{node.host} has no address", fix, UnicodeError):
        rows = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)
    return f"{node.host} resolves to {', '.join(dict.fromkeys(str(row[4][0]) for row in rows))}"


def check_port(node: JoiningNode) -> str:
    """Check that the port is open."""
    closed = "start the SuperLink, correct the port, or open it in the firewalls"
    with fault_of(f"no connection to port {node.port}", closed):
        node.connected().close()
    return f"port {node.port} is open"


def check_tls(node: JoiningNode) -> str:
    """Check that the server uses TLS."""
    if node.insecure:
        keys = "make keys with `hetfl keys`, start the SuperLink with them, and name --root-certificates here"
        raise Fault("off (--insecure): messages can be read and changed in transit", keys, State.WARNING)
    plain = "start the SuperLink with --ssl-certfile and --ssl-keyfile, or name the port that has TLS"
    with fault_of("no handshake", plain, ValueError):
        _ = node.certificate
    return "handshake done"


def check_subject(node: JoiningNode) -> str:
    """Check that the server's certificate is for the name that the node uses."""
    shown, kind = node.certificate, x509.SubjectAlternativeName
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=shown.public_bytes(Encoding.PEM).decode())
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_TIME
    names = [str(name.value) for each in shown.extensions if isinstance(each.value, kind) for name in each.value]
    bad = f"not for {node.host}, but for {', '.join(names) or 'nobody'}"
    with fault_of(bad, _RENEWAL.format(f" --host {node.host}")), node.connected(context):
        return f"for {node.host}"


def check_authority(node: JoiningNode) -> str:
    """Check that the authorities' certificates can be read, and the dates of those that were given."""
    roots = node.roots or Path(certifi.where())
    fix = "name the ca.crt of `hetfl keys` as --root-certificates"
    with fault_of(f"{roots} has no certificates in PEM format that can be read", fix, ValueError):
        _context(roots)
        authorities = x509.load_pem_x509_certificates(roots.read_bytes()) if node.roots else []
    new = "make new keys for all machines with `hetfl keys`, in a new folder"
    return "; ".join([f"{roots} can be read", *(dates(each, datetime.now(UTC), new) for each in authorities)])


def check_chain(node: JoiningNode) -> str:
    """Check that one of the authorities signed the server's certificate."""
    context = _context(node.roots or certifi.where())
    signed, trusted = f"signed by {node.certificate.issuer.rfc4514_string()}", node.roots or "certifi's list"
    fix = "name the ca.crt of this federation, from the folder of `hetfl keys`, as --root-certificates"
    with fault_of(f"{signed}, unknown to {trusted}", fix), node.connected(context):
        return f"{signed}, known to {trusted}"


def dates(certificate: x509.Certificate, now: datetime, renewal: str) -> str:
    """Return how long a certificate is valid; raise `Fault` if it is not valid, or expires soon."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    clock = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC"
    if now < begin:
        raise Fault(f"valid from {begin:%Y-%m-%d %H:%M} UTC, but {clock}: {_span(begin - now)} too early", _SYNC)
    if now > end:
        raise Fault(f"expired at {end:%Y-%m-%d %H:%M} UTC, {_span(now - end)} ago: {clock}", renewal)
    left = f"valid until {end:%Y-%m-%d %H:%M} UTC: {_span(end - now)} left"
    if end - now < SOON:
        raise Fault(left, renewal, State.WARNING)
    return left


def check_superlink(node: JoiningNode) -> str:
    """Check by its HTTP status that there is a SuperLink's Fleet API, directly or behind a reverse proxy."""
    other = "drop --insecure if the SuperLink has TLS, and check that this is its port"
    with fault_of("no answer over HTTP", other, HTTPException):
        status = node.answers.status
    if status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT):
        text = f"a reverse proxy answers (HTTP {status}), but no SuperLink behind it"
        raise Fault(text, "start the SuperLink on the server: its log says why it ended")
    if status != HTTPStatus.METHOD_NOT_ALLOWED:
        text = f"an HTTP server answers {status} to a node's request: no SuperLink, or its reverse proxy blocks nodes"
        raise Fault(text, "correct the port, or let the reverse proxy pass /v1/fleet/")
    return "accepts requests from nodes"


def clocks(date: str | None, clock: datetime) -> str:
    """Return by how much this machine's clock is off; raise `Fault` if Flower may refuse it.

    `date` is the server's header ``Date``, in whole seconds, and `clock` this machine's clock at that time.
    """
    try:
        served = parsedate_to_datetime(date or "") + timedelta(seconds=0.5)
        ahead = (clock - served).total_seconds()
    except (ValueError, TypeError):  # no header, not a date, or no time zone
        raise Fault("the server does not report its time", state=State.NOT_CHECKED) from None
    off = f"{abs(ahead):.0f} s" if abs(ahead) < 600 else _span(timedelta(seconds=round(abs(ahead))))
    text = f"{off} {'ahead of' if ahead > 0 else 'behind'} the server's; " if abs(ahead) > 1 else ""
    text = f"{text or 'agrees with the server to 1 s; '}at most {AHEAD:g} s ahead and {BEHIND:g} s behind are allowed"
    used = max(ahead / AHEAD, -ahead / BEHIND)
    if used > 0.5:
        raise Fault(text, f"{_SYNC}; also on the server", State.FAILURE if used >= 1 else State.WARNING)
    return text


def check_version(node: JoiningNode) -> str:
    """Compare the server's version of Flower with this node's and with the required one."""
    required = next(each.specifier for each in _required() if each.name == "flwr")
    return versions(node.answers.described, _version("flwr"), required)


def versions(described: bytes, here: str, required: SpecifierSet) -> str:
    """Return the versions of Flower at both ends; raise `Fault` if they differ, or if the server's is not supported.

    `described` is the server's OpenAPI description.
    """
    try:
        info = json.loads(described)["info"]
        served = str(Version(info["version"] if info["title"] == "SuperLink API" else ""))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Fault("not reported, as behind a gate", state=State.NOT_CHECKED) from None
    text = f"Flower {served} on the server, {here} here"
    if not required.contains(served, prereleases=True):
        fix = f"on the server: pip install 'flwr{required}', and restart the SuperLink"
        raise Fault(f"{text}; {required} is required", fix)
    if served != here:
        raise Fault(text, f"here: pip install flwr=={served}", State.WARNING)
    return text


def _context(roots: Path | str | None = None) -> ssl.SSLContext:
    """Return a context that accepts a certificate for any name and date and, without `roots`, from any authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if roots is None:
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(roots)
        context.verify_flags |= _NO_TIME
    return context


def _span(time: timedelta) -> str:
    """Return a duration in the largest unit of which it has at least one: days, hours or minutes."""
    seconds = time.total_seconds()
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'s' * (number != 1)}"
    return "less than a minute"


class Check(NamedTuple):
    """A function that returns what it found or raises `Fault`, and the check that must not have failed before."""

    name: str
    look: Callable[[JoiningNode], str]
    after: str = ""


MACHINE = (
    Check("Python", check_python),
    Check("packages", check_packages),
    Check("torch", check_torch),
    Check("device", check_device, after="torch"),
    Check("memory", check_memory),
    Check("state folder", check_state_folder),
    Check("private key", check_key),
)
REACHED = (
    Check("name", check_name),
    Check("port", check_port, after="name"),
    Check("TLS", check_tls, after="port"),
)
CERTIFICATES = (
    Check("certificate", lambda node: dates(node.certificate, datetime.now(UTC), _RENEWAL.format("")), after="TLS"),
    Check("certificate name", check_subject, after="TLS"),
    Check("authority", check_authority, after="TLS"),
    Check("certificate chain", check_chain, after="authority"),
)
SERVER = (
    Check("SuperLink", check_superlink, after="TLS"),
    Check("clock", lambda node: clocks(node.answers.date, node.answers.clock), after="SuperLink"),
    Check("server's version", check_version, after="SuperLink"),
)


def findings_of(checks: Iterable[Check], node: JoiningNode) -> Iterator[CheckResult]:
    """Yield the result of each check whose earlier check did not fail and was not skipped."""
    passed = {""}
    for check in checks:
        if check.after not in passed:
            continue
        try:
            finding = CheckResult(check.name, State.OK, check.look(node))
        except Fault as fault:
            finding = CheckResult(check.name, fault.state, fault.found, fault.fix)
        if finding.state is not State.FAILURE:
            passed.add(check.name)
        yield finding


def examine(node: JoiningNode) -> Iterator[CheckResult]:
    """Yield the results of all checks of this machine and, if a server is named, of the server."""
    yield from findings_of(MACHINE, node)
    yield from (
        examine_server(node) if node.host else [CheckResult("server", State.NOT_CHECKED, "no --superlink is given")]
    )


def examine_server(node: JoiningNode) -> Iterator[CheckResult]:
    """Yield the results of the checks of the server that finish within `PATIENCE`."""
    findings, deadline = Queue[CheckResult | None](), monotonic() + PATIENCE
    checks = (*REACHED, *(() if node.insecure else CERTIFICATES), *SERVER)

    def look() -> None:
        try:
            for finding in findings_of(checks, node):
                findings.put(finding)
        finally:
            findings.put(None)

    Thread(target=look, daemon=True).start()
    try:
        while (finding := findings.get(timeout=max(deadline - monotonic(), 0))) is not None:
            yield finding
    except Empty:
        fix = "check that this is the SuperLink's port, and read its log"
        yield CheckResult("SuperLink", State.FAILURE, f"does not answer within {PATIENCE:g} s", fix)


def finding_table(findings: Sequence[CheckResult]) -> Table:
    """Return a table with a row per check, and the number of checks by state."""
    counts = Counter(finding.state for finding in findings)
    return table_of(
        "Checks of this node",
        {"check": attrgetter("name"), **{name: attrgetter(name) for name in ("state", "found", "fix")}},
        findings,
        words={"found", "fix"},
        whole={"check", "state"},
        notes=[", ".join(f"{state}: {counts[state]}" for state in State if counts[state])],
    )
