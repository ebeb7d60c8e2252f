"""Cache what functions return for an object, as long as the object lives."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

_Made = TypeVar("_Made")


class Memo:
    """An object that caches what functions return for it."""

    @cached_property
    def _made(self) -> dict[Any, Any]:
        return {}

    def once(self, make: Callable[..., _Made], *arguments: Any) -> _Made:
        """Call a function with this object and some arguments, or return its cached result for equal arguments."""
        key = make, *arguments
        if key not in self._made:
            self._made[key] = make(self, *arguments)
        made: _Made = self._made[key]
        return made
