"""The list of the nodes' public keys, against which the server of a deployment checks registrations."""

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

    Raises `ConfigError`, which names the entry, if the list is invalid or has the same key for two clients.
    """
    try:
        entries = load_toml(path)
    except (ConfigError, ValueError) as error:  # ValueError: an invalid path
        raise ConfigError(str(error).replace(": not TOML: ", ": not a list of node keys: ", 1)) from None
    listed: dict[int, str] = {}
    keys = set[bytes]()
    for name, text in entries.items():
        number = int(name) if name.isascii() and name.isdigit() and len(name) < 10 else -1
        if number < 0 or number in listed:
            raise ConfigError(f"{path}: '{name}' is not a client number, or is listed twice")
        key = canonical(text)
        if key is None or key in keys:
            raise ConfigError(f"{path}: client {number} has no public key in OpenSSH's format, or another client's")
        listed[number] = text
        keys.add(key)
    return listed


class NodeKeys:
    """The client numbers by the nodes' public keys, from a list that ``hetfl keys`` wrote.

    Raises `ConfigError` if the list is invalid, see `read_node_keys`, or empty.
    """

    def __init__(self, path: Path) -> None:
        self._numbers = {canonical(text): number for number, text in read_node_keys(path).items()}
        if not self._numbers:
            raise ConfigError(f"{path}: lists no clients")

    @property
    def clients(self) -> list[int]:
        """The client numbers in the list, sorted."""
        return sorted(self._numbers.values())

    def number(self, key: bytes) -> int:
        """Return the client number of a node's public key, in PEM format as Flower gives it; -1 if it is not listed."""
        try:
            return self._numbers.get(_pem(load_pem_public_key(key)), -1)
        except (ValueError, UnsupportedAlgorithm):
            return -1


def canonical(text: object) -> bytes | None:
    """Return a public key in OpenSSH's format as PEM; None if it is invalid."""
    try:
        return _pem(load_ssh_public_key(text.encode())) if isinstance(text, str) else None
    except (ValueError, UnsupportedAlgorithm):
        return None


def _pem(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
