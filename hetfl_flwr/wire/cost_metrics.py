"""Keys of the metrics for the costs of a round of training; see `hetfl_flwr.node.meter`."""

import sys
from collections.abc import Iterable

CPU_SECONDS, WALL_SECONDS, FLOPS, JOULES = "cpu-seconds", "wall-seconds", "flops", "joules"
MEMORY, DEVICE_MEMORY = "peak-memory", "device-memory"
COST_METRICS = (CPU_SECONDS, WALL_SECONDS, FLOPS, JOULES, MEMORY, DEVICE_MEMORY)


def together(name: str, costs: Iterable[float]) -> float:
    """Return one cost of several trainings: the maximum of memory in bytes, and the finite sum of the others."""
    most = sys.float_info.max
    return max(costs) if name in (MEMORY, DEVICE_MEMORY) else max(-most, min(sum(costs), most))
