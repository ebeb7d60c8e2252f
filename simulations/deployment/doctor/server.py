"""The server as it is seen from here: reachability, certificates, clock and version. Nothing joins a federation."""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from time import monotonic

import certifi
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from hetfl_flwr.errors import ConfigError
from simulations.deployment.doctor.finding import Finding, State

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

    def get(self, path: str) -> tuple[int, str | None, bytes, datetime]:
        """Return status, ``Date`` and body of an answer, and this machine's clock; whom to trust is not checked."""
        kind = HTTPConnection if self.insecure else HTTPSConnection
        request = kind(self.host, self.port, timeout=PATIENCE / 2)
        request.sock = self.connected(None if self.insecure else _trusting())
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


def examine_server(server: Server, here: str, required: str) -> Iterator[Finding]:
    """Yield what is found of the server, up to the first step without which there is no next one.

    Parameters
    ----------
    server : Server
        Where it is.
    here : str
        The version of Flower on this machine.
    required : str
        The versions of Flower that the app runs with, such as ``>=1.41``.
    """
    findings, deadline = Queue[Finding | None](), monotonic() + PATIENCE

    def examine() -> None:
        try:
            for finding in _findings(server, here, required):
                findings.put(finding)
        except _Stopped as stop:
            findings.put(stop.finding)
        finally:
            findings.put(None)

    Thread(target=examine, daemon=True).start()
    try:
        while (finding := findings.get(timeout=max(deadline - monotonic(), 0))) is not None:
            yield finding
    except Empty:
        fix = "see whether this is the SuperLink's port, and what its log says"
        yield Finding("SuperLink", State.FAILURE, f"does not answer within {PATIENCE:g} s", fix)


class _Stopped(Exception):
    """A step has failed without which there is no next one; it has the finding."""

    def __init__(self, name: str, text: str, error: Exception, fix: str) -> None:
        self.finding = Finding(name, State.FAILURE, f"{text}: {_reason(error)}", fix)


@contextmanager
def _step(name: str, text: str, fix: str) -> Iterator[None]:
    """Take what goes wrong in a step as its failure."""
    try:
        yield
    except (OSError, UnicodeError, HTTPException) as error:
        raise _Stopped(name, text, error, fix) from error


def _findings(server: Server, here: str, required: str) -> Iterator[Finding]:
    with _step("name", f"{server.host} has no address", "correct the name in --superlink, or add it to the DNS"):
        rows = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    addresses = ", ".join(dict.fromkeys(str(row[4][0]) for row in rows))
    yield Finding("name", State.OK, f"{server.host} is {addresses}")
    closed = "start the SuperLink, correct the port, or open it in the firewalls on the way"
    with _step("port", f"no connection to {server.port}", closed):
        server.connected().close()
    yield Finding("port", State.OK, f"{server.port} is open")
    if server.insecure:
        yield Finding("TLS", State.WARNING, "off (--insecure): anybody on the way reads and alters what is sent", _TLS)
    else:
        plain = "start the SuperLink with --ssl-certfile and --ssl-keyfile, or name the port that has TLS"
        with _step("TLS", "no handshake", plain), server.connected(_trusting()) as connection:
            shown: bytes = connection.getpeercert(binary_form=True)  # type: ignore[attr-defined]
        yield Finding("TLS", State.OK, "handshake done")
        yield from _check_certificates(server, x509.load_der_x509_certificate(shown), datetime.now(UTC))
    other = "drop --insecure where the SuperLink has TLS, and see whether this is its port"
    with _step("SuperLink", "no answer over HTTP", other):
        (_, date, _, clock), (status, *_), (_, _, described, _) = map(server.get, ("/health", FLEET, "/openapi.json"))
    yield check_answer(status)
    yield check_clock(date, clock)
    yield check_version(flower_version(described), here, required)


def _check_certificates(server: Server, certificate: x509.Certificate, now: datetime) -> Iterator[Finding]:
    """Yield what there is to say of the server's certificate, and of the authorities: each fault once."""
    yield check_validity("certificate", certificate, now, _RENEWAL.format(""))
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    own.load_verify_locations(cadata=certificate.public_bytes(Encoding.PEM).decode())
    own.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_TIME
    names = _names(certificate)
    yield _greeted(
        *("certificate name", server, own, f"for {server.host}", f"not for {server.host}, but for {names or 'nobody'}"),
        _RENEWAL.format(f" --host {server.host}"),
    )
    try:
        theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        theirs.load_verify_locations(server.roots or certifi.where())
        held = x509.load_pem_x509_certificates(server.roots.read_bytes()) if server.roots else []
    except (OSError, ValueError) as error:
        text = f"{server.roots} has no certificates in PEM format that can be read: {_reason(error)}"
        yield Finding("authority", State.FAILURE, text, "name the ca.crt of `hetfl keys` as --root-certificates")
        return
    theirs.check_hostname = False
    theirs.verify_flags |= _NO_TIME
    trusted, issuer = str(server.roots or "certifi's list"), certificate.issuer.rfc4514_string()
    yield _greeted(
        *("certificate chain", server, theirs, f"signed by {issuer}, known to {trusted}"),
        f"signed by {issuer}, unknown to {trusted}",
        "name the ca.crt of this federation, from the folder of `hetfl keys`, as --root-certificates",
    )
    for authority in held:
        yield check_validity("authority", authority, now, "make new keys for all by `hetfl keys` in a new folder")


