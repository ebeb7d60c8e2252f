"""``hetfl doctor``: a table of checks before a node joins: its machine, its files, and the server as seen from it.

A check changes nothing: it neither joins a federation nor leaves a file behind.
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
from simulations.reports.terminal import byte_size, table_of

PROJECT = "hetfl"
"""The package whose requirements must be met."""

MISSING = "missing"

SIDE = 256
"""Rows and columns of the matrices that torch multiplies on trial."""

MEMORY, ROOMY = 1.05e9, 1.5e9
"""Bytes: the peak of a run of LeNet-5 on MNIST, and the most that such a run may take."""

MODEL_STATE, RUNS_KEPT = 134e6, 20
"""Bytes of a client with ResNet-18 and Adam, and the runs that ``state-keep`` leaves in a folder."""

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux reports the memory limit of a container or a unit."""

JETSON = Path("/etc/nv_tegra_release")
"""Where a Jetson reports the release of its system."""

PATIENCE = 20.0
"""Deadline of all checks of a server together, in seconds."""

SOON = timedelta(days=30)
"""Time before the end of a certificate from which on there is a warning."""

AHEAD, BEHIND = 5.0, 305.0
"""Seconds by which a node's clock may be ahead of the server's, and behind it: Flower refuses signatures beyond."""

MAX_ANSWER = 10_000_000
"""Maximum number of bytes that are read of an answer."""

FLEET = "/v1/fleet/activate-node"
"""A path of a SuperLink that nodes post to, also through a gate; it refuses to be read."""

_NO_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL: dates are a check of their own
_OTHER_TORCH = "install a torch for this system, processor and driver: https://pytorch.org, or NVIDIA's for a JetPack"
_RENEWAL = "move server.crt and server.key away, run `hetfl keys{}` again where ca.key is, and restart the SuperLink"
_SYNC = "set this machine's clock: timedatectl set-ntp true"


class State(StrEnum):
    """The result of a check. Only a failure prevents a node from taking part."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    NOT_CHECKED = "not checked"


class Fault(Exception):
    """Raised by a check that has not passed: what it has found, how to fix it, and its state."""

    def __init__(self, found: str, fix: str = "", state: State = State.FAILURE) -> None:
        super().__init__(found)
        self.found, self.fix, self.state = found, fix, state


@contextmanager
def fault_of(found: str, fix: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn errors of the system, and other given ones, into a fault, with their reason."""
    kinds: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except kinds as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise Fault(f"{found}: {why}", fix) from error


@dataclass(frozen=True)
class Finding:
    """The result of one check. Its texts may quote a server: each becomes one printable line of bounded length.

    Parameters
    ----------
    name : str
        What was checked.
    state : State
        Its state.
    found : str
        What was found, or why it was not checked.
    fix : str
        How to fix a warning or a failure.
    """

    name: str
    state: State
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        """Make the texts printable."""
        object.__setattr__(self, "found", printable(self.found))
        object.__setattr__(self, "fix", printable(self.fix))


class Answers(NamedTuple):
    """A server's answers to empty requests: its clock, its Fleet API, and its version."""

    date: str | None
    clock: datetime
    status: int
    described: bytes


