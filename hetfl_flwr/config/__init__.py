"""What a user says about a run: keys, their types, defaults and meanings, and their forms outside of Python.

Each group of keys is a class in a module of its own; `RunConfig` has them all. Nothing here knows an algorithm.
"""

from hetfl_flwr.config.data_keys import BUNDLED
from hetfl_flwr.config.federation_keys import (
    DEFAULT_CLIENTS,
    simulated_latency,
    simulated_links,
    simulated_seconds,
    simulated_speeds,
)
from hetfl_flwr.config.model_keys import AUTO, AUTO_MODELS, FIT, one_model
from hetfl_flwr.config.node import NODE_KEYS, OWN_NODE_KEYS, for_node
from hetfl_flwr.config.record_keys import COSTS, TRACKERS, parse_callbacks, parse_costs, parse_trackers
from hetfl_flwr.config.run_config import RunConfig
from hetfl_flwr.config.toml import flattened, load_toml, read_toml, to_toml
from hetfl_flwr.config.values import (
    Value,
    parse_algorithm_options,
    parse_setting,
    parse_settings,
    parse_value,
    usable_path,
    write_algorithm_options,
)

__all__ = [
    "AUTO",
    "AUTO_MODELS",
    "BUNDLED",
    "COSTS",
    "DEFAULT_CLIENTS",
    "FIT",
    "NODE_KEYS",
    "OWN_NODE_KEYS",
    "TRACKERS",
    "RunConfig",
    "Value",
    "flattened",
    "for_node",
    "load_toml",
    "one_model",
    "parse_algorithm_options",
    "parse_callbacks",
    "parse_costs",
    "parse_setting",
    "parse_settings",
    "parse_trackers",
    "parse_value",
    "read_toml",
    "simulated_latency",
    "simulated_links",
    "simulated_seconds",
    "simulated_speeds",
    "to_toml",
    "usable_path",
    "write_algorithm_options",
]
