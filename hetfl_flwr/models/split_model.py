"""Models as body and head: the body maps inputs to features (B, D), and the head maps features to logits (B, C)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Literal

import torch
from torch import nn

from hetfl_flwr.data import DataSpec
from hetfl_flwr.errors import ModelError, cause, unknown
from hetfl_flwr.seeding import seeded

WidthBy = Literal["linear", "pool"]
"""How the embedding width of a model is changed; see `widened`."""


class SplitModel(nn.Module):
    """A model that consists of a body and a linear head.

    Parameters
    ----------
    body : nn.Module
        The module that maps inputs (B, ...) to features (B, D).
    head : nn.Linear
        The layer that maps features (B, D) to logits (B, C).

    Raises
    ------
    ModelError
        If the head is not a Linear.

    Examples
    --------
    >>> model = SplitModel(nn.Flatten(), nn.Linear(64, 10))
    >>> model.width, model.classes, model(torch.zeros(2, 1, 8, 8)).shape
    (64, 10, torch.Size([2, 10]))
    """

    body: nn.Module
    head: nn.Linear

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        if not isinstance(head, nn.Linear):
            raise ModelError(
                f"the head is of type {type(head).__name__}, not a torch.nn.Linear: put the layers before the last one "
                "into the body"
            )
        super().__init__()
        self.body = body
        self.head = head

    @property
    def width(self) -> int:
        """Number of features D that the body returns."""
        return self.head.in_features

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return self.head.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, C) of inputs (B, ...)."""
        logits: torch.Tensor = self.head(self.body(x))
        return logits


def parameter_count(model: nn.Module) -> int:
    """Return the number of parameters of a model, without buffers such as the running means of batch norm.

    Examples
    --------
    >>> parameter_count(nn.Linear(64, 10))
    650
    """
    return sum(weight.numel() for weight in model.parameters())


def trainable_count(model: nn.Module) -> int:
    """Return the number of trainable parameters of a model."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a model has batch norm, which needs at least two samples in a batch.

    Examples
    --------
    >>> has_batch_norm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    True
    """
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())


def split(module: nn.Module, head: str | None = None, *, spec: DataSpec | None = None) -> SplitModel:
    """Split a copy of a module that ends in a Linear into body and head.

    The body is the module with its head replaced by the identity, so that it keeps its own ``forward``.

    Parameters
    ----------
    module : nn.Module
        A module from inputs to logits that ends in a Linear. It is not changed.
    head : str, optional
        The name of that layer, as in ``module.named_modules()``. Default: the last registered Linear.
    spec : DataSpec, optional
        The specification of the data. If given, two random samples are used to check that ``head(body(x))`` equals
        ``module(x)`` exactly, in evaluation and in training mode, with large weights in the head. Otherwise the split
        is not checked.

    Raises
    ------
    ModelError
        If there is no such Linear, the module does not fit the data, it is not deterministic under a seed, or another
        operation follows the head.

    Examples
    --------
    >>> model = split(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> model.width, model.head
    (8, Linear(in_features=8, out_features=3, bias=True))
    """
    linears = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not linears:
        raise ModelError(f"{type(module).__name__} has no Linear layer that could be its head; end it with one")
    if head is not None and head not in linears:
        raise ModelError(unknown(f"Linear layer of {type(module).__name__}", head, linears))
    name = linears[-1] if head is None else head
    model = cut(deepcopy(module), name)
    if spec is not None and not ends_in_head(module, name, model, spec):
        raise ModelError(
            f"Linear layer '{name}' is not the last step of {type(module).__name__}: name the last one with "
            f"split(module, NAME, spec=spec), with no operation after it. Linear layers: {', '.join(linears)}"
        )
    return model


def widened(model: SplitModel, width: int, by: WidthBy = "linear") -> SplitModel:
    """Return a model with another embedding width: the same body, one or two more layers, and a new head with bias.

    With width 0, or the model's own, the model itself is returned. "linear" adds a Linear and a ReLU. "pool" adds an
    average pooling without parameters (`torch.nn.AdaptiveAvgPool1d`): feature j is the mean of the body's features from
    floor(j D / width) to ceil((j + 1) D / width) - 1, where D is the body's width; features of a narrower body are
    repeated. HtFLlib (Zhang et al., KDD 2025) gives all models the same width in this way.

    Examples
    --------
    >>> widened(SplitModel(nn.Flatten(), nn.Linear(64, 10)), 3).width
    3
    >>> model = widened(SplitModel(nn.Flatten(), nn.Linear(4, 10)), 2, "pool")
    >>> model.body(torch.tensor([[1.0, 3.0, 5.0, 9.0]]))
    tensor([[2., 7.]])
    """
    if width in (0, model.width):
        return model
    layers = [nn.AdaptiveAvgPool1d(width)] if by == "pool" else [nn.Linear(model.width, width), nn.ReLU()]
    return SplitModel(nn.Sequential(model.body, *layers), nn.Linear(width, model.classes))