@dataclass(frozen=True)
class Node:
    """A node's options, and what the server reports to it.

    Parameters
    ----------
    host : str
        Name or address of the SuperLink, without brackets; empty: no server is checked.
    port : int
        1 to 65535.
    roots : Path, optional
        Certificates of the authorities that are trusted; by default those of certifi, as in Flower.
    insecure : bool
        Whether the connection is without TLS.
    key : Path, optional
        The node's private key: what ``flower-supernode`` takes as ``--auth-supernode-private-key``.
    state_dir : Path, optional
        The node's ``state-dir``, which need not be there yet. By default the working directory.
    """

    host: str = ""
    port: int = 0
    roots: Path | None = None
    insecure: bool = False
    key: Path | None = None
    state_dir: Path | None = None

    def connected(self, context: ssl.SSLContext | None = None) -> socket.socket:
        """Connect, by TLS if a context is given."""
        connection = socket.create_connection((self.host, self.port), timeout=PATIENCE / 2)
        try:
            return context.wrap_socket(connection, server_hostname=self.host) if context else connection
        except OSError:
            connection.close()
            raise

    @cached_property
    def certificate(self) -> x509.Certificate:
        """The server's certificate, for any name."""
        with self.connected(_context()) as connection:
            shown: bytes = connection.getpeercert(binary_form=True)  # type: ignore[attr-defined]
        return x509.load_der_x509_certificate(shown)

    @cached_property
    def answers(self) -> Answers:
        """The server's answers over HTTP, without verification of its certificate."""
        (_, date, _, clock), (status, *_), (_, _, described, _) = map(self._get, ("/health", FLEET, "/openapi.json"))
        return Answers(date, clock, status, described)

    def _get(self, path: str) -> tuple[int, str | None, bytes, datetime]:
        """Return status, ``Date`` and body of an answer, and this machine's clock when it came."""
        request = HTTPConnection(self.host, self.port)
        request.sock = self.connected(None if self.insecure else _context())
        with request.sock:
            before = datetime.now(UTC)
            request.request("GET", path, headers={"Connection": "close"})
            response = request.getresponse()
            clock = before + (datetime.now(UTC) - before) / 2
            return response.status, response.headers["Date"], response.read(MAX_ANSWER), clock


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT.

    Raises
    ------
    ConfigError
        It has another form.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    plain = port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= 65535
    if not plain or not host or "/" in host or any(map(str.isspace, host)):
        raise ConfigError(f"--superlink = {address}: expected HOST:PORT, such as server.example.org:8443")
    return host, int(port)


def check_python(node: Node) -> str:
    """Compare the version of Python with the one that this project requires."""
    required = metadata(PROJECT)["Requires-Python"]
    text = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if not SpecifierSet(required).contains(platform.python_version(), prereleases=True):
        raise Fault(f"{text}, required is {required}", f"make the virtual environment with a Python {required}")
    return text


def check_packages(node: Node) -> str:
    """Check that each required package, Flower among them, is installed in a supported version."""
    here = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    found = {each: _version(each.name) for each in _required()}
    lacking = {
        each: has for each, has in found.items() if has == MISSING or not each.specifier.contains(has, prereleases=True)
    }
    if lacking:
        said = (f"{each.name} is {has}, required is {each.specifier or 'any'}" for each, has in lacking.items())
        names = " ".join(f"'{each.name}{each.specifier}'" for each in lacking)
        raise Fault(f"{here}; {'; '.join(said)}", f"{sys.executable} -m pip install {names}")
    return here


def _required() -> list[Requirement]:
    """Return what this project requires here, without its extras."""
    every = map(Requirement, requires(PROJECT) or [])
    return [each for each in every if each.marker is None or each.marker.evaluate()]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return MISSING


def check_torch(node: Node) -> str:
    """Let torch compute in a process of its own: one that was built for newer processors ends it by a signal."""
    trial = f"import torch; one = torch.ones({SIDE}, {SIDE}); one @ one"
    done = subprocess.run([sys.executable, "-c", trial], capture_output=True, text=True, check=False)
    if done.returncode < 0:
        raise Fault(f"torch ends Python: {signal.strsignal(-done.returncode)}", _OTHER_TORCH)
    if done.returncode:
        raise Fault(f"torch cannot be imported: {done.stderr.strip().rpartition(chr(10))[2]}", _OTHER_TORCH)
    return "multiplies matrices"


def check_device(node: Node) -> str:
    """Multiply matrices on each accelerator that torch sees; without one, on the processor."""
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
        raise Fault(f"{text}; a product of matrices is wrong", fix)
    return f"{text}, multiplies matrices"


def _described(device: str) -> str:
    import torch

    if device == "cpu":
        return f"processor, {torch.get_num_threads()} threads of {os.cpu_count()} processors"
    if device == "mps":
        return f"Apple GPU (MPS), {byte_size(torch.mps.recommended_max_memory())} at most"
    has, (free, _) = torch.cuda.get_device_properties(device), torch.cuda.mem_get_info(device)
    text = f"{device}, {has.name}, compute capability {has.major}.{has.minor}, CUDA {torch.version.cuda}"
    jetson = f", Jetson {release}" if (release := jetson_release()) else ""
    return f"{text}, {byte_size(free)} of {byte_size(has.total_memory)} free{jetson}"


