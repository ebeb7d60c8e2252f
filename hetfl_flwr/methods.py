"""Finds the two sides of an algorithm by naming convention; there is no list of algorithms.

``fedhe`` is ``strategies.fedhe.FedHe`` and ``clients.fedhe.FedHeClient``. A name outside this project, such as
``my_pkg.moments`` (or ``moments``), is ``my_pkg.moments.strategy.Moments`` and
``my_pkg.moments.client.MomentsClient``. The name of a class is the last part of the algorithm's name, ignoring case
(plus ``Client`` for the client side).

An algorithm that has a class for each mode defines a mapping ``MODES`` in both modules, from the values of its key
``mode`` to the classes. The first class is the default, and is named by the convention above.
"""

import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from hetfl_flwr.common.packages import own_package
from hetfl_flwr.config import AUTO, AUTO_MODELS, FIT, KEYS, RunConfig, Value, one_model, write_algorithm_options
from hetfl_flwr.errors import ConfigError, cause, place, unknown
from hetfl_flwr.seeding import seeded

if TYPE_CHECKING:
    from hetfl_flwr.client import KnowledgeClient
    from hetfl_flwr.strategy import KnowledgeStrategy

BASE = "base_"
"""Prefix of modules in ``strategies`` and ``clients`` with base classes of several algorithms."""


@dataclass(frozen=True)
class Algorithm:
    """An algorithm's name, as in the run config, and its two sides, those of the default mode if it has modes.

    ``modes`` maps the values of the key ``mode`` to the sides in each mode; it is empty if modes have no classes of
    their own.
    """

    name: str
    strategy: type["KnowledgeStrategy"]
    client: type["KnowledgeClient"]
    modes: Mapping[str, "Algorithm"] = field(default_factory=dict)

    @property
    def sides(self) -> list[type[Any]]:
        """All classes: the server sides of all modes, then the client sides."""
        kinds = self.modes.values() or [self]
        return [one.strategy for one in kinds] + [one.client for one in kinds]

    @property
    def defaults(self) -> dict[str, Value]:
        """The algorithm's own keys (with dashes) and their defaults."""
        mode = dict[str, Value](mode=next(iter(self.modes))) if self.modes else {}
        return mode | {
            name.replace("_", "-"): parameter.default
            for side in self.sides
            for name, parameter in _hyper_parameters(side).items()  # type: ignore[arg-type]  # classes can be hashed
        }

    @property
    def options(self) -> dict[str, Value]:
        """The same keys as in `RunConfig.options`, such as ``fedhe.alpha``, and their defaults."""
        return {f"{self.name}.{key}": value for key, value in self.defaults.items()}


def names() -> list[str]:
    """Return the sorted names of this project's algorithms: modules with both sides, without base classes."""
    return list(_names())


@cache
def _names() -> tuple[str, ...]:
    servers, clients = (
        {module.name for module in pkgutil.iter_modules(own_package(side).__path__)}
        for side in ("strategies", "clients")
    )
    return tuple(sorted(name for name in servers & clients if not name.startswith(BASE)))


def for_heterogeneous_models() -> list[str]:
    """Return the names of this project's algorithms whose clients may have different models."""
    return [name for name in names() if find(name).strategy.heterogeneous]


def for_flower(config: RunConfig) -> dict[str, Value]:
    """Return all keys in the form of ``flwr run -c``: options of external algorithms are in ``algorithm-options``."""
    flat, prefix = config.to_flat(), f"{config.algorithm}."
    if config.algorithm in names():
        return flat
    own = {key.removeprefix(prefix): value for key, value in flat.items() if key.startswith(prefix)}
    return {key: flat[key] for key in flat if not key.startswith(prefix)} | {
        "algorithm-options": write_algorithm_options(own)
    }


def resolve_models(config: RunConfig) -> RunConfig:
    """Return the config with ``models`` and ``width`` resolved; a config that sets both is returned unchanged.

    ``auto`` becomes models for the kind of data, heterogeneous ones if the algorithm allows them. A width of 0 becomes
    the width that the algorithm requires. Raises `ConfigError` if ``auto`` cannot be resolved, because a data set does
    not exist or the listed data sets are of different kinds.
    """
    strategy, settled = chosen(config).strategy, dict[str, object]()
    if config.models == FIT and not (config.fit_seconds or config.fit_memory):
        raise ConfigError("models = fit: set fit-seconds or fit-memory, the limits for training a model")
    if open_key := "models" if config.models == AUTO else "fit_models" if config.candidates == "" else "":
        from hetfl_flwr.data import kind_of

        kind = kind_of(config.dataset, config.reading)
        one = one_model(kind)
        widths = f"{one},{one}@0.5" if strategy.parts and kind != "text" else one
        settled[open_key] = AUTO_MODELS[kind] if strategy.heterogeneous else widths
    if config.width == 0 and strategy.width > 0:
        settled["width"] = strategy.width
    return config.model_copy(update=settled) if settled else config


