"""The server as it is seen from here: reachability, certificates, clock and version. Nothing joins a federation."""

import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from io import BufferedReader, RawIOBase
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

import certifi
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from hetfl_flwr.errors import ConfigError
from simulations.deployment.doctor.finding import Finding, State

PATIENCE = 20.0
"""Seconds that all connections to a server may take together, whatever it says on them."""

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
_RENEW = _RENEWAL.format("")
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


class Conversation:
    """All connections to a server, which end within `PATIENCE` seconds from the first.

    Parameters
    ----------
    server : Server
        Where it is.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._until = time.monotonic() + PATIENCE
        self._address: tuple[str, int] | None = None

    def left(self) -> float:
        """Return how many seconds are left.

        Raises
        ------
        TimeoutError
            None.
        """
        seconds = self._until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    def connected(self) -> socket.socket:
        """Connect to the address that has answered first; the addresses of a name share the time that is left."""
        if self._address:
            return socket.create_connection(self._address, timeout=self.left())
        rows = socket.getaddrinfo(self.server.host, self.server.port, type=socket.SOCK_STREAM)
        for others, row in zip(reversed(range(len(rows))), rows, strict=True):
            address = str(row[4][0]), self.server.port
            try:
                connection = socket.create_connection(address, timeout=self.left() / (1 + others))
            except OSError:
                if not others:
                    raise
            else:
                self._address = address
                return connection
        raise TimeoutError

    def greeted(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        """Connect by TLS."""
        connection = self.connected()
        try:
            connection.settimeout(self.left())
            return context.wrap_socket(connection, server_hostname=self.server.host)
        except OSError:
            connection.close()
            raise


class _Answer(RawIOBase):
    """What comes on a connection: `MOST` bytes at most, and none once the conversation has taken too long."""

    def __init__(self, connection: socket.socket, conversation: Conversation) -> None:
        self._connection, self._conversation, self._room = connection, conversation, MOST

    def makefile(self, _: str) -> BufferedReader:
        return BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(self._conversation.left())
        count = self._connection.recv_into(memoryview(buffer)[: self._room]) if self._room else 0
        self._room -= count
        return count


@dataclass(frozen=True)
class Reply:
    """What a server has answered, and this machine's clock in the middle of that."""

    status: int
    date: str | None
    body: bytes
    clock: datetime


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
    if not plain or not host or "/" in host or any(map(str.isspace, host)) or (":" in host and not _is_ipv6(host)):
        raise ConfigError(f"--superlink = {address}: expected HOST:PORT, such as server.example.org:8443")
    if insecure and roots is not None:
        raise ConfigError("--insecure and --root-certificates: give one of them")
    return Server(host, int(port), roots, insecure)


def _is_ipv6(host: str) -> bool:
    try:
        return isinstance(ip_address(host), IPv6Address)
    except ValueError:
        return False


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
    yield (named := check_name(server))
    if named.state is State.FAILURE:
        return
    conversation = Conversation(server)
    yield (open := check_port(conversation))
    if open.state is State.FAILURE:
        return
    if server.insecure:
        yield Finding("TLS", State.WARNING, "off (--insecure): anybody on the way reads and alters what is sent", _TLS)
    else:
        try:
            certificate = fetch_certificate(conversation)
        except OSError as error:  # also of TLS
            fix = "start the SuperLink with --ssl-certfile and --ssl-keyfile, or name the port that has TLS"
            yield Finding("TLS", State.FAILURE, f"no handshake: {_reason(error)}", fix)
            return
        yield from check_certificates(conversation, certificate, datetime.now(UTC))
    try:
        answer, fleet, described = (ask(conversation, path) for path in ("/health", FLEET, "/openapi.json"))
    except (OSError, HTTPException) as error:
        fix = "drop --insecure where the SuperLink has TLS, and see whether this is its port"
        yield Finding("SuperLink", State.FAILURE, f"no answer over HTTP: {_reason(error)}", fix)
        return
    yield check_answer(fleet.status)
    yield check_clock(answer.date, answer.clock)
    yield check_version(flower_version(described), here, required)


def check_name(server: Server) -> Finding:
    """Check that the server's name has an address."""
    try:
        rows = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        fix = "correct the name in --superlink, or add it to the DNS or to /etc/hosts"
        return Finding("name", State.FAILURE, f"{server.host} has no address: {_reason(error)}", fix)
    return Finding("name", State.OK, f"{server.host} is {', '.join(dict.fromkeys(str(row[4][0]) for row in rows))}")


def check_port(conversation: Conversation) -> Finding:
    """Check that somebody listens at the server's port."""
    server = conversation.server
    try:
        with conversation.connected():
            return Finding("port", State.OK, f"{server.port} is open")
    except TimeoutError:
        fix = "open the port in the firewalls on the way, and see whether the server is on"
        return Finding("port", State.FAILURE, f"{server.port} does not answer within {PATIENCE:g} s", fix)
    except ConnectionRefusedError:
        fix = "start the SuperLink, with --host 0.0.0.0 where no gate stands before it, and correct the port"
        return Finding("port", State.FAILURE, f"{server.port} is refused: nobody listens there", fix)
    except OSError as error:
        return Finding("port", State.FAILURE, f"no way to {server.host}: {_reason(error)}", "check this node's network")


def fetch_certificate(conversation: Conversation) -> x509.Certificate:
    """Return the certificate that the server shows, whoever has signed it."""
    with conversation.greeted(_trusting_all()) as connection:
        return x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")


