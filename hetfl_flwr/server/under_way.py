"""What is under way between two rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class UnderWay:
    """What is under way between two rounds.

    Parameters
    ----------
    numbers : mapping
        What JSON can hold.
    messages : mapping of str to bytes
        Messages and replies, serialised, by name.
    """

    numbers: Mapping[str, Any] = field(default_factory=dict)
    messages: Mapping[str, bytes] = field(default_factory=dict)
