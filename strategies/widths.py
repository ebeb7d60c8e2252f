"""The parts of HeteroFL's global model: payloads of their weights, and layers whose outputs are scaled.

Diao, Ding and Tarokh, "HeteroFL", ICLR 2021 (arXiv 2010.01264).
"""

from collections.abc import Sequence

from torch import nn

from hetfl_flwr import ArraySpec, Dim, PayloadSpec, SplitModel, weights


def part_weights(model: SplitModel) -> PayloadSpec:
    """Declare the weights of a part of the network, without the statistics of batch norm, which stay on the client."""
    trained = {name for name, _ in model.named_parameters()}
    return PayloadSpec(tuple(one for one in weights(model).arrays if one.name in trained))


def down(part: PayloadSpec) -> PayloadSpec:
    """Declare the download: ``rate`` (), the client's part of the global model's width, and the weights."""
    return PayloadSpec((ArraySpec("rate", (), "float32", minimum=1e-4, maximum=1),)) + part


def up(part: PayloadSpec, classes: int, *, mask: bool) -> PayloadSpec:
    """Declare the upload: the trained weights, and with `mask` which classes the client has, (C,), 1 or 0."""
    has = ArraySpec("classes", (classes,), "uint8", minimum=0, maximum=1, sensitive=True)
    return PayloadSpec((has,)) + part if mask else part


def leading_block(shape: Sequence[int | Dim]) -> tuple[slice, ...]:
    """Return the block of a global weight that corresponds to a part's weight of this shape."""
    return tuple(slice(size) for size in shape if isinstance(size, int))


def scaled_parameters(body: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of the layers with scaled outputs, by name; shared parameters only once."""
    layers = [layer for layer in body.modules() if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)]
    own = {parameter for layer in layers for parameter in layer.parameters(recurse=False)}
    return {name: parameter for name, parameter in body.named_parameters() if parameter in own}
