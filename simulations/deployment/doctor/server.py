"""The server as it is seen from here: reachability, certificates, clock and version. Nothing joins a federation."""

import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from typing import NamedTuple

import certifi
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from hetfl_flwr.errors import ConfigError
from simulations.deployment.doctor.finding import Fault, Finding, State, check, fault_of
from simulations.deployment.doctor.machine import found_version, required_packages

PATIENCE = 20.0
"""Seconds that all checks of a server may take together, whatever it says."""

SOON = timedelta(days=30)
"""Time before the end of a certificate from which on there is a warning."""

AHEAD, BEHIND = 5.0, 305.0
"""Seconds by which a node's clock may be ahead of the server's, and behind it: Flower refuses its signature beyond."""

MOST = 10_000_000
"""Bytes of an answer that are read."""

FLEET = "/v1/fleet/activate-node"
"""A path of a SuperLink that nodes post to, also through a gate; it refuses to be read."""

_NO_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL: dates are a check of their own
_RENEWAL = "move server.crt and server.key away, run `hetfl keys{}` again where ca.key is, and restart the SuperLink"
_TLS = "make keys by `hetfl keys`, start the SuperLink with them, and name --root-certificates here"
_SYNC = "set this machine's clock: timedatectl set-ntp true"


class Answers(NamedTuple):
    """What a server answers to requests without any content: what its clock and the Fleet API say, and its version."""

    date: str | None
    clock: datetime
    status: int
    described: bytes


@dataclass(frozen=True)
class Server:
    """Where a SuperLink is, and how it is to be trusted.

    Parameters
    ----------
    host : str
        Name or address, without brackets.
    port : int
        1 to 65535.
    roots : Path, optional
        Certificates of the authorities that are trusted; by default those of certifi, as in Flower.
    insecure : bool
        Whether the connection is without TLS.
    """

    host: str
    port: int
    roots: Path | None = None
    insecure: bool = False

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
        """The certificate that the server shows, whomever it is for."""
        with self.connected(_context()) as connection:
            shown: bytes = connection.getpeercert(binary_form=True)  # type: ignore[attr-defined]
        return x509.load_der_x509_certificate(shown)

    @cached_property
    def answers(self) -> Answers:
        """What the server answers over HTTP; whom to trust is not checked."""
        (_, date, _, clock), (status, *_), (_, _, described, _) = map(self._get, ("/health", FLEET, "/openapi.json"))
        return Answers(date, clock, status, described)

    def _get(self, path: str) -> tuple[int, str | None, bytes, datetime]:
        """Return status, ``Date`` and body of an answer, and this machine's clock when it came."""
        kind = HTTPConnection if self.insecure else HTTPSConnection
        request = kind(self.host, self.port, timeout=PATIENCE / 2)
        request.sock = self.connected(None if self.insecure else _context())
        with request.sock:
            before = datetime.now(UTC)
            request.request("GET", path, headers={"Connection": "close"})
            response = request.getresponse()
            clock = before + (datetime.now(UTC) - before) / 2
            return response.status, response.headers["Date"], response.read(MOST), clock


def server_at(address: str, roots: Path | None, insecure: bool) -> Server:
    """Return the server that a command line names.

    Raises
    ------
    ConfigError
        The address is not HOST:PORT, or both certificates and ``--insecure`` are given.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    plain = port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= 65535
    if not plain or not host or "/" in host or any(map(str.isspace, host)):
        raise ConfigError(f"--superlink = {address}: expected HOST:PORT, such as server.example.org:8443")
    if insecure and roots is not None:
        raise ConfigError("--insecure and --root-certificates: give one of them")
    return Server(host, int(port), roots, insecure)


def examine_server(server: Server) -> Iterator[Finding]:
    """Yield what is found of the server, up to the first step without which there is no next one."""
    findings, deadline = Queue[Finding | None](), monotonic() + PATIENCE

    def examine() -> None:
        try:
            for finding in _findings(server):
                findings.put(finding)
        finally:
            findings.put(None)

    Thread(target=examine, daemon=True).start()
    try:
        while (finding := findings.get(timeout=max(deadline - monotonic(), 0))) is not None:
            yield finding
    except Empty:
        fix = "see whether this is the SuperLink's port, and what its log says"
        yield Finding("SuperLink", State.FAILURE, f"does not answer within {PATIENCE:g} s", fix)


def _findings(server: Server) -> Iterator[Finding]:
    for step in (check_name, check_port, check_tls, check_answer):
        if step is check_answer and not server.insecure:
            yield from _check_certificates(server)
        finding = step(server)
        yield finding
        if finding.state is State.FAILURE:
            return
    yield check_clock(server.answers.date, server.answers.clock)
    required = next(each for each in required_packages() if each.name == "flwr")
    yield check_version(server.answers.described, found_version("flwr"), str(required.specifier))


@check("name")
def check_name(server: Server) -> str:
    """Check that the server's name has an address."""
    fix = "correct the name in --superlink, or add it to the DNS"
    with fault_of(f"{server.host} has no address", fix, UnicodeError):
        rows = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    return f"{server.host} is {', '.join(dict.fromkeys(str(row[4][0]) for row in rows))}"


