"""Names of classes and columns as they leave a node: as digests, which are compared, and, if shared, in plain text.

A digest hides a name only from those who cannot guess it: a list of likely names can be tried.
A client's own name leaves its node in plain text, or not at all.
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
"""Maximum number of names of a kind with a digest each; more names have one common digest, and none is shown."""

OWN = "own"
"""The name of a data set whose own name stays on its node."""


_BARE = dict.fromkeys(map(ord, '():"\u201c\u201d\u201e\u00ab\u00bb'))
"""Characters that are removed from a client's name in messages."""


@dataclass(frozen=True)
class Naming:
    """Ordered names, as digests and in plain text.

    Parameters
    ----------
    digests : tuple of str
        One for each name, or one for all.
    shown : tuple of str
        The names in plain text; empty where they stay on the node.
    """

    digests: tuple[str, ...]
    shown: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str], *, share: bool) -> "Naming":
        """Return names as they leave a node."""
        if len(names) > MAX_NAMES:
            return cls((_digest("\0".join(names)),), ())
        return cls(tuple(map(_digest, names)), tuple(printable(name, LONGEST_NAME) for name in names) if share else ())

    @classmethod
    def of_words(cls, words: Sequence[str]) -> "Naming":
        """Return the words of a vocabulary as they leave a node: one digest of all."""
        return cls((_digest("\0".join(words)),), ())


def shares(node_config: Mapping[str, Value], key: str) -> bool:
    """Return whether a node's own config allows sharing, by its key ``share-names`` or ``share-recall``.

    Raises
    ------
    ConfigError
        The key is neither true nor false.
    """
    share = node_config.get(key, False)
    if not isinstance(share, bool):
        raise ConfigError(f"{key} = {share!r}: expected true or false")
    return share


def data_label(dataset: str, node_config: Mapping[str, Value], *, share: bool) -> str:
    """Return a node's name for its data set.

    That is the run config's value if the node uses it, a name of the catalogue, or, for any other, `OWN`; with
    ``share``, the last part of its folder or hub id.
    """
    if "dataset" not in node_config or public_data(dataset):
        return printable(dataset_called(dataset), LONGEST_NAME)
    last = ",".join(name.rstrip("/").rpartition("/")[2] for name in parse_data_sets(dataset))
    return printable(last, LONGEST_NAME) if share else OWN


def client_name(node_config: Mapping[str, Value], dataset: str, own: str, *, share: bool) -> str:
    """Return a client's own name; empty: none.

    That is ``name`` of the node's own config. Else it is whose data it has or, of a folder or file that the node's own
    config names, the last part of its path; both only with `share`.

    Parameters
    ----------
    node_config : mapping
        The node's own config.
    dataset : str
        Its data set.
    own : str
        The owner of its data; empty: no single one.
    share : bool
        Whether names of its data may leave the node.
    """
    if "name" in node_config:
        return _one_line(str(node_config["name"]))
    if not share:
        return ""
    alone = "dataset" in node_config and "," not in dataset and is_folder(dataset)
    return _one_line(own or (Path(dataset).name if alone else ""))


def called(client_id: int, name: str | None = None, model: str | None = None) -> str:
    """Return a client's name in messages; the name is cleaned of closing brackets.

    Examples
    --------
    >>> called(3, "General Hospital", "lenet5"), called(3, model="lenet5"), called(3)
    ('client 3 (General Hospital, lenet5)', 'client 3 (lenet5)', 'client 3')
    """
    more = ", ".join(filter(None, ((name or "").translate(_BARE), model)))
    return f"client {client_id} ({more})" if more else f"client {client_id}"


def distinct(names: Mapping[int, str]) -> dict[int, str]:
    """Return the names of clients, by number, with the number after those that look alike; an empty one stays so.

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
    """Return the clients whose names look like another's."""
    looks = {client_id: look(name) for client_id, name in names.items()}
    count = Counter(looks.values())
    return [client_id for client_id, one in looks.items() if one and count[one] > 1]


def look(name: str) -> str:
    """Return a name as a reader perceives it: without case, and with single blanks.

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