def check_certificates(conversation: Conversation, certificate: x509.Certificate, now: datetime) -> Iterator[Finding]:
    """Yield what there is to say of the server's certificate, and of the authorities: each fault once.

    Parameters
    ----------
    conversation : Conversation
        Where it was fetched.
    certificate : cryptography.x509.Certificate
        The server's own.
    now : datetime
        This machine's clock.
    """
    yield Finding("TLS", State.OK, "handshake done")
    yield check_validity("certificate", certificate, now, _RENEW)
    yield _check_host(conversation, certificate)
    server = conversation.server
    try:
        context = _authorities(server)
        held = x509.load_pem_x509_certificates(server.roots.read_bytes()) if server.roots else []
    except (OSError, ValueError) as error:
        unread = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
        text = (
            f"{server.roots} {f'cannot be read: {_reason(error)}' if unread else 'holds no certificates in PEM format'}"
        )
        yield Finding("authority", State.FAILURE, text, "name the ca.crt of `hetfl keys` as --root-certificates")
        return
    yield _check_chain(conversation, certificate, context)
    for authority in held:
        yield check_validity("authority", authority, now, "make new keys for all by `hetfl keys` in a new folder")


def check_validity(name: str, certificate: x509.Certificate, now: datetime, renewal: str) -> Finding:
    """Check that a certificate is valid at a time, and for a while after it."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        text = f"valid from {_utc(begin)}, but this machine's clock says {_utc(now)}: {_span(begin - now)} before that"
        return Finding(name, State.FAILURE, text, _SYNC)
    if now > end:
        text = f"expired at {_utc(end)}, {_span(now - end)} before this machine's clock ({_utc(now)})"
        return Finding(name, State.FAILURE, text, renewal)
    left = f"valid until {_utc(end)}: {_span(end - now)} left"
    return Finding(name, State.WARNING, left, renewal) if end - now < SOON else Finding(name, State.OK, left)


def _check_host(conversation: Conversation, certificate: x509.Certificate) -> Finding:
    """Check that the certificate is for the name by which the server was called, whoever has signed it."""
    server = conversation.server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=_pem(certificate))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_TIME
    try:
        with conversation.greeted(context):
            return Finding("certificate name", State.OK, f"for {server.host}")
    except OSError as error:
        text = f"not for {server.host}: {_names(certificate) or _reason(error)}"
        return Finding("certificate name", State.FAILURE, text, _RENEWAL.format(f" --host {server.host}"))


def _check_chain(conversation: Conversation, certificate: x509.Certificate, context: ssl.SSLContext) -> Finding:
    """Check that a trusted authority has signed the certificate, whatever its name and dates."""
    context.check_hostname = False
    context.verify_flags |= _NO_TIME
    trusted = str(conversation.server.roots or "certifi's list (no --root-certificates are given)")
    issuer = certificate.issuer.rfc4514_string()
    try:
        with conversation.greeted(context):
            return Finding("certificate chain", State.OK, f"signed by {issuer}, known to {trusted}")
    except OSError as error:
        text = f"signed by {issuer}, unknown to {trusted}: {_reason(error)}"
        fix = "name the ca.crt of this federation, from the folder of `hetfl keys`, as --root-certificates"
        return Finding("certificate chain", State.FAILURE, text, fix)


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
    """Check this machine's clock against the server's, which an HTTP header tells to the second.

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


def flower_version(described: Reply) -> str | None:
    """Return the version of Flower that a SuperLink's description of its API names; None where it does not."""
    try:
        info = json.loads(described.body)["info"]
        return str(Version(info["version"])) if info["title"] == "SuperLink API" else None
    except (ValueError, KeyError, TypeError, InvalidVersion, RecursionError):
        return None


def check_version(served: str | None, here: str, required: str) -> Finding:
    """Check the server's Flower against this node's, and against what the app needs.

    The versions of hetfl and torch there cannot be known without joining.
    """
    later = "the log of a run and its clients.json name hetfl and torch of both ends"
    if served is None:
        return Finding("server's version", State.NOT_CHECKED, f"not told, as by a gate; {later}")
    text = f"Flower {served} there, {here} here"
    if not SpecifierSet(required).contains(served, prereleases=True):
        fix = f"on the server: pip install 'flwr{required}', and restart the SuperLink"
        return Finding("server's version", State.FAILURE, f"{text}; required is {required}", fix)
    if served != here:
        return Finding("server's version", State.WARNING, f"{text}; {later}", f"here: pip install flwr=={served}")
    return Finding("server's version", State.OK, f"Flower {served}, as here; {later}")


def ask(conversation: Conversation, path: str) -> Reply:
    """Return the answer to a GET request. Whom to trust is a check of its own: nothing secret is sent."""
    server = conversation.server
    with conversation.connected() if server.insecure else conversation.greeted(_trusting_all()) as connection:
        request = HTTPConnection(server.host, server.port)
        request.sock = connection
        before = datetime.now(UTC)
        request.request("GET", path, headers={"Connection": "close"})
        response = HTTPResponse(_Answer(connection, conversation), method="GET")  # type: ignore[arg-type]
        response.begin()
        clock = before + (datetime.now(UTC) - before) / 2
        return Reply(response.status, response.headers["Date"], response.read(MOST), clock)


def _authorities(server: Server) -> ssl.SSLContext:
    """Return a context that trusts whom the node will trust, by the rules that Flower sets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(server.roots or certifi.where())
    return context


def _trusting_all() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _names(certificate: x509.Certificate) -> str:
    """Return the names and addresses that a certificate is for, as words; empty where it has none."""
    kind = x509.SubjectAlternativeName
    held = [str(name.value) for each in certificate.extensions if isinstance(each.value, kind) for name in each.value]
    return f"it is for {', '.join(held)}" if held else ""


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"the server has not done its part within {PATIENCE:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _span(time: timedelta) -> str:
    """Return a time in days, or hours, or minutes: the largest of which there is one."""
    seconds = time.total_seconds()
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'s' * (number != 1)}"
    return "less than a minute"
