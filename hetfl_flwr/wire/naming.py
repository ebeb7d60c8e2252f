"""Names of classes and columns as they leave a node: always as digests, by which they are compared, shown or not.

A digest hides a name from those who cannot guess it: whoever has a list of likely names can try them all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from hetfl_flwr.config import Value
from hetfl_flwr.data import CATALOGUE, ROTATED_PREFIX
from hetfl_flwr.errors import ConfigError, private
from hetfl_flwr.text import LONGEST_NAME, printable

MOST_NAMES = 4096
"""Names of one kind up to which each has a digest of its own; more have one together, and none is shown."""

OWN = "own"
"""What a data set is called whose name stays on its node."""


@dataclass(frozen=True)
class Naming:
    """Some names in order.

    Parameters
    ----------
    digests : tuple of str
        One each, or one of all.
    shown : tuple of str
        The names themselves; empty where they stay at home.
    """

    digests: tuple[str, ...]
    shown: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str], *, share: bool) -> "Naming":
        """Return names as they leave a node."""
        if len(names) > MOST_NAMES:
            return cls((_digest("\0".join(names)),), ())
        return cls(tuple(map(_digest, names)), tuple(printable(name, LONGEST_NAME) for name in names) if share else ())

    @classmethod
    def of_words(cls, words: Sequence[str]) -> "Naming":
        """Return the words of a vocabulary as they leave a node: one digest of all."""
        return cls((_digest("\0".join(words)),), ())


def public_data(dataset: str) -> bool:
    """Say whether all data sets of a name, or a comma list of names, are the catalogue's."""
    return all(name.strip().removeprefix(ROTATED_PREFIX) in CATALOGUE for name in dataset.split(","))


def shares(node_config: Mapping[str, Value], key: str) -> bool:
    """Say whether a node's own config lets something leave it: by its key ``share-names`` or ``share-recall``.

    Raises
    ------
    ConfigError
        The key is neither true nor false.
    """
    share = node_config.get(key, False)
    if not isinstance(share, bool):
        raise ConfigError(f"{key} = {private(repr(share))}: expected true or false")
    return share


def data_label(dataset: str, node_config: Mapping[str, Value], *, share: bool) -> str:
    """Return what a node calls its data set.

    That is the run config's own word where the node uses that, a name of the catalogue, or, of any other, `OWN`; with
    ``share``, the last part of its folder or hub id.
    """
    if "dataset" not in node_config or public_data(dataset):
        return printable(dataset, LONGEST_NAME)
    last = ",".join(name.rstrip("/").rpartition("/")[2] for name in dataset.split(","))
    return printable(last, LONGEST_NAME) if share else OWN


def _digest(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:16]
