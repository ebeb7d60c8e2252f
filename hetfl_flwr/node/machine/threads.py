"""Threads of arithmetic and cores: more of the former slow each other down, in every engine.

It is told, not changed: how many threads a client has is part of what makes bits equal.
"""

import os
from functools import cache
from logging import WARNING

from hetfl_flwr.common.flower import log


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def check_threads(threads: int) -> None:
    """Say in the log, once a process, that a client has more threads than its process has cores.

    ``OMP_NUM_THREADS`` is a process's share of them, where it is set; Ray sets it to the CPUs of an actor.
    """
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