@check("port")
def check_port(server: Server) -> str:
    """Check that somebody listens."""
    closed = "start the SuperLink, correct the port, or open it in the firewalls on the way"
    with fault_of(f"no connection to {server.port}", closed):
        server.connected().close()
    return f"{server.port} is open"


@check("TLS")
def check_tls(server: Server) -> str:
    """Check that the server speaks TLS, whoever it is."""
    if server.insecure:
        raise Fault("off (--insecure): anybody on the way reads and alters what is sent", _TLS, State.WARNING)
    plain = "start the SuperLink with --ssl-certfile and --ssl-keyfile, or name the port that has TLS"
    with fault_of("no handshake", plain, ValueError):
        _ = server.certificate
    return "handshake done"


def _check_certificates(server: Server) -> Iterator[Finding]:
    """Yield what there is to say of the server's certificate, and of the authorities: each fault once."""
    now = datetime.now(UTC)
    yield check_validity("certificate", server.certificate, now, _RENEWAL.format(""))
    yield check_subject(server)
    readable = check_roots(server)
    if readable.state is State.FAILURE:
        yield readable
        return
    yield check_chain(server)
    for authority in x509.load_pem_x509_certificates(server.roots.read_bytes()) if server.roots else []:
        yield check_validity("authority", authority, now, "make new keys for all by `hetfl keys` in a new folder")


@check("certificate name")
def check_subject(server: Server) -> str:
    """Check that the server's certificate is for the name by which it is called."""
    shown, kind = server.certificate, x509.SubjectAlternativeName
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=shown.public_bytes(Encoding.PEM).decode())
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_TIME
    names = [str(name.value) for each in shown.extensions if isinstance(each.value, kind) for name in each.value]
    bad = f"not for {server.host}, but for {', '.join(names) or 'nobody'}"
    with fault_of(bad, _RENEWAL.format(f" --host {server.host}")), server.connected(context):
        return f"for {server.host}"


@check("authority")
def check_roots(server: Server) -> str:
    """Check that the certificates of the authorities can be read."""
    bad, fix = (
        "no certificates in PEM format that can be read",
        "name the ca.crt of `hetfl keys` as --root-certificates",
    )
    with fault_of(f"{server.roots} has {bad}", fix, ValueError):
        _context(server.roots or certifi.where())
        if server.roots:
            x509.load_pem_x509_certificates(server.roots.read_bytes())
    return f"{server.roots or certifi.where()} can be read"


@check("certificate chain")
def check_chain(server: Server) -> str:
    """Check that one of the authorities has signed the server's certificate."""
    context = _context(server.roots or certifi.where())
    signed, trusted = f"signed by {server.certificate.issuer.rfc4514_string()}", server.roots or "certifi's list"
    fix = "name the ca.crt of this federation, from the folder of `hetfl keys`, as --root-certificates"
    with fault_of(f"{signed}, unknown to {trusted}", fix), server.connected(context):
        return f"{signed}, known to {trusted}"


def check_validity(name: str, certificate: x509.Certificate, now: datetime, renewal: str) -> Finding:
    """Check that a certificate is valid at a time, and for a while after it."""
    return check(name)(_validity)(certificate, now, renewal)


def _validity(certificate: x509.Certificate, now: datetime, renewal: str) -> str:
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


@check("SuperLink")
def check_answer(server: Server) -> str:
    """Check by its HTTP status that a SuperLink's Fleet API is there, directly or behind a gate."""
    other = "drop --insecure where the SuperLink has TLS, and see whether this is its port"
    with fault_of("no answer over HTTP", other, HTTPException):
        status = server.answers.status
    if status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT):
        text = f"a gate answers (HTTP {status}), but no SuperLink behind it"
        raise Fault(text, "start the SuperLink on the server: its log says why it ended")
    if status != HTTPStatus.METHOD_NOT_ALLOWED:
        text = f"an HTTP server answers {status} to a request of nodes: it is no SuperLink, or its gate keeps nodes out"
        raise Fault(text, "correct the port, or let the gate pass /v1/fleet/ on")
    return "takes requests of nodes"


@check("clock")
def check_clock(date: str | None, clock: datetime) -> str:
    """Check this machine's clock against the server's.

    Parameters
    ----------
    date : str, optional
        The header ``Date``, which leaves out the fraction of a second.
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


@check("server's version")
def check_version(described: bytes, here: str, required: str) -> str:
    """Check the Flower that a SuperLink's description of its API names against this node's, and the app's need."""
    try:
        info = json.loads(described)["info"]
        served = str(Version(info["version"] if info["title"] == "SuperLink API" else ""))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Fault("not told, as by a gate", state=State.NOT_CHECKED) from None
    text = f"Flower {served} there, {here} here"
    if not SpecifierSet(required).contains(served, prereleases=True):
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
