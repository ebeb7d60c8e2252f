"""Keys of a client's metrics that say what a round of training has cost it, see `hetfl_flwr.node.meter`."""

CPU_SECONDS, WALL_SECONDS, FLOPS, JOULES = "cpu-seconds", "wall-seconds", "flops", "joules"
MEMORY, DEVICE_MEMORY = "peak-memory", "device-memory"
COST_METRICS = (CPU_SECONDS, WALL_SECONDS, FLOPS, JOULES, MEMORY, DEVICE_MEMORY)