def jetson_release() -> str:
    """Return the release of a Jetson's system, such as ``R36 (release), REVISION: 4.0``; empty on other machines."""
    try:
        first = JETSON.read_text(errors="replace").partition("\n")[0]
    except OSError:
        return ""
    return ", ".join(first.removeprefix("#").strip().split(", ")[:2])


def check_memory(node: Node) -> str:
    """Compare the free memory with what small clients take."""
    free = free_memory()
    text = f"{byte_size(free)} free; a small client (LeNet-5) takes {byte_size(MEMORY)}"
    if free < ROOMY:
        fix = "end other programs, raise the MemoryMax of the unit, or train smaller models and batches"
        raise Fault(text, fix, State.FAILURE if free < MEMORY else State.WARNING)
    return text


def free_memory(cgroup: Path = CGROUP) -> int:
    """Return the bytes that a new process can take, within the limit of a container."""
    free: int = psutil.virtual_memory().available
    try:
        limit, used = ((cgroup / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return free if limit == "max" else min(free, max(int(limit) - int(used), 0))
    except (OSError, ValueError):
        return free


def check_state_folder(node: Node) -> str:
    """Check that the state folder, or the one in which it would be made, can be written and has room."""
    folder = node.state_dir or Path.cwd()
    fix = "free some of the disk, or name a folder with --state-dir that the node's user can write to"
    with fault_of(f"{folder} cannot be written", fix):
        free = shutil.disk_usage(check_writable(folder)).free
    text = f"{folder} can be written, {byte_size(free)} free"
    if free < RUNS_KEPT * MODEL_STATE:
        text += f"; ResNet-18 with Adam takes {byte_size(MODEL_STATE)} a run, and state-keep = {RUNS_KEPT} runs stay"
        fix = "free some of the disk, name another --state-dir, or set a smaller state-keep"
        raise Fault(text, fix, State.FAILURE if free < MODEL_STATE else State.WARNING)
    return text


def check_key(node: Node) -> str:
    """Check that Flower can read the node's private key, that others cannot, and that it goes with TLS."""
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
        text = f"{path} is no private key of an elliptic curve in OpenSSH's format without a passphrase"
        raise Fault(text, "take node-K, not node-K.pub, of `hetfl keys`")
    if mode & 0o077:
        text = f"{path} has mode {mode:04o}: others than its owner can read or write it"
        raise Fault(text, f"chmod 600 {quote(str(path))}")
    if node.insecure:
        text = "Flower refuses a node that has a key but connects without TLS"
        raise Fault(text, "drop --insecure and name --root-certificates, or drop --key")
    return f"{path} has mode {mode:04o}, curve {key.curve.name}"


def check_name(node: Node) -> str:
    """Check that the server's name has an address."""
    fix = "correct the name in --superlink, or add it to the DNS"
    with fault_of(f"{node.host} has no address", fix, UnicodeError):
        rows = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)
    return f"{node.host} is {', '.join(dict.fromkeys(str(row[4][0]) for row in rows))}"


def check_port(node: Node) -> str:
    """Check that the port is open."""
    closed = "start the SuperLink, correct the port, or open it in the firewalls"
    with fault_of(f"no connection to port {node.port}", closed):
        node.connected().close()
    return f"port {node.port} is open"


def check_tls(node: Node) -> str:
    """Check that the server uses TLS."""
    if node.insecure:
        keys = "make keys by `hetfl keys`, start the SuperLink with them, and name --root-certificates here"
        raise Fault("off (--insecure): messages can be read and altered on the way", keys, State.WARNING)
    plain = "start the SuperLink with --ssl-certfile and --ssl-keyfile, or name the port that has TLS"
    with fault_of("no handshake", plain, ValueError):
        _ = node.certificate
    return "handshake done"


def check_certificate(node: Node) -> str:
    """Check the dates of the server's certificate."""
    return dates(node.certificate, datetime.now(UTC), _RENEWAL.format(""))


def check_subject(node: Node) -> str:
    """Check that the server's certificate is for the name by which it is called."""
    shown, kind = node.certificate, x509.SubjectAlternativeName
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=shown.public_bytes(Encoding.PEM).decode())
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_TIME
    names = [str(name.value) for each in shown.extensions if isinstance(each.value, kind) for name in each.value]
    bad = f"not for {node.host}, but for {', '.join(names) or 'nobody'}"
    with fault_of(bad, _RENEWAL.format(f" --host {node.host}")), node.connected(context):
        return f"for {node.host}"


