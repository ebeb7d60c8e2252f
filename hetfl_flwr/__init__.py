"""Federated learning across heterogeneous models: all that scripts and algorithms of other packages import.

To run federations: `run`, `load`, `sweep`, `compare`, `gains`, `audit`, `export`, `load_client` and `Result`;
`RoundCallback` to be told of their rounds. To write an algorithm:
`KnowledgeStrategy` or `WeightStrategy` for the server, `KnowledgeClient` for the clients, `PayloadSpec` for what they
send each other. To test it: `AlgorithmContract`, `Lab` and the fixture `lab`, which need pytest.

A name is imported when it is first used, so ``import hetfl_flwr`` by itself is quick.

Examples
--------
>>> from hetfl_flwr import ArraySpec, PayloadSpec
>>> PayloadSpec((ArraySpec("prototypes", (10, 64), "float32"),)).nbytes
2560
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetfl_flwr.client import KnowledgeClient as KnowledgeClient
    from hetfl_flwr.client import to_numpy as to_numpy
    from hetfl_flwr.common.errors import ConfigError as ConfigError
    from hetfl_flwr.common.errors import FederationError as FederationError
    from hetfl_flwr.common.errors import HetflError as HetflError
    from hetfl_flwr.common.seeding import generator as generator
    from hetfl_flwr.config import RunConfig as RunConfig
    from hetfl_flwr.data import DataSpec as DataSpec
    from hetfl_flwr.data import Samples as Samples
    from hetfl_flwr.learning.client import Metrics as Metrics
    from hetfl_flwr.learning.prototypes import class_means as class_means
    from hetfl_flwr.learning.quality import measure as measure
    from hetfl_flwr.learning.training import EVALUATION_BATCH as EVALUATION_BATCH
    from hetfl_flwr.learning.training import Terms as Terms
    from hetfl_flwr.learning.training import evaluate as evaluate
    from hetfl_flwr.learning.training import most_drawn as most_drawn
    from hetfl_flwr.learning.training import train as train
    from hetfl_flwr.models import SplitModel as SplitModel
    from hetfl_flwr.models import split as split
    from hetfl_flwr.node.node import Node as Node
    from hetfl_flwr.runs.callbacks import RoundCallback as RoundCallback
    from hetfl_flwr.runs.callbacks import RunInfo as RunInfo
    from hetfl_flwr.server.messaging.exchange import Most as Most
    from hetfl_flwr.server.messaging.member import Member as Member
    from hetfl_flwr.server.messaging.member import Sharing as Sharing
    from hetfl_flwr.server.messaging.roster import Roster as Roster
    from hetfl_flwr.strategy import KnowledgeStrategy as KnowledgeStrategy
    from hetfl_flwr.strategy import Upload as Upload
    from hetfl_flwr.wire.messages import EXAMPLES as EXAMPLES
    from hetfl_flwr.wire.messages import SEEN as SEEN
    from hetfl_flwr.wire.spec import EMPTY as EMPTY
    from hetfl_flwr.wire.spec import LEARNT_LIMIT as LEARNT_LIMIT
    from hetfl_flwr.wire.spec import Arrays as Arrays
    from hetfl_flwr.wire.spec import ArraySpec as ArraySpec
    from hetfl_flwr.wire.spec import Dim as Dim
    from hetfl_flwr.wire.spec import PayloadSpec as PayloadSpec
    from hetfl_flwr.wire.spec import fractions as fractions
    from hetfl_flwr.wire.spec import learnt as learnt
    from hetfl_flwr.wire.spec import probabilities as probabilities
    from hetfl_flwr.wire.spec import row_numbers as row_numbers
    from hetfl_flwr.wire.spec import sample_counts as sample_counts
    from hetfl_flwr.wire.weights import load_model_arrays as load_model_arrays
    from hetfl_flwr.wire.weights import model_arrays as model_arrays
    from hetfl_flwr.wire.weights import weights as weights
    from simulations.api import Result as Result
    from simulations.api import audit as audit
    from simulations.api import compare as compare
    from simulations.api import export as export
    from simulations.api import gains as gains
    from simulations.api import load as load
    from simulations.api import run as run
    from simulations.api import sweep as sweep
    from simulations.inference.loading import load_client as load_client
    from simulations.testing import AlgorithmContract as AlgorithmContract
    from simulations.testing import Lab as Lab
    from simulations.testing.fixtures import lab as lab
    from strategies.base_weights import WeightStrategy as WeightStrategy

_NAMES = {
    "simulations.api": ("run", "load", "sweep", "compare", "gains", "audit", "export", "Result"),
    "simulations.inference.loading": ("load_client",),
    "hetfl_flwr.runs.callbacks": ("RoundCallback", "RunInfo"),
    "hetfl_flwr.strategy": ("KnowledgeStrategy", "Upload"),
    "strategies.base_weights": ("WeightStrategy",),
    "hetfl_flwr.client": ("KnowledgeClient", "to_numpy"),
    "hetfl_flwr.wire.spec": (
        *("PayloadSpec", "ArraySpec", "Dim", "Arrays", "EMPTY", "LEARNT_LIMIT"),
        *("learnt", "sample_counts", "probabilities", "fractions", "row_numbers"),
    ),
    "hetfl_flwr.wire.weights": ("weights", "model_arrays", "load_model_arrays"),
    "hetfl_flwr.wire.messages": ("EXAMPLES", "SEEN"),
    "hetfl_flwr.server.messaging.exchange": ("Most",),
    "hetfl_flwr.server.messaging.member": ("Member", "Sharing"),
    "hetfl_flwr.server.messaging.roster": ("Roster",),
    "hetfl_flwr.node.node": ("Node",),
    "hetfl_flwr.learning.client": ("Metrics",),
    "hetfl_flwr.learning.quality": ("measure",),
    "hetfl_flwr.learning.prototypes": ("class_means",),
    "hetfl_flwr.learning.training": ("Terms", "train", "evaluate", "EVALUATION_BATCH", "most_drawn"),
    "hetfl_flwr.models": ("SplitModel", "split"),
    "hetfl_flwr.data": ("DataSpec", "Samples"),
    "hetfl_flwr.config": ("RunConfig",),
    "hetfl_flwr.common.seeding": ("generator",),
    "hetfl_flwr.common.errors": ("HetflError", "ConfigError", "FederationError"),
    "simulations.testing": ("AlgorithmContract", "Lab"),
    "simulations.testing.fixtures": ("lab",),
}
"""By module, what it offers here."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Import a name from its module.

    Raises
    ------
    ConfigError
        Another package hides one of this project's: names both.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    from hetfl_flwr.common.packages import own_package

    module = _MODULES[name]
    own_package(module.partition(".")[0])
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    """Return all names; without pytest not those that need it."""
    offered = _MODULES if find_spec("pytest") else {name for name in _MODULES if "testing" not in _MODULES[name]}
    return sorted({*globals(), *offered})
