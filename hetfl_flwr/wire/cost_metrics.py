"""Keys of the metrics for the costs of a round of training; see `hetfl_flwr.node.meter`."""

CPU_SECONDS, WALL_SECONDS, FLOPS, JOULES = "cpu-seconds", "wall-seconds", "flops", "joules"
MEMORY, DEVICE_MEMORY = "peak-memory", "device-memory"
COST_METRICS = (CPU_SECONDS, WALL_SECONDS, FLOPS, JOULES, MEMORY, DEVICE_MEMORY)
