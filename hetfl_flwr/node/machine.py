"""The machine of a client: device, threads and memory.

Freed memory stays with the process, so that the arrays of one training step are not fetched again for the next: the GNU
C library gives large freed arrays back to the system at once, and the next step takes them again, page by page. With
networks whose layers are of some megabytes a step is up to a third longer for it. This is a setting of the whole
process. So it is for processes that this project starts, or Flower for it: the ``hetfl`` command, the workers of the
local engine, a ClientApp. A Python program that imports this project stays as it is.

More threads than cores slow each other down, in every engine. A warning says so, and nothing is changed: the number of
threads is part of what determines the bits.
"""

import ctypes
import multiprocessing
import os
import platform
from functools import cache
from logging import WARNING
from threading import Thread
from typing import TYPE_CHECKING

from hetfl_flwr.errors import ConfigError

if TYPE_CHECKING:
    import torch

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Numbers of the two settings in malloc.h."""

KEPT = 2**30
"""Bytes of one array, and of free memory, up to which memory is not returned to the system."""


@cache
def keep_freed_memory() -> bool:
    """Let this process keep freed memory, up to a gigabyte; return whether its C library supports it.

    Results are the same. Where ``MALLOC_TRIM_THRESHOLD_`` and its like are in the environment, they are overruled.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return all(library.mallopt(setting, KEPT) for setting in (TRIM_THRESHOLD, MMAP_THRESHOLD))


def end_with_parent() -> None:
    """Let this process end at once when its parent process does, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def find_device(name: str) -> "torch.device":
    """Return the device that ``device`` names; ``"auto"`` takes an accelerator where there is one.

    Raises
    ------
    ConfigError
        It is not available: names those that are.
    """
    import torch  # slow, and commands that say something at once need the rest of this module

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= found:
        here = f"the CUDA devices here are 0 .. {found - 1}" if found else "no CUDA device is here"
        raise ConfigError(f"device = {name!r}: {here}; use auto or cpu")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device = 'mps': no Apple GPU is here; use auto or cpu")
    return torch.device(name)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def check_threads(threads: int) -> None:
    """Warn, once a process, that a client has more threads than its process has cores.

    ``OMP_NUM_THREADS`` is a process's share of them, where it is set; Ray sets it to the CPUs of an actor.
    """
    from hetfl_flwr.common.flower import log

    share = os.environ.get("OMP_NUM_THREADS", "")
    granted = min(int(share), cores()) if share.isdecimal() else cores()
    if threads > granted:
        log(
            WARNING,
            "threads = %d, and this client's process has %d of %d cores: they will slow each other down; lower threads"
            ", or in Flower's simulation raise client-resources-num-cpus",
            threads,
            granted,
            cores(),
        )