def resolve(config: RunConfig) -> RunConfig:
    """Return the config with the algorithm's defaults resolved: its own keys, ``models`` and ``width``.

    The config is always checked, and returned unchanged if nothing is left to resolve. Raises the errors of
    `check_options` and `resolve_models`.
    """
    check_options(config)
    own = find(config.algorithm).options
    options = own | {key: value for key, value in config.options.items() if key in own}
    return resolve_models(config if options == config.options else config.model_copy(update={"options": options}))


@cache
def find(name: str) -> Algorithm:
    """Find an algorithm by name.

    Raises `ConfigError` if the name is unknown, a module lacks the class that the convention requires, or a constructor
    has an option that cannot be a config key.
    """
    own = names()
    if name in own:
        strategy, client = f"strategies.{name}", f"clients.{name}"
    elif all(part.isidentifier() for part in name.split(".")) and name.split(".")[0] not in sys.stdlib_module_names:
        strategy, client = f"{name}.strategy", f"{name}.client"
    else:
        raise ConfigError(unknown("algorithm", name, own))
    servers = _module(strategy, None if "." in name else ConfigError(unknown("algorithm", name, own)))
    last = name.rpartition(".")[2]
    server_side = _class_named(servers, last)
    clients = _module(client)
    algorithm = Algorithm(name, server_side, _class_named(clients, f"{last}client"), _modes(name, servers, clients))
    for one in algorithm.modes.values() or [algorithm]:
        _check_keywords(one.strategy, given=0)
        _check_keywords(one.client, given=1)  # its node
    _check_defaults(algorithm)
    return algorithm


def _check_keywords(side: type[Any], given: int) -> None:
    """Raise a `ConfigError` if a constructor has an option that is not keyword-only, or lacks a type or a default.

    The first `given` parameters are passed by the caller, and may be positional.
    """
    empty, called = inspect.Parameter.empty, f"{side.__module__}.{side.__qualname__}"
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for number, (name, parameter) in enumerate(inspect.signature(side).parameters.items()):
        if parameter.kind in positional and (parameter.default is not empty or number >= given):
            raise ConfigError(
                f"{called}: constructor argument '{name}' is not keyword-only, so it cannot be set: write '*, {name}'"
            )
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and empty in (parameter.annotation, parameter.default):
            raise ConfigError(
                f"{called}: constructor argument '{name}' needs a type and a default, such as '{name}: float = 0.5'"
            )


def _check_defaults(algorithm: Algorithm) -> None:
    """Raise a `ConfigError` if two sides have different defaults for the same option."""
    known: dict[str, tuple[object, type[Any]]] = {}
    for side in algorithm.sides:
        for name, parameter in _hyper_parameters(side).items():  # type: ignore[arg-type]  # as above
            value, other = known.setdefault(name, (parameter.default, side))
            if value != parameter.default:
                raise ConfigError(
                    f"{algorithm.name}: the default of '{name}' is {value!r} in {other.__qualname__} and "
                    f"{parameter.default!r} in {side.__qualname__}: use one default, or different names"
                )


def chosen(config: RunConfig) -> Algorithm:
    """Return the algorithm of a run config, in its mode.

    Raises the errors of `find`, and `ConfigError` if there is no such mode.
    """
    algorithm = find(config.algorithm)
    if not algorithm.modes:
        return algorithm
    mode = config.options_of(config.algorithm).get("mode", next(iter(algorithm.modes)))
    if mode not in algorithm.modes:
        known = " or ".join(map(repr, algorithm.modes))
        raise ConfigError(f"{config.algorithm}.mode = {mode!r}: input should be {known}")
    return algorithm.modes[str(mode)]


def build_strategy(config: RunConfig) -> "KnowledgeStrategy":
    """Build the server side with its hyperparameters from the run config."""
    with seeded(config.seed, "strategy"):
        strategy: KnowledgeStrategy = _build(config, chosen(config).strategy)
    strategy.config = config
    if config.robust != "none" and strategy.exchanges and not strategy.averages:
        raise ConfigError(
            f"robust = {config.robust}: {config.algorithm} averages no uploads with these settings: set "
            f"{config.algorithm}.mode to sync, or robust to none"
        )
    return strategy


def build_client(config: RunConfig, node: Any) -> "KnowledgeClient":
    """Build the client side on a `Node`, with its hyperparameters from the run config."""
    side = chosen(config).client
    _typed(config, side)  # report invalid options before the node is used
    with seeded(config.seed, node.client_id, "client"):
        client: KnowledgeClient = _build(config, side, node)
    return client


def check_options(config: RunConfig) -> None:
    """Check every ``name.key`` of a run config: the algorithm exists, has the key, and the value is valid.

    Raises `ConfigError`, which names the key and, if it is unknown, the nearest valid one.
    """
    for key in config.options:
        name, _, own = key.rpartition(".")
        known = find(name).options
        if key not in known:
            if own in KEYS:
                raise ConfigError(f"unknown config key '{key}': {own} is a key of the run: use --set {own}=VALUE")
            raise ConfigError(unknown("config key", key, known or ["(none)"]))
    for side in find(config.algorithm).sides:
        _typed(config, side)
    if config.pooled:
        config.split(1)  # raises ConfigError if the rows to combine have different columns
    _check_capable(config, chosen(config))


