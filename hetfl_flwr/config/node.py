"""The run config as it holds on one node."""

from collections.abc import Mapping
from difflib import get_close_matches

from hetfl_flwr.common.errors import ConfigError, unknown
from hetfl_flwr.config.keys import PER_NODE
from hetfl_flwr.config.run_config import RunConfig
from hetfl_flwr.config.values import Value

NODE_KEYS = {"model": "models"} | {
    str(field.alias): str(field.alias) for field in RunConfig.model_fields.values() if PER_NODE in field.metadata
}
"""Keys of a SuperNode's ``--node-config`` that override the run config there, and the key each one sets."""

OWN_NODE_KEYS = ("partition-id", "num-partitions", "share-names", "share-recall", "name")
"""Keys of a ``--node-config`` alone: who a node is, whether the names of its classes and columns may leave it, whether
how well it does on each class may, and what its client is called."""


def for_node(config: RunConfig, node_config: Mapping[str, Value]) -> RunConfig:
    """Return the run config as it holds on one node.

    Parameters
    ----------
    config : RunConfig
        What the server sent.
    node_config : mapping
        The node's own settings; keys other than `NODE_KEYS` are left to others, unless they look like one of these.

    Raises
    ------
    ConfigError
        A misspelt key, or a value that does not fit.
    """
    known = [*NODE_KEYS, *OWN_NODE_KEYS]
    for key in node_config.keys() - known:
        if get_close_matches(key, known, cutoff=0.7):  # payload-precision is no misspelt mixed-precision
            raise ConfigError(unknown("node-config key", key, known))
    own = {NODE_KEYS[key]: value for key, value in node_config.items() if key in NODE_KEYS}
    return config.with_values(own) if own else config
