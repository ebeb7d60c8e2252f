"""What training has cost, added up over rounds and clients, and how it is said."""

from collections.abc import Callable, Iterable, Mapping

from hetfl_flwr.runs.figures.tables import byte_size
from hetfl_flwr.runs.schema import Round
from hetfl_flwr.wire.cost_metrics import (
    COST_METRICS,
    CPU_SECONDS,
    DEVICE_MEMORY,
    FLOPS,
    JOULES,
    MEMORY,
    WALL_SECONDS,
)

PEAKS = (MEMORY, DEVICE_MEMORY)
"""Costs that do not add up: of these the largest counts."""


def total_costs(rounds: Iterable[Round], client: int | None = None) -> dict[str, float]:
    """Return what training has cost all clients together, or one of them, by the name of the cost.

    Seconds, floating-point operations and joules are summed; of bytes of memory it is the largest.
    """
    found: dict[str, list[float]] = {}
    for entry in rounds:
        for key, own in entry.clients.items():
            for name in COST_METRICS:
                if name in own and client in (None, int(key)):
                    found.setdefault(name, []).append(own[name])
    return {name: max(values) if name in PEAKS else sum(values) for name, values in found.items()}


SHOWN: Mapping[str, tuple[str, Callable[[float], str]]] = {
    CPU_SECONDS: ("CPU s", "{:,.2f}".format),
    WALL_SECONDS: ("seconds", "{:,.2f}".format),
    FLOPS: ("FLOPs", "{:.3g}".format),
    JOULES: ("joules", "{:,.1f}".format),
    MEMORY: ("peak memory", byte_size),
    DEVICE_MEMORY: ("device memory", byte_size),
}
"""By the name of a cost, its heading, and how a figure is written."""


def in_words(costs: Mapping[str, float]) -> str:
    """Return costs on one line.

    Examples
    --------
    >>> in_words({"flops": 2592727200.0, "cpu-seconds": 1.0389, "peak-memory": 946708480.0})
    'CPU s 1.04, FLOPs 2.59e+09, peak memory 946.7 MB'
    """
    return ", ".join(f"{heading} {write(costs[name])}" for name, (heading, write) in SHOWN.items() if name in costs)
