"""Modules that a process which stays has imported, and whether their files are still those."""

import importlib
import os
import sys
from collections.abc import Iterable

Stamp = tuple[int, int]


class Loaded:
    """Knows the files of imported modules as they were when it first looked.

    Parameters
    ----------
    ignored : iterable of str
        Top-level packages that are not looked at.
    kept : iterable of str
        Those that cannot be imported twice in one process, such as packages with compiled parts.
    """

    def __init__(self, *, ignored: Iterable[str], kept: Iterable[str]) -> None:
        self._ignored, self._kept = frozenset(ignored), frozenset(kept)
        self._stamps: dict[str, tuple[str, Stamp | None]] = {}

    def look(self) -> None:
        """Note the files of modules that are new."""
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if path and name not in self._stamps and _package(name) not in self._ignored:
                self._stamps[name] = path, _stamp(path)

    def forget_changed(self) -> tuple[set[str], set[str]]:
        """Forget the packages of which a file has changed, so that they are imported anew.

        Returns
        -------
        forgotten, kept : set of str
            Top-level packages that were forgotten; and those that have changed since they were named last and cannot
            be forgotten.
        """
        now = {name: (path, _stamp(path)) for name, (path, _) in self._stamps.items()}
        changed = {_package(name) for name in now if now[name] != self._stamps[name]}
        forgotten = changed - self._kept
        self._stamps = {name: stamp for name, stamp in now.items() if _package(name) not in forgotten}
        for name in [name for name in sys.modules if _package(name) in forgotten]:
            del sys.modules[name]
        if forgotten:
            importlib.invalidate_caches()
        return forgotten, changed & self._kept


def _package(name: str) -> str:
    return name.partition(".")[0]


def _stamp(path: str) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
