"""``models = "fit"``: choose the largest candidate that a client's device can train within its limits.

Each candidate is trained for a few steps on the client's samples, the smallest first. The time of a round is the time
of a step times the mini-batches of a round; other work of a method, such as distillation, is not included. A simulated
device has a speed (``client-speed``): the time of a step is then its floating-point operations divided by the speed,
so that the choice is the same on every machine.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from statistics import median
from time import perf_counter

import torch
from flwr.app import ConfigRecord, Context
from torch.nn import functional

from hetfl_flwr.config import RunConfig, simulated
from hetfl_flwr.data import Samples
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.learning.training import batches_a_round, descend, make_optimizer
from hetfl_flwr.models import SplitModel, parse_models, trainable_count
from hetfl_flwr.node.meter import operation_counter
from hetfl_flwr.seeding import seeded

TIMED = 3
"""Number of timed steps after one warm-up step; their median counts."""

MB = 1e6

CHOICE = "hetfl-choice"
"""Key of the chosen model in ``Context.state``."""


@dataclass(frozen=True)
class Fit:
    """The chosen model, and the reason in one line."""

    model: str
    reason: str


@dataclass(frozen=True)
class CandidateCost:
    """A candidate model, its number of trainable parameters, and its costs.

    `seconds` is the time of a round of training. `memory` is the bytes of weights, gradients, optimizer moments, and
    the activations that a step keeps for backward. The process itself is not included.
    """

    model: str
    parameters: int
    seconds: float
    memory: float

    def excess(self, config: RunConfig) -> float:
        """Return the largest ratio of a cost to its limit; at most 1 if all limits are met."""
        limits = ((self.seconds, config.fit_seconds), (self.memory, MB * config.fit_memory))
        return max(taken / limit for taken, limit in limits if limit)

    def __str__(self) -> str:
        """Return the costs as text."""
        return f"{self.model} takes {self.seconds:.3g} s per round and {self.memory / MB:.3g} MB"


def fit(
    config: RunConfig, samples: Samples, build: Callable[[str], SplitModel], client_id: int, speed: float | None
) -> Fit:
    """Choose the largest of ``fit-models`` that trains on `samples` within ``fit-seconds`` and ``fit-memory``.

    `build` builds a model by its name, on the client's device. `speed` is that of a simulated device in floating-point
    operations per second; if it is None, steps are timed. Raises ConfigError if no model meets the limits, and
    ModelError if one does not fit the data.
    """
    candidates = [(trainable_count(build(name)), name) for name in dict.fromkeys(parse_models(config.fit_models))]
    trials = [_tried(config, samples, build, name, speed) for _, name in sorted(candidates)]
    if fitting := [trial for trial in trials if trial.excess(config) <= 1]:
        best = max(fitting, key=lambda trial: trial.parameters)  # the first of equals
        larger = [str(trial) for trial in trials if trial.parameters > best.parameters]
        return Fit(
            best.model, f"client {client_id}, models = fit: {'; '.join([str(best), *larger])}; {_limits(config)}"
        )
    nearest = min(trials, key=lambda trial: trial.excess(config))
    raise ConfigError(
        f"client {client_id}: none of fit-models = {config.fit_models} meets {_limits(config)}; the closest: {nearest}"
    )


def fit_once(context: Context, choose: Callable[[], Fit]) -> Fit:
    """Return the choice that this run has stored in the client's Context; choose and store it the first time."""
    kept, run = context.state.config_records.get(CHOICE, ConfigRecord()), str(context.run_id)
    if kept.get("run") == run:
        return Fit(str(kept["model"]), str(kept["reason"]))
    chosen = choose()
    context.state[CHOICE] = ConfigRecord({"run": run, "model": chosen.model, "reason": chosen.reason})
    return chosen


def device_speed(config: RunConfig, client_id: int) -> float:
    """Return the speed of a simulated client's device in floating-point operations per second.

    Raises ConfigError if ``client-speed`` is not set.
    """
    if not config.client_speed:
        raise ConfigError(
            "models = fit: simulated clients have no devices to time; set client-speed in GFLOP/s, such as "
            "client-speed = '10,1,0.1'"
        )
    speeds = simulated("client-speed", config.client_speed)
    return 1e9 * speeds[client_id % len(speeds)][0]


def _tried(
    config: RunConfig, samples: Samples, build: Callable[[str], SplitModel], name: str, speed: float | None
) -> CandidateCost:
    model = build(name)
    steps = batches_a_round(config, len(samples))
    try:
        with seeded(config.seed, "fit", name):  # dropout must not change other random numbers
            seconds, memory = _measured(config, samples, model, speed, config.fit_seconds / steps or inf)
    except torch.OutOfMemoryError:
        seconds, memory = inf, inf
    return CandidateCost(name, trainable_count(model), steps * seconds, memory)


def _measured(
    config: RunConfig, samples: Samples, model: SplitModel, speed: float | None, enough: float
) -> tuple[float, float]:
    """Return the seconds of a step and the bytes that training takes; skip timing if the first step takes too long."""
    inputs, labels = samples.batch(torch.arange(min(config.batch_size, len(samples))))
    optimizer = make_optimizer(config, model.parameters())

    def step() -> float:
        began = perf_counter()
        descend(optimizer, functional.cross_entropy(model(inputs), labels))
        if inputs.device.type == "cuda":
            torch.cuda.synchronize(inputs.device)
        return perf_counter() - began

    with operation_counter() as counter, _kept_for_backward(model) as kept:
        first = step()
    tensors = [*model.parameters(), *(one.grad for one in model.parameters() if one.grad is not None)]
    tensors += [*model.buffers(), *(each for state in optimizer.state.values() for each in state.values())]
    memory = sum(each.numel() * each.element_size() for each in tensors) + sum(kept.values())
    if speed is not None:
        return counter.get_total_flops() / speed, memory
    return (first if first > 2 * enough else median(step() for _ in range(TIMED))), memory


@contextmanager
def _kept_for_backward(model: SplitModel) -> Iterator[dict[int, int]]:
    """Collect the bytes that a forward pass keeps for backward, by address, without the weights."""
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield kept


def _limits(config: RunConfig) -> str:
    limits = ((config.fit_seconds, "fit-seconds", " s"), (config.fit_memory, "fit-memory", " MB"))
    return " and ".join(f"{key} = {limit:g}{unit}" for limit, key, unit in limits if limit)
