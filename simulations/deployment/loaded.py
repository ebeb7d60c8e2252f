"""Modules that a process which stays has imported, and whether their files are still those."""

import os
import sys
import time
from pathlib import Path

OURS = Path(__file__).parents[1]
"""The package of this module, which is not looked at: a new version of it is used once the node is started again."""

Stamp = tuple[int, int]


class Loaded:
    """Knows the files of imported modules as they were when they were imported.

    Parameters
    ----------
    since : float
        A moment before all imports that are still to be noted, in seconds since the epoch.

    Attributes
    ----------
    app : Path, optional
        A folder whose modules are not looked at: that of an app, which never changes.
    """

    def __init__(self, since: float) -> None:
        self.app: Path | None = None
        self._since = since
        self._stamps: dict[str, tuple[str, Stamp | None]] = {}

    def look(self) -> None:
        """Note the files of modules that were imported since the last look, as unknown if they are younger than it.

        Such a file may have changed after its import. One of the future has not: the clock has been set back, and a
        process that began anew for it would find it so again.
        """
        now = time.time()
        for name, module in list(sys.modules.items()):
            path, package = getattr(module, "__file__", None), name.partition(".")[0]
            if not path or path in self._stamps or self._is_apart(Path(path)):
                continue
            try:
                found = os.stat(path)
            except OSError:  # no file of its own, as a module in an archive
                continue
            known = found.st_ctime <= self._since or found.st_ctime > time.time()
            self._stamps[path] = package, _stamp(found) if known else None
        self._since = now

    def changed(self) -> set[str]:
        """Look, and return the top-level packages of which a file has changed or is gone."""
        self.look()
        return {package for path, (package, stamp) in self._stamps.items() if stamp is None or _now(path) != stamp}

    def _is_apart(self, path: Path) -> bool:
        return any(folder and path.is_relative_to(folder) for folder in (OURS, self.app))


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_mtime_ns, found.st_size


def _now(path: str) -> Stamp | None:
    try:
        return _stamp(os.stat(path))
    except OSError:
        return None
