"""A model as body and head: the body maps inputs to features (B, D), the head maps those to logits (B, C)."""

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
"""How a model gets another embedding width: see `widened`."""


class SplitModel(nn.Module):
    """A model made of a body and a linear head.

    Parameters
    ----------
    body : nn.Module
        Maps inputs (B, ...) to features (B, D).
    head : nn.Linear
        Maps features (B, D) to logits (B, C).

    Raises
    ------
    ModelError
        The head is no Linear.

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
        """Number of features D that the body gives."""
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
    """Return the number of weights of a model, without buffers such as the running means of batch norm.

    Examples
    --------
    >>> parameter_count(nn.Linear(64, 10))
    650
    """
    return sum(weight.numel() for weight in model.parameters())


def trainable_count(model: nn.Module) -> int:
    """Return the number of weights of a model that training changes."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a layer of a model is normed over the batch, which takes two samples at once.

    Examples
    --------
    >>> has_batch_norm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    True
    """
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())


def split(module: nn.Module, head: str | None = None, *, spec: DataSpec | None = None) -> SplitModel:
    """Split a copy of any module whose last layer is a Linear into body and head.

    The body is the module with its head replaced by the identity, so its own ``forward`` is kept.

    Parameters
    ----------
    module : nn.Module
        Maps inputs to logits, the last step being a Linear. It is left as it is.
    head : str, optional
        Name of that layer, as in ``module.named_modules()``. Default: the last Linear registered.
    spec : DataSpec, optional
        The data. With it, two random samples are run to see that ``head(body(x))`` is exactly ``module(x)``, in
        evaluation and in training, with large weights of the head; without it there is nothing to run, and the
        split is taken on trust.

    Raises
    ------
    ModelError
        If there is no such Linear, the module does not fit the data or does not repeat itself under a seed, or another
        step follows the head.

    Examples
    --------
    >>> model = split(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> model.width, model.head
    (8, Linear(in_features=8, out_features=3, bias=True))
    """
    linears = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not linears:
        raise ModelError(f"{type(module).__name__} has no Linear layer to be its head; end it with one")
    if head is not None and head not in linears:
        raise ModelError(unknown(f"Linear layer of {type(module).__name__}", head, linears))
    name = linears[-1] if head is None else head
    model = cut(deepcopy(module), name)
    if spec is not None and not ends_in_head(module, name, model, spec):
        raise ModelError(
            f"Linear layer '{name}' is not the last step of {type(module).__name__}: name the one that is, "
            f"split(module, NAME, spec=spec), and let nothing follow it. Linear layers: {', '.join(linears)}"
        )
    return model


def widened(model: SplitModel, width: int, by: WidthBy = "linear") -> SplitModel:
    """Return a model of an embedding width: the body, one or two layers behind it, and a new head with bias.

    Parameters
    ----------
    model : SplitModel
        Its body is used, not copied; its head is not used.
    width : int
        Embedding width of the result. 0, or the model's own: the model as it is.
    by : {"linear", "pool"}
        "linear": a Linear and a ReLU. "pool": an average pooling, of which nothing is learnt. Feature j of the result
        is the mean of the body's features from floor(j D / width) to ceil((j + 1) D / width) - 1, where D is the body's
        width (`torch.nn.AdaptiveAvgPool1d`); a body that is narrower has its features repeated. HtFLlib (Zhang et al.,
        KDD 2025) gives all models one width in this way.

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
    """Let a model's convolutions have images with channels last in memory, which many are faster with on a CPU.

    A training step of the zoo's larger networks gains a fifth to a half, one of LeNet-5 nothing (measured at 0a31836).
    Parameters and shapes stay as they are; the first convolution lays its input out again, and all behind it follow. A
    module that calls ``view`` on such images would fail, so it is for the zoo's own.
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
    if channels == 1 and images.is_contiguous():  # either layout is the same bytes, so torch would keep the old strides
        return (images.as_strided(images.shape, (height * width, 1, width, 1)),)
    return (images.contiguous(memory_format=torch.channels_last),)


def cut(module: nn.Module, name: str) -> SplitModel:
    """Take a module apart: its linear layer of that name becomes the head, the rest, with no layer there, the body."""
    if isinstance(module, nn.Linear):
        return SplitModel(nn.Identity(), module)
    head = module.get_submodule(name)
    assert isinstance(head, nn.Linear)
    module.set_submodule(name, nn.Identity())
    return SplitModel(module, head)


def constant_buffers(model: nn.Module) -> set[str]:
    """Return the names of the buffers that training does not change, as `mark_constant` has marked them."""
    layers = model.named_modules(remove_duplicate=False)
    return {f"{path}.{name}" if path else name for path, layer in layers for name in getattr(layer, MARK, ())}


def mark_constant(model: nn.Module, name: str) -> None:
    """Mark a buffer as one that training does not change: it stays where it is, and copies of the layer know it."""
    path, _, own = name.rpartition(".")
    layer = model.get_submodule(path)
    setattr(layer, MARK, {*getattr(layer, MARK, ()), own})


@contextmanager
def constants_held(models: Iterable[nn.Module]) -> Iterator[None]:
    """Refuse training, in the body of a ``with``, that changes a buffer marked as constant; it is put back."""
    before = [(model, name, model.get_buffer(name).clone()) for model in models for name in constant_buffers(model)]
    yield
    changed = [one for one in before if not torch.equal(one[0].get_buffer(one[1]), one[2])]
    for model, name, value in changed:
        path, _, own = name.rpartition(".")
        setattr(model.get_submodule(path), own, value)
    if changed:
        raise ModelError(
            f"training changed '{changed[0][1]}' of the state, which its first two batches do not change, so it "
            "is taken as constant and not sent: update it in every batch, or keep it out of the state"
        )


MARK = "_hetfl_constant_buffers"
"""Attribute of a layer: the names of its buffers that training does not change."""


def logits_of(module: nn.Module, spec: DataSpec, size: int = 2) -> torch.Tensor:
    """Return the logits (size, C) of samples of noise, the same in each call.

    Raises
    ------
    ModelError
        The module does not take them, or gives something else.
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
    """Return whether a module gives the logits of its parts, in evaluation and in training, with large head weights."""

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
                raise ModelError("it gives other logits when it is called again: draw from global generators alone")
            if not same:
                return False
    return True
