"""Narrow networks: the same layers as a model, with the leading part of the channels of each layer.

Diao, Ding and Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021: a client of complexity level p has the leading ``r^(p - 1)`` of the channels of the global model.
"""

from fractions import Fraction

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hetfl_flwr.errors import ModelError
from hetfl_flwr.models.split_model import SplitModel

SIGN = "@"
"""The separator between a model's name and the part of its width, as in ``lenet5@0.5``."""


def parse_width(name: str) -> tuple[str, Fraction]:
    """Split the name of a model into the full model's name and the part of its width.

    Parameters
    ----------
    name : str
        The name of a model, with or without a part of its width, such as ``"lenet5@0.5"``.

    Returns
    -------
    tuple of str and Fraction
        The name of the full model, and the part of its width, above 0 and at most 1.

    Raises
    ------
    ModelError
        If the text after ``@`` is not such a number.

    Examples
    --------
    >>> parse_width("lenet5"), parse_width("cnn2@0.25")
    (('lenet5', Fraction(1, 1)), ('cnn2', Fraction(1, 4)))
    """
    base, sign, text = name.partition(SIGN)
    if not sign:
        return name, Fraction(1)
    plain = text.isascii() and text.replace(".", "", 1).isdigit() and len(text) <= 12
    part = Fraction(text) if plain else Fraction(0)
    if not 0 < part <= 1:
        raise ModelError(f"model '{name}': expected a part of the width, above 0 and at most 1, such as {base}@0.5")
    return base, part


def network_of(name: str) -> str:
    """Return the name of the full model, without checking the part of the width.

    Examples
    --------
    >>> network_of("cnn2@0.25")
    'cnn2'
    """
    return name.partition(SIGN)[0]


def narrowed(model: SplitModel, part: Fraction) -> SplitModel:
    """Reduce each layer of a model to a part of its channels, in place; inputs and classes do not change.

    A narrow weight has the shape of the leading part of the wide weight in each dimension. A wide model with all other
    weights 0 computes the same function, if channels keep their order from layer to layer, as in a chain or a ResNet.

    Layers with weights may be linear, one- and two-dimensional convolutions (with one group, or one per channel) and
    batch norm, and the first of them takes the inputs. New weights are initialized as PyTorch does. With `part` 1, the
    model does not change. Raises ModelError for other layers, or if a layer's number of channels has no such part.

    Examples
    --------
    >>> body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
    >>> narrowed(SplitModel(body, nn.Linear(8, 3)), Fraction(1, 4))
    SplitModel(
      (body): Sequential(
        (0): Flatten(start_dim=1, end_dim=-1)
        (1): Linear(in_features=64, out_features=2, bias=True)
        (2): ReLU()
      )
      (head): Linear(in_features=2, out_features=3, bias=True)
    )
    """
    if part == 1:
        return model
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if any(True for _ in layer.parameters(recurse=False)) or any(True for _ in layer.buffers(recurse=False))
    }
    if list(layers) == ["head"]:
        raise ModelError(f"it cannot be narrowed: its body ({type(model.body).__name__}) has no weights")
    if len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False))):
        raise ModelError("it cannot be narrowed: its layers share a weight")
    for number, (name, layer) in enumerate(layers.items()):
        _narrow(layer, _Part(part, f"layer '{name}'"), takes_inputs=number == 0, is_head=layer is model.head)
    return model


class _Part:
    """A part of the width, for the channels of one layer."""

    def __init__(self, part: Fraction, where: str) -> None:
        self.part, self.where = part, where

    def of(self, channels: int) -> int:
        """Return this part of a number of channels; raise ModelError if it is not a whole number."""
        some = channels * self.part
        if some.denominator != 1:
            raise ModelError(f"{self.where} has {channels} channels: {float(self.part):g} of it is not a whole number")
        return int(some)


def _narrow(layer: nn.Module, part: _Part, *, takes_inputs: bool, is_head: bool) -> None:
    if isinstance(layer, nn.Linear):
        layer.in_features = layer.in_features if takes_inputs else part.of(layer.in_features)
        layer.out_features = layer.out_features if is_head else part.of(layer.out_features)
        shape: tuple[int, ...] = (layer.out_features, layer.in_features)
    elif isinstance(layer, nn.Conv1d | nn.Conv2d) and layer.groups in (1, layer.in_channels):
        layer.groups = part.of(layer.groups) if layer.groups > 1 else 1
        layer.in_channels = layer.in_channels if takes_inputs else part.of(layer.in_channels)
        layer.out_channels = part.of(layer.out_channels)
        shape = (layer.out_channels, layer.in_channels // layer.groups, *layer.kernel_size)
    elif isinstance(layer, _BatchNorm):
        layer.num_features = part.of(layer.num_features)
        shape = (layer.num_features,)
        for name in ("running_mean", "running_var"):
            if getattr(layer, name, None) is not None:
                setattr(layer, name, getattr(layer, name).new_empty(shape))
    else:
        kind = type(layer).__name__
        raise ModelError(f"{part.where} is a {kind}, and only Linear, Conv1d, Conv2d and BatchNorm can be narrowed")
    if layer.weight is not None:
        layer.weight = _resized(layer.weight, shape)
    if layer.bias is not None:
        layer.bias = _resized(layer.bias, shape[:1])
    layer.reset_parameters()


def _resized(parameter: Tensor, shape: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(parameter.new_empty(shape), parameter.requires_grad)
