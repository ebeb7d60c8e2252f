"""Errors that a user can mend: each carries one clear line that names what is wrong, and where."""

from collections.abc import Iterable
from difflib import get_close_matches


class HetflError(Exception):
    """Base of all errors of this project. Its text is one line, fit for standard error."""


class ConfigError(HetflError):
    """A run-config key or command-line argument that is unknown, of the wrong type or out of range."""


class DataError(HetflError):
    """A data set that cannot be found, read or split as asked."""


class ModelError(HetflError):
    """A model that is unknown, cannot be built, or does not fit the data."""


class PayloadError(HetflError):
    """Arrays received over the wire that are not what was declared."""


class StateError(HetflError):
    """Saved client state that belongs to something else, or cannot be read or written."""


class DamagedError(StateError):
    """Saved state that is not as it was written."""


class FederationError(HetflError):
    """Clients that cannot be federated as asked, or too few of them."""


class TooFewClients(FederationError):
    """A round that too few clients have finished; what was reached before is kept."""


class RunFolderError(HetflError):
    """A run folder that cannot be written, holds another run, or holds none."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """Return the line for a name that is not among the valid ones, with the nearest of them.

    Examples
    --------
    >>> unknown("dataset", "mnsit", ["digits", "mnist"])
    "unknown dataset 'mnsit': did you mean 'mnist'? Known: digits, mnist"
    """
    names = sorted(valid)
    near = get_close_matches(name, names, n=1)
    hint = f" did you mean '{near[0]}'?" if near else ""
    return f"unknown {kind} '{name}':{hint} Known: {', '.join(names)}"


class Interrupted(KeyboardInterrupt):
    """The user asked to stop, and no round is half done."""