def channels_last(model: SplitModel) -> SplitModel:
    """Let a model's convolutions use the memory format channels last, which is faster for many networks on a CPU.

    It makes a training step of the zoo's larger networks faster by a fifth to a half, and has no effect on LeNet-5
    (measured at 0a31836). Parameters and shapes do not change: the first convolution converts its input, and the layers
    after it keep the format. A module that calls ``view`` on such images would fail, so use this only for the zoo.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_pre_hook(_lay_out)
            break
    return model


def _lay_out(layer: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    (images,) = inputs
    if images.device.type != "cpu" or images.dim() != 4:
        return inputs
    _, channels, height, width = images.shape
    if channels == 1 and images.is_contiguous():  # the bytes are the same in both formats: torch keeps the strides
        return (images.as_strided(images.shape, (height * width, 1, width, 1)),)
    return (images.contiguous(memory_format=torch.channels_last),)


def cut(module: nn.Module, name: str) -> SplitModel:
    """Split a module in place: the named linear layer becomes the head, and the rest, with an identity, the body."""
    if isinstance(module, nn.Linear):
        return SplitModel(nn.Identity(), module)
    head = module.get_submodule(name)
    assert isinstance(head, nn.Linear)
    module.set_submodule(name, nn.Identity())
    return SplitModel(module, head)


def constant_buffers(model: nn.Module) -> set[str]:
    """Return the names of the buffers that `mark_constant` has marked as constant."""
    layers = model.named_modules(remove_duplicate=False)
    return {f"{path}.{name}" if path else name for path, layer in layers for name in getattr(layer, MARK, ())}


def mark_constant(model: nn.Module, name: str) -> None:
    """Mark a buffer as constant in training: it is not sent. Copies of the layer keep the mark."""
    path, _, own = name.rpartition(".")
    layer = model.get_submodule(path)
    setattr(layer, MARK, {*getattr(layer, MARK, ()), own})


@contextmanager
def constants_held(models: Iterable[nn.Module]) -> Iterator[None]:
    """Restore constant buffers at the end of a ``with`` block, and raise ModelError if training in it changed one."""
    before = [(model, name, model.get_buffer(name).clone()) for model in models for name in constant_buffers(model)]
    yield
    changed = [one for one in before if not torch.equal(one[0].get_buffer(one[1]), one[2])]
    for model, name, value in changed:
        path, _, own = name.rpartition(".")
        setattr(model.get_submodule(path), own, value)
    if changed:
        raise ModelError(
            f"training changed '{changed[0][1]}' in the state, which its first two batches do not change, so it "
            "is treated as constant and not sent: update it in every batch, or keep it out of the state"
        )


MARK = "_hetfl_constant_buffers"
"""Attribute of a layer with the names of its constant buffers."""


def logits_of(module: nn.Module, spec: DataSpec, size: int = 2) -> torch.Tensor:
    """Return the logits (size, C) of random samples, the same samples in each call.

    Raises ModelError if the module fails on them, or returns anything else.
    """
    name, shape = type(module).__name__, (size, *spec.shape)
    try:
        with seeded(0, "samples"):
            samples = torch.randint(spec.vocabulary, shape) if spec.kind == "text" else torch.randn(shape)
        logits = module(samples)
    except Exception as error:
        raise ModelError(f"{name} does not accept a batch of shape {shape}: {cause(error)}") from error
    if isinstance(logits, torch.Tensor) and logits.shape == (size, spec.classes):
        return logits
    given = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    count, wanted = f"{size} sample{'s' * (size > 1)}", (size, spec.classes)
    raise ModelError(f"{name} gives {given} for {count}; {spec.classes} classes need logits {wanted}")


def ends_in_head(module: nn.Module, head: str, model: SplitModel, spec: DataSpec) -> bool:
    """Return whether a module equals its parts, in evaluation and training mode, with large weights in the head.

    Raises ModelError if the module is not deterministic under a seed.
    """

    def logits(of: nn.Module, name: str, training: bool, factor: int) -> torch.Tensor:
        with torch.no_grad():
            copy = deepcopy(of)
            copy.train(training)
            for weight in copy.get_submodule(name).parameters():
                weight.mul_(factor)
            with seeded(0, "probe"):
                return logits_of(copy, spec)

    for training in (False, True):
        for factor in (2**10, -(2**10)):
            expected = logits(module, head, training, factor)
            try:
                same = torch.equal(logits(model, "head", training, factor), expected)
            except ModelError:
                same = False
            if not same and not torch.equal(logits(module, head, training, factor), expected):
                raise ModelError("it returns other logits when called again: use only the global random generators")
            if not same:
                return False
    return True
