"""What is made of an object once, and kept as long as the object is."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

_Made = TypeVar("_Made")


class Memo:
    """An object that keeps what functions have made of it."""

    @cached_property
    def _made(self) -> dict[Any, Any]:
        return {}

    def once(self, make: Callable[..., _Made], *arguments: Any) -> _Made:
        """Return what a function makes of this object: the same one for equal arguments."""
        key = make, *arguments
        if key not in self._made:
            self._made[key] = make(self, *arguments)
        made: _Made = self._made[key]
        return made
