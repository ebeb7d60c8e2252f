"""The machine of a client: device, threads and memory.

By default, the GNU C library returns large freed arrays to the system at once, and the next training step requests them
again, page by page. With layers of a few megabytes, this makes a step up to a third slower. `keep_freed_memory` turns
this off for the whole process. It is called only in processes that this project starts, or that Flower starts for it:
the ``hetfl`` command, the workers of the local engine, and a ClientApp, never in a Python program that imports this
project.

More threads than cores slow each other down, in every engine. This is reported and not changed, because results depend
on the number of threads, bit for bit.
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
"""The constants M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h."""

KEPT = 2**30
"""Size in bytes, of one array or of all free memory, up to which memory is not returned to the system."""


@cache
def keep_freed_memory() -> bool:
    """Let this process keep up to a gigabyte of freed memory; return whether its C library supports this.

    Results do not change. This overrides environment variables such as ``MALLOC_TRIM_THRESHOLD_``.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return all(library.mallopt(setting, KEPT) for setting in (TRIM_THRESHOLD, MMAP_THRESHOLD))


def release_freed_memory() -> None:
    """Return the memory that this process keeps to the system, for example after a run.

    Memory between allocated arrays is kept, too, and without this it grows from run to run.
    """
    if keep_freed_memory.cache_info().currsize and keep_freed_memory():
        ctypes.CDLL(None).malloc_trim(0)


def end_with_parent() -> None:
    """Let this process end at once when its parent process does, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def find_device(name: str) -> "torch.device":
    """Return the device with this name; ``"auto"`` is an accelerator if there is one, else the CPU.

    Raises ConfigError if the device is not available.
    """
    import torch  # slow, and commands that must start quickly use the rest of this module

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= found:
        here = f"this machine has the CUDA devices 0 .. {found - 1}" if found else "this machine has no CUDA device"
        raise ConfigError(f"device = {name!r}: {here}; use auto or cpu")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device = 'mps': this machine has no Apple GPU; use auto or cpu")
    return torch.device(name)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def check_threads(threads: int) -> None:
    """Warn, once per process, if a client has more threads than its process has cores.

    ``OMP_NUM_THREADS``, if set, is the number of cores for this process: Ray sets it to the CPUs of an actor.
    """
    from hetfl_flwr.common.flower import log

    share = os.environ.get("OMP_NUM_THREADS", "")
    granted = min(int(share), cores()) if share.isdecimal() else cores()
    if threads > granted:
        log(
            WARNING,
            "threads = %d, and this client's process has %d of %d cores: the threads will slow each other down; lower "
            "threads, or raise client-resources-num-cpus in Flower's simulation",
            threads,
            granted,
            cores(),
        )
