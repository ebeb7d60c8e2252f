"""Build models by name, with the initial weights of a seed and the requested width."""

import inspect
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from math import prod
from typing import NamedTuple

import torch

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ModelError, cause, ends_process, place, unknown
from hetfl_flwr.models.bounds import MAX_INPUTS, MAX_NUMBERS
from hetfl_flwr.models.narrow import narrowed, parse_width
from hetfl_flwr.models.probing import constants, entered
from hetfl_flwr.models.registry import ZOO, ZooModel, require_known
from hetfl_flwr.models.split_model import (
    SplitModel,
    WidthBy,
    channels_last,
    mark_constant,
    parameter_count,
    widened,
)
from hetfl_flwr.models.vision import RESNETS, TORCHVISION, Stem, vision
from hetfl_flwr.seeding import seeded

LARGEST = 2**30
"""Maximum number of values in a model of the zoo: with gradients and the moments of Adam, they take 16 GiB."""


class CatalogueRow(NamedTuple):
    """A model of the zoo for given data. If it does not fit, `problem` says why, and the numbers are None."""

    name: str
    summary: str
    parameters: int | None
    width: int | None
    problem: str = ""


def build_model(
    name: str,
    spec: DataSpec,
    *,
    seed: int,
    scope: tuple[int | str, ...] = (),
    width: int = 0,
    pretrained: str = "",
    head_bias: bool = True,
    width_by: WidthBy = "linear",
    stem: Stem = "fitted",
    bounded: bool = False,
) -> SplitModel:
    """Build a model for the data, in training mode, on the CPU.

    Raises ModelError if the name is unknown, the model cannot be built, does not fit the data or would have more than
    `LARGEST` numbers, or if pretrained weights are missing. PyTorch's global generator does not change.

    Parameters
    ----------
    name : str
        A model of the zoo, or ``package.module:function``: a function that takes the DataSpec and returns a SplitModel
        or any other module that ends in a Linear. ``NAME@0.5`` has half the width, with random weights.
    spec : DataSpec
        Shape of a sample and number of classes.
    seed, scope : int, and tuple of int or str
        The run's seed, and what the weights are for, such as ``(client_id,)``: the same seed and scope give the same
        initial weights.
    width : int
        Embedding width D; 0 for the model's own. A model with another width is adapted as `width_by` sets; the weights
        of its body do not change.
    pretrained : str
        Source of the weights of torchvision's networks: ``"torchvision"``, ``"hub"`` or a folder, as in
        `pretrained.find_weights`. Other models, or all if it is empty, have random weights.
    head_bias : bool
        Whether the head has a bias. The other weights do not depend on it.
    width_by : {"linear", "pool"}
        How the width is adapted; see `widened`.
    stem : {"fitted", "imagenet"}
        The first layers of torchvision's networks for small images; see `vision.vision`.
    bounded : bool
        Whether the data were described by another machine. Then an input of more than `bounds.MAX_INPUTS` numbers, and
        a model of the zoo with more than `bounds.MAX_NUMBERS`, is rejected before any memory is allocated.

    Examples
    --------
    >>> build_model("mlp", DataSpec(shape=(1, 8, 8), classes=10), seed=0).width
    200
    >>> build_model("mlp", DataSpec(shape=(1, 8, 8), classes=10), seed=0, width=64).width
    64
    """
    base, part = parse_width(name)
    require_known(base)
    if bounded and prod(spec.shape) > MAX_INPUTS:
        raise ModelError(f"model '{name}' for {_called(spec)}: inputs have more than {MAX_INPUTS} numbers")
    if base in ZOO:
        _check_size(name, spec, width, width_by, stem, MAX_NUMBERS if bounded else LARGEST)
    with seeded(seed, *scope, "weights"):
        model = widened(_build(name, spec, pretrained if part == 1 else "", stem, seed), width, width_by)
    if not head_bias:
        model.head.register_parameter("bias", None)
    return (channels_last(model) if base in ZOO else model).train()


