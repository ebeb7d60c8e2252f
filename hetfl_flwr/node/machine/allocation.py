"""Freed memory stays with the process, so that the arrays of one training step are not fetched again for the next.

The GNU C library gives large freed arrays back to the system at once, and the next step takes them again, page by page.
With networks whose layers are of some megabytes a step is up to a third longer for it (measured at 0a31836).

This is a setting of the whole process. So it is for processes that this project starts, or Flower for it: the ``hetfl``
command, the workers of the local engine, a ClientApp. A Python program that imports this project stays as it is.
"""

import ctypes
import platform
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Numbers of the two settings in malloc.h."""

KEPT = 2**30
"""Bytes that one array may have, and that may be free, before they are given back."""


@cache
def keep_freed_memory() -> bool:
    """Let this process keep what it frees, up to a gigabyte; return whether its C library can.

    Results are the same. Where ``MALLOC_TRIM_THRESHOLD_`` and its like are in the environment, they are overruled.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return all(library.mallopt(setting, KEPT) for setting in (TRIM_THRESHOLD, MMAP_THRESHOLD))