def check_authority(node: Node) -> str:
    """Check that the certificates of the authorities can be read, and the dates of those that were given."""
    roots = node.roots or Path(certifi.where())
    bad, fix = "no certificates in PEM format that can be read", "name the ca.crt of `hetfl keys`"
    with fault_of(f"{roots} has {bad}", f"{fix} as --root-certificates", ValueError):
        _context(roots)
        authorities = x509.load_pem_x509_certificates(roots.read_bytes()) if node.roots else []
    new = "make new keys for all by `hetfl keys` in a new folder"
    return "; ".join([f"{roots} can be read", *(dates(each, datetime.now(UTC), new) for each in authorities)])


def check_chain(node: Node) -> str:
    """Check that one of the authorities has signed the server's certificate."""
    context = _context(node.roots or certifi.where())
    signed, trusted = f"signed by {node.certificate.issuer.rfc4514_string()}", node.roots or "certifi's list"
    fix = "name the ca.crt of this federation, from the folder of `hetfl keys`, as --root-certificates"
    with fault_of(f"{signed}, unknown to {trusted}", fix), node.connected(context):
        return f"{signed}, known to {trusted}"


def dates(certificate: x509.Certificate, now: datetime, renewal: str) -> str:
    """Return how long a certificate is valid; raise `Fault` if it is invalid, or expires soon."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    clock = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC"
    if now < begin:
        raise Fault(f"valid from {begin:%Y-%m-%d %H:%M} UTC, but {clock}: {_span(begin - now)} before that", _SYNC)
    if now > end:
        raise Fault(f"expired at {end:%Y-%m-%d %H:%M} UTC, {_span(now - end)} ago: {clock}", renewal)
    left = f"valid until {end:%Y-%m-%d %H:%M} UTC: {_span(end - now)} left"
    if end - now < SOON:
        raise Fault(left, renewal, State.WARNING)
    return left


def check_superlink(node: Node) -> str:
    """Check by its HTTP status that a SuperLink's Fleet API is there, directly or behind a gate."""
    other = "drop --insecure where the SuperLink has TLS, and see whether this is its port"
    with fault_of("no answer over HTTP", other, HTTPException):
        status = node.answers.status
    if status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT):
        text = f"a gate answers (HTTP {status}), but no SuperLink behind it"
        raise Fault(text, "start the SuperLink on the server: its log says why it ended")
    if status != HTTPStatus.METHOD_NOT_ALLOWED:
        text = f"an HTTP server answers {status} to a request of nodes: it is no SuperLink, or its gate keeps nodes out"
        raise Fault(text, "correct the port, or let the gate pass /v1/fleet/ on")
    return "takes requests of nodes"


def check_clock(node: Node) -> str:
    """Compare this machine's clock with the server's."""
    return clocks(node.answers.date, node.answers.clock)


def clocks(date: str | None, clock: datetime) -> str:
    """Return by how much this machine's clock is off; raise `Fault` if Flower may refuse it.

    Parameters
    ----------
    date : str, optional
        The header ``Date`` of the server, which leaves out the fraction of a second.
    clock : datetime
        This machine's clock when the server wrote it.
    """
    try:
        served = parsedate_to_datetime(date or "") + timedelta(seconds=0.5)
        ahead = (clock - served).total_seconds()
    except (ValueError, TypeError):  # none, no date, or one without a zone
        raise Fault("the server does not tell its time", state=State.NOT_CHECKED) from None
    off = f"{abs(ahead):.0f} s" if abs(ahead) < 600 else _span(timedelta(seconds=round(abs(ahead))))
    text = f"{off} {'ahead of' if ahead > 0 else 'behind'} the server's; " if abs(ahead) > 1 else ""
    text = f"{text or 'agrees with the server to 1 s; '}at most {AHEAD:g} s ahead and {BEHIND:g} s behind will do"
    used = max(ahead / AHEAD, -ahead / BEHIND)
    if used > 0.5:
        raise Fault(text, f"{_SYNC}; on the server, too", State.FAILURE if used >= 1 else State.WARNING)
    return text