def catalogue_rows(spec: DataSpec) -> list[CatalogueRow]:
    """Return the size of each model of the zoo for the data.

    Examples
    --------
    >>> row = catalogue_rows(DataSpec(shape=(30,), classes=2))[1]
    >>> row.name, row.width
    ('lenet5', None)
    >>> row.problem
    'it needs images (channels, height, width); for a table use mlp, for texts lstm1, for series conv1d'
    """
    return [_row(name, model, spec) for name, model in ZOO.items()]


def _row(name: str, model: ZooModel, spec: DataSpec) -> CatalogueRow:
    try:
        with torch.device("meta"):
            built = model.build(spec)
    except ModelError as error:
        return CatalogueRow(name, model.summary, None, None, str(error))
    return CatalogueRow(name, model.summary, parameter_count(built), built.width)


@lru_cache(maxsize=256)
def _check_size(name: str, spec: DataSpec, width: int, width_by: WidthBy, stem: Stem, most: int) -> None:
    """Raise ModelError for a model of the zoo with more numbers, without allocating memory."""
    with seeded(0, "size"), torch.device("meta"):
        model = widened(_build(name, spec, "", stem, 0), width, width_by)
    numbers = sum(tensor.numel() for tensor in model.state_dict().values())
    if numbers > most:
        raise ModelError(f"model '{name}' for {_called(spec)} would have {numbers:,} weights, more than {most:,}")


def _build(name: str, spec: DataSpec, pretrained: str, stem: Stem, seed: int) -> SplitModel:
    base, part = parse_width(name)
    try:
        if base in TORCHVISION or base in RESNETS:
            model = vision(base, spec, pretrained, stem)
        else:
            model = ZOO[base].build(spec) if base in ZOO else _build_own(base, seed, spec)
        return narrowed(model, part)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a user-defined model may do anything, such as sys.exit()
        if ends_process(error):
            raise
        raise ModelError(f"model '{name}' for {_called(spec)}: {cause(error)}") from error


def _called(spec: DataSpec) -> str:
    return f"data of shape {spec.shape} and {spec.classes} classes"


Function = Callable[[DataSpec], object]

_KNOWN: dict[tuple[int, DataSpec, int], tuple[Function, dict[str, torch.Tensor]]] = {}
"""Constant buffers by the id of the function, data and seed; the function is kept so that its id is not reused."""


def _build_own(name: str, seed: int, spec: DataSpec) -> SplitModel:
    """Build a user-defined model, with the same constant buffers in all clients and on the server.

    The first one in a process is built twice, to train one of them for the check.
    """
    build = _own_function(name)
    key = id(build), spec, seed
    model = entered(build(spec), spec, known=key in _KNOWN)
    if key not in _KNOWN:
        with seeded(seed, "global", "weights"):
            _KNOWN[key] = build, constants(entered(build(spec), spec), spec)
    _, fixed = _KNOWN[key]
    for each, buffer in fixed.items():
        mark_constant(model, each)
        model.get_buffer(each).copy_(buffer)
    return model


def _own_function(name: str) -> Function:
    """Import the function of a user-defined model.

    Raises ModelError if the module cannot be imported, or has no such function with one argument.
    """
    path, _, function = name.partition(":")
    try:
        with seeded(0, "import"):  # the module may use random numbers or set seeds
            module = import_module(path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # such as SystemExit, or what pytest.importorskip raises
        if ends_process(error):
            raise
        where = f", {place(error)}" if place(error) else ""
        hint = "; install it or put its folder on PYTHONPATH" if isinstance(error, ModuleNotFoundError) else where
        raise ModelError(f"cannot import module '{path}' ({cause(error)}){hint}") from error
    if not hasattr(module, function):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == path]
        raise ModelError(unknown(f"function of module '{path}'", function, own))
    build = getattr(module, function)
    if not _takes_one_argument(build):
        raise ModelError(f"'{function}' is of type {type(build).__name__}; name a function that takes only a DataSpec")
    return build  # type: ignore[no-any-return]


def _takes_one_argument(build: object) -> bool:
    """Return whether an object can be called with one argument; False for functions in C, such as `os.abort`."""
    try:
        inspect.signature(build).bind(None)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return not inspect.isbuiltin(build)