def _greeted(name: str, server: Server, context: ssl.SSLContext, good: str, bad: str, fix: str) -> Finding:
    """Check that a context accepts the server."""
    try:
        with server.connected(context):
            return Finding(name, State.OK, good)
    except OSError as error:
        return Finding(name, State.FAILURE, f"{bad}: {_reason(error)}", fix)


def check_validity(name: str, certificate: x509.Certificate, now: datetime, renewal: str) -> Finding:
    """Check that a certificate is valid at a time, and for a while after it."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    clock = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC"
    if now < begin:
        text = f"valid from {begin:%Y-%m-%d %H:%M} UTC, but {clock}: {_span(begin - now)} before that"
        return Finding(name, State.FAILURE, text, _SYNC)
    if now > end:
        text = f"expired at {end:%Y-%m-%d %H:%M} UTC, {_span(now - end)} ago: {clock}"
        return Finding(name, State.FAILURE, text, renewal)
    left = f"valid until {end:%Y-%m-%d %H:%M} UTC: {_span(end - now)} left"
    return Finding(name, State.WARNING, left, renewal) if end - now < SOON else Finding(name, State.OK, left)


def check_answer(status: int) -> Finding:
    """Check by its HTTP status that a SuperLink's Fleet API is there, directly or behind a gate."""
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return Finding("SuperLink", State.OK, "takes requests of nodes")
    if status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT):
        text = f"a gate answers (HTTP {status}), but no SuperLink behind it"
        return Finding("SuperLink", State.FAILURE, text, "start the SuperLink on the server: its log says why it ended")
    text = f"an HTTP server answers {status} to a request of nodes: it is no SuperLink, or its gate keeps nodes out"
    return Finding("SuperLink", State.FAILURE, text, "correct the port, or let the gate pass /v1/fleet/ on")


def check_clock(date: str | None, clock: datetime) -> Finding:
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
        return Finding("clock", State.NOT_CHECKED, "the server does not tell its time")
    off = f"{abs(ahead):.0f} s" if abs(ahead) < 600 else _span(timedelta(seconds=round(abs(ahead))))
    text = f"{off} {'ahead of' if ahead > 0 else 'behind'} the server's; " if abs(ahead) > 1 else ""
    text = f"{text or 'agrees with the server to 1 s; '}at most {AHEAD:g} s ahead and {BEHIND:g} s behind will do"
    used = max(ahead / AHEAD, -ahead / BEHIND)
    state = State.FAILURE if used >= 1 else State.WARNING if used > 0.5 else State.OK
    return Finding("clock", state, text, "" if state is State.OK else f"{_SYNC}; on the server, too")


def flower_version(described: bytes) -> str | None:
    """Return the version of Flower that a SuperLink's description of its API names; None where it does not."""
    try:
        info = json.loads(described)["info"]
        return str(Version(info["version"])) if info["title"] == "SuperLink API" else None
    except (ValueError, KeyError, TypeError, InvalidVersion, RecursionError):
        return None


def check_version(served: str | None, here: str, required: str) -> Finding:
    """Check the server's Flower against this node's, and against what the app needs."""
    name = "server's version"
    if served is None:
        return Finding(name, State.NOT_CHECKED, "not told, as by a gate")
    text = f"Flower {served} there, {here} here"
    if not SpecifierSet(required).contains(served, prereleases=True):
        fix = f"on the server: pip install 'flwr{required}', and restart the SuperLink"
        return Finding(name, State.FAILURE, f"{text}; required is {required}", fix)
    if served != here:
        return Finding(name, State.WARNING, text, f"here: pip install flwr=={served}")
    return Finding(name, State.OK, text)


def _trusting() -> ssl.SSLContext:
    """Return a context that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _names(certificate: x509.Certificate) -> str:
    """Return the names and addresses that a certificate is for, as words."""
    kind = x509.SubjectAlternativeName
    return ", ".join(
        str(name.value) for each in certificate.extensions if isinstance(each.value, kind) for name in each.value
    )


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {PATIENCE / 2:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _span(time: timedelta) -> str:
    """Return a time in days, or hours, or minutes: the largest of which there is one."""
    seconds = time.total_seconds()
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'s' * (number != 1)}"
    return "less than a minute"
