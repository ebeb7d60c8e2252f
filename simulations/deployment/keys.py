"""Keys of one federation: a private certificate authority, the server's certificate, and a key pair for each node."""

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hetfl_flwr.errors import ConfigError
from hetfl_flwr.server.node_keys import canonical, read_node_keys

HEADER = "# Public keys of a federation's nodes, by client number (partition-id): for the run-config key node-keys.\n"

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names in every server certificate: the SuperLink's own processes use them."""

CA_DAYS, SERVER_DAYS = 3650, 825
"""Days for which the authority and a server certificate are valid; node keys do not expire."""

_Names = x509.SubjectAlternativeName
_CURVE = ec.SECP384R1()
_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.IGNORECASE)


class Keys:
    """Paths of the key files in a folder, as `make_keys` writes them.

    `ca` and `ca_key` are the authority's certificate and private key, `server` and `server_key` those of the server.
    `list` has the nodes' public keys by client number, for the run-config key ``node-keys``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.list = folder, folder / "node-keys.toml"
        self.ca, self.ca_key = folder / "ca.crt", folder / "ca.key"
        self.server, self.server_key = folder / "server.crt", folder / "server.key"

    def node(self, number: int) -> Path:
        """Return the private key of a node."""
        return self.folder / f"node-{number}"

    def node_public(self, number: int) -> Path:
        """Return the public key of a node."""
        return self.folder / f"node-{number}.pub"


def make_keys(folder: Path, hosts: Sequence[str], nodes: int) -> list[Path]:
    """Write the missing keys of a federation into a folder, and return the new files.

    A pair whose public half exists is kept, even if its private half has been moved. So nodes can be added later, and a
    server certificate is renewed by moving the old one away. The only file that is ever overwritten is the list of
    public keys: it gets those of all ``node-K.pub`` in the folder, and keeps its other entries. Each file is written
    atomically: if the command was stopped between the halves of a pair, the existing private half is used.

    `hosts` are names and IP addresses of the server; those in `LOOPBACK` are added. Node keys are on the curve P-384
    in OpenSSH's format, as Flower requires. The folder is created with mode 0700, private keys with 0600. Raises
    ConfigError if the folder is writable by others, or if an existing server certificate is for other hosts or from
    another authority.
    """
    keys = Keys(folder.expanduser().resolve())
    names = [_name(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]
    try:
        keys.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = keys.folder.stat().st_mode & 0o777
        if mode & 0o022:
            raise ConfigError(
                f"{keys.folder} has mode {mode:04o}, so others could put their own keys there: chmod 700 it, or name "
                "a new one"
            )
        made = [] if keys.ca.exists() else _make_authority(keys)
        if keys.server.exists():
            _check_server(keys, names)
        else:
            made += _make_server(keys, names)
        for number in range(nodes):
            if not keys.node_public(number).exists():
                made += _make_node(keys, number)
        made += _list_nodes(keys)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None
    return made


def _make_authority(keys: Keys) -> list[Path]:
    key = _private_key(keys.ca_key)
    made = _certificate("hetfl private CA", key, None, key, CA_DAYS, [])
    return _written(keys.ca_key, _pem(key), keys.ca, made)


def _make_server(keys: Keys, names: list[x509.GeneralName]) -> list[Path]:
    key = _private_key(keys.server_key)
    its = [x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), _Names(names)]
    made = _certificate("hetfl SuperLink", key, _read_certificate(keys.ca), _read_key(keys.ca_key), SERVER_DAYS, its)
    return _written(keys.server_key, _pem(key), keys.server, made)


def _make_node(keys: Keys, number: int) -> list[Path]:
    key = _private_key(keys.node(number))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" node-{number}\n".encode()
    return _written(keys.node(number), private, keys.node_public(number), public)


def _list_nodes(keys: Keys) -> list[Path]:
    """Update the list of public keys; return it if it has changed."""
    before = read_node_keys(keys.list) if keys.list.exists() else {}
    numbers = (path.name.removeprefix("node-").removesuffix(".pub") for path in keys.folder.glob("node-*.pub"))
    listed = {int(number): _read_public(keys.node_public(int(number))) for number in numbers if number.isdecimal()}
    if before | listed == before:
        return []
    temporary = keys.list.with_name(f".{keys.list.name}")
    temporary.touch(0o644)
    temporary.write_bytes(write_node_keys(before | listed))
    temporary.replace(keys.list)
    return [keys.list]


def _read_public(path: Path) -> str:
    key = " ".join(path.read_text(errors="replace").split()[:2])  # without the comment
    if canonical(key) is None:
        raise ConfigError(f"{path} is not a public key in OpenSSH's format")
    return key


def _check_server(keys: Keys, names: list[x509.GeneralName]) -> None:
    """Raise ConfigError if clients would not trust the server certificate for these hosts."""
    certificate, authority = _read_certificate(keys.server), _read_certificate(keys.ca)
    remedy = f"move {keys.server} and {keys.server_key.name} away to have new ones made"
    held = {name for each in certificate.extensions if isinstance(each.value, _Names) for name in each.value}
    lacking = [str(name.value) for name in names if name not in held]
    if lacking:
        raise ConfigError(f"the certificate of the server is not for {', '.join(lacking)}: {remedy}")
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, InvalidSignature):
        raise ConfigError(f"the certificate of the server is not signed by {keys.ca}: {remedy}") from None


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate | None,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
    extensions: Sequence[x509.ExtensionType],
) -> bytes:
    """Return a certificate, which is that of an authority if `authority` is None.

    It is valid from a day ago, for clocks that are behind.
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start, own = datetime.now(UTC) - timedelta(days=1), authority is None
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys((*unused, "encipher_only", "decipher_only"), False)
    builder = (
        x509.CertificateBuilder(authority.subject if authority else subject, subject, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(own, path_length=0 if own else None), critical=True)
        .add_extension(x509.KeyUsage(not own, key_cert_sign=own, crl_sign=own, **usage), critical=True)
    )
    for each in extensions:
        builder = builder.add_extension(each, critical=False)
    return builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM)


def _name(host: str) -> x509.GeneralName:
    """Return a host as a name for certificates: an IP address or an ASCII name, without a port."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise ConfigError(
                f"'{host}' is not a host: give a name such as server.example.org or an IP address, without a port"
            ) from None
        return x509.DNSName(host.lower())


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise ConfigError(f"{path} is not a certificate in PEM format") from None


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return an existing private key, left by a command that was stopped, or a new one."""
    return _read_key(path) if path.exists() else ec.generate_private_key(_CURVE)


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    content = path.read_bytes()
    load = serialization.load_ssh_private_key if b"OPENSSH" in content else serialization.load_pem_private_key
    try:
        key = load(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            f"{path} is not an elliptic-curve private key without a passphrase: put the right one there, or move it "
            "away"
        )
    return key


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _written(private: Path, secret: bytes, public: Path, shown: bytes) -> list[Path]:
    """Write the missing files of a pair: the public half last, since a pair with a public half counts as complete.

    Each file is written under another name and then renamed, so it is complete even if this process is killed.
    """
    made = []
    for path, content, mode in ((private, secret, 0o600), (public, shown, 0o644)):
        if path.exists():
            continue
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.unlink(missing_ok=True)
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        made.append(unfinished.rename(path))
    return made


def write_node_keys(keys: Mapping[int, str]) -> bytes:
    """Return the list of public keys as `read_node_keys` reads it."""
    return (HEADER + "".join(f'{number} = "{keys[number]}"\n' for number in sorted(keys))).encode()