def check_version(node: Node) -> str:
    """Compare the Flower of the server, as its description of its API names it, with this node's and the app's need."""
    required = next(each.specifier for each in _required() if each.name == "flwr")
    return versions(node.answers.described, _version("flwr"), required)


def versions(described: bytes, here: str, required: SpecifierSet) -> str:
    """Return the versions of Flower on both ends; raise `Fault` if they are not equal, or the server's is too old."""
    try:
        info = json.loads(described)["info"]
        served = str(Version(info["version"] if info["title"] == "SuperLink API" else ""))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Fault("not told, as by a gate", state=State.NOT_CHECKED) from None
    text = f"Flower {served} there, {here} here"
    if not required.contains(served, prereleases=True):
        fix = f"on the server: pip install 'flwr{required}', and restart the SuperLink"
        raise Fault(f"{text}; required is {required}", fix)
    if served != here:
        raise Fault(text, f"here: pip install flwr=={served}", State.WARNING)
    return text


def _context(roots: Path | str | None = None) -> ssl.SSLContext:
    """Return a context that takes a certificate of any name and date, and by default of any authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if roots is None:
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(roots)
        context.verify_flags |= _NO_TIME
    return context


def _span(time: timedelta) -> str:
    """Return a time in days, or hours, or minutes: the largest of which there is one."""
    seconds = time.total_seconds()
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'s' * (number != 1)}"
    return "less than a minute"


class Check(NamedTuple):
    """A row of the table: a name, a function that returns what it has found, and the check that must not have failed.

    The function raises `Fault` where its check does not end well.
    """

    name: str
    look: Callable[[Node], str]
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
    Check("certificate", check_certificate, after="TLS"),
    Check("certificate name", check_subject, after="TLS"),
    Check("authority", check_authority, after="TLS"),
    Check("certificate chain", check_chain, after="authority"),
)
SERVER = (
    Check("SuperLink", check_superlink, after="TLS"),
    Check("clock", check_clock, after="SuperLink"),
    Check("server's version", check_version, after="SuperLink"),
)


def findings_of(checks: Iterable[Check], node: Node) -> Iterator[Finding]:
    """Yield what each check finds, without those whose condition has failed or was not checked itself."""
    passed = {""}
    for check in checks:
        if check.after not in passed:
            continue
        try:
            finding = Finding(check.name, State.OK, check.look(node))
        except Fault as fault:
            finding = Finding(check.name, fault.state, fault.found, fault.fix)
        if finding.state is not State.FAILURE:
            passed.add(check.name)
        yield finding


def examine(node: Node) -> Iterator[Finding]:
    """Yield what is found on this machine, and of the server if one is named."""
    yield from findings_of(MACHINE, node)
    yield from examine_server(node) if node.host else [Finding("server", State.NOT_CHECKED, "no --superlink is given")]


def examine_server(node: Node) -> Iterator[Finding]:
    """Yield what is found of the server within `PATIENCE`."""
    findings, deadline = Queue[Finding | None](), monotonic() + PATIENCE
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
        fix = "see whether this is the SuperLink's port, and what its log says"
        yield Finding("SuperLink", State.FAILURE, f"does not answer within {PATIENCE:g} s", fix)


def finding_table(findings: Sequence[Finding]) -> Table:
    """Return one row a check, and below them how many have ended in which way."""
    counts = Counter(finding.state for finding in findings)
    columns = {name: attrgetter(name) for name in ("name", "state", "found", "fix")}
    return table_of(
        "Checks of this node",
        {"check": columns.pop("name"), **columns},
        findings,
        words={"found", "fix"},
        whole={"check", "state"},
        notes=[", ".join(f"{state}: {counts[state]}" for state in State if counts[state])],
    )
