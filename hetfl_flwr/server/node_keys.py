"""Which key belongs to which client of a deployment: the list against which the server checks registrations."""

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from hetfl_flwr.config import load_toml
from hetfl_flwr.errors import ConfigError


def read_node_keys(path: Path) -> dict[int, str]:
    """Read a list of public keys in OpenSSH's format, by client number.

    Raises
    ------
    ConfigError
        The file cannot be read or is not such a list, or one key is listed for two clients: names the entry.
    """
    try:
        entries = load_toml(path)
    except (ConfigError, ValueError) as error:  # ValueError: no path that a file can have
        raise ConfigError(str(error).replace(": not TOML: ", ": no list of node keys: ", 1)) from None
    listed: dict[int, str] = {}
    keys = set[bytes]()
    for name, text in entries.items():
        number = int(name) if name.isascii() and name.isdigit() and len(name) < 10 else -1
        if number < 0 or number in listed:
            raise ConfigError(f"{path}: '{name}' is no client number, or is listed twice")
        key = canonical(text)
        if key is None or key in keys:
            raise ConfigError(f"{path}: client {number} has no public key in OpenSSH's format, or another client's")
        listed[number] = text
        keys.add(key)
    return listed


class NodeKeys:
    """The clients' numbers by their nodes' public keys.

    Parameters
    ----------
    path : Path
        The list, as ``hetfl keys`` writes it.

    Raises
    ------
    ConfigError
        As `read_node_keys`, or the list is empty.
    """

    def __init__(self, path: Path) -> None:
        self._numbers = {canonical(text): number for number, text in read_node_keys(path).items()}
        if not self._numbers:
            raise ConfigError(f"{path}: lists no client")

    @property
    def clients(self) -> list[int]:
        """The listed clients."""
        return sorted(self._numbers.values())

    def number(self, key: bytes) -> int:
        """Return the client that a node's public key, in PEM format as Flower has it, is listed for; -1: no one."""
        try:
            return self._numbers.get(_pem(load_pem_public_key(key)), -1)
        except (ValueError, UnsupportedAlgorithm):
            return -1


def canonical(text: object) -> bytes | None:
    """Return a public key in OpenSSH's format as PEM; None if it is not one."""
    try:
        return _pem(load_ssh_public_key(text.encode())) if isinstance(text, str) else None
    except (ValueError, UnsupportedAlgorithm):
        return None


def _pem(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
