"""How punctual clients are: whoever has missed messages is hardly waited for, until it has answered in time again."""

from collections import Counter

MISS, MOST, POOR = 2, 4, 3
"""Points for a message that is missed, of which one is taken away for each that is answered in time; the most that
there are; and from how many on a client is hardly waited for: two misses in a row, or every other message missed."""

Kind = tuple[int, str]
"""A node, and a type of message."""


class Punctuality:
    """Keeps the points of each kind of message to each node."""

    def __init__(self) -> None:
        self._points: Counter[Kind] = Counter()
        self._open: dict[str, tuple[Kind, float]] = {}  # given up early: until when they would have been in time

    def is_poor(self, kind: Kind) -> bool:
        """Say whether a node has missed so many messages of a kind that it is hardly waited for."""
        return self._points[kind] >= POOR

    def missed(self, kind: Kind) -> None:
        """Count a message that was not answered in time."""
        self._points[kind] = min(self._points[kind] + MISS, MOST)

    def answered(self, kind: Kind) -> None:
        """Count a message that was."""
        self._points[kind] = max(self._points[kind] - 1, 0)

    def time_out(self, message: str, kind: Kind, limit: float) -> None:
        """Take note that a message was not waited for until its time was over, which is to come."""
        self._open[message] = kind, limit

    def came(self, message: str, now: float) -> None:
        """Count a message that was given up so, and is answered after all."""
        kind, limit = self._open.pop(message, (None, 0.0))
        if kind is not None:
            (self.answered if now <= limit else self.missed)(kind)

    def settle(self, now: float) -> None:
        """Count those that were given up so, whose time is over now."""
        for message in [message for message, (_, limit) in self._open.items() if now > limit]:
            self.missed(self._open.pop(message)[0])
