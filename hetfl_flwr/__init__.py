"""Federated learning across heterogeneous models: the public API for scripts and algorithms.

To run federations, use `run`, `load`, `sweep`, `compare`, `gains`, `audit`, `export`, `load_client` and `Result`, and
`RoundCallback` for a hook after each round. To write an algorithm, subclass `KnowledgeStrategy` or `WeightStrategy` for
the server and `KnowledgeClient` for the clients, and declare their payloads with `PayloadSpec`. To test it, use
`AlgorithmContract`, `Lab` and the fixture `lab`, which need pytest.

Names are imported on first use, so ``import hetfl_flwr`` by itself is fast.

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
    from hetfl_flwr.common.arithmetic import torch_threads as torch_threads
    from hetfl_flwr.common.flower import log as log
    from hetfl_flwr.config import AUTO as AUTO
    from hetfl_flwr.config import ModelName as ModelName
    from hetfl_flwr.config import RunConfig as RunConfig
    from hetfl_flwr.data import DataSpec as DataSpec
    from hetfl_flwr.data import Samples as Samples
    from hetfl_flwr.errors import ConfigError as ConfigError
    from hetfl_flwr.errors import DivergedError as DivergedError
    from hetfl_flwr.errors import FederationError as FederationError
    from hetfl_flwr.errors import HetflError as HetflError
    from hetfl_flwr.errors import ModelError as ModelError
    from hetfl_flwr.errors import PayloadError as PayloadError
    from hetfl_flwr.learning.aggregation import Average as Average
    from hetfl_flwr.learning.alignment import MIN_ALIGNED as MIN_ALIGNED
    from hetfl_flwr.learning.alignment import linear_cka as linear_cka
    from hetfl_flwr.learning.distillation import cosine_temperature as cosine_temperature
    from hetfl_flwr.learning.distillation import decoupled_kd as decoupled_kd
    from hetfl_flwr.learning.distillation import kl_divergence as kl_divergence
    from hetfl_flwr.learning.distillation import linear_schedule as linear_schedule
    from hetfl_flwr.learning.gradients import flat_gradient as flat_gradient
    from hetfl_flwr.learning.gradients import pcgrad as pcgrad
    from hetfl_flwr.learning.gradients import project as project
    from hetfl_flwr.learning.gradients import set_gradient as set_gradient
    from hetfl_flwr.learning.metrics import Metrics as Metrics
    from hetfl_flwr.learning.prototypes import class_means as class_means
    from hetfl_flwr.learning.quality import measure as measure
    from hetfl_flwr.learning.server_training import ServerTraining as ServerTraining
    from hetfl_flwr.learning.server_training import Tensors as Tensors
    from hetfl_flwr.learning.training import EVALUATION_BATCH as EVALUATION_BATCH
    from hetfl_flwr.learning.training import Loss as Loss
    from hetfl_flwr.learning.training import Terms as Terms
    from hetfl_flwr.learning.training import descend as descend
    from hetfl_flwr.learning.training import draw_batches as draw_batches
    from hetfl_flwr.learning.training import evaluate as evaluate
    from hetfl_flwr.learning.training import make_optimizer as make_optimizer
    from hetfl_flwr.learning.training import max_drawn as max_drawn
    from hetfl_flwr.learning.training import outputs as outputs
    from hetfl_flwr.learning.training import take_statistics as take_statistics
    from hetfl_flwr.learning.training import train as train
    from hetfl_flwr.methods import for_heterogeneous_models as for_heterogeneous_models
    from hetfl_flwr.models import SplitModel as SplitModel
    from hetfl_flwr.models import has_batch_norm as has_batch_norm
    from hetfl_flwr.models import parse_models as parse_models
    from hetfl_flwr.models import parse_width as parse_width
    from hetfl_flwr.models import split as split
    from hetfl_flwr.models.bounds import check_size as check_size
    from hetfl_flwr.node.node import Node as Node
    from hetfl_flwr.node.node import small_model as small_model
    from hetfl_flwr.runs.callbacks import RoundCallback as RoundCallback
    from hetfl_flwr.runs.callbacks import RunInfo as RunInfo
    from hetfl_flwr.seeding import generator as generator
    from hetfl_flwr.seeding import seeded as seeded
    from hetfl_flwr.server.exchange import SampleLimits as SampleLimits
    from hetfl_flwr.server.global_model import global_model as global_model
    from hetfl_flwr.server.global_model import models_by_name as models_by_name
    from hetfl_flwr.server.global_model import small_global_model as small_global_model
    from hetfl_flwr.server.guard import Guard as Guard
    from hetfl_flwr.server.guard import measure_learnt as measure_learnt
    from hetfl_flwr.server.member import Member as Member
    from hetfl_flwr.server.member import Sharing as Sharing
    from hetfl_flwr.server.roster import Roster as Roster
    from hetfl_flwr.server.sharing import PublicSamples as PublicSamples
    from hetfl_flwr.strategy import KnowledgeStrategy as KnowledgeStrategy
    from hetfl_flwr.strategy import Sends as Sends
    from hetfl_flwr.strategy import Upload as Upload
    from hetfl_flwr.weight_strategy import WeightStrategy as WeightStrategy
    from hetfl_flwr.wire.factors import bounded as bounded
    from hetfl_flwr.wire.factors import factor as factor
    from hetfl_flwr.wire.factors import factored as factored
    from hetfl_flwr.wire.factors import multiplied as multiplied
    from hetfl_flwr.wire.messages import EXAMPLES as EXAMPLES
    from hetfl_flwr.wire.messages import SEEN as SEEN
    from hetfl_flwr.wire.samples import PublicIndex as PublicIndex
    from hetfl_flwr.wire.spec import COUNTER_LIMIT as COUNTER_LIMIT
    from hetfl_flwr.wire.spec import EMPTY as EMPTY
    from hetfl_flwr.wire.spec import LEARNT_LIMIT as LEARNT_LIMIT
    from hetfl_flwr.wire.spec import TRAINED_SIZE as TRAINED_SIZE
    from hetfl_flwr.wire.spec import Arrays as Arrays
    from hetfl_flwr.wire.spec import ArraySpec as ArraySpec
    from hetfl_flwr.wire.spec import Dim as Dim
    from hetfl_flwr.wire.spec import PayloadSpec as PayloadSpec
    from hetfl_flwr.wire.spec import fractions as fractions
    from hetfl_flwr.wire.spec import learnt as learnt
    from hetfl_flwr.wire.spec import prefixed as prefixed
    from hetfl_flwr.wire.spec import probabilities as probabilities
    from hetfl_flwr.wire.spec import row_numbers as row_numbers
    from hetfl_flwr.wire.spec import sample_counts as sample_counts
    from hetfl_flwr.wire.spec import under as under
    from hetfl_flwr.wire.weights import load_model_arrays as load_model_arrays
    from hetfl_flwr.wire.weights import loaded as loaded
    from hetfl_flwr.wire.weights import model_arrays as model_arrays
    from hetfl_flwr.wire.weights import state_arrays as state_arrays
    from hetfl_flwr.wire.weights import weights as weights
    from hetfl_flwr.wire.weights import whole_state as whole_state
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
    from simulations.testing.lab import lab as lab

_NAMES = {
    "simulations.api": ("run", "load", "sweep", "compare", "gains", "audit", "export", "Result"),
    "simulations.inference.loading": ("load_client",),
    "hetfl_flwr.runs.callbacks": ("RoundCallback", "RunInfo"),
    "hetfl_flwr.strategy": ("KnowledgeStrategy", "Sends", "Upload"),
    "hetfl_flwr.weight_strategy": ("WeightStrategy",),
    "hetfl_flwr.client": ("KnowledgeClient", "to_numpy"),
    "hetfl_flwr.wire.spec": (
        *("PayloadSpec", "ArraySpec", "Dim", "Arrays", "EMPTY", "LEARNT_LIMIT"),
        *("TRAINED_SIZE", "COUNTER_LIMIT", "learnt", "sample_counts", "probabilities", "fractions"),
        *("row_numbers", "prefixed", "under"),
    ),
    "hetfl_flwr.wire.weights": (
        *("weights", "model_arrays", "load_model_arrays", "loaded", "whole_state", "state_arrays"),
    ),
    "hetfl_flwr.wire.factors": ("factored", "factor", "multiplied", "bounded"),
    "hetfl_flwr.wire.samples": ("PublicIndex",),
    "hetfl_flwr.wire.messages": ("EXAMPLES", "SEEN"),
    "hetfl_flwr.server.exchange": ("SampleLimits",),
    "hetfl_flwr.server.guard": ("Guard", "measure_learnt"),
    "hetfl_flwr.server.member": ("Member", "Sharing"),
    "hetfl_flwr.server.roster": ("Roster",),
    "hetfl_flwr.server.global_model": ("global_model", "models_by_name", "small_global_model"),
    "hetfl_flwr.server.sharing": ("PublicSamples",),
    "hetfl_flwr.methods": ("for_heterogeneous_models",),
    "hetfl_flwr.node.node": ("Node", "small_model"),
    "hetfl_flwr.learning.aggregation": ("Average",),
    "hetfl_flwr.learning.alignment": ("MIN_ALIGNED", "linear_cka"),
    "hetfl_flwr.learning.distillation": ("kl_divergence", "decoupled_kd", "cosine_temperature", "linear_schedule"),
    "hetfl_flwr.learning.gradients": ("flat_gradient", "set_gradient", "project", "pcgrad"),
    "hetfl_flwr.learning.metrics": ("Metrics",),
    "hetfl_flwr.learning.quality": ("measure",),
    "hetfl_flwr.learning.prototypes": ("class_means",),
    "hetfl_flwr.learning.server_training": ("ServerTraining", "Tensors"),
    "hetfl_flwr.learning.training": (
        *("Terms", "Loss", "train", "descend", "evaluate", "draw_batches"),
        *("make_optimizer", "max_drawn", "take_statistics", "outputs", "EVALUATION_BATCH"),
    ),
    "hetfl_flwr.models": ("SplitModel", "split", "parse_models", "parse_width", "has_batch_norm"),
    "hetfl_flwr.models.bounds": ("check_size",),
    "hetfl_flwr.data": ("DataSpec", "Samples"),
    "hetfl_flwr.config": ("RunConfig", "AUTO", "ModelName"),
    "hetfl_flwr.seeding": ("generator", "seeded"),
    "hetfl_flwr.common.arithmetic": ("torch_threads",),
    "hetfl_flwr.common.flower": ("log",),
    "hetfl_flwr.errors": (
        "HetflError",
        "ConfigError",
        "DivergedError",
        "FederationError",
        "ModelError",
        "PayloadError",
    ),
    "simulations.testing": ("AlgorithmContract", "Lab"),
    "simulations.testing.lab": ("lab",),
}
"""Public names by module."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name from its module; raise `ConfigError` if another package shadows one of this project's."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    from hetfl_flwr.common.packages import own_package

    module = _MODULES[name]
    own_package(module.partition(".")[0])
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    """Return the public names, without those that need pytest if it is not installed."""
    offered = _MODULES if find_spec("pytest") else {name for name in _MODULES if "testing" not in _MODULES[name]}
    return sorted({*globals(), *offered})