def _check_capable(config: RunConfig, algorithm: Algorithm) -> None:
    """Raise a `ConfigError` for keys of the run that the algorithm's classes do not support."""
    able: dict[str, tuple[object, object, Callable[[Algorithm], bool]]] = {
        "robust": (config.robust, "none", lambda one: one.strategy.averages or not one.strategy.exchanges),
        "fine-tune-epochs": (
            config.fine_tune_epochs,
            0,
            lambda one: one.client.fine_tunes or not one.strategy.exchanges,
        ),
        "pooled": (config.pooled, False, lambda one: not one.strategy.exchanges),
        "features": (config.features, "all", lambda one: one.strategy.sharing is None),
        "models": (
            FIT if config.models == FIT else AUTO,
            AUTO,
            lambda one: one.strategy.heterogeneous or bool(one.strategy.parts),
        ),
        "projection": (config.projection, "none", lambda one: one.client.has_distillation_term),
    }
    for key, (value, default, can) in able.items():
        if value != default and not can(algorithm):
            others = ", ".join(name for name in names() if can(find(name)))
            own = f", which has {config.algorithm}.{key}" if key in algorithm.defaults else ""
            raise ConfigError(f"{key} = {value} is not supported by {config.algorithm}{own}, only by {others}")


def _module(path: str, absent: ConfigError | None = None) -> ModuleType:
    """Import a module of an algorithm; if it is missing, raise the given error, or one that names the module."""
    try:
        return import_module(path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # such as SystemExit, or what pytest.importorskip raises
        if isinstance(error, ModuleNotFoundError) and f"{path}.".startswith(f"{error.name}."):
            gone = ConfigError(f"algorithm module '{path}' not found: no module named '{error.name}'")
            raise absent or gone from None
        where = f" ({place(error)})" if place(error) else ""
        raise ConfigError(f"algorithm module '{path}' cannot be imported: {cause(error)}{where}") from error


def _class_named(module: ModuleType, name: str) -> type[Any]:
    wanted = name.replace("_", "").lower()
    for attribute, value in vars(module).items():
        if inspect.isclass(value) and attribute.lower() == wanted:
            return value
    own = [one.__name__ for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__]
    there = f": it has {', '.join(own)}" if own else ""
    raise ConfigError(f"algorithm module '{module.__name__}' has no class named '{wanted}' (case is ignored){there}")


def _modes(name: str, servers: ModuleType, clients: ModuleType) -> dict[str, Algorithm]:
    """Return the sides in each mode, from ``MODES`` in the two modules."""
    strategies, others = (_modes_of(module) for module in (servers, clients))
    if list(strategies) != list(others):
        raise ConfigError(
            f"algorithm modules '{servers.__name__}' and '{clients.__name__}' differ in MODES: "
            f"{', '.join(strategies) or 'none'} and {', '.join(others) or 'none'}; use the same modes"
        )
    return {mode: Algorithm(name, strategies[mode], others[mode]) for mode in strategies}


def _modes_of(module: ModuleType) -> Mapping[str, type[Any]]:
    modes = vars(module).get("MODES", {})
    if not isinstance(modes, Mapping) or not all(
        isinstance(mode, str) and inspect.isclass(side) for mode, side in modes.items()
    ):
        raise ConfigError(f"algorithm module '{module.__name__}': MODES must be a mapping from names to classes")
    return modes


@cache
def _hyper_parameters(side: Any) -> Mapping[str, inspect.Parameter]:
    return {
        name: parameter
        for name, parameter in inspect.signature(side, eval_str=True).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


@cache
def _adapters(side: Any) -> Mapping[str, TypeAdapter[object]]:
    return {
        name: TypeAdapter(parameter.annotation, config=ConfigDict(strict=True))
        for name, parameter in _hyper_parameters(side).items()
    }


def _typed(config: RunConfig, side: type[Any]) -> dict[str, object]:
    given = config.options_of(config.algorithm)
    typed: dict[str, object] = {}
    for name, adapter in _adapters(side).items():  # type: ignore[arg-type]
        if name not in given:
            continue
        try:
            typed[name] = adapter.validate_python(given[name])
        except ValidationError as error:
            key = f"{config.algorithm}.{name.replace('_', '-')}"
            raise ConfigError(f"{key} = {given[name]!r}: {error.errors()[0]['msg'].lower()}") from None
    return typed


def _build(config: RunConfig, side: type[Any], *args: object) -> Any:
    try:
        return side(*args, **_typed(config, side))
    except ConfigError as error:
        if str(error).partition(" = ")[0] in _hyper_parameters(side):  # type: ignore[arg-type]
            raise ConfigError(f"{config.algorithm}.{error}") from None
        raise
    except ValueError as error:
        raise ConfigError(f"{config.algorithm}: {error}") from None
