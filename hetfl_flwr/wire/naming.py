"""Names of classes and columns as sent to the server: as digests, for comparison, and in plain text if shared.

A digest hides a name only if it cannot be guessed: a list of likely names can be tried. A client's own name is sent in
plain text or not at all.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from unicodedata import normalize

from hetfl_flwr.config import Value
from hetfl_flwr.data import public_data
from hetfl_flwr.data.folders import dataset_called, is_folder
from hetfl_flwr.data.reading import parse_data_sets
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.text import LONGEST_NAME, printable

MAX_NAMES = 4096
"""Maximum number of classes or columns with a digest each; more names share one digest, and none is shown."""

OWN = "own"
"""Replaces the name of a data set that stays on its node."""


_BARE = dict.fromkeys(map(ord, '():"\u201c\u201d\u201e\u00ab\u00bb'))
"""Characters that are removed from a client's name in messages."""


@dataclass(frozen=True)
class Naming:
    """Ordered names, as `digests` (one for each name, or one for all) and in plain text.

    `shown` is empty if the names stay on the node.
    """

    digests: tuple[str, ...]
    shown: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str], *, share: bool) -> "Naming":
        """Return names as sent to the server; in plain text if `share` is set."""
        if len(names) > MAX_NAMES:
            return cls((_digest("\0".join(names)),), ())
        return cls(tuple(map(_digest, names)), tuple(printable(name, LONGEST_NAME) for name in names) if share else ())

    @classmethod
    def of_words(cls, words: Sequence[str]) -> "Naming":
        """Return the words of a vocabulary as sent to the server: one digest of all."""
        return cls((_digest("\0".join(words)),), ())


def shares(node_config: Mapping[str, Value], key: str) -> bool:
    """Return whether a node's own config allows sharing, with the key ``share-names`` or ``share-recall``.

    Raises ConfigError if the value is neither true nor false.
    """
    share = node_config.get(key, False)
    if not isinstance(share, bool):
        raise ConfigError(f"{key} = {share!r}: expected true or false")
    return share


def data_label(dataset: str, node_config: Mapping[str, Value], *, share: bool) -> str:
    """Return the name of a node's data set as sent to the server.

    A data set of the run config or of the catalogue keeps its name. Any other is `OWN`, or with `share` the last part
    of its path or hub id.
    """
    if "dataset" not in node_config or public_data(dataset):
        return printable(dataset_called(dataset), LONGEST_NAME)
    last = ",".join(name.rstrip("/").rpartition("/")[2] for name in parse_data_sets(dataset))
    return printable(last, LONGEST_NAME) if share else OWN


def client_name(node_config: Mapping[str, Value], dataset: str, own: str, *, share: bool) -> str:
    """Return a client's own name, or an empty string if it has none.

    This is ``name`` of the node's own config. Without it, and with `share`, it is the owner of the client's data
    (`own`, empty if there is no single one), or the last part of the path of its own `dataset`.
    """
    if "name" in node_config:
        return _one_line(str(node_config["name"]))
    if not share:
        return ""
    alone = "dataset" in node_config and "," not in dataset and is_folder(dataset)
    return _one_line(own or (Path(dataset).name if alone else ""))


def called(client_id: int, name: str | None = None, model: str | None = None) -> str:
    """Return a client's name in messages, without brackets, colons and quotation marks.

    Examples
    --------
    >>> called(3, "General Hospital", "lenet5"), called(3, model="lenet5"), called(3)
    ('client 3 (General Hospital, lenet5)', 'client 3 (lenet5)', 'client 3')
    """
    more = ", ".join(filter(None, ((name or "").translate(_BARE), model)))
    return f"client {client_id} ({more})" if more else f"client {client_id}"


def distinct(names: Mapping[int, str]) -> dict[int, str]:
    """Return the names of clients by id, and append the id to names that look alike; empty names stay empty.

    Examples
    --------
    >>> distinct({0: "North", 1: "South", 2: "north", 3: "", 4: ""})
    {0: 'North (0)', 1: 'South', 2: 'north (2)', 3: '', 4: ''}
    """
    found = dict(names)
    while alike := _alike(found):
        found |= {client_id: f"{found[client_id]} ({client_id})" for client_id in alike}
    return found


def _alike(names: Mapping[int, str]) -> list[int]:
    """Return the ids of clients with names that look like another client's."""
    looks = {client_id: look(name) for client_id, name in names.items()}
    count = Counter(looks.values())
    return [client_id for client_id, one in looks.items() if one and count[one] > 1]


def look(name: str) -> str:
    """Normalize a name for comparison: ignore case, and replace white space by single spaces.

    Examples
    --------
    >>> look("St.  Mary ") == look("ST. MARY")
    True
    """
    return " ".join(normalize("NFKC", name).casefold().split())


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()), LONGEST_NAME)


def _digest(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:16]
